/* Published trainings as configs, and how to shrink one to seconds. */
#include "planning_internal.h"

#include <math.h>
#include <string.h>

int recipe_count(void) {
    int n = 0;
    while (recipe_files[n].name) n++;
    return n;
}
const char *recipe_name(int i) { return recipe_files[i].name; }
const char *recipe_text(int i) { return recipe_files[i].text; }

err recipe_find(const char *name, int *out) {
    const char *near = NULL;
    for (*out = 0; *out < recipe_count(); ++*out) {
        if (strcmp(recipe_name(*out), name) == 0) return OK;
        near = str_nearer(name, recipe_name(*out), near);
    }
    err e = ERR_USAGE("no recipe is called \"%.40s\"", name);
    if (near) return err_hint(e, "\"%s\"; \"ingot plan recipe\" lists them all", near);
    return err_hint(e, "\"ingot plan recipe\" lists them all");
}

void recipe_note(int i, const char *key, str *out) {
    char head[40];
    snprintf(head, sizeof head, "# %s: ", key);
    for (const char *at = recipe_text(i); at && *at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (!str_starts(at, head)) continue;
        at += strlen(head);
        str_add(out, "%s%.*s", out->len ? "; " : "", (int)strcspn(at, "\n"), at);
    }
}

/* ---- small --------------------------------------------------------------------------------------- */
static err set_count(config *c, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return config_set(c, name, text);
}

/* The family's proportions on a width of 64: grouped and single key/value heads stay that, the feed-forward
 * layer keeps its ratio to the width. */
static err shrink_model(config *c, int64_t layers) {
    enum { WIDTH = 64, HEADS = 4, POSITIONS = 128, BYTES_VOCAB = 257, WINDOW = 32 };
    model_config m;
    TRY(model_from_config(c, &m));
    int kv = m.kv_heads == m.heads ? HEADS : m.kv_heads == 1 ? 1 : HEADS / 2;
    double ratio = (double)m.ffn / (double)m.dim;
    TRY(set_count(c, "model.layers", layers));
    TRY(set_count(c, "model.dim", WIDTH));
    TRY(set_count(c, "model.heads", HEADS));
    TRY(set_count(c, "model.kv_heads", kv));
    TRY(set_count(c, "model.head_dim", WIDTH / HEADS));
    TRY(set_count(c, "model.ffn_dim", MAX(16, (int64_t)lround(ratio * WIDTH / 16) * 16)));
    TRY(set_count(c, "model.vocab_size", BYTES_VOCAB));
    TRY(set_count(c, "model.max_seq_len", POSITIONS));
    return m.window ? set_count(c, "model.sliding_window", WINDOW) : OK;
}

/* Every axis that is divided stays divided, in two; of chunks there are two where there were several. A microbatch is one
 * sequence then, so that each rank has several. @param layers how many its pipeline needs */
static err shrink_layout(config *c, int64_t *layers) {
    static const char *const degrees[] = {
        "data_parallel_replicate_degree", "data_parallel_shard_degree", "pipeline_parallel_degree",
        "context_parallel_degree",        "expert_parallel_degree",     "tensor_parallel_degree",
    };
    const int64_t values[] = {
        c->parallelism.data_parallel_replicate_degree, c->parallelism.data_parallel_shard_degree,
        c->parallelism.pipeline_parallel_degree,       c->parallelism.context_parallel_degree,
        c->parallelism.expert_parallel_degree,         c->parallelism.tensor_parallel_degree,
    };
    static const char *const less[] = {
        "parallelism.pipeline_parallel_first_stage_less_layers",
        "parallelism.pipeline_parallel_last_stage_less_layers",
    };
    const int64_t counted[] = { c->parallelism.pipeline_parallel_first_stage_less_layers,
                                c->parallelism.pipeline_parallel_last_stage_less_layers };
    enum { LAYERS = 2 };
    char name[64];
    bool divided = false;
    for (size_t i = 0; i < COUNT_OF(degrees); i++) {
        snprintf(name, sizeof name, "parallelism.%s", degrees[i]);
        if (values[i] > 2) TRY(set_count(c, name, 2));
        divided |= values[i] > 1;
    }
    bool sharded = config_is_set(c, "parallelism.zero_stage") && c->parallelism.zero_stage > 0;
    if (sharded && c->parallelism.data_parallel_shard_degree == -1) { /* all, which is one */
        TRY(set_count(c, "parallelism.data_parallel_shard_degree", 2));
        divided = true;
    }
    if (c->parallelism.pipeline_parallel_chunks > 2)
        TRY(set_count(c, "parallelism.pipeline_parallel_chunks", 2));
    TRY(config_set(c, "parallelism.pipeline_parallel_split", "[]"));
    for (size_t i = 0; i < COUNT_OF(less); i++)
        if (counted[i] > 1) TRY(set_count(c, less[i], 1));
    bool staged = c->parallelism.pipeline_parallel_degree > 1;
    *layers = staged ? 2 * LAYERS : LAYERS;
    if (divided) TRY(config_set(c, "training.local_batch_size", "1"));
    TRY(config_set(c, "parallelism.tensor_parallel_chunks", "0"));
    return config_set(c, "training.offload_params", "false");
}

err config_scale(config *c, const char *scale) {
    static const char *const settings[][2] = {
        { "training.steps", "30" },
        { "training.stop", "0" },
        { "training.seq_len", "64" },
        { "training.local_batch_size", "4" },
        { "training.global_batch_size", "8" },
        { "training.batch_ramp_start", "0" },
        { "training.batch_schedule", "[]" },
        { "training.seq_curriculum_start", "0" },
        { "optimizer.lr", "3e-3" },
        { "optimizer.offload", "0" },
        { "lr_scheduler.warmup", "10%" },
        { "lr_scheduler.decay", "10%" },
        { "validation.every", "15" },
        { "validation.batches", "2" },
        { "sample.every", "0" },
        { "checkpoint.every", "0" },
        { "data.train", "" },
        { "data.validation", "" },
        { "data.tokenizer", "bytes" },
        { "data.synth_documents", "200" },
    };
    if (strcmp(scale, "tiny") != 0)
        return err_hint(ERR_USAGE("--scale: expected tiny; got \"%.40s\"", scale), "--scale tiny");
    int64_t layers = 0;
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        const char *name = settings[i][0];
        /* A config that leaves its optimizer open has the recipe's, which follows the size by itself. */
        bool of_size = str_starts(name, "optimizer.") || str_starts(name, "lr_scheduler.");
        if (!of_size || config_is_set(c, name)) TRY(config_set(c, name, settings[i][1]));
    }
    TRY(shrink_layout(c, &layers));
    TRY(shrink_model(c, layers));
    config_drop_idle(c); /* the length of a ramp that is off */
    config_begin_overrides(c);
    return OK;
}
