/* Other systems' configs: what several of them share, torchtitan, OLMo and Hugging Face, and the table of systems. */
#include "convert_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what several share --------------------------------------------------------------------------- */
err convert_min_lr(convert_source *s, const char *key, double lr) {
    double least = convert_take_number(s, key);
    if (isnan(least)) return convert_default(s, "lr_scheduler.min_lr_factor", "0");
    return lr > 0 ? convert_set_number(s, key, "lr_scheduler.min_lr_factor", least / lr) : OK;
}

err convert_widths(convert_source *s, double dim, double heads, double head_dim, double kv_heads,
                   double ffn) {
    if (isnan(head_dim) && heads > 0) head_dim = dim / heads;
    TRY(convert_set_number(s, "head width", "model.head_dim", head_dim));
    TRY(convert_set_number(s, "key/value heads", "model.kv_heads",
                           isnan(kv_heads) ? heads : kv_heads));
    return convert_set_number(s, "feed-forward width", "model.ffn_dim", isnan(ffn) ? 4 * dim : ffn);
}

err convert_vocab(convert_source *s, double vocab, double multiple) {
    return convert_set_number(s, "vocab_size", "model.vocab_size",
                              ceil(vocab / multiple) * multiple);
}

err convert_length(convert_source *s, const char *key, double steps, double decay, double per_step,
                   const char *unit) {
    if (isnan(decay)) decay = steps;
    if (decay < steps)
        TRY(convert_set_amount(s, key, "lr_scheduler.length", decay * per_step, unit));
    TRY(convert_set_amount(s, key, "training.steps", MAX(decay, steps) * per_step, unit));
    return decay > steps ? convert_set_amount(s, key, "training.stop", steps * per_step, unit) : OK;
}

double convert_schedule_part(double steps, double decay) {
    return decay < steps ? decay / steps : 1;
}

/* Derives the number of ranks from a file's batch sizes. */
static err ranks_of_batch(convert_source *s, double micro, double times, double global,
                          double split) {
    if (!(micro > 0) || !(times > 0) || !(global > 0)) return OK;
    double groups = global / micro / times;
    if (groups != floor(groups))
        return err_hint(ERR("%s: a batch of %.10g is not %.10g x %.10g on any number of ranks",
                            s->name, global, micro, times),
                        "make the batch a multiple of %.10g, such as %.10g", micro * times,
                        ceil(groups) * micro * times);
    if (s->ranks && groups * split != (double)s->ranks)
        return err_hint(ERR("%s: a batch of %.10g is not %.10g x %.10g on each of these ranks",
                            s->name, global, micro, times),
                        "--ranks %.10g", groups * split);
    s->ranks = (int64_t)(groups * split);
    return OK;
}

static double take_or_nan(convert_source *s, const char *key) {
    return key ? convert_take_number(s, key) : NAN;
}

err convert_batch(convert_source *s, const batch_keys *k, double micro, double split) {
    double times = take_or_nan(s, k->times), global = take_or_nan(s, k->global);
    if (!isnan(take_or_nan(s, k->micro))) micro = take_or_nan(s, k->micro);
    TRY(ranks_of_batch(s, micro, times, global, split));
    double groups = s->ranks ? (double)s->ranks / split : NAN;
    if (s->ranks && groups != floor(groups))
        return err_hint(ERR("%s: %lld ranks do not divide into groups of %.10g", s->name,
                            (long long)s->ranks, split),
                        "--ranks with a multiple of %.10g", split);
    if (isnan(global) && times > 1) {
        if (!s->ranks)
            return err_hint(ERR("%s: %s = %.10g: the batch depends on the number of ranks", s->name,
                                k->times, times),
                            "--ranks N, the number that it is for");
        global = micro * times * groups;
    }
    if (isnan(micro) && !isnan(global)) /* it does not change the result */
        micro = groups > 0 && fmod(global, groups * (times > 0 ? times : 1)) == 0
                    ? global / groups / (times > 0 ? times : 1)
                    : 1;
    if (s->ranks && micro > 0 && global > 0 && fmod(global, micro * groups) != 0)
        return err_hint(ERR("%s: a batch of %.10g does not divide into microbatches of %.10g on "
                            "%.10g data-parallel ranks",
                            s->name, global, micro, groups),
                        "--ranks with the number that it is for");
    TRY(convert_set_number(s, k->micro, "training.local_batch_size", micro));
    if (s->ranks && isnan(global)) global = micro * groups; /* one microbatch per rank */
    TRY(convert_set_number(s, k->global ? k->global : k->times, "training.global_batch_size",
                           global));
    return convert_set_number(s, "--ranks", "parallelism.data_parallel_shard_degree", groups);
}

err convert_data(convert_source *s, const char *key, const char *option) {
    const char *path = convert_take(s, key);
    if (!path) return OK;
    char next[256];
    size_t n = strlen(key);
    if (n > 2 && !strcmp(key + n - 2, ".0")) { /* a list: "train_data_paths.1" */
        snprintf(next, sizeof next, "%.*s1", (int)n - 1, key);
        if (convert_take(s, next)) {
            next[n - 2] = '\0';
            convert_refuse(s, next, path, "several: write a mix file");
            return OK;
        }
    }
    if (strchr(path, '$')) {
        convert_leave_out(s, key, path); /* where the data is, is known when the script runs */
        return OK;
    }
    if (strchr(path, ' ')) {
        convert_refuse(s, key, path, "several: write a mix file");
        return OK;
    }
    return convert_set(s, key, option, path);
}

err convert_split(convert_source *s, const char *otherwise) {
    const char *text = convert_take(s, "split");
    double part[3] = { 0 }, sum = 0;
    if (!text) text = otherwise;
    if (!text) return OK;
    char *end = (char *)text;
    for (int i = 0; i < 3; i++) {
        part[i] = strtod(end, &end);
        end += strspn(end, ", ");
        sum += part[i];
    }
    if (!(sum > 0) || !(part[0] > 0)) {
        convert_refuse(s, "split", text, "shares of training, validation and test");
        return OK;
    }
    return convert_set_number(s, "split", "data.validation_fraction", part[1] / sum);
}

void convert_load(convert_source *s) {
    const char *load = convert_take(s, "load"), *save = convert_take(s, "save");
    if (save) convert_leave_out(s, "save", save);
    if (!load) return;
    if (save && !strcmp(load, save))
        convert_leave_out(s, "load", load);
    else
        convert_refuse(s, "load", load,
                       "weights that are not its own; checkpoint.initial_load_path");
}

/* ---- torchtitan ----------------------------------------------------------------------------------- */
/* "llama3" and "8B" are a preset here: "llama3-8b". */
static err set_preset(convert_source *s) {
    const char *name = convert_take(s, "model.name"), *flavor = convert_take(s, "model.flavor");
    model_config m;
    char preset[64];
    if (!name) return OK;
    snprintf(preset, sizeof preset, "%s%s%s", name, flavor ? "-" : "", flavor ? flavor : "");
    for (char *c = preset; *c; c++)
        if (*c >= 'A' && *c <= 'Z') *c += 'a' - 'A';
    err e = model_preset(preset, &m);
    if (!e) return convert_set(s, "model.flavor", "model.preset", preset);
    err_free(e);
    if (flavor) {
        convert_refuse(s, "model.flavor", preset,
                       "there is no such preset; \"ingot config --models\" lists them");
        return OK;
    }
    convert_refuse(s, "model.name", preset,
                   "there is no such preset; \"ingot config --models\" lists them");
    return OK;
}

/* The learning rate falls over the last decay_ratio of the run; without one, from the warm-up on. */
static err set_titan_schedule(convert_source *s) {
    double ratio = convert_take_number(s, "lr_scheduler.decay_ratio"),
           steps = convert_take_number(s, "training.steps"),
           total = convert_take_number(s, "lr_scheduler.total_steps");
    const char *shape = convert_take(s, "lr_scheduler.decay_type");
    if (isnan(steps)) steps = 10000;
    TRY(convert_length(s, "lr_scheduler.total_steps", steps, total, 1, ""));
    if (ratio > 0 && ratio < 1) {
        TRY(convert_set(s, "lr_scheduler.decay_ratio", "lr_scheduler.name", "wsd"));
        TRY(convert_set_amount(s, "lr_scheduler.decay_ratio", "lr_scheduler.decay",
                               100 * ratio * convert_schedule_part(steps, total), "%"));
        return convert_choice(s, "lr_scheduler.decay_type", "lr_scheduler.decay_type",
                              "linear=linear,cosine=cosine,sqrt=sqrt", "linear");
    }
    if (ratio == 0) {
        if (shape) convert_leave_out(s, "lr_scheduler.decay_type", shape);
        return convert_set(s, "lr_scheduler.decay_ratio", "lr_scheduler.name", "constant");
    }
    return convert_choice(s, "lr_scheduler.decay_type", "lr_scheduler.name",
                          "linear=linear,cosine=cosine", "linear");
}

/* Whether a list of the source, or its only text, has an entry. */
static bool list_has(const convert_source *s, const char *key, const char *entry, int *others) {
    size_t n = strlen(key);
    bool found = false;
    for (int i = 0; i < s->n; i++) {
        if (strncmp(s->at[i].key, key, n) || (s->at[i].key[n] && s->at[i].key[n] != '.')) continue;
        if (s->at[i].empty) continue;
        found |= !strcmp(s->at[i].value, entry);
        *others += strcmp(s->at[i].value, entry) != 0;
    }
    return found;
}

/* Tensorwise scales from the tensor itself, with the head left in bf16, is what "current" does. */
static err set_titan_fp8(convert_source *s) {
    static const char *const prefixes[] = { "float8", "quantize.linear.float8" };
    static const char *const scaling[] = { "float8.scaling_type_input",
                                           "float8.scaling_type_weight",
                                           "float8.scaling_type_grad_output" };
    int others = 0, ignored = 0;
    bool on = list_has(s, "model.converters", "float8", &others) ||
              list_has(s, "model.converters", "quantize.linear.float8", &ignored) ||
              convert_true(s, "float8.enable_float8_linear");
    if (list_has(s, "model.converters", "quantize.linear.float8", &ignored)) others--;
    if (others > 0)
        convert_refuse(s, "model.converters", "a list", "only float8 has a counterpart");
    for (size_t i = 0; i < COUNT_OF(prefixes); i++) {
        char recipe[64], filter[64];
        int more = 0;
        snprintf(recipe, sizeof recipe, "%s.recipe_name", prefixes[i]);
        snprintf(filter, sizeof filter, "%s.filter_fqns", prefixes[i]);
        const char *name = convert_take(s, recipe);
        bool head = list_has(s, filter, "output", &more);
        if (!on) {
            if (name) convert_leave_out(s, recipe, name);
            if (head || more) convert_leave_out(s, filter, "a list");
            continue;
        }
        if (name && strcmp(name, "tensorwise") != 0) convert_refuse(s, recipe, name, "");
        if (more > 0) convert_refuse(s, filter, "a list", "here the head alone is left in bf16");
    }
    for (size_t i = 0; i < COUNT_OF(scaling); i++) {
        const char *value = convert_take(s, scaling[i]);
        if (!value) continue;
        if (!on || !strcmp(value, "dynamic"))
            convert_leave_out(s, scaling[i], value);
        else
            convert_refuse(s, scaling[i], value, "");
    }
    return on ? convert_set(s, "float8", "precision.fp8", "current") : OK;
}

static err set_titan_intervals(convert_source *s) {
    const char *enable =
        convert_take(s, "checkpoint.enable") ? "checkpoint.enable" : "checkpoint.enable_checkpoint";
    const char *check =
        convert_take(s, "validation.enable") ? "validation.enable" : "validation.enabled";
    double interval = convert_number_or(s, "checkpoint.interval", 500),
           freq = convert_number_or(s, "validation.freq", 10),
           batches = convert_take_number(s, "validation.steps");
    const char *unit = convert_take(s, "checkpoint.interval_type");
    bool saves = convert_true(s, enable), checks = convert_true(s, check),
         seconds = unit && !strcmp(unit, "seconds");
    if (unit && !seconds) {
        if (!strcmp(unit, "steps"))
            convert_leave_out(s, "checkpoint.interval_type", unit);
        else
            convert_refuse(s, "checkpoint.interval_type", unit, "");
    }
    if (!saves) { /* off by default, and then nothing is saved; here the last step always is */
        TRY(convert_set(s, enable, "checkpoint.every", "0"));
        TRY(convert_set(s, enable, "checkpoint.weights_every", "0"));
        convert_leave_out_given(s, "checkpoint.interval");
    } else
        TRY(convert_set_amount(s, "checkpoint.interval", "checkpoint.every", interval,
                               seconds ? "s" : ""));
    if (!checks) {
        static const char *const keys[] = { "validation.freq", "validation.steps",
                                            "validation.local_batch_size" };
        convert_leave_out_all(s, keys, COUNT_OF(keys));
        return convert_set(s, check, "validation.every", "0");
    }
    convert_leave_out_given(s, "validation.local_batch_size");
    TRY(convert_set_number(s, "validation.freq", "validation.every", freq));
    return convert_set_number(s, "validation.steps", "validation.batches",
                              batches > 0 ? batches : 0);
}

/* convert_systems.c */
static err finish_torchtitan(convert_source *s) {
    if (convert_true(s, "training.enable_cpu_offload")) { /* parameters and optimizer state */
        TRY(convert_set(s, "training.enable_cpu_offload", "training.offload_params", "true"));
        TRY(convert_set(s, "training.enable_cpu_offload", "optimizer.offload", "1"));
    }
    const char *master = convert_take(s, "training.dtype");
    if (master && strcmp(master, "float32") != 0)
        convert_refuse(s, "training.dtype", master,
                       "master weights in bf16 are rounded stochastically here");
    else if (master)
        convert_leave_out(s, "training.dtype", master);
    const char *kind = convert_take(s, "training.data_parallel_type");
    if (kind && strcmp(kind, "fsdp") != 0)
        TRY(convert_choice(s, "training.data_parallel_type", "parallelism.zero_stage", "ddp=0",
                           NULL));
    TRY(convert_default(s, "parallelism.zero_stage", "3")); /* how it shards, if it does */
    TRY(set_preset(s));
    TRY(set_titan_schedule(s));
    TRY(set_titan_fp8(s));
    TRY(set_titan_intervals(s));
    if (s->ranks && s->c->parallelism.data_parallel_shard_degree == -1) {
        const config *c = s->c;
        double split = (double)c->parallelism.tensor_parallel_degree *
                       (double)c->parallelism.pipeline_parallel_degree *
                       (double)c->parallelism.context_parallel_degree *
                       (double)c->parallelism.data_parallel_replicate_degree;
        TRY(convert_set_number(s, "--ranks", "parallelism.data_parallel_shard_degree",
                               (double)s->ranks / split));
    }
    return convert_default(s, "data.documents", "false");
}

/* ---- OLMo ----------------------------------------------------------------------------------------- */
/* "2e12T" are tokens, "1ep" epochs, "300000ba" or a number batches, which are steps. */
static err set_duration(convert_source *s, const char *key) {
    const char *text = convert_take(s, key);
    static const char *const units[][2] = {
        { "", "" }, { "ba", "" }, { "T", "tokens" }, { "ep", "epochs" }
    };
    char *end = NULL;
    double v = text ? strtod(text, &end) : 10000;
    for (size_t i = 0; i < COUNT_OF(units); i++)
        if (!strcmp(text ? end : "", units[i][0]))
            return convert_set_amount(s, key, "training.steps", v, units[i][1]);
    convert_refuse(s, key, text, "a number of steps, or with ba, T or ep");
    return OK;
}

static err set_olmo_model(convert_source *s) {
    double dim = convert_number_or(s, "model.d_model", 768),
           heads = convert_number_or(s, "model.n_heads", 12),
           ratio = convert_number_or(s, "model.mlp_ratio", 4),
           hidden = convert_number_or(s, "model.mlp_hidden_size", floor(dim * ratio)),
           kv = convert_take_number(s, "model.n_kv_heads"),
           rows = convert_take_number(s, "model.embedding_size"),
           vocab = convert_take_number(s, "model.vocab_size"),
           seq = convert_number_or(s, "model.max_sequence_length", 1024);
    const char *activation = convert_take(s, "model.activation_type");
    if (convert_true(s, "model.multi_query_attention")) kv = 1;
    bool gated = !activation || !strcmp(activation, "swiglu"); /* both halves are counted */
    TRY(convert_choice(s, "model.activation_type", "model.activation",
                       "swiglu=swiglu,gelu=gelu_erf", "swiglu"));
    TRY(convert_widths(s, dim, heads, NAN, kv, gated ? floor(hidden / 2) : hidden));
    TRY(convert_set_number(s, "model.embedding_size", "model.vocab_size",
                           !isnan(rows)                 ? rows
                           : vocab > 0 && vocab > 50304 ? vocab
                                                        : 50304));
    TRY(convert_set_number(s, "model.max_sequence_length", "model.max_seq_len", seq));
    return convert_set_number(s, "model.max_sequence_length", "training.seq_len", seq);
}

static err finish_olmo(convert_source *s) {
    double warmup = convert_number_or(s, "scheduler.t_warmup", 100),
           most = convert_take_number(s, "scheduler.t_max");
    const char *strategy = convert_take(s, "distributed_strategy"),
               *load = convert_take(s, "load_path");
    bool tokens = convert_is(s, "scheduler.units", "tokens");
    const char *unit = tokens ? "tokens" : "";
    const char *z_loss = convert_take(s, "auxiliary_loss_multiplier");
    if (z_loss && convert_true(s, "softmax_auxiliary_loss"))
        TRY(convert_set(s, "auxiliary_loss_multiplier", "training.z_loss", z_loss));
    else if (z_loss)
        convert_leave_out(s, "auxiliary_loss_multiplier", z_loss);
    TRY(set_olmo_model(s));
    TRY(convert_set_amount(s, "scheduler.t_warmup", "lr_scheduler.warmup", warmup, unit));
    TRY(set_duration(s, "max_duration"));
    if (!isnan(most)) {
        cfg_amount run = s->c->training.steps;
        if (run.unit != (tokens ? CFG_TOKENS : CFG_STEPS))
            convert_refuse(s, "scheduler.t_max", convert_take(s, "scheduler.t_max"),
                           "max_duration is in another unit");
        else if (most < run.value)
            TRY(convert_set_amount(s, "scheduler.t_max", "lr_scheduler.length", most, unit));
        else if (most > run.value) {
            TRY(convert_set_amount(s, "max_duration", "training.stop", run.value, unit));
            TRY(convert_set_amount(s, "scheduler.t_max", "training.steps", most, unit));
        }
    }
    TRY(convert_set_number(s, "stop_at", "training.stop", convert_take_number(s, "stop_at")));
    TRY(convert_set_number(s, "stop_after", "training.stop", convert_take_number(s, "stop_after")));
    if (strategy && strcmp(strategy, "fsdp") != 0)
        TRY(convert_choice(s, "distributed_strategy", "parallelism.zero_stage", "ddp=0,single=0",
                           NULL));
    TRY(convert_data(s, "data.paths", "data.train"));
    TRY(convert_data(s, "data.paths.0", "data.train"));
    const char *units = convert_take(s, "scheduler.units");
    if (units && !tokens && strcmp(units, "steps") != 0)
        convert_refuse(s, "scheduler.units", units, "steps or tokens");
    if (load)
        convert_refuse(s, "load_path", load,
                       "weights that are not its own; checkpoint.initial_load_path");
    if (convert_take(s, "save_folder"))
        convert_leave_out(s, "save_folder", convert_take(s, "save_folder"));
    static const char *const derived[] = { "device_train_grad_accum", "device_train_batch_size" };
    convert_leave_out_all(s, derived, COUNT_OF(derived));
    if (!convert_has(s, "optimizer.decay_embeddings"))
        convert_note(
            s, "optimizer.decay_embeddings = false: here embeddings decay as other matrices do");
    return convert_set_number(s, "ranks", "parallelism.data_parallel_shard_degree",
                              s->ranks ? (double)s->ranks : NAN);
}

/* ---- Hugging Face's TrainingArguments -------------------------------------------------------------- */
static err set_hf_schedule(convert_source *s) {
    double ratio = convert_take_number(s, "warmup_ratio"),
           warmup = convert_take_number(s, "warmup_steps"), least = NAN, rate = NAN;
    const char *type = convert_take(s, "lr_scheduler_type");
    for (int i = 0; i < s->n; i++) { /* lr_scheduler_kwargs: {"min_lr": 1e-5} */
        const source_pair *p = &s->at[i];
        if (!str_starts(p->key, "lr_scheduler_kwargs") || p->empty || p->refused) continue;
        const char *name = strchr(p->key, '.') ? strchr(p->key, '.') + 1 : "";
        bool used = type && !strcmp(type, "cosine_with_min_lr");
        if (used && !strcmp(name, "min_lr"))
            least = strtod(p->value, NULL);
        else if (used && !strcmp(name, "min_lr_rate"))
            rate = strtod(p->value, NULL);
        else
            convert_refuse(s, p->key, p->value, "");
    }
    TRY(convert_choice(s, "lr_scheduler_type", "lr_scheduler.name",
                       "linear=linear,cosine=cosine,cosine_with_min_lr=cosine,constant=constant,"
                       "constant_with_warmup=constant",
                       "linear"));
    if (!isnan(least)) rate = least / convert_number_or(s, "learning_rate", 5e-5);
    TRY(convert_set_number(s, "lr_scheduler_kwargs", "lr_scheduler.min_lr_factor",
                           isnan(rate) ? 0 : rate));
    if (type && !strcmp(type, "constant")) { /* without a warm-up, whatever the others say */
        if (ratio > 0) convert_leave_out_given(s, "warmup_ratio");
        if (warmup > 0) convert_leave_out_given(s, "warmup_steps");
        return convert_set(s, "lr_scheduler_type", "lr_scheduler.warmup", "0");
    }
    if (warmup > 0 && warmup < 1) ratio = warmup, warmup = 0;
    if (warmup > 0) return convert_set_number(s, "warmup_steps", "lr_scheduler.warmup", warmup);
    return convert_set_amount(s, "warmup_ratio", "lr_scheduler.warmup", ratio > 0 ? 100 * ratio : 0,
                              ratio > 0 ? "%" : "");
}

/* An interval in steps, or a share of the run below 1; "no" and "epoch" are strategies of their own. */
static err set_hf_interval(convert_source *s, const char *strategy_key, const char *strategy,
                           const char *steps_key, double otherwise, const char *option) {
    double steps = convert_take_number(s, steps_key);
    const char *value = convert_take(s, strategy_key);
    if (!value) value = strategy;
    if (!strcmp(value, "no") || !strcmp(value, "epoch")) {
        convert_leave_out_given(s, steps_key);
        return convert_set(s, strategy_key, option, *value == 'n' ? "0" : "1 epochs");
    }
    if (strcmp(value, "steps") != 0) {
        convert_refuse(s, strategy_key, value, "");
        return OK;
    }
    if (isnan(steps)) steps = otherwise;
    return convert_set_amount(s, steps_key, option, steps < 1 ? 100 * steps : steps,
                              steps < 1 ? "%" : "");
}

/* "full_shard auto_wrap" */
static err set_hf_sharding(convert_source *s, const char *fsdp) {
    static const struct {
        const char *word, *stage;
    } words[] = {
        { "full_shard", "3" }, { "shard_grad_op", "2" }, { "no_shard", "0" }, { "auto_wrap", NULL }
    };
    const char *stage = "0";
    for (const char *at = fsdp ? fsdp : ""; *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " "), k = 0;
        while (k < COUNT_OF(words) && (strlen(words[k].word) != n || strncmp(words[k].word, at, n)))
            k++;
        if (k == COUNT_OF(words) && strncmp(at, "false", n) != 0) {
            convert_refuse(s, "fsdp", fsdp, "");
            return OK;
        }
        if (k < COUNT_OF(words) && words[k].stage) stage = words[k].stage;
        at += n;
    }
    if (fsdp && *stage == '0') convert_leave_out(s, "fsdp", fsdp);
    return convert_set(s, "fsdp", "parallelism.zero_stage", stage);
}

static err finish_hf(convert_source *s) {
    double steps = convert_take_number(s, "max_steps"),
           epochs = convert_number_or(s, "num_train_epochs", 3),
           old = convert_number_or(s, "per_gpu_train_batch_size", 8),
           every = convert_number_or(s, "logging_steps", 500);
    const char *fsdp = convert_take(s, "fsdp");
    if (steps > 0) {
        TRY(convert_set_number(s, "max_steps", "training.steps", steps));
        convert_leave_out_given(s, "num_train_epochs");
    } else
        TRY(convert_set_amount(s, "num_train_epochs", "training.steps", epochs, "epochs"));
    TRY(set_hf_schedule(s));
    TRY(set_hf_interval(s, "save_strategy", "steps", "save_steps", 500, "checkpoint.every"));
    const char *eval = convert_take(s, "eval_strategy") ? "eval_strategy" : "evaluation_strategy";
    TRY(set_hf_interval(s, eval, "no", "eval_steps", every, "validation.every"));
    const char *other = convert_take(s, "deepspeed");
    if (other)
        convert_note(s, "deepspeed: a config of its own, which has the sharding; convert it too");
    if (!other || fsdp) TRY(set_hf_sharding(s, fsdp));
    static const batch_keys keys = { "per_device_train_batch_size", "gradient_accumulation_steps",
                                     NULL };
    if (convert_take(s, keys.micro)) convert_leave_out_given(s, "per_gpu_train_batch_size");
    return convert_batch(s, &keys, old, 1);
}

/* ---- the table ------------------------------------------------------------------------------------- */
const convert_system convert_systems[] = {
    { "torchtitan", "torchtitan", SYNTAX_TOML, NULL, &foreign_torchtitan, false,
      finish_torchtitan },
    { "deepspeed", "DeepSpeed", SYNTAX_JSON, NULL, &foreign_deepspeed, true, finish_deepspeed },
    { "hf", "Hugging Face's TrainingArguments", SYNTAX_JSON, NULL, &foreign_hf, false, finish_hf },
    { "olmo", "OLMo", SYNTAX_YAML, "model.n_layers", &foreign_olmo, false, finish_olmo },
    { "neox", "GPT-NeoX", SYNTAX_YAML, "num_layers", &foreign_neox, true, finish_neox },
    { "megatron", "Megatron-LM", SYNTAX_ARGUMENTS, "num_layers", &foreign_megatron, false,
      finish_megatron },
};
const int convert_system_count = (int)COUNT_OF(convert_systems);
