/* Checkpoints on disk: every flipped bit is found, older ones load, a save never leaves less than was
 * there before. */
#include "support/folder.h"
#include "support/model.h"

#include "checkpoint/checkpoint.h"

/* ---- a model to save ------------------------------------------------------------------------- */
typedef struct saved_model {
    model *m;
    plan *p;
    optimizer *o;
    exec x;
} saved_model;

static void model_open_as(saved_model *s, const model_config *c) {
    model_layout l = { .dt = DT_F32 };
    assert_ok(model_new(c, &l, &s->m));
    s->p = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(s->m, s->p, true);
    optim_settings o = { .kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 };
    assert_ok(optim_new(&o, s->m, s->p, &s->o));
    assert_ok(plan_commit(s->p));
    model_init(s->m, s->p, 42);
    s->x = (exec){ .plan = s->p, .comm = comm_self() };
}

static void model_open(saved_model *s) {
    model_config c = small_llama();
    model_open_as(s, &c);
}

static void model_close(saved_model *s) {
    optim_free(s->o);
    plan_free(s->p);
    model_free(s->m);
    comm_free(s->x.comm);
}

static ckpt_state state_at(int64_t step, double loss) {
    return (ckpt_state){ .step = step,
                         .updates = step - 1,
                         .tokens = 64 * step,
                         .windows = 4 * step,
                         .skips = { 1, { { 5, 9 } } },
                         .seed = 7,
                         .bytes = true,
                         .epoch_offset = true,
                         .scaler = { 1024, 3, 2000 },
                         .noise = { .g2 = 0.1, .noise = 2.5, .decay = 0.99, .seen = 4 },
                         .loss = loss,
                         .skipped_updates = 2,
                         .tokenizer = 0xfedcba9876543210,
                         .saves = 6,
                         .held_out_loss = 1.75 };
}

static void save(saved_model *s, const char *dir, int64_t step, double loss, int64_t keep) {
    ckpt_state st = state_at(step, loss);
    json_t *run = json_pack("{s:{s:s}}", "options", "optimizer.lr", "0.001");
    assert_ok(ckpt_save(dir, s->m, &s->x, s->o, &st, run, &(ckpt_keep){ .latest = keep }));
    json_decref(run);
}

static char *manifest_of(const char *dir, int64_t step) {
    str path = { 0 };
    str_add(&path, "%s/checkpoints/step-%08lld/manifest.json", dir, (long long)step);
    return path.text;
}

static bool has_step(const char *dir, int64_t step) {
    char *path = manifest_of(dir, step);
    bool there = io_exists(path);
    free(path);
    return there;
}

/* ---- the manifest ---------------------------------------------------------------------------- */
static void a_state_comes_back_as_it_was_saved(void **state) {
    saved_model s;
    model_config c;
    ckpt_state got, want = state_at(12, 1.5);
    json_t *run;
    char *path;
    model_open(&s);
    save(&s, *state, 12, 1.5, 0);
    assert_ok(ckpt_latest(*state, &path));
    assert_ok(ckpt_read_manifest(path, &c, &got, &run));
    char *file = io_join(path, "manifest.json"), *text;
    assert_ok(io_read(file, 1 << 20, &text, NULL));
    assert_true(!strncmp(text, "{\n  \"", 5) &&
                !strcmp(text + strlen(text) - 3, "\n}\n")); /* for people too */
    free(text);
    free(file);
    assert_int_equal(model_config_diff(&c, model_conf(s.m), 0), -1);
    /* every member; a struct comparison would see the padding */
    assert_true(got.step == want.step && got.updates == want.updates);
    assert_true(got.tokens == want.tokens && got.windows == want.windows);
    assert_true(got.seed == want.seed && got.bytes == want.bytes);
    assert_true(got.epoch_offset && got.loss == want.loss);
    assert_true(got.skipped_updates == 2 && got.tokenizer == want.tokenizer);
    assert_true(got.saves == 6 && got.held_out_loss == 1.75);
    assert_memory_equal(&got.skips, &want.skips, sizeof got.skips);
    assert_memory_equal(&got.scaler, &want.scaler, sizeof got.scaler);
    assert_memory_equal(&got.noise, &want.noise, sizeof got.noise);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(run, "options"), "optimizer.lr")),
        "0.001");
    json_decref(run);
    free(path);
    model_close(&s);
}

/* @return true when the flip is found, or leaves the same manifest. */
static bool flip_is_found_or_harmless(const char *folder, const char *path,
                                      const json_t *original) {
    model_config c;
    ckpt_state st;
    json_t *doc = NULL;
    err e = ckpt_read_manifest(folder, &c, &st, NULL);
    if (!e) assert_ok(io_json_read(path, &doc));
    bool fine = e || json_equal(doc, original);
    err_free(e);
    json_decref(doc);
    return fine;
}

enum { FLIPS = 3000 };
static void flipped_bits_of_a_manifest_are_found_or_harmless(void **state) {
    saved_model s;
    char *text, *folder, *path = manifest_of(*state, 12);
    size_t n;
    json_t *original;
    model_open(&s);
    save(&s, *state, 12, 1.5, 0);
    assert_ok(ckpt_latest(*state, &folder));
    assert_ok(io_read(path, 1 << 20, &text, &n));
    assert_ok(io_json_read(path, &original));
    rng_key key = rng_key_of(3, 4);
    for (uint64_t i = 0; i < FLIPS; i++) {
        size_t bit = (size_t)rng_below(key, i, 8 * n);
        text[bit / 8] ^= (char)(1 << bit % 8);
        write_bytes(path, text, n);
        if (!flip_is_found_or_harmless(folder, path, original))
            fail_msg("bit %zu flipped is believed: %.40s", bit,
                     text + (bit / 8 < 20 ? 0 : bit / 8 - 20));
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
    write_bytes(path, text, n);
    assert_ok(ckpt_load(folder, s.m, &s.x, s.o));
    json_decref(original);
    free(text);
    free(folder);
    free(path);
    model_close(&s);
}

/* Threads read the chunks; what is reported does not depend on which of them is first. */
static void the_first_of_several_damaged_chunks_is_reported(void **state) {
    test_folder *f = *state;
    saved_model s;
    char *path, *text;
    size_t n;
    model_config c = small_llama();
    c.vocab = 100000; /* several chunks, which are read by threads */
    model_open_as(&s, &c);
    save(&s, f->path, 5, 1, 0);
    assert_ok(ckpt_latest(f->path, &path));
    char *optim = io_join(path, "optim.safetensors"), *weights = io_join(path, "model.safetensors");
    assert_ok(io_read(optim, 1 << 27, &text, &n));
    uint64_t header;
    memcpy(&header, text, sizeof header);
    for (size_t i = 8 + header; i < n; i += 4) text[i] ^= 1; /* all of its chunks */
    write_bytes(optim, text, n);
    free(text);
    assert_ok(io_read(weights, 1 << 27, &text, &n));
    text[n - 1] ^= 1; /* the last of the file before it */
    write_bytes(weights, text, n);
    free(text);
    assert_error(ckpt_verify(path, 0, 1, NULL), "model.safetensors is damaged");
    assert_error(ckpt_load(path, s.m, &s.x, s.o), "model.safetensors is damaged");
    free(weights);
    free(optim);
    free(path);
    model_close(&s);
}

/* ---- older formats --------------------------------------------------------------------------- */
#define FORMAT_2 FIXTURES "/checkpoint2" /* what version 0.1.0 wrote: whole tensors, two files */

static void copy_fixture(test_folder *f) {
    static const char *const names[] = { "manifest.json", "model.safetensors",
                                         "optim.safetensors" };
    assert_ok(io_make_dirs(in_folder(f, "run/checkpoints/step-00000003")));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *from = io_join(FORMAT_2, names[i]);
        char *to = io_join(in_folder(f, "run/checkpoints/step-00000003"), names[i]);
        assert_ok(io_copy(from, to));
        free(from);
        free(to);
    }
}

/* Every tensor of an older checkpoint's file, as the file has it. */
static void check_tensors(const char *file, ckpt_reader *r) {
    st_file *f;
    char *path = io_join(FORMAT_2, file);
    assert_ok(st_open(path, &f));
    for (int i = 0; i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        int at = ckpt_find_tensor(r, t->name);
        if (at < 0) fail_msg("%s is missing", t->name);
        float *want = mem_alloc(t->bytes), *got = mem_alloc(t->bytes);
        assert_ok(st_read_f32(t, 0, t->count, want));
        assert_ok(ckpt_read(r, at, 0, t->count, got));
        assert_memory_equal(got, want, t->bytes);
        free(want);
        free(got);
    }
    st_close(f);
    free(path);
}

/* Format 2 loads into a model, and what that saves in format 3 is bit-identical. */
static void a_checkpoint_of_format_2_loads(void **state) {
    test_folder *f = *state;
    model_config c;
    ckpt_state st;
    ckpt_reader *r;
    saved_model s;
    json_t *run;
    char *path;
    copy_fixture(f);
    assert_ok(ckpt_newest_whole(in_folder(f, "run"), CKPT_FULL, NULL, &path));
    assert_ok(ckpt_read_manifest(path, &c, &st, &run));
    assert_int_equal(st.step, 3);
    assert_non_null(run);
    model_open_as(&s, &c);
    assert_ok(ckpt_load(path, s.m, &s.x, s.o));
    assert_ok(ckpt_save(in_folder(f, "new"), s.m, &s.x, s.o, &st, run, NULL));
    free(path);
    assert_ok(ckpt_latest(in_folder(f, "new"), &path));
    assert_ok(ckpt_open(path, &r));
    check_tensors("model.safetensors", r);
    check_tensors("optim.safetensors", r);
    ckpt_close(r);
    free(path);
    json_decref(run);
    model_close(&s);
}

/* A manifest under a right checksum that lists a slice twice, or leaves one out, is refused all the same. */
static void a_slice_twice_or_not_at_all_is_refused(void **state) {
    saved_model s;
    model_open(&s);
    for (int twice = 0; twice < 2; twice++) {
        char *path, hash[32];
        json_t *doc;
        ckpt_reader *r = NULL;
        save(&s, *state, 12 + twice, 1.5, 0);
        assert_ok(ckpt_latest(*state, &path));
        char *file = io_join(path, "manifest.json");
        assert_ok(io_json_read(file, &doc));
        json_t *slices = json_object_get(
            json_object_get(json_object_get(doc, "files"), "model.safetensors"), "slices");
        if (twice)
            json_array_append(slices, json_array_get(slices, 1));
        else
            json_array_remove(slices, 1);
        json_object_del(doc, "checksum");
        char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
        snprintf(hash, sizeof hash, "%016llx",
                 (unsigned long long)hash_bytes(text, strlen(text), 0));
        free(text);
        json_object_set_new(doc, "checksum", json_string(hash));
        text = json_dumps(doc, JSON_REAL_PRECISION(17));
        assert_ok(io_write(file, text, strlen(text)));
        assert_error(ckpt_open(path, &r), "slices of", "elements");
        free(text);
        json_decref(doc);
        free(file);
        free(path);
    }
    model_close(&s);
}

/* The version before that wrote format 1, without checksums and the newer members. */
static void a_checkpoint_of_format_1_loads(void **state) {
    test_folder *f = *state;
    saved_model s;
    model_config c;
    ckpt_state st;
    json_t *doc, *run;
    const char *folder = in_folder(f, "run/checkpoints/step-00000003");
    const char *path = in_folder(f, "run/checkpoints/step-00000003/manifest.json");
    copy_fixture(f);
    assert_ok(io_json_read(path, &doc));
    static const char *const newer[] = { "loss", "skipped_updates", "tokenizer", "epoch_offset" };
    for (size_t i = 0; i < COUNT_OF(newer); i++)
        assert_int_equal(json_object_del(json_object_get(doc, "state"), newer[i]), 0);
    json_object_del(doc, "run");
    json_object_del(doc, "checksum");
    assert_ok(io_json_write(path, doc));
    assert_error(ckpt_read_manifest(folder, &c, &st, NULL),
                 "checksum"); /* format 2 must have one */
    json_object_set_new(doc, "format", json_integer(1));
    assert_ok(io_json_write(path, doc));
    assert_ok(ckpt_read_manifest(folder, &c, &st, &run));
    assert_null(run);
    assert_int_equal(st.step, 3);
    assert_true(isnan(st.loss) && st.tokenizer == 0 && !st.epoch_offset);
    model_open_as(&s, &c);
    assert_ok(ckpt_load(folder, s.m, &s.x, s.o));
    json_object_set_new(json_object_get(doc, "state"), "skipped", json_pack("[[i, i]]", 5, 3));
    assert_ok(io_json_write(path, doc));
    assert_error(ckpt_read_manifest(folder, &c, &st, NULL), "skipped"); /* ends before it begins */
    json_decref(doc);
    model_close(&s);
}

#define FORMAT_3 FIXTURES "/checkpoint3" /* of 4 ranks, tp 2 with ZeRO 1: rectangles and ranges */

/* One checksum over names and values of all tensors, in the order of names. */
static uint64_t hash_tensors(const char *path) {
    ckpt_reader *r;
    uint64_t hash = 0;
    assert_ok(ckpt_open(path, &r));
    for (int i = 0; i < ckpt_tensors(r); i++) {
        ckpt_tensor_info t = ckpt_tensor_at(r, i);
        float *values = mem_alloc((size_t)t.count * sizeof *values);
        assert_ok(ckpt_read(r, i, 0, t.count, values));
        hash = hash_bytes(t.name, strlen(t.name), hash);
        hash = hash_bytes(values, (size_t)t.count * sizeof *values, hash);
        free(values);
    }
    ckpt_close(r);
    return hash;
}

/* The files stay as they were written: a change of the format that does not load them any more fails here, and not in
 * someone's run. tests/golden evaluates the same checkpoint. */
static void a_checkpoint_of_format_3_loads(void **state) {
    static const uint64_t values = 0x71237077f1eb9507;
    test_folder *f = *state;
    model_config c;
    ckpt_state st;
    ckpt_size size;
    saved_model s;
    json_t *run;
    char *path;
    assert_ok(ckpt_verify(FORMAT_3, 0, 1, &size));
    assert_int_equal(size.tensors, 33);
    assert_int_equal(size.files, 8);
    assert_ok(ckpt_read_manifest(FORMAT_3, &c, &st, &run));
    assert_true(st.step == 20 && st.updates == 20 && st.tokens == 1280 && st.windows == 80);
    assert_true(st.epoch_offset && st.bytes && st.tokenizer == 0x2d83aaba506794c4);
    assert_true(st.loss == 3.6407777145504951 && st.saves == 1 && st.scaler.scale == 65536);
    assert_non_null(json_object_get(run, "options"));
    assert_true(hash_tensors(FORMAT_3) == values);
    model_open_as(&s, &c); /* on one rank, and saved once more */
    assert_ok(ckpt_load(FORMAT_3, s.m, &s.x, s.o));
    assert_ok(ckpt_save(f->path, s.m, &s.x, s.o, &st, run, NULL));
    assert_ok(ckpt_latest(f->path, &path));
    assert_true(hash_tensors(path) == values);
    free(path);
    json_decref(run);
    model_close(&s);
}

/* It is not damaged: an older checkpoint in its place would lose steps without need. */
static void a_checkpoint_of_a_later_version_is_refused(void **state) {
    test_folder *f = *state;
    saved_model s;
    json_t *doc;
    char *path, *manifest = manifest_of(f->path, 6);
    model_open(&s);
    save(&s, f->path, 5, 1, 0);
    save(&s, f->path, 6, 1, 0);
    assert_ok(io_json_read(manifest, &doc));
    json_object_set_new(doc, "format", json_integer(4));
    assert_ok(io_json_write(manifest, doc));
    assert_error(ckpt_newest_whole(f->path, CKPT_FULL, NULL, &path), "format 4");
    assert_null(path);
    json_decref(doc);
    free(manifest);
    model_close(&s);
}

/* ---- saving ---------------------------------------------------------------------------------- */
static void a_step_saved_again_replaces_the_one_before(void **state) {
    saved_model s;
    ckpt_state st;
    model_config c;
    char *path;
    model_open(&s);
    save(&s, *state, 5, 1, 0);
    save(&s, *state, 5, 2, 0);
    assert_ok(ckpt_latest(*state, &path));
    assert_ok(ckpt_read_manifest(path, &c, &st, NULL));
    assert_true(st.loss == 2);
    assert_ok(ckpt_load(path, s.m, &s.x, s.o));
    free(path);
    model_close(&s);
}

static void what_a_killed_save_left_is_put_right(void **state) {
    test_folder *f = *state;
    saved_model s;
    model_open(&s);
    save(&s, f->path, 5, 1, 0);
    save(&s, f->path, 6, 1, 0);
    assert_ok(io_make_dirs(in_folder(f, "checkpoints/.step-00000007.tmp/below")));
    assert_ok(io_make_dirs(in_folder(f, "checkpoints/.step-00000006.old")));
    /* killed between its two renames */
    assert_int_equal(rename(in_folder(f, "checkpoints/step-00000005"),
                            in_folder(f, "checkpoints/.step-00000005.old")),
                     0);
    assert_ok(ckpt_recover(f->path));
    char **names;
    int n;
    assert_ok(io_list(in_folder(f, "checkpoints"), &names, &n));
    assert_int_equal(n, 2);
    assert_true(has_step(f->path, 5) && has_step(f->path, 6));
    io_list_free(names, n);
    assert_ok(ckpt_recover(in_folder(f, "nowhere")));
    model_close(&s);
}

static void the_last_checkpoint_with_a_finite_loss_stays(void **state) {
    saved_model s;
    model_open(&s);
    save(&s, *state, 1, 1, 2);
    save(&s, *state, 2, 1, 2);
    save(&s, *state, 3, NAN, 2);
    save(&s, *state, 4, INFINITY, 2);
    save(&s, *state, 5, NAN, 2);
    assert_true(!has_step(*state, 1) && has_step(*state, 2) && !has_step(*state, 3));
    assert_true(has_step(*state, 4) && has_step(*state, 5));
    save(&s, *state, 6, 1, 2); /* better now: the old one may go */
    assert_true(!has_step(*state, 2) && !has_step(*state, 4));
    assert_true(has_step(*state, 5) && has_step(*state, 6));
    model_close(&s);
}

static void each_kth_and_the_best_stay(void **state) {
    static const double held_out[] = { 5, 4, 2, 3, 2.5, 2.6, 2.7, 2.8 };
    saved_model s;
    model_open(&s);
    for (int step = 1; step <= 8; step++) {
        ckpt_state st = state_at(step, 1);
        st.saves = step;
        st.held_out_loss = held_out[step - 1];
        ckpt_keep keep = { .latest = 1, .every = 4, .best = 2 };
        assert_ok(ckpt_save(*state, s.m, &s.x, s.o, &st, NULL, &keep));
    }
    for (int step = 1; step <= 8;
         step++) /* 3 and 5 are the best, 4 and 8 each fourth, 8 the newest */
        assert_int_equal(has_step(*state, step), step == 3 || step == 4 || step == 5 || step == 8);
    model_close(&s);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_state_comes_back_as_it_was_saved),
        TEST(flipped_bits_of_a_manifest_are_found_or_harmless),
        TEST(a_checkpoint_of_format_2_loads),
        TEST(a_slice_twice_or_not_at_all_is_refused),
        TEST(a_checkpoint_of_format_1_loads),
        TEST(a_checkpoint_of_format_3_loads),
        TEST(the_first_of_several_damaged_chunks_is_reported),
        TEST(a_checkpoint_of_a_later_version_is_refused),
        TEST(a_step_saved_again_replaces_the_one_before),
        TEST(what_a_killed_save_left_is_put_right),
        TEST(the_last_checkpoint_with_a_finite_loss_stays),
        TEST(each_kth_and_the_best_stay),
    };
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0); /* without fsync */
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
