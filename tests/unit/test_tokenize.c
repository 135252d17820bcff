/* Text to shards: the same bytes from any number of threads, after any interruption; folders that
 * were damaged. */
#include "support/data.h"

#include <signal.h>
#include <sys/wait.h>

#include "text/text.h"
#include "tokenizer/tokenizer.h"

enum { DOCUMENTS = 400, SEGMENT = 32 << 10 };

typedef struct world {
    test_folder at;
    char corpus[128];
    tokenizer *t;
} world;

/* Every document twice: copies must fall on one side. */
static int make_world(void **state) {
    world *w = calloc(1, sizeof *w);
    if (folder_make(&w->at)) return -1;
    strcpy(w->corpus, in_folder(&w->at, "corpus.jsonl"));
    str all = { 0 }, text = { 0 };
    for (int i = 0; i < DOCUMENTS; i++) {
        text.len = 0;
        synth_info info = data_synth_document(1, i % (DOCUMENTS / 2), NULL, &text);
        json_t *o = json_pack("{s:s, s:s}", "text", text.text, "source", info.source);
        char *line = json_dumps(o, JSON_COMPACT);
        str_add(&all, "%s\n", line);
        free(line);
        json_decref(o);
    }
    assert_ok(io_write(w->corpus, all.text, all.len));
    str_free(&all);
    str_free(&text);
    assert_ok(tokenizer_open("bytes", NULL, &w->t));
    *state = w;
    return 0;
}

static int remove_world(void **state) {
    world *w = *state;
    tokenizer_free(w->t);
    int failed = folder_remove(&w->at);
    free(w);
    return failed;
}

static const char *folder_of(world *w, const char *name) { return in_folder(&w->at, name); }

static err tokenize_to(const world *w, const char *out, tokenize_options o,
                       tokenize_report *report) {
    text_inputs *in = NULL;
    tokenize_report unused;
    const char *path = w->corpus;
    TRY(text_inputs_open(
        &path, 1, &(text_input_options){ .segment_bytes = SEGMENT, .block_bytes = 4096 }, &in));
    o.tokenizer = w->t;
    o.quiet = true;
    err e = data_tokenize_text(in, out, &o, report ? report : &unused);
    text_inputs_close(in);
    return e;
}

static const tokenize_options USUAL = { .eos = -1, .held_out = 0.1, .threads = 2 };

/* Two folders hold the same files, byte for byte. */
static void assert_same_folder(const char *a, const char *b) {
    char **names_a, **names_b;
    int n, m;
    assert_ok(io_list(a, &names_a, &n));
    assert_ok(io_list(b, &names_b, &m));
    assert_int_equal(n, m);
    for (int i = 0; i < n; i++) {
        assert_string_equal(names_a[i], names_b[i]);
        char *pa = io_join(a, names_a[i]), *pb = io_join(b, names_b[i]);
        char *x, *y;
        size_t nx, ny;
        assert_ok(io_read(pa, 1 << 30, &x, &nx));
        assert_ok(io_read(pb, 1 << 30, &y, &ny));
        assert_int_equal(nx, ny);
        assert_memory_equal(x, y, nx);
        free(x);
        free(y);
        free(pa);
        free(pb);
    }
    io_list_free(names_a, n);
    io_list_free(names_b, m);
}

static void shards_hold_every_document_once(void **state) {
    world *w = *state;
    tokenize_report r;
    char folder[128];
    strcpy(folder, folder_of(w, "out"));
    assert_ok(tokenize_to(w, folder, USUAL, &r));
    assert_int_equal(r.documents + r.held_out_documents, DOCUMENTS);
    assert_true(r.shards > 5);
    assert_int_equal(r.held_out_documents % 2, 0); /* copies stay together */
    assert_in_range(r.held_out_documents, DOCUMENTS / 20, DOCUMENTS / 5);
    const char *path = folder;
    str text = { 0 }, got = { 0 };
    int64_t place[2] = { 0 }; /* next document of each side */
    data_source *side[2];
    for (int k = 0; k < 2; k++) {
        assert_ok(data_open_paths(&path, 1, &(data_options){ .held_out = k }, &side[k]));
        assert_ok(data_verify(side[k]));
        assert_string_equal(data_source_info(side[k])->format, "ingot shards");
    }
    assert_int_equal(data_source_info(side[0])->tokens, r.tokens);
    assert_int_equal(data_source_info(side[1])->tokens, r.held_out_tokens);
    for (int i = 0; i < DOCUMENTS; i++) { /* in order, on one side or the other */
        text.len = 0;
        data_synth_document(1, i % (DOCUMENTS / 2), NULL, &text);
        bool found = false;
        for (int k = 0; k < 2 && !found; k++) {
            if (place[k] >= data_source_info(side[k])->documents) continue;
            data_range d = data_document(side[k], place[k]);
            int32_t *ids = malloc((size_t)(d.to - d.from) * sizeof *ids);
            data_read(side[k], d.from, d.to - d.from, ids);
            assert_int_equal(ids[d.to - d.from - 1], BYTE_EOS);
            got.len = 0;
            byte_decode(ids, (size_t)(d.to - d.from - 1), &got);
            found = got.len == text.len && memcmp(got.text, text.text, text.len) == 0;
            free(ids);
            place[k] += found;
        }
        assert_true(found);
    }
    str_free(&text);
    str_free(&got);
    data_close(side[0]);
    data_close(side[1]);
}

static void threads_do_not_change_bytes(void **state) {
    world *w = *state;
    char one[128], three[128];
    tokenize_options o = USUAL;
    o.threads = 1;
    assert_ok(tokenize_to(w, strcpy(one, folder_of(w, "one")), o, NULL));
    o.threads = 3;
    assert_ok(tokenize_to(w, strcpy(three, folder_of(w, "three")), o, NULL));
    assert_same_folder(one, three);
    strcat(one, ".tok");
    strcat(three, ".tok");
    assert_ok(tokenize_to(w, three, o, NULL));
    o.threads = 1;
    assert_ok(tokenize_to(w, one, o, NULL));
    data_source *s = NULL;
    assert_ok(data_open(one, 0, &s));
    assert_int_equal(data_source_info(s)->documents, DOCUMENTS);
    data_close(s);
}

/* Killed at many moments, run again: the same bytes as if nothing had happened. */
static void a_killed_run_continues(void **state) {
    world *w = *state;
    char whole[128], cut[128];
    strcpy(whole, folder_of(w, "whole"));
    strcpy(cut, folder_of(w, "cut"));
    assert_ok(tokenize_to(w, whole, USUAL, NULL));
    int killed = 0;
    for (int round = 0; round < 12; round++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            err e = tokenize_to(w, cut, USUAL, NULL);
            _exit(e ? 3 : 0);
        }
        usleep((useconds_t)(1500 * round));
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        killed += WIFSIGNALED(status);
        assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        data_source *s = NULL; /* nothing half-made is taken for data */
        err e = data_open(cut, 0, &s);
        assert_true(e != OK || !WIFSIGNALED(status) || data_source_info(s)->documents > 0);
        err_free(e);
        data_close(s);
    }
    tokenize_report r;
    assert_ok(tokenize_to(w, cut, USUAL, &r));
    assert_same_folder(whole, cut);
    assert_true(killed > 0);
}

static void missing_and_damaged_shards_are_made_again(void **state) {
    world *w = *state;
    char whole[128], cut[128];
    strcpy(whole, folder_of(w, "whole"));
    strcpy(cut, folder_of(w, "cut"));
    assert_ok(tokenize_to(w, whole, USUAL, NULL));
    assert_ok(tokenize_to(w, cut, USUAL, NULL));
    char *gone = io_join(cut, "train-00002.tok"), *bad = io_join(cut, "validation-00004.tok");
    assert_int_equal(unlink(gone), 0);
    assert_int_equal(truncate(bad, 50), 0);
    data_source *s = NULL;
    assert_error(data_open(cut, 0, &s), "train-00002.tok");
    tokenize_report r;
    assert_ok(tokenize_to(w, cut, USUAL, &r));
    assert_int_equal(r.resumed, r.shards - 2);
    assert_same_folder(whole, cut);
    free(gone);
    free(bad);
}

static void another_input_needs_another_folder(void **state) {
    world *w = *state;
    char folder[128];
    strcpy(folder, folder_of(w, "out"));
    assert_ok(tokenize_to(w, folder, USUAL, NULL));
    tokenize_options o = USUAL;
    o.held_out = 0.2;
    assert_error(tokenize_to(w, folder, o, NULL), "other input");
    o.fresh = true;
    tokenize_report r;
    assert_ok(tokenize_to(w, folder, o, &r));
    assert_int_equal(r.resumed, 0);
    o.held_out = 0;
    assert_ok(tokenize_to(w, folder, o, &r));
    assert_int_equal(r.held_out_documents, 0);
    data_source *s = NULL;
    const char *path = folder;
    assert_ok(data_open_paths(&path, 1, &(data_options){ .held_out = true }, &s));
    assert_null(s);
    o.eos = 257;
    assert_error(tokenize_to(w, folder, o, NULL), "ends a document");
}

/* --fresh deletes only what this stage wrote; shards among the texts would be read with them. */
static void files_of_others_are_not_deleted(void **state) {
    world *w = *state;
    static const char *const names[] = { "train-data.tok", "train-00000.jsonl", "train-1.tok.bak",
                                         "index.json.old", "validation-.tok",   "tokenizer.json~" };
    tokenize_options o = USUAL;
    o.fresh = true;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char folder[128];
        snprintf(folder, sizeof folder, "%s%zu", folder_of(w, "mine"), i);
        assert_ok(io_make_dirs(folder));
        char *path = io_join(folder, names[i]);
        assert_ok(io_write(path, "mine", 4));
        assert_error(tokenize_to(w, folder, o, NULL), names[i]);
        assert_true(io_exists(path));
        free(path);
    }
}

static void shards_are_not_written_into_an_input_folder(void **state) {
    world *w = *state;
    char *inside = io_join(w->at.path, "tokens");
    const char *path = w->at.path;
    text_inputs *in = NULL;
    tokenize_options o = USUAL;
    tokenize_report r;
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    assert_error(data_tokenize_text(in, inside, &o, &r), "inside the input folder");
    assert_false(io_exists(inside));
    text_inputs_close(in);
    free(inside);
}

/* Names of sources come from the text: their number is bounded, their bytes are not trusted. */
static void many_sources_are_counted_together(void **state) {
    world *w = *state;
    str lines = { 0 };
    for (int i = 0; i < 300; i++)
        str_add(&lines, "{\"text\":\"a %d\",\"source\":\"s%d\\u0000x\\u00e9\"}\n", i, i);
    str_add(&lines, "{\"text\":\"a b\"}\n");
    assert_ok(io_write(w->corpus, lines.text, lines.len));
    str_free(&lines);
    char folder[128];
    strcpy(folder, folder_of(w, "out"));
    assert_ok(tokenize_to(w, folder, USUAL, NULL));
    char *path = io_join(folder, "index.json");
    json_t *doc = NULL, *v;
    const char *name;
    assert_ok(io_json_read(path, &doc));
    int64_t documents = 0, others = 0;
    json_object_foreach(json_object_get(doc, "sources"), name, v) {
        documents += json_integer_value(json_object_get(v, "documents"));
        others += strcmp(name, "(others)") == 0;
    }
    assert_int_equal(documents, 301);
    assert_int_equal(others, 1);
    assert_in_range(json_object_size(json_object_get(doc, "sources")), 256, 257);
    json_decref(doc);
    free(path);
}

/* Index and shards, changed and cut at random positions. */
static void damaged_folders_never_crash(void **state) {
    world *w = *state;
    static const char *const names[] = { "index.json", "train-00001.tok", "validation-00000.tok" };
    char folder[128];
    strcpy(folder, folder_of(w, "out"));
    assert_ok(tokenize_to(w, folder, USUAL, NULL));
    rng_key key = rng_key_of(3, 3);
    uint64_t draw = 0;
    for (int round = 0; round < 300; round++) {
        char *path = io_join(folder, names[round % 3]), *bytes;
        size_t n;
        assert_ok(io_read(path, 1 << 30, &bytes, &n));
        size_t at = (size_t)rng_below(key, draw++, n);
        char *changed = malloc(n + 1);
        memcpy(changed, bytes, n);
        changed[at] ^= (char)(1 << rng_below(key, draw++, 8));
        FILE *f = fopen(path, "wb");
        assert_int_equal(fwrite(changed, 1, round % 2 ? n : at, f), round % 2 ? n : at);
        fclose(f);
        for (int held_out = 0; held_out < 2; held_out++) {
            data_source *s = NULL;
            const char *one = folder;
            err e = data_open_paths(&one, 1, &(data_options){ .held_out = held_out }, &s);
            if (!e && s) { /* a change that says nothing else, such as a name of a source */
                data_index_documents(s);
                assert_ok(data_verify(s));
            }
            err_free(e);
            data_close(s);
        }
        f = fopen(path, "wb");
        assert_int_equal(fwrite(bytes, 1, n, f), n);
        fclose(f);
        free(changed);
        free(bytes);
        free(path);
    }
}

#define IN_WORLD(f) cmocka_unit_test_setup_teardown(f, make_world, remove_world)
/* Another process at work in the folder is named; once it has ended the folder is free. */
static void two_processes_do_not_share_a_folder(void **state) {
    const char *text = folder_write(*state, "in.txt", "some text\n");
    const char *out = in_folder(*state, "out");
    int ready[2], end[2];
    assert_int_equal(pipe(ready) | pipe(end), 0);
    assert_ok(io_make_dirs(out));
    pid_t other = fork();
    if (other == 0) {
        io_lock *lock = NULL;
        char byte = io_lock_take(in_folder(*state, "out/.lock"), out, &lock) != OK;
        if (write(ready[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 1) _exit(1);
        _exit(0);
    }
    char failed = 1;
    assert_int_equal(read(ready[0], &failed, 1), 1);
    assert_int_equal(failed, 0);
    tokenizer *t = NULL;
    text_inputs *in = NULL;
    tokenize_report r;
    assert_ok(tokenizer_open("bytes", NULL, &t));
    tokenize_options o = { .tokenizer = t, .eos = -1, .quiet = true, .fresh = true };
    assert_ok(text_inputs_open(&text, 1, &(text_input_options){ 0 }, &in));
    char pid[32];
    snprintf(pid, sizeof pid, "process %d", (int)other);
    assert_error(data_tokenize_text(in, out, &o, &r), "out is in use", pid);
    assert_false(io_exists(in_folder(*state, "out/index.json")));
    assert_int_equal(write(end[1], "x", 1), 1);
    assert_int_equal(waitpid(other, NULL, 0), other);
    assert_ok(data_tokenize_text(in, out, &o, &r));
    text_inputs_close(in);
    tokenizer_free(t);
    for (int i = 0; i < 2; i++) close(ready[i]), close(end[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_WORLD(shards_hold_every_document_once),
        IN_WORLD(threads_do_not_change_bytes),
        IN_WORLD(a_killed_run_continues),
        IN_WORLD(missing_and_damaged_shards_are_made_again),
        IN_WORLD(another_input_needs_another_folder),
        IN_WORLD(files_of_others_are_not_deleted),
        IN_WORLD(shards_are_not_written_into_an_input_folder),
        IN_WORLD(many_sources_are_counted_together),
        IN_WORLD(damaged_folders_never_crash),
        cmocka_unit_test_setup_teardown(two_processes_do_not_share_a_folder, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
