/* Whole runs of a model of a few thousand weights, and what they log.
 *
 *     train_small(f, "a", (settings){ "model.dropout", "0.2" });
 *     json_t *steps = logged_steps(f, "a");
 *     assert_true(logged_number(steps, 0, "loss") > 1);
 */
#ifndef INGOT_TESTS_TRAIN_H
#define INGOT_TESTS_TRAIN_H

#include "support/folder.h"

#include <jansson.h>

#include "train/train.h"

enum { MOST_SETTINGS = 96 };
typedef const char *settings[MOST_SETTINGS]; /* name, value, ... */

/* A run that several ranks can share: heads, widths and rows that divide. */
#define SETTINGS_FOR_RANKS(layers)                                                                 \
    "model.preset", "tiny", "model.layers", layers, "model.dim", "16", "model.heads", "4",         \
        "model.kv_heads", "2", "model.head_dim", "4", "model.ffn_dim", "32", "precision", "fp32",  \
        "device.kind", "cpu", "training.steps", "6", "training.seq_len", "32", "training.threads", \
        "1", "training.global_batch_size", "8", "data.synth_documents", "60", "optimizer.lr",      \
        "0.01", "metrics.log_every", "0", "validation.every", "3", "validation.batches", "4"

/* A run of one rank, or of ranks that share its rows. */
#define SETTINGS_OF_ONE(layers)                                                                    \
    "model.preset", "tiny", "model.layers", layers, "model.dim", "16", "model.heads", "2",         \
        "model.kv_heads", "2", "model.head_dim", "8", "model.ffn_dim", "32", "precision", "fp32",  \
        "device.kind", "cpu", "training.steps", "8", "training.seq_len", "64", "training.threads", \
        "1", "training.seed", "3", "training.local_batch_size", "4", "data.synth_documents",       \
        "300", "optimizer.lr", "0.01", "metrics.log_every", "0", "validation.every", "0"

/* Tests share the options set so far, and some of them may have no effect in one of them. */
static inline void end_shared_settings(config *c) {
    config_begin_overrides(c);
    memset(c->idle_in_file, 0, (size_t)config_option_count() * sizeof *c->idle_in_file);
}

/* A run with the settings `common` and then `own`. */
static inline err run_with_options(test_folder *f, const char *name, settings common, settings own,
                                   const train_options *o) {
    const char *const *all[] = { common, own };
    config c;
    config_init(&c);
    for (size_t k = 0; k < COUNT_OF(all); k++) {
        for (int i = 0; i + 1 < MOST_SETTINGS && all[k][i]; i += 2)
            assert_ok(config_set(&c, all[k][i], all[k][i + 1]));
        if (k == 0) end_shared_settings(&c);
    }
    assert_ok(config_set(&c, "run.dir", in_folder(f, name)));
    err e = train_run(&c, o);
    config_free(&c);
    return e;
}
static inline err run_on_ranks(test_folder *f, const char *name, settings common, settings own,
                               int ranks) {
    return run_with_options(f, name, common, own,
                            &(train_options){ .quiet = true, .ranks = ranks });
}
static inline err run_with(test_folder *f, const char *name, settings common, settings own) {
    return run_on_ranks(f, name, common, own, 0);
}

static inline err try_train_ranks(test_folder *f, const char *name, settings own, int ranks) {
    settings common = { SETTINGS_OF_ONE("1") };
    return run_on_ranks(f, name, common, own, ranks);
}
static inline err try_train(test_folder *f, const char *name, settings own) {
    return try_train_ranks(f, name, own, 0);
}

#define train_small(f, name, ...) assert_ok(try_train(f, name, __VA_ARGS__))

/* @return the lines of a run's metrics.jsonl, owned. */
static inline json_t *logged_steps(test_folder *f, const char *name) {
    char path[128], *next = NULL;
    snprintf(path, sizeof path, "%s/metrics.jsonl", name);
    char *text = folder_read(f, path);
    json_t *list = json_array();
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        json_array_append_new(list, o);
    }
    free(text);
    return list;
}

static inline double logged_number(const json_t *steps, size_t i, const char *key) {
    const json_t *v = json_object_get(json_array_get(steps, i), key);
    if (!v) fail_msg("step %zu has no \"%s\"", i + 1, key);
    return json_number_value(v);
}

#endif
