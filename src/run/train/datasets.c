/* The data of a run: sources to train on with their shares, sets to validate on. */
#include "datasets_internal.h"
#include "trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

static run_source *add_source(run_source **list, int *n, const char *name) {
    *list = mem_grow(*list, (size_t)(*n + 1) * sizeof **list);
    run_source *s = &(*list)[(*n)++];
    *s = (run_source){ .name = strdup(name), .loss = NAN };
    return s;
}

static err check_vocab(trainer *t, const data_source *d) {
    const data_info *info = data_source_info(d);
    if (t->grow_vocab) t->mc.vocab = MAX(t->mc.vocab, info->vocab);
    if (info->vocab <= t->mc.vocab) return OK;
    return err_hint(ERR("%s has a vocabulary of %lld, the model's is %lld", info->path,
                        (long long)info->vocab, (long long)t->mc.vocab),
                    "set model.vocab_size to at least %lld", (long long)info->vocab);
}

static err open_source(trainer *t, const char *const *paths, int n, bool held_out,
                       data_source **out) {
    data_options o = { .vocab_limit = t->grow_vocab ? 0 : t->mc.vocab,
                       .tokenizer = start_tokenizer_name(t),
                       .no_prefix = t->start.no_prefix,
                       .held_out = held_out,
                       .raw_dtype = t->cfg->data.raw_dtype,
                       .cache_dirs = t->cfg->data.cache_dirs,
                       .cache_bytes = t->cfg->data.cache_size };
    if (!*o.cache_dirs) o.cache_dirs = t->dir;
    TRY(data_open_paths(paths, n, &o, out));
    return *out ? check_vocab(t, *out) : OK;
}

/* A path becomes one source, a mix file one for each of its entries. With `held_out` only shards
 * that were held out when the data was made count; a source without them adds nothing. */
static err open_sources(trainer *t, const char *path, bool held_out, run_source **list, int *n) {
    mix_entry only = { .name = path, .paths = &path, .n_paths = 1 };
    mix_file file = { .entries = &only, .n = 1 };
    bool is_mix = mix_file_is(path);
    if (is_mix) TRY(mix_file_read(path, &file));
    err e = OK;
    int from = *n;
    int64_t *tokens = mem_alloc((size_t)file.n * sizeof *tokens);
    for (int i = 0; i < file.n; i++) {
        const mix_entry *m = &file.entries[i];
        data_source *d = NULL;
        TRY_CLEAN(open_source(t, m->paths, m->n_paths, held_out, &d));
        tokens[i] = d ? data_source_info(d)->tokens : -1;
        if (!d) continue;
        run_source *s = add_source(list, n, m->name);
        s->data = d;
        s->range = (data_range){ 0, tokens[i] };
    }
    mix_file_weigh(&file, tokens);
    for (int i = 0; i < file.n; i++) {
        if (tokens[i] < 0) continue;
        (*list)[from].weight = file.entries[i].weight;
        (*list)[from].epochs = file.entries[i].epochs;
        (*list)[from].phase_weights = mem_alloc((size_t)file.n_phases * sizeof(double) + 1);
        for (int k = 0; k < file.n_phases; k++)
            (*list)[from].phase_weights[k] = file.phases[k].weights[i];
        from++;
    }
    if (list == &t->data.sources && file.n_phases && !t->data.phases) {
        t->data.phases = mem_alloc((size_t)file.n_phases * sizeof *t->data.phases);
        t->data.n_phases = file.n_phases;
        for (int k = 0; k < file.n_phases; k++) t->data.phases[k] = file.phases[k].from;
    }
cleanup:
    free(tokens);
    if (is_mix) mix_file_free(&file);
    return e;
}

static bool is_held_out(const trainer *t, const char *name) {
    for (int i = 0; i < t->data.n_sets; i++)
        if (strcmp(t->data.sets[i].name, name) == 0) return true;
    return false;
}

/* Sources that came without a held-out part give up a fraction of their own. */
static err split_sources(trainer *t) {
    double fraction = t->cfg->data.validation_fraction;
    for (int i = 0; i < t->data.n_sources && fraction > 0; i++) {
        run_source *s = &t->data.sources[i];
        data_range rest;
        if (is_held_out(t, s->name)) continue;
        TRY(data_split(s->data, fraction, t->len.seq, &s->range, &rest));
        run_source *set = add_source(&t->data.sets, &t->data.n_sets, s->name);
        set->data = s->data;
        set->borrowed = true;
        set->range = rest;
        set->weight = s->weight;
    }
    return OK;
}

/* Ids of two tokenizers in one model would be noise. Formats of others do not name theirs. */
static err check_tokenizers(const run_source *list, int n, const data_info **known) {
    for (int i = 0; i < n; i++) {
        const data_info *d = data_source_info(list[i].data);
        if (d->tokenizer != TOKENIZER_BYTES && d->tokenizer_hash == 0) continue;
        if (!*known) *known = d;
        if (d->tokenizer == (*known)->tokenizer && d->tokenizer_hash == (*known)->tokenizer_hash)
            continue;
        return err_hint(
            ERR("%s and %s were made with different tokenizers", (*known)->path, d->path),
            "tokenize all data of a run with one tokenizer; data.tokenizer applies to plain "
            "text");
    }
    return OK;
}

static err open_all(trainer *t) {
    const config *c = t->cfg;
    if (*c->data.train) {
        TRY(open_sources(t, c->data.train, false, &t->data.sources, &t->data.n_sources));
    } else {
        data_source *d;
        TRY(data_open_synth((uint64_t)c->training.seed, c->data.synth_documents, &d));
        run_source *s = add_source(&t->data.sources, &t->data.n_sources, "synthetic corpus");
        s->data = d;
        s->range = (data_range){ 0, data_source_info(d)->tokens };
        TRY(check_vocab(t, d));
    }
    if (*c->data.validation)
        return open_sources(t, c->data.validation, false, &t->data.sets, &t->data.n_sets);
    if (*c->data.train) TRY(open_sources(t, c->data.train, true, &t->data.sets, &t->data.n_sets));
    return split_sources(t);
}

/* A raw file does not state its vocabulary, so the model's did not grow with it: ids beyond it are another
 * tokenizer's, and the guard would reject one window after the other. */
static err check_ids(const trainer *t, const run_source *list, int n) {
    for (int i = 0; i < n; i++) TRY(data_check_ids(list[i].data, t->mc.vocab));
    return OK;
}

/* Sources that a rollback reads in place of the batches it skips: after the sources that are mixed. */
static err open_clean(trainer *t) {
    const char *path = t->cfg->alerts.clean_source;
    int n = t->data.n_sources;
    if (!*path) return OK;
    TRY(open_sources(t, path, false, &t->data.sources, &n));
    if (n == t->data.n_sources + 1) {
        t->data.has_clean = true;
        return OK;
    }
    while (n > t->data.n_sources) {
        data_close(t->data.sources[--n].data);
        free(t->data.sources[n].name);
        free(t->data.sources[n].phase_weights);
    }
    return err_hint(ERR("alerts.clean_source: %s is several sources", path),
                    "name one: a file or a folder of shards");
}

int64_t datasets_tokens(const run_source *list, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += list[i].range.to - list[i].range.from;
    return sum;
}

bool datasets_are_bytes(const trainer *t) {
    bool bytes = true;
    for (int i = 0; i < t->data.n_sources; i++)
        bytes = bytes && data_source_info(t->data.sources[i].data)->tokenizer == TOKENIZER_BYTES;
    return bytes;
}

uint64_t datasets_tokenizer_hash(const trainer *t) {
    uint64_t hash = datasets_are_bytes(t) ? hash_str("bytes") : 0;
    for (int i = 0; i < t->data.n_sources && !hash; i++)
        hash = data_source_info(t->data.sources[i].data)->tokenizer_hash;
    return hash;
}

/* Opens the tokenizer the data was made with: the shards' own, the one that tokenizes text, or, where
 * the data names none, the one of the weights the run starts from. */
static err open_tokenizer(trainer *t) {
    const char *named = start_tokenizer_name(t);
    if (datasets_are_bytes(t)) return tokenizer_open("bytes", NULL, &t->data.tokenizer);
    for (int i = 0; i < t->data.n_sources && !t->data.tokenizer; i++) {
        const data_info *d = data_source_info(t->data.sources[i].data);
        if (d->tokenizer_path) return tokenizer_open(d->tokenizer_path, NULL, &t->data.tokenizer);
        if (d->tokenizer_hash == 0 || strcmp(named, "bytes") == 0) continue;
        TRY(tokenizer_open(named, NULL, &t->data.tokenizer));
        if (tokenizer_hash(t->data.tokenizer) == d->tokenizer_hash) continue;
        tokenizer_free(t->data.tokenizer);
        t->data.tokenizer = NULL;
    }
    if (t->data.tokenizer || !t->start.tokenizer_path) return OK;
    return tokenizer_open(t->start.tokenizer_path, NULL, &t->data.tokenizer);
}

/* Takes the prefix from the tokenizer unless documents begin with it, as those of shards made without do not:
 * samples and questions must begin as the documents did. */
static err match_prefix(trainer *t) {
    if (!t->data.tokenizer) return OK;
    token_affixes a = *tokenizer_affixes(t->data.tokenizer);
    int with = 0;
    for (int i = 0; i < t->data.n_sources && a.n_prefix; i++) {
        bool begins = false;
        TRY(data_begins_with(t->data.sources[i].data, a.prefix, a.n_prefix, &begins));
        with += begins;
    }
    if (with && with < t->data.n_sources && is_first_rank(t))
        log_warn("documents of %d of %d sources begin with the tokenizer's prefix, those of the "
                 "others do not",
                 with, t->data.n_sources);
    if (!with) a.n_prefix = 0;
    tokenizer_set_affixes(t->data.tokenizer, &a);
    t->state.prefixed = a.n_prefix > 0;
    return OK;
}

/* @return the id that ends the documents of all sources; -1: none, or more than one */
static int32_t common_end(const trainer *t) {
    int32_t end = data_source_info(t->data.sources[0].data)->eos;
    for (int i = 1; i < t->data.n_sources; i++)
        if (data_source_info(t->data.sources[i].data)->eos != end) end = -1;
    return end;
}

/* Gives the tokenizer the end that documents have, as shards made with --eos: samples stop there, and an export names
 * it. */
static void match_end(trainer *t) {
    int32_t end = common_end(t);
    if (!t->data.tokenizer || end < 0 || end >= tokenizer_vocab(t->data.tokenizer)) return;
    token_affixes a = *tokenizer_affixes(t->data.tokenizer);
    if (a.n_suffix && a.suffix[a.n_suffix - 1] != end) a.n_suffix = 0;
    tokenizer_set_affixes(t->data.tokenizer, &a);
    if (tokenizer_eos(t->data.tokenizer) != end) tokenizer_set_eos(t->data.tokenizer, end);
}

err datasets_open(trainer *t) {
    const data_info *known = NULL;
    TRY(open_all(t));
    TRY(open_clean(t));
    TRY(check_ids(t, t->data.sources, t->data.n_sources + t->data.has_clean));
    TRY(check_ids(t, t->data.sets, t->data.n_sets));
    TRY(check_tokenizers(t->data.sources, t->data.n_sources + t->data.has_clean, &known));
    TRY(check_tokenizers(t->data.sets, t->data.n_sets, &known));
    if (known) TRY(start_check_tokenizer(t, known));
    TRY(open_tokenizer(t));
    match_end(t);
    return match_prefix(t);
}

err datasets_save_tokenizer(const trainer *t) {
    bool bytes = datasets_are_bytes(t), is_new = !t->start.resume || t->start.branch;
    const tokenizer *tok = bytes ? NULL : t->data.tokenizer;
    int32_t end = tok ? tokenizer_eos(tok) : common_end(t);
    if (is_new && t->start.path) TRY(hf_keep_files(t->start.path, t->dir));
    if (!bytes) TRY(hf_name_end(t->dir, tok, end));
    if (!tok) return OK;
    return tokenizer_save(tok, PATH_IN(t->dir, "tokenizer.json"));
}

/* ---- loaders ----------------------------------------------------------------------------------- */

static err open_sets(trainer *t) {
    int64_t rows = ranks_eval_rows(t, t->len.rows, t->len.seq);
    for (int i = 0; i < t->data.n_sets; i++) {
        run_source *s = &t->data.sets[i];
        loader_options o = { .seq_len = t->len.seq,
                             .rows = rows,
                             .rank = ranks_rows_index(t),
                             .ranks = ranks_with_rows(t),
                             .range = s->range,
                             .vocab_limit = t->mc.vocab,
                             .mask_documents = t->cfg->data.documents,
                             .evaluation = true };
        TRY(loader_new(s->data, &o, &s->batches));
    }
    return OK;
}

/* A run that needs more data than the mix allows fails now, not at the end. */
static err check_enough(const trainer *t) {
    int64_t total = loader_total(t->data.batches);
    if (batch_ramp_windows(&t->len.ramp, t->len.stop) <= total) return OK;
    return err_hint(ERR("the mix allows %lld steps of data, but the run has %lld",
                        (long long)batch_ramp_steps(&t->len.ramp, 0, total + 1) - 1,
                        (long long)t->len.stop),
                    "lower training.steps, or raise `epochs` in %s", t->cfg->data.train);
}

static err load_batches(trainer *t) {
    const config *c = t->cfg;
    loader_options o = { .seq_len = t->len.seq,
                         .rows = t->len.rows,
                         .rank = ranks_rows_index(t),
                         .ranks = ranks_with_rows(t),
                         .step_windows = t->len.ramp.full,
                         .seed = (uint64_t)c->training.seed,
                         .vocab_limit = t->mc.vocab,
                         .mask_documents = c->data.documents,
                         .in_order = !c->data.shuffle,
                         .packing = c->data.packing,
                         .guard = { .on = c->data.guard,
                                    .repeated = c->data.guard_repeated,
                                    .few_ids = c->data.guard_few_ids,
                                    .malformed = c->data.guard_malformed,
                                    .tokenizer = t->data.tokenizer },
                         .phases = t->data.phases,
                         .n_phases = t->data.n_phases,
                         .curriculum_start = c->training.seq_curriculum_start,
                         .curriculum_windows = t->len.curriculum,
                         .ramp = t->len.ramp,
                         .prefetch = (int)c->data.prefetch,
                         .workers = (int)c->data.workers };
    int all = t->data.n_sources + t->data.has_clean;
    mix_source *sources = mem_alloc((size_t)all * sizeof *sources);
    for (int i = 0; i < all; i++) {
        run_source *s = &t->data.sources[i];
        if (data_packing_traits[o.packing] & PACK_BY_DOCUMENT) data_index_documents(s->data);
        sources[i] =
            (mix_source){ s->name, s->data, s->range, s->weight, s->epochs, s->phase_weights };
    }
    if (t->data.has_clean) o.clean = &sources[t->data.n_sources];
    err e = loader_new_mix(sources, t->data.n_sources, &o, &t->data.batches);
    free(sources);
    TRY(e);
    return trainer_clock_is_open(t) ? OK : check_enough(t);
}

err datasets_load(trainer *t) {
    TRY(load_batches(t));
    return open_sets(t);
}

err datasets_replan(trainer *t) {
    const batch_ramp *r = &t->len.ramp;
    if (!r->start && !r->n_phases && !t->cfg->training.seq_curriculum_start)
        return trainer_clock_is_open(t) ? OK : check_enough(t);
    loader_free(t->data.batches);
    t->data.batches = NULL;
    TRY(load_batches(t));
    return datasets_begin(t);
}

err datasets_begin(trainer *t) {
    data_skips wanted;
    TRY(data_skips_parse(t->cfg->data.skip, &wanted));
    int64_t now = data_skips_position(&t->state.skips, t->state.windows);
    for (int i = 0; i < wanted.n; i++) TRY(data_skips_add(&t->state.skips, wanted.at[i], now));
    if (t->state.replaced.n && !t->data.has_clean)
        return err_hint(ERR("the run reads a clean source in place of some of its data, but "
                            "alerts.clean_source is empty"),
                        "name the one that it was trained with");
    loader_set_skips(t->data.batches, &t->state.skips);
    if (t->data.has_clean) loader_set_replaced(t->data.batches, &t->state.replaced);
    loader_set_epoch_offset(t->data.batches, t->state.epoch_offset);
    loader_seek(t->data.batches, t->state.windows);
    return OK;
}

/* ---- figures ------------------------------------------------------------------------------------ */

void datasets_step_begin(trainer *t) {
    for (int i = 0; i < t->data.n_sources + t->data.has_clean; i++)
        t->data.sources[i].sum = 0, t->data.sources[i].valid = 0;
}

double datasets_add_losses(trainer *t, const pending_losses *f, const float *losses) {
    double sum = 0;
    for (int64_t row = 0; row < t->len.rows; row++) {
        run_source *s = &t->data.sources[f->source[row]];
        double own = 0;
        for (int64_t i = 0; i < t->len.seq; i++) own += losses[row * t->len.seq + i];
        s->sum += own;
        s->valid += f->row_valid[row];
        sum += own;
    }
    return sum;
}

err datasets_log_rejected(trainer *t, const data_batch *b, int64_t step, int64_t *rejected) {
    enum { EVENTS_PER_STEP = 8 }; /* one bad file must not fill the disk */
    for (int64_t row = 0; row < t->len.rows; row++) {
        if (b->guard[row] == GUARD_FINE) continue;
        if ((*rejected)++ >= EVENTS_PER_STEP) continue;
        int source = b->source[row];
        int64_t token = loader_row_token(t->data.batches, b, row);
        TRY(observe_event(
            t->log, "guard", step,
            json_pack(
                "{s:s, s:o, s:I, s:I}", "why", guard_verdict_name(b->guard[row]), "source",
                io_json_string(t->data.sources[source].name, strlen(t->data.sources[source].name)),
                "window", (json_int_t)b->window[row], "token", (json_int_t)token)));
    }
    return OK;
}

void datasets_measure(trainer *t, observe_step *out) {
    t->data.observed = mem_grow(t->data.observed, (size_t)(t->data.n_sources + t->data.n_sets) *
                                                      sizeof *t->data.observed);
    for (int i = 0; i < t->data.n_sources; i++) {
        const run_source *s = &t->data.sources[i];
        t->data.observed[i] = (observe_source){
            s->name, loader_source_consumed(t->data.batches, i, t->state.windows) * t->len.seq,
            s->valid ? s->sum / (double)s->valid : NAN
        };
    }
    for (int i = 0; i < t->data.n_sets; i++)
        t->data.observed[t->data.n_sources + i] =
            (observe_source){ t->data.sets[i].name, 0, t->data.sets[i].loss };
    out->sources = t->data.observed;
    out->n_sources = t->data.n_sources > 1 ? t->data.n_sources : 0;
    out->validation = t->data.observed + t->data.n_sources;
    out->n_validation = t->data.n_sets > 1 && !isnan(out->val_loss) ? t->data.n_sets : 0;
}

err datasets_validate(trainer *t, double *loss) {
    double sum = 0, weights = 0;
    int64_t parts = t->len.rows / ranks_eval_rows(t, t->len.rows, t->len.seq);
    int64_t micros =
        t->cfg->validation.batches * t->len.micros * parts; /* on every layout the same text */
    for (int i = 0; i < t->data.n_sets; i++) {
        run_source *s = &t->data.sets[i];
        TRY(eval_loss(&t->x, t->m, t->eval_id, s->batches, micros, &s->loss));
        double weight = s->weight > 0 ? s->weight : (double)(s->range.to - s->range.from);
        sum += weight * s->loss;
        weights += weight;
    }
    *loss = sum / weights;
    return OK;
}

static void free_sources(run_source *list, int n) {
    for (int i = 0; i < n; i++) {
        loader_free(list[i].batches);
        if (!list[i].borrowed) data_close(list[i].data);
        free(list[i].name);
        free(list[i].phase_weights);
    }
    free(list);
}

void datasets_free(trainer *t) {
    loader_free(t->data.batches);
    free_sources(t->data.sets, t->data.n_sets); /* first: some read the sources' data */
    free_sources(t->data.sources, t->data.n_sources + t->data.has_clean);
    free(t->data.observed);
    free(t->data.phases);
}
