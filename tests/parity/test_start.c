/* A run begins with these and leaves them behind: weights from elsewhere, the tokenizer, config.yaml. */
#include "support/train.h"

#include <math.h>

static const char *run_path(test_folder *f, const char *run, const char *file) {
    char name[128];
    snprintf(name, sizeof name, "%s/%s", run, file);
    return in_folder(f, name);
}

/* ingot train FILE.yaml, with what is changed on the command line. */
static err train_file(const char *path, settings own) {
    config c;
    config_init(&c);
    err e = config_load(&c, path);
    for (int i = 0; !e && i + 1 < MOST_SETTINGS && own[i]; i += 2)
        e = config_set(&c, own[i], own[i + 1]);
    if (!e) e = train_run(&c, &(train_options){ .quiet = true });
    config_free(&c);
    return e;
}

static size_t count_steps(test_folder *f, const char *run) {
    json_t *steps = logged_steps(f, run);
    size_t n = json_array_size(steps);
    json_decref(steps);
    return n;
}

static const char *write_text_file(test_folder *f) {
    str text = { 0 };
    for (int i = 0; i < 600; i++) str_add(&text, "The number of this line is %d.\n", i * i);
    const char *path = folder_write(f, "text.txt", text.text);
    str_free(&text);
    return path;
}

/* A run in a folder, given by what differs from the model the tests usually train. */
static err train_from(test_folder *f, const char *name, settings own) {
    settings common = {
        "device.kind",      "cpu", "training.steps",    "4", "training.seq_len",          "32",
        "training.threads", "1",   "metrics.log_every", "0", "training.local_batch_size", "2",
        "validation.every", "0",
    };
    return run_with(f, name, common, own);
}

/* ---- weights from elsewhere ---------------------------------------------------------------- */
#define FROM(path) "checkpoint.initial_load_path", path

static void a_run_from_weights_is_continued_by_its_command_and_its_config(void **state) {
    test_folder *f = *state;
    train_small(f, "first", (settings){ "model.layers", "3", "training.steps", "2" });
    const char *first = in_folder(f, "first");
    assert_ok(train_from(f, "second", (settings){ FROM(first) }));
    assert_int_equal(count_steps(f, "second"), 4);
    assert_ok(train_from(f, "second", (settings){ FROM(first), "training.steps", "6" }));
    assert_int_equal(count_steps(f, "second"), 6);
    const char *file = run_path(f, "second", "config.yaml");
    assert_ok(train_file(file, (settings){ "training.steps", "8" }));
    assert_int_equal(count_steps(f, "second"), 8);
    /* also when what it began with is gone */
    assert_ok(io_remove_tree(f->path, first));
    assert_ok(train_file(file, (settings){ "training.steps", "9" }));
    assert_int_equal(count_steps(f, "second"), 9);
}

static void settings_beside_the_weights_are_compared(void **state) {
    test_folder *f = *state;
    train_small(f, "first", (settings){ "training.steps", "2" });
    const char *first = in_folder(f, "first");
    assert_error(train_from(f, "no", (settings){ FROM(first), "model.layers", "2" }),
                 "model.layers = 1", "has 2");
    assert_error(train_from(f, "no", (settings){ FROM(first), "model.preset", "gpt-small" }),
                 "model.");
    assert_error(train_from(f, "no", (settings){ FROM(first), "model.rope_theta", "500" }),
                 "model.rope_theta");
    /* what only training reads may be new */
    assert_ok(train_from(f, "same",
                         (settings){ FROM(first), "model.layers", "1", "model.dropout", "0.2" }));
    char *text = folder_read(f, "same/config.yaml");
    assert_non_null(strstr(text, "  dropout: 0.2"));
    free(text);
    assert_error(train_from(f, "no", (settings){ FROM(f->path) }), "holds no run", f->path);
}

/* ---- what a continued run may change -------------------------------------------------------- */
/* Another optimizer begins with states of its own: those of the one before are neither needed nor read. */
static void another_optimizer_begins_anew(void **state) {
    test_folder *f = *state;
    model_config c;
    ckpt_state at;
    char *checkpoint;
    train_small(f, "run", (settings){ "optimizer.name", "sgd", "training.steps", "3" });
    train_small(f, "run",
                (settings){ "optimizer.name", "adamw", "training.steps", "5",
                            "checkpoint.allow_changes", "optimizer.name" });
    assert_ok(ckpt_find(in_folder(f, "run"), &checkpoint));
    assert_ok(ckpt_read_manifest(checkpoint, &c, &at, NULL));
    assert_int_equal(at.step, 5);
    assert_int_equal(at.updates, 2);
    free(checkpoint);
}

static const char *write_mix(test_folder *f, const char *name, int sources) {
    str mix = { 0 };
    str_add(&mix, "sources:\n");
    for (int i = 0; i < sources; i++)
        str_add(&mix, "  - { name: part%d, path: %s }\n", i, in_folder(f, "text.txt"));
    const char *path = folder_write(f, name, mix.text);
    str_free(&mix);
    return path;
}

static void a_source_more_is_noted(void **state) {
    test_folder *f = *state;
    write_text_file(f);
    const char *one = write_mix(f, "one.yaml", 1), *two = write_mix(f, "two.yaml", 2);
    train_small(f, "run", (settings){ "data.train", one, "training.steps", "2" });
    train_small(f, "run", (settings){ "data.train", two, "training.steps", "4" });
    char *events = folder_read(f, "run/events.jsonl");
    assert_non_null(strstr(events, "training data: nothing -> part1"));
    free(events);
}

static void a_hugging_face_folder_is_imported_on_the_fly(void **state) {
    test_folder *f = *state;
    const char *theirs_at = FIXTURES "/llama";
    uint16_t ids[4000];
    for (size_t i = 0; i < COUNT_OF(ids); i++) ids[i] = (uint16_t)(i * i % 79);
    const char *path = folder_write_bytes(f, "tokens.bin", ids, sizeof ids);
    assert_ok(train_from(f, "run",
                         (settings){ FROM(theirs_at), "data.train", path, "optimizer.lr", "0",
                                     "training.steps", "1" }));
    assert_error(
        train_from(f, "no", (settings){ FROM(theirs_at), "data.train", write_text_file(f) }),
        "vocab");
    model_config saved, theirs;
    ckpt_state at;
    const hf_family *family;
    char *checkpoint;
    assert_ok(ckpt_find(in_folder(f, "run"), &checkpoint));
    assert_ok(ckpt_read_manifest(checkpoint, &saved, &at, NULL));
    assert_ok(hf_import_config(theirs_at, &theirs, &family, NULL));
    assert_int_equal(model_config_diff(&saved, &theirs, 0), -1);
    st_file *ours, *original;
    assert_ok(st_open(run_path(f, "run", "checkpoints/step-00000001/model.safetensors"), &ours));
    assert_ok(st_open(theirs_at, &original));
    const st_tensor *a = st_find(ours, "norm.w"), *b = st_find(original, "model.norm.weight");
    float x[512], y[512];
    assert_true(a && b && a->count == b->count && a->count <= 512);
    assert_ok(st_read_f32(a, 0, a->count, x));
    assert_ok(st_read_f32(b, 0, b->count, y));
    assert_memory_equal(x, y, (size_t)a->count * sizeof *x);
    st_close(ours);
    st_close(original);
    free(checkpoint);
}

/* ---- tokenizers ---------------------------------------------------------------------------- */
static const char *const BPE = FIXTURES "/tokenizers/gpt2.json";

static void text_leaves_its_tokenizer_in_the_run(void **state) {
    test_folder *f = *state;
    const char *path = write_text_file(f);
    train_small(f, "run", (settings){ "data.train", path, "data.tokenizer", BPE });
    tokenizer *t = NULL, *original = NULL;
    assert_ok(tokenizer_open(run_path(f, "run", "tokenizer.json"), NULL, &t));
    assert_ok(tokenizer_open(BPE, NULL, &original));
    assert_true(tokenizer_hash(t) == tokenizer_hash(original));
    tokenizer_free(t);
    tokenizer_free(original);
}

static void text_is_tokenized_as_the_weights_know_it(void **state) {
    test_folder *f = *state;
    const char *path = write_text_file(f);
    train_small(f, "first", (settings){ "data.train", path, "data.tokenizer", BPE });
    const char *first = in_folder(f, "first");
    assert_ok(train_from(f, "second", (settings){ FROM(first), "data.train", path }));
    tokenizer *a = NULL, *b = NULL;
    assert_ok(tokenizer_open(run_path(f, "second", "tokenizer.json"), NULL, &a));
    assert_ok(tokenizer_open(BPE, NULL, &b));
    assert_true(tokenizer_hash(a) == tokenizer_hash(b));
    tokenizer_free(a);
    tokenizer_free(b);
    char *text = folder_read(f, "second/config.yaml");
    assert_non_null(strstr(text, "second/tokenizer.json"));
    free(text);
    assert_error(
        train_from(f, "no",
                   (settings){ FROM(first), "data.train", path, "data.tokenizer", "bytes" }),
        "not tokenized with the tokenizer of");
    train_small(f, "bytes", (settings){ "data.train", path, "model.vocab_size", "1000" });
    assert_error(train_from(f, "no",
                            (settings){ FROM(in_folder(f, "bytes")), "data.train", path,
                                        "data.tokenizer", BPE }),
                 "not tokenized with the tokenizer of");
}

/* ---- config.yaml --------------------------------------------------------------------------- */
static void config_yaml_records_what_was_used(void **state) {
    test_folder *f = *state;
    train_small(f, "run",
                (settings){ "precision", "fastest", "training.global_batch_size", "1024 tokens",
                            "device.kind", "auto" });
    char *text = folder_read(f, "run/config.yaml"), name[256];
    static const char *const used[] = { "  layers: 1 ",           "  vocab_size: 257 ",
                                        "  norm: rms ",           "  rope_theta: 10000 ",
                                        "  local_batch_size: 4 ", "  global_batch_size: 16 ",
                                        "  tokenizer: \"bytes\" " };
    for (size_t i = 0; i < COUNT_OF(used); i++)
        if (!strstr(text, used[i])) fail_msg("no \"%s\" in\n%s", used[i], text);
    assert_null(strstr(text, ": auto "));
    assert_null(strstr(text, ": fastest "));
    snprintf(name, sizeof name, "  dir: \"%s/run\"", f->path);
    assert_non_null(strstr(text, name));
    config c;
    config_init(&c);
    assert_ok(config_load(&c, in_folder(f, "run/config.yaml")));
    assert_int_not_equal(c.device.kind, OPS_AUTO);
    assert_int_not_equal(c.precision.dtype, CFG_FASTEST);
    model_config again;
    assert_ok(model_from_config(&c, &again));
    config_free(&c);
    free(text);
}

#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(a_run_from_weights_is_continued_by_its_command_and_its_config),
        T(settings_beside_the_weights_are_compared),
        T(another_optimizer_begins_anew),
        T(a_source_more_is_noted),
        T(a_hugging_face_folder_is_imported_on_the_fly),
        T(text_leaves_its_tokenizer_in_the_run),
        T(text_is_tokenized_as_the_weights_know_it),
        T(config_yaml_records_what_was_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
