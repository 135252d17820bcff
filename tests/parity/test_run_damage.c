/* Flipped bits, truncated and missing files, anywhere in a run's folder: each one is an error when the run
 * continues or is sampled, or the run continues to the very bits of the undamaged one. INGOT_TEST_DAMAGES
 * sets how many (bench/fault/damage has the long run). */
#include "support/folder.h"

#include <ftw.h>

#include "train/train.h"

enum { DAMAGES = SANITIZED ? 24 : 150 };
#define TOKENIZER FIXTURES "/tokenizers/gpt2.json"

/* ---- a run ----------------------------------------------------------------------------------- */
static err run_ranks_to(test_folder *f, const char *dir, const char *stop, int ranks) {
    const char *const options[][2] = {
        { "training.global_batch_size", "2" },
        { "model.layers", "1" },
        { "model.dim", "16" },
        { "model.heads", "1" },
        { "model.kv_heads", "1" },
        { "model.head_dim", "16" },
        { "model.ffn_dim", "16" },
        { "training.steps", "4" },
        { "training.seq_len", "16" },
        { "training.threads", "1" },
        { "training.local_batch_size", "1" },
        { "metrics.log_every", "0" },
        { "validation.every", "0" },
        { "data.train", in_folder(f, "text.txt") },
        { "data.tokenizer", TOKENIZER },
        { "data.prefetch", "0" },
        { "device.kind", "cpu" },
        { "run.dir", dir },
        { "training.stop", stop },
    };
    config c;
    config_init(&c);
    for (size_t i = 0; i < COUNT_OF(options); i++)
        assert_ok(config_set(&c, options[i][0], options[i][1]));
    err e = train_run(&c, &(train_options){ .quiet = true, .ranks = ranks });
    config_free(&c);
    return e;
}
static err run_to(test_folder *f, const char *dir, const char *stop) {
    return run_ranks_to(f, dir, stop, 1);
}

static void write_text(test_folder *f) {
    str text = { 0 };
    for (int i = 0; i < 40; i++)
        str_add(&text, "The number %d comes after %d. Many people know that.\n\n", i + 1, i);
    folder_write(f, "text.txt", text.text);
    str_free(&text);
}

/* ---- files ----------------------------------------------------------------------------------- */
enum { MOST_FILES = 32 };
static struct {
    char path[MOST_FILES][256]; /* below the folder */
    size_t bytes[MOST_FILES], all;
    int n;
    size_t root; /* length of the folder's path */
} list;

static int list_file(const char *path, const struct stat *st, int kind) {
    if (kind != FTW_F || st->st_size == 0) return 0;
    assert_true(list.n < MOST_FILES);
    snprintf(list.path[list.n], sizeof list.path[0], "%s", path + list.root);
    list.bytes[list.n++] = (size_t)st->st_size;
    list.all += (size_t)st->st_size;
    return 0;
}

static void list_files(const char *folder) {
    memset(&list, 0, sizeof list);
    list.root = strlen(folder) + 1;
    assert_int_equal(ftw(folder, list_file, 8), 0);
}

typedef enum { FLIPPED, TRUNCATED, MISSING, KINDS } damage_kind;
static const char *const kind_names[KINDS] = { "bit flipped in", "truncated", "removed" };

/* Copies the listed files, one of them damaged: at this bit, or at its byte. */
static void copy_damaged(test_folder *f, const char *from, const char *to, int damaged,
                         damage_kind kind, size_t bit) {
    assert_ok(io_remove_tree(f->path, to));
    for (int i = 0; i < list.n; i++) {
        char *source = io_join(from, list.path[i]), *target = io_join(to, list.path[i]), *bytes;
        size_t n;
        char *slash = strrchr(target, '/');
        *slash = '\0';
        assert_ok(io_make_dirs(target));
        *slash = '/';
        assert_ok(io_read(source, 1 << 26, &bytes, &n));
        if (i == damaged && kind == FLIPPED) bytes[bit / 8] ^= (char)(1 << bit % 8);
        if (i == damaged && kind == TRUNCATED) n = bit / 8;
        if (i != damaged || kind != MISSING) write_bytes(target, bytes, n);
        free(bytes);
        free(source);
        free(target);
    }
}

/* The tensors of step 4 of two runs, and the number of steps and tokens they took. */
static void compare_runs(const char *a, const char *b, const char *what) {
    ckpt_reader *x, *y;
    ckpt_state s, u;
    model_config c;
    char *p = ckpt_path(a, CKPT_FULL, 4), *q = ckpt_path(b, CKPT_FULL, 4);
    assert_ok(ckpt_read_manifest(p, &c, &s, NULL));
    assert_ok(ckpt_read_manifest(q, &c, &u, NULL));
    if (s.step != u.step || s.tokens != u.tokens || s.windows != u.windows || s.loss != u.loss)
        fail_msg("%s: believed, and the state differs", what);
    assert_ok(ckpt_open(p, &x));
    assert_ok(ckpt_open(q, &y));
    assert_int_equal(ckpt_tensors(x), ckpt_tensors(y));
    for (int i = 0; i < ckpt_tensors(x); i++) {
        ckpt_tensor_info t = ckpt_tensor_at(x, i);
        size_t bytes = (size_t)t.count * sizeof(float);
        float *v = mem_alloc(bytes), *w = mem_alloc(bytes);
        assert_ok(ckpt_read(x, i, 0, t.count, v));
        assert_ok(ckpt_read(y, i, 0, t.count, w));
        if (memcmp(v, w, bytes)) fail_msg("%s: believed, and %s differs", what, t.name);
        free(v);
        free(w);
    }
    ckpt_close(x);
    ckpt_close(y);
    free(p);
    free(q);
}

static void compare_files(const char *a, const char *b, const char *name, const char *what) {
    char *x = io_join(a, name), *y = io_join(b, name), *p, *q;
    size_t n, m;
    assert_ok(io_read(x, 1 << 26, &p, &n));
    assert_ok(io_read(y, 1 << 26, &q, &m));
    if (n != m || memcmp(p, q, n)) fail_msg("%s: believed, and %s differs", what, name);
    free(p);
    free(q);
    free(x);
    free(y);
}

/* ---- what a reader of the run sees ----------------------------------------------------------- */
/* @return false when the damage is found; fails when it is believed and changes a text. */
static bool tokenizer_is_believed(const char *dir, const tokenizer *good, const char *what) {
    model_config c;
    ckpt_state s;
    char *checkpoint = NULL, *path = io_join(dir, "tokenizer.json");
    tokenizer *t = NULL;
    err e = ckpt_latest(dir, &checkpoint);
    assert_true(e || checkpoint); /* nothing here removes a folder */
    if (!e) e = ckpt_read_manifest(checkpoint, &c, &s, NULL);
    if (!e) e = tokenizer_open(path, NULL, &t);
    if (!e) e = ckpt_check_tokenizer(&s, t, path);
    for (int32_t id = 0; !e && id < tokenizer_vocab(good); id++) {
        str a = { 0 }, b = { 0 };
        tokenizer_decode(good, &id, 1, true, &a);
        tokenizer_decode(t, &id, 1, true, &b);
        bool same = a.len == b.len && (a.len == 0 || !memcmp(a.text, b.text, a.len));
        if (!same) fail_msg("%s: believed, and token %d reads otherwise", what, id);
        str_free(&a);
        str_free(&b);
    }
    bool believed = !e;
    err_free(e);
    tokenizer_free(t);
    free(checkpoint);
    free(path);
    return believed;
}

static int damages(void) {
    const char *asked = getenv("INGOT_TEST_DAMAGES");
    return asked ? atoi(asked) : DAMAGES;
}

/* One damage, chosen by its number. @return whether it is found. */
static bool damage_once(test_folder *f, const char *good, const char *whole, const tokenizer *t,
                        int ranks, uint64_t i) {
    static const damage_kind mix[] = { FLIPPED, FLIPPED, TRUNCATED, FLIPPED, FLIPPED, MISSING };
    const char *bad = in_folder(f, "bad");
    rng_key key = rng_key_of(1, 2);
    damage_kind kind = mix[i / 2 % COUNT_OF(mix)];
    /* half of them by file, so that the small ones get their share */
    int file = (int)rng_below(key, 3 * i, (uint64_t)list.n);
    uint64_t at = rng_below(key, 3 * i + 1, list.all);
    if (i % 2)
        for (file = 0; at >= list.bytes[file]; file++) at -= list.bytes[file];
    size_t bit = rng_below(key, 3 * i + 2, 8 * list.bytes[file]);
    char what[360];
    snprintf(what, sizeof what, "%s %s, bit %zu", kind_names[kind], list.path[file], bit);
    copy_damaged(f, good, bad, file, kind, bit);
    bool believed = tokenizer_is_believed(bad, t, what);
    err e = run_ranks_to(f, bad, "4", ranks);
    if (!e) {
        compare_runs(whole, bad, what);
        compare_files(whole, bad, "tokenizer.json", what);
    }
    bool found = e || !believed;
    err_free(e);
    return found;
}

static void damage_run(test_folder *f, int ranks) {
    const char *good = in_folder(f, "good"), *whole = in_folder(f, "whole");
    tokenizer *t;
    int n = damages(), found = 0;
    write_text(f);
    assert_ok(tokenizer_open(TOKENIZER, NULL, &t));
    assert_ok(run_ranks_to(f, good, "3", ranks));
    assert_ok(run_ranks_to(f, whole, "3", ranks));
    assert_ok(run_ranks_to(f, whole, "4", ranks));
    list_files(good);
    for (int i = 0; i < n; i++) found += damage_once(f, good, whole, t, ranks, (uint64_t)i);
    fprintf(stderr, "%d ranks, %d damages: %d found, %d harmless\n", ranks, n, found, n - found);
    assert_true(found > n / 5); /* of weights, states, manifest, tokenizer */
    tokenizer_free(t);
}

static void every_damage_is_found_or_harmless(void **state) { damage_run(*state, 1); }
static void every_damage_to_what_two_ranks_wrote_is_too(void **state) { damage_run(*state, 2); }

/* ---- a damaged checkpoint, and one before it ------------------------------------------------- */
/* Flips a bit in the middle of a listed file's last checkpoint. */
static void damage_last(test_folder *f, const char *from, const char *to, const char *name) {
    char wanted[256];
    int file = 0;
    snprintf(wanted, sizeof wanted, "checkpoints/step-00000003/%s", name);
    list_files(from);
    while (file < list.n && strcmp(list.path[file], wanted)) file++;
    assert_true(file < list.n);
    copy_damaged(f, from, to, file, FLIPPED, 4 * list.bytes[file]);
}

static void a_damaged_checkpoint_gives_way_to_the_one_before(void **state) {
    test_folder *f = *state;
    static const char *const names[] = { "model.safetensors", "optim.safetensors",
                                         "manifest.json" };
    const char *good = in_folder(f, "good"), *whole = in_folder(f, "whole"),
               *bad = in_folder(f, "bad");
    write_text(f);
    assert_ok(run_to(f, whole, "4"));
    assert_ok(run_to(f, good, "2"));
    assert_ok(run_to(f, good, "3"));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *found;
        damage_last(f, good, bad, names[i]);
        assert_ok(ckpt_find(bad, &found)); /* sample and export see the one before */
        assert_true(str_ends(found, "step-00000002"));
        free(found);
        assert_ok(run_to(f, bad, "3")); /* from step 2, and saves step 3 once more */
        assert_true(io_is_dir(in_folder(f, "bad/checkpoints/damaged-step-00000003")));
        assert_ok(run_to(f, bad, "4"));
        compare_files(whole, bad, "checkpoints/step-00000004/model.safetensors", names[i]);
        compare_files(whole, bad, "checkpoints/step-00000004/optim.safetensors", names[i]);
    }
}

/* All are damaged: the newest one's damage is the error, and nothing is touched. */
static void damage_to_all_checkpoints_is_an_error(void **state) {
    test_folder *f = *state;
    const char *good = in_folder(f, "good"), *bad = in_folder(f, "bad");
    write_text(f);
    assert_ok(run_to(f, good, "3"));
    damage_last(f, good, bad, "model.safetensors");
    err e = run_to(f, bad, "4");
    assert_error(e, "step-00000003/model.safetensors is damaged");
    assert_true(io_is_dir(in_folder(f, "bad/checkpoints/step-00000003")));
}

/* ---- a checkpoint without its manifest, or under another name ---------------------------------- */
static void remove_manifest(test_folder *f, int step) {
    char name[80];
    snprintf(name, sizeof name, "run/checkpoints/step-%08d/manifest.json", step);
    assert_int_equal(unlink(in_folder(f, name)), 0);
}

/* It is damaged as any other: the one before is used, and it is kept under another name. */
static void a_checkpoint_without_a_manifest_is_damaged(void **state) {
    test_folder *f = *state;
    const char *run = in_folder(f, "run");
    char *found;
    write_text(f);
    assert_ok(run_to(f, run, "2"));
    assert_ok(run_to(f, run, "3"));
    remove_manifest(f, 3);
    assert_ok(ckpt_find(run, &found));
    assert_true(str_ends(found, "step-00000002"));
    free(found);
    assert_ok(run_to(f, run, "3"));
    assert_true(io_exists(in_folder(f, "run/checkpoints/damaged-step-00000003/model.safetensors")));
    remove_manifest(f, 2);
    remove_manifest(f, 3);
    assert_error(run_to(f, run, "4"), "step-00000003 is damaged: it has no manifest.json");
    assert_error(ckpt_find(run, &found), "step-00000003 is damaged");
    assert_true(io_exists(in_folder(f, "run/checkpoints/step-00000003/model.safetensors")));
    assert_false(io_exists(in_folder(f, "run/checkpoints/step-00000004")));
}

static void a_checkpoint_under_another_steps_name_is_refused(void **state) {
    test_folder *f = *state;
    const char *run = in_folder(f, "run");
    char *found;
    write_text(f);
    assert_ok(run_to(f, run, "2"));
    assert_ok(run_to(f, run, "3"));
    assert_int_equal(rename(in_folder(f, "run/checkpoints/step-00000002"),
                            in_folder(f, "run/checkpoints/step-00000009")),
                     0);
    assert_error(run_to(f, run, "4"),
                 "step-00000009 is the checkpoint of step 2 under another name");
    assert_error(ckpt_find(run, &found), "step-00000009 is the checkpoint of step 2");
    assert_true(io_is_dir(in_folder(f, "run/checkpoints/step-00000003")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_damaged_checkpoint_gives_way_to_the_one_before,
                                        folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(damage_to_all_checkpoints_is_an_error, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_checkpoint_without_a_manifest_is_damaged, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_checkpoint_under_another_steps_name_is_refused,
                                        folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(every_damage_is_found_or_harmless, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(every_damage_to_what_two_ranks_wrote_is_too, folder_setup,
                                        folder_teardown),
    };
    if (!freopen("/dev/null", "w", stdout)) return 1;                   /* of many runs */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0); /* without a disk's fsync */
    return cmocka_run_group_tests_name("run damage", tests, NULL, NULL);
}
