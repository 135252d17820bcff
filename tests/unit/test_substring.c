/* Deduplication of substrings against brute force; n-grams of paragraphs; an earlier corpus and its index. */
#include "support/folder.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "curate/substring_internal.h"
#include "tokenizer/tokenizer.h"

static uint64_t draw(uint64_t i, uint64_t n) { return rng_below(rng_key_of(39, 0), i, n); }

/* ---- runs ---------------------------------------------------------------------------------- */
typedef struct two_inputs {
    text_inputs *in, *all;
    int first_segment;
} two_inputs;

static err open_two(test_folder *p, const char *before, const char *from, two_inputs *t) {
    text_input_options o = { .segment_bytes = 4000, .block_bytes = 1500 };
    const char *paths[2] = { in_folder(p, before ? before : from), in_folder(p, from) };
    TRY(text_inputs_open(paths + 1, 1, &o, &t->in));
    TRY(text_inputs_open(paths, before ? 2 : 1, &o, &t->all));
    t->first_segment = text_segments(t->all) - text_segments(t->in);
    return OK;
}

static err run_transform_of(text_transform s, two_inputs *t, const char *to, int threads,
                            text_transform_report *r) {
    text_transform_options so = {
        .out = to, .compress = "none", .threads = threads, .quiet = true
    };
    return text_transform_run(&s, t->in, &so, r);
}

static err run_substring(test_folder *p, const substring_options *with, const char *before,
                         const char *from, const char *to) {
    substring_options o = *with;
    two_inputs t = { 0 };
    substring *s = NULL;
    text_transform_report r = { 0 };
    o.pass.work = arena_printf(p->names, "%s/%s.work", p->path, to);
    o.pass.quiet = true;
    if (!o.pass.threads) o.pass.threads = 2;
    if (!o.pass.memory) o.pass.memory = 64 << 20;
    err e = open_two(p, before, from, &t);
    o.pass.first_segment = t.first_segment;
    o.pass.transform_in = t.in;
    if (!e) e = substring_find(&o, t.all, &s);
    if (!e) e = run_transform_of(substring_transform(s), &t, in_folder(p, to), o.pass.threads, &r);
    if (!e) e = substring_finish(s);
    text_transform_report_free(&r);
    substring_free(s);
    text_inputs_close(t.all);
    text_inputs_close(t.in);
    return e;
}

static err run_dedup_after(test_folder *p, const dedup_options *with, const char *before,
                           const char *from, const char *to) {
    dedup_options o = *with;
    two_inputs t = { 0 };
    dedup *d = NULL;
    text_transform_report r = { 0 };
    o.pass.work = arena_printf(p->names, "%s/%s.work", p->path, to);
    o.pass.quiet = true;
    o.pass.threads = 2;
    err e = open_two(p, before, from, &t);
    o.pass.first_segment = t.first_segment;
    o.pass.transform_in = t.in;
    if (!e) e = dedup_find_copies(&o, t.all, &d);
    if (!e) e = run_transform_of(dedup_transform(d), &t, in_folder(p, to), o.pass.threads, &r);
    if (!e) e = dedup_finish(d);
    text_transform_report_free(&r);
    dedup_free(d);
    text_inputs_close(t.all);
    text_inputs_close(t.in);
    return e;
}

/* The texts that an output has, by their ids; NULL: dropped. @param texts [n] owned. */
static void read_output(test_folder *p, const char *folder, char **texts, int n) {
    char **names = NULL;
    int files = 0;
    memset(texts, 0, (size_t)n * sizeof *texts);
    assert_ok(io_list(in_folder(p, folder), &names, &files));
    for (int i = 0; i < files; i++) {
        if (!str_starts(names[i], "part-") || !str_ends(names[i], ".jsonl")) continue;
        char *all = folder_read(p, arena_printf(p->names, "%s/%s", folder, names[i])), *rest = NULL;
        for (char *line = strtok_r(all, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
            json_t *o = NULL;
            assert_ok(io_json_parse(line, strlen(line), "line", &o));
            int id = atoi(json_string_value(json_object_get(o, "id")));
            texts[id] = strdup(json_string_value(json_object_get(o, "text")));
            json_decref(o);
        }
        free(all);
    }
    io_list_free(names, files);
}

static void assert_texts(test_folder *p, const char *folder, char *const *want, int n) {
    char **got = mem_alloc((size_t)n * sizeof *got);
    read_output(p, folder, got, n);
    for (int i = 0; i < n; i++) {
        if (want[i] && *want[i]) {
            assert_non_null(got[i]);
            assert_string_equal(got[i], want[i]);
        } else {
            assert_null(got[i]);
        }
        free(got[i]);
    }
    free(got);
}

/* ---- truth --------------------------------------------------------------------------------- */
enum { DOCS = 30, DOC_MOST = 500 };
typedef struct corpus {
    char *text[DOCS], *left[DOCS];
    int n;
} corpus;

/* Words of a small alphabet, copies of earlier stretches, and runs with a short period. */
static void draw_corpus(corpus *c, uint64_t seed) {
    uint64_t i = seed << 32;
    c->n = DOCS;
    for (int d = 0; d < c->n; d++) {
        str s = { 0 };
        size_t target = draw(i++, DOC_MOST);
        while (s.len < target) {
            uint64_t kind = draw(i++, 10);
            if (kind < 4 && d > 0) {
                const char *from = c->text[draw(i++, (uint64_t)d)];
                size_t len = strlen(from), at = draw(i++, len + 1), n = draw(i++, 120);
                str_add_bytes(&s, from + at, MIN(n, len - at));
            } else if (kind == 4) {
                size_t period = 1 + draw(i++, 3), n = draw(i++, 90);
                uint64_t letter = draw(i++, 26);
                for (size_t k = 0; k < n; k++)
                    str_add(&s, "%c", (char)('a' + (letter + k % period) % 26));
            } else {
                for (uint64_t k = draw(i++, 60); k > 0; k--)
                    str_add(&s, "%c", (char)('a' + draw(i++, 26)));
            }
        }
        c->text[d] = s.text ? s.text : strdup("");
    }
}

static bool occurs_again(const corpus *c, int d, size_t at, size_t n, bool only_before) {
    for (int k = 0; k < c->n; k++) {
        size_t len = strlen(c->text[k]);
        for (size_t i = 0; i + n <= len; i++) {
            if (k == d && i == at) {
                if (only_before) return false;
                continue;
            }
            if (memcmp(c->text[k] + i, c->text[d] + at, n) == 0) return true;
        }
    }
    return false;
}

static void strike_by_brute_force(corpus *c, size_t n, bool keep_first) {
    for (int d = 0; d < c->n; d++) {
        size_t len = strlen(c->text[d]), removed_to = 0;
        str left = { 0 };
        str_reserve(&left, 1);
        for (size_t i = 0; i < len; i++) {
            if (i + n <= len && occurs_again(c, d, i, n, keep_first)) removed_to = i + n;
            if (i >= removed_to) str_add_bytes(&left, c->text[d] + i, 1);
        }
        left.text[left.len] = 0;
        free(c->left[d]);
        c->left[d] = left.text;
    }
}

static void write_corpus(test_folder *p, const corpus *c, const char *name) {
    str all = { 0 };
    for (int d = 0; d < c->n; d++)
        str_add(&all, "{\"id\":\"%d\",\"text\":\"%s\"}\n", d, c->text[d]);
    folder_write(p, name, all.text);
    str_free(&all);
}

static void free_corpus(corpus *c) {
    for (int d = 0; d < DOCS; d++) free(c->text[d]), free(c->left[d]);
    *c = (corpus){ 0 };
}

/* google-research's program removes all windows that occur twice, and so do we. */
static void repeats_are_those_of_brute_force(void **state) {
    static const int lengths[] = { 2, 3, 7, 16, 33, 50, 101 };
    test_folder *p = *state;
    for (size_t k = 0; k < COUNT_OF(lengths); k++)
        for (int first = 0; first < 2; first++) {
            corpus c = { 0 };
            const char *in = arena_printf(p->names, "in%zu%d.jsonl", k, first);
            const char *out = arena_printf(p->names, "out%zu%d", k, first);
            draw_corpus(&c, k);
            write_corpus(p, &c, in);
            strike_by_brute_force(&c, (size_t)lengths[k], first);
            substring_options o = { .length = lengths[k], .keep_first = first };
            assert_ok(run_substring(p, &o, NULL, in, out));
            assert_texts(p, out, c.left, c.n);
            free_corpus(&c);
        }
}

/* Every token of the tokenizer "bytes" is a byte, so both ways find the same. */
static void tokens_are_symbols_like_bytes(void **state) {
    test_folder *p = *state;
    corpus c = { 0 };
    tokenizer *t = NULL;
    assert_ok(tokenizer_open("bytes", NULL, &t));
    draw_corpus(&c, 77);
    write_corpus(p, &c, "a.jsonl");
    strike_by_brute_force(&c, 40, false);
    assert_ok(run_substring(p, &(substring_options){ .length = 40, .tokenizer = t }, NULL,
                            "a.jsonl", "out"));
    assert_texts(p, "out", c.left, c.n);
    tokenizer_free(t);
    free_corpus(&c);
}

/* The two characters differ in their first byte alone: what repeats begins inside of one. */
static void no_character_is_cut(void **state) {
    test_folder *p = *state;
    folder_write(p, "a.jsonl",
                 "{\"id\":\"0\",\"text\":\"one \xC3\xA9 the same words here\"}\n"
                 "{\"id\":\"1\",\"text\":\"two \xC4\xA9 the same words here\"}\n");
    assert_ok(run_substring(p, &(substring_options){ .length = 12 }, NULL, "a.jsonl", "out"));
    char *want[] = { "one \xC3\xA9", "two \xC4\xA9" };
    assert_texts(p, "out", want, 2);
}

/* A document of which nothing but line ends is left has no text. */
static void white_space_alone_is_no_document(void **state) {
    test_folder *p = *state;
    folder_write(p, "a.jsonl",
                 "{\"id\":\"0\",\"text\":\"first twenty bytes..\\n\\nother twenty bytes..\"}\n"
                 "{\"id\":\"1\",\"text\":\"first twenty bytes..\"}\n"
                 "{\"id\":\"2\",\"text\":\"new: other twenty bytes..\"}\n");
    assert_ok(run_substring(p, &(substring_options){ .length = 20 }, NULL, "a.jsonl", "out"));
    char *want[] = { NULL, NULL, "new: " };
    assert_texts(p, "out", want, 3);
}

static void an_earlier_corpus_is_compared_and_not_written(void **state) {
    test_folder *p = *state;
    corpus c = { 0 }, later = { 0 };
    draw_corpus(&c, 5);
    strike_by_brute_force(&c, 30, true);
    corpus earlier = c;
    earlier.n = DOCS / 2;
    write_corpus(p, &earlier, "june.jsonl");
    later.n = DOCS - earlier.n;
    for (int d = 0; d < later.n; d++) later.text[d] = c.text[earlier.n + d];
    write_corpus(p, &later, "july.jsonl");
    substring_options o = { .length = 30, .keep_first = true };
    assert_ok(run_substring(p, &o, "june.jsonl", "july.jsonl", "new"));
    assert_texts(p, "new", c.left + earlier.n, later.n);
    free_corpus(&c);
}

static void little_memory_and_threads_change_nothing(void **state) {
    test_folder *p = *state;
    corpus c = { 0 };
    draw_corpus(&c, 9);
    write_corpus(p, &c, "a.jsonl");
    strike_by_brute_force(&c, 25, false);
    substring_options o = { .length = 25, .pass = { .threads = 1, .memory = (4 << 20) + 16384 } };
    assert_ok(run_substring(p, &o, NULL, "a.jsonl", "little"));
    assert_texts(p, "little", c.left, c.n);
    o = (substring_options){ .length = 25, .pass.threads = 5 };
    assert_ok(run_substring(p, &o, NULL, "a.jsonl", "many"));
    assert_texts(p, "many", c.left, c.n);
    o.pass.memory = 1 << 20;
    assert_error(run_substring(p, &o, NULL, "a.jsonl", "none"), "windows to compare need");
    free_corpus(&c);
}

static void killed_runs_find_the_same(void **state) {
    test_folder *p = *state;
    corpus c = { 0 };
    draw_corpus(&c, 11);
    write_corpus(p, &c, "a.jsonl");
    strike_by_brute_force(&c, 25, false);
    substring_options o = { .length = 25 };
    for (int i = 0; i < 8; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            err e = run_substring(p, &o, NULL, "a.jsonl", "killed");
            _exit(e ? 1 : 0);
        }
        usleep((useconds_t)draw((uint64_t)i, 30000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    assert_ok(run_substring(p, &o, NULL, "a.jsonl", "killed"));
    assert_texts(p, "killed", c.left, c.n);
    assert_false(io_exists(in_folder(p, "killed.work")));
    free_corpus(&c);
}

/* ---- n-grams of paragraphs ----------------------------------------------------------------- */
/* Dolma's rule, word by word: paragraphs of one line, words of one letter. */
typedef struct seen_grams {
    char gram[20000][24];
    int n;
} seen_grams;

static bool see(seen_grams *s, const char *gram, size_t n, bool *known) {
    *known = false;
    for (int i = 0; i < s->n && !*known; i++)
        *known = strlen(s->gram[i]) == n && memcmp(s->gram[i], gram, n) == 0;
    assert_true(s->n < 20000 && n < 24);
    if (!*known) memcpy(s->gram[s->n++], gram, n);
    return *known;
}

static bool dolma_removes(seen_grams *s, const char *words, size_t ngram, size_t stride,
                          double overlap) {
    size_t n = strlen(words), last = 0, grams = 0, repeated = 0;
    bool known;
    for (size_t at = 0; at + ngram <= n; at++) {
        if (last != 0 && at - last < stride) continue;
        last = at;
        grams++;
        repeated += see(s, words + at, ngram, &known);
    }
    if (grams >= 2) return (double)repeated >= overlap * (double)grams;
    char whole[24] = "=";
    strcat(whole, words);
    return see(s, whole, strlen(whole), &known);
}

static void paragraphs_are_removed_by_dolmas_rule(void **state) {
    enum { LINES = 8, N = 5 };
    test_folder *p = *state;
    for (int stride = 1; stride <= 3; stride++) {
        seen_grams *seen = mem_alloc(sizeof *seen);
        char *want[40];
        str in = { 0 };
        uint64_t at = (uint64_t)stride << 20;
        for (int d = 0; d < 40; d++) {
            str kept = { 0 };
            str_reserve(&kept, 1);
            str_add(&in, "{\"id\":\"%d\",\"text\":\"", d);
            for (int l = 0; l < LINES; l++) {
                char words[20] = "";
                size_t n = 1 + draw(at++, 18);
                for (size_t w = 0; w < n; w++)
                    words[w] = (char)('a' + (w && draw(at++, 4) ? (words[w - 1] - 'a' + 1) % 26
                                                                : (int)draw(at++, 26)));
                for (size_t w = 0; w < n; w++) str_add(&in, "%s%c", w ? " " : "", words[w]);
                str_add(&in, l + 1 < LINES ? "\\n" : "");
                if (dolma_removes(seen, words, N, (size_t)stride, 0.6)) continue;
                for (size_t w = 0; w < n; w++) str_add(&kept, "%s%c", w ? " " : "", words[w]);
                str_add(&kept, l + 1 < LINES ? "\n" : "");
            }
            str_add(&in, "\"}\n");
            while (kept.len && kept.text[kept.len - 1] == '\n') kept.len--;
            kept.text[kept.len] = 0;
            want[d] = kept.text;
        }
        const char *from = arena_printf(p->names, "d%d.jsonl", stride);
        const char *to = arena_printf(p->names, "d%d", stride);
        folder_write(p, from, in.text);
        dedup_options o = dedup_defaults();
        o.method = DEDUP_PARAGRAPH;
        o.lines = true;
        o.paragraph_words = 1;
        o.paragraph_ngram = N;
        o.stride = stride;
        o.overlap = 0.6;
        assert_ok(run_dedup_after(p, &o, NULL, from, to));
        assert_texts(p, to, want, 40);
        for (int d = 0; d < 40; d++) free(want[d]);
        str_free(&in);
        free(seen);
    }
}

/* ---- the index ----------------------------------------------------------------------------- */
static void put_stories(test_folder *p, const char *name, int first, int n) {
    str all = { 0 };
    for (int i = 0; i < n; i++) {
        str_add(&all, "{\"id\":\"%d\",\"text\":\"", i);
        for (int w = 0; w < 30; w++)
            str_add(&all, "%sw%llu",
                    w % 15 ? " "
                    : w    ? "\\n\\n"
                           : "",
                    (unsigned long long)draw((uint64_t)(first + i) * 100 + (uint64_t)w, 50000));
        str_add(&all, "\"}\n");
    }
    folder_write(p, name, all.text);
    str_free(&all);
}

static int count_kept(test_folder *p, const char *folder, int n, bool which[]) {
    char **texts = mem_alloc((size_t)n * sizeof *texts);
    int kept = 0;
    read_output(p, folder, texts, n);
    for (int i = 0; i < n; i++) {
        which[i] = texts[i] != NULL;
        kept += which[i];
        free(texts[i]);
    }
    free(texts);
    return kept;
}

/* Two thirds of the stories of July are in June: both ways drop exactly these, with every method. */
static void an_index_drops_what_the_corpus_would(void **state) {
    enum { N = 90 };
    test_folder *p = *state;
    put_stories(p, "june.jsonl", 0, N);
    put_stories(p, "july.jsonl", 30, N);
    for (int method = DEDUP_NEAR; method <= DEDUP_PARAGRAPH; method++) {
        dedup_options o = dedup_defaults();
        bool by_index[N], by_corpus[N];
        const char *index = in_folder(p, arena_printf(p->names, "june%d.index", method));
        const char *name[3];
        for (int i = 0; i < 3; i++) name[i] = arena_printf(p->names, "new%d%d", method, i);
        o.method = (dedup_method)method;
        assert_ok(run_dedup_after(p, &o, "june.jsonl", "july.jsonl", name[0]));
        o.save_index = index;
        assert_ok(run_dedup_after(p, &o, NULL, "june.jsonl", name[1]));
        o.index = index;
        o.save_index = in_folder(p, arena_printf(p->names, "july%d.index", method));
        assert_ok(run_dedup_after(p, &o, NULL, "july.jsonl", name[2]));
        assert_int_equal(count_kept(p, name[0], N, by_corpus), 30);
        assert_int_equal(count_kept(p, name[2], N, by_index), 30);
        assert_memory_equal(by_index, by_corpus, sizeof by_index);
        /* The index that was written with it has both: nothing of either is new. */
        o.index = o.save_index;
        o.save_index = NULL;
        for (int i = 0; i < 2; i++) {
            const char *to = arena_printf(p->names, "again%d%d", method, i);
            assert_ok(run_dedup_after(p, &o, NULL, i ? "july.jsonl" : "june.jsonl", to));
            assert_int_equal(count_kept(p, to, N, by_index), 0);
        }
    }
    dedup_options o = dedup_defaults();
    o.index = in_folder(p, arena_printf(p->names, "june%d.index", DEDUP_EXACT));
    assert_error(run_dedup_after(p, &o, NULL, "july.jsonl", "x"), "other options");
}

static void a_damaged_index_is_refused(void **state) {
    test_folder *p = *state;
    key_filter *f = NULL;
    key_index *x = NULL;
    char *text = NULL;
    size_t len = 0;
    int found = 0, refused = 0;
    assert_ok(key_filter_new(1000, 1e-3, 7, &f));
    for (uint64_t i = 0; i < 1000; i++) key_filter_add(f, draw(i, UINT64_MAX));
    assert_ok(key_filter_write(f, NULL, in_folder(p, "a.index")));
    key_filter_free(f);
    assert_ok(key_index_open(in_folder(p, "a.index"), 7, &x));
    for (uint64_t i = 0; i < 1000; i++) assert_true(key_index_has(x, draw(i, UINT64_MAX)));
    for (uint64_t i = 0; i < 100000; i++) found += key_index_has(x, draw(5000 + i, UINT64_MAX));
    assert_in_range(found, 50, 200); /* 100 are expected */
    key_index_close(x);
    assert_ok(io_read(in_folder(p, "a.index"), 1 << 24, &text, &len));
    for (uint64_t i = 0; i < 60; i++) {
        size_t at = i < 30 ? draw(i, 56) : draw(i, len), cut = i % 3 ? len : at;
        text[at] ^= (char)(1 << i % 8);
        assert_ok(io_write(in_folder(p, "b.index"), text, cut));
        text[at] ^= (char)(1 << i % 8);
        err e = key_index_open(in_folder(p, "b.index"), 7, &x);
        refused += e != NULL;
        err_free(e);
        key_index_close(x);
    }
    /* The last 8 bytes of the header are not used. */
    assert_in_range(refused, 58, 60);
    free(text);
}

/* Names of files are drawn from the folder's arena before any path is made. */
static int setup_named(void **state) {
    int failed = folder_setup(state);
    if (!failed) in_folder(*state, "");
    return failed;
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, setup_named, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_PLACE(repeats_are_those_of_brute_force),
        IN_PLACE(tokens_are_symbols_like_bytes),
        IN_PLACE(no_character_is_cut),
        IN_PLACE(white_space_alone_is_no_document),
        IN_PLACE(an_earlier_corpus_is_compared_and_not_written),
        IN_PLACE(little_memory_and_threads_change_nothing),
        IN_PLACE(killed_runs_find_the_same),
        IN_PLACE(paragraphs_are_removed_by_dolmas_rule),
        IN_PLACE(an_index_drops_what_the_corpus_would),
        IN_PLACE(a_damaged_index_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
