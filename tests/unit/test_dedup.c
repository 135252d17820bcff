/* Deduplication: its parts against brute force, then whole runs. */
#include "support/folder.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "comm/comm.h"
#include "curate/dedup_internal.h"

static uint64_t draw(int i, uint64_t n) { return rng_below(rng_key_of(7, 0), (uint64_t)i, n); }

/* ---- disjoint sets ------------------------------------------------------------------------- */

static void sets_do_not_depend_on_the_order_of_joins(void **state) {
    enum { N = 500, JOINS = 300 };
    disjoint_sets a = { 0 }, b = { 0 };
    assert_ok(disjoint_sets_init(&a, N));
    assert_ok(disjoint_sets_init(&b, N));
    uint32_t least[N];
    for (uint32_t i = 0; i < N; i++) least[i] = i;
    for (int i = 0; i < JOINS; i++) {
        uint32_t x = (uint32_t)draw(2 * i, N), y = (uint32_t)draw(2 * i + 1, N);
        disjoint_sets_join(&a, x, y);
        uint32_t to = MIN(least[x], least[y]), from = MAX(least[x], least[y]);
        for (int k = 0; k < N; k++)
            if (least[k] == from) least[k] = to;
    }
    for (int i = JOINS - 1; i >= 0; i--)
        disjoint_sets_join(&b, (uint32_t)draw(2 * i + 1, N), (uint32_t)draw(2 * i, N));
    disjoint_sets_flatten(&a);
    disjoint_sets_flatten(&b);
    for (int i = 0; i < N; i++) {
        assert_int_equal(a.parent[i], least[i]);
        assert_int_equal(b.parent[i], least[i]);
    }
    disjoint_sets_free(&a);
    disjoint_sets_free(&b);
}

/* ---- spill files --------------------------------------------------------------------------- */

enum { STREAMS = 5, NUMBERS = 60000, TRIES = 45 };

static void write_spill(const char *path, uint64_t settings) {
    spill_writer *w = NULL;
    assert_ok(spill_create(path, STREAMS, settings, &w));
    for (uint32_t i = 0; i < NUMBERS; i++)
        if (i % STREAMS != 3) assert_ok(spill_write(w, (int)(i % STREAMS), &i, sizeof i));
    assert_ok(spill_commit(w));
}

static err read_spill(const spill *s, int stream) {
    spill_reader r;
    TRY(spill_reader_open(s, stream, &r));
    err e = OK;
    uint64_t n = spill_bytes(s, stream) / 4;
    for (uint64_t i = 0; i < n && !e; i++) {
        uint32_t got = 0;
        e = spill_read(&r, &got, sizeof got);
        if (!e) assert_int_equal(got, (uint64_t)stream + i * STREAMS);
    }
    spill_reader_close(&r);
    return e;
}

static void spill_gives_back_every_stream(void **state) {
    const char *path = in_folder(*state, "s");
    spill *s = NULL;
    write_spill(path, 42);
    assert_ok(spill_open(path, STREAMS, 42, &s));
    for (int i = 0; i < STREAMS; i++) {
        assert_int_equal(spill_bytes(s, i), i == 3 ? 0 : NUMBERS / STREAMS * 4);
        assert_ok(read_spill(s, i));
    }
    spill_reader r;
    uint32_t beyond;
    assert_ok(spill_reader_open(s, 3, &r));
    assert_error(spill_read(&r, &beyond, sizeof beyond), "damaged");
    spill_reader_close(&r);
    spill_close(s);
}

static void spill_of_other_settings_is_not_there(void **state) {
    const char *path = in_folder(*state, "s");
    spill *s = NULL;
    assert_ok(spill_open(path, STREAMS, 42, &s));
    assert_null(s);
    write_spill(path, 42);
    assert_ok(spill_open(path, STREAMS, 43, &s));
    assert_null(s);
    assert_ok(spill_open(path, STREAMS + 1, 42, &s));
    assert_null(s);
}

/* Any flipped bit or missing end is an error or "not there", never other content. */
static void damaged_spill_is_refused(void **state) {
    test_folder *p = *state;
    write_spill(in_folder(p, "s"), 42);
    char *text = NULL;
    size_t len = 0;
    int refused = 0;
    assert_ok(io_read(in_folder(p, "s"), 1 << 24, &text, &len));
    for (int i = 0; i < TRIES; i++) {
        size_t at = i < TRIES / 3 ? len - 1 - draw(i, 200) : draw(i, len), cut = i % 3 ? len : at;
        text[at] ^= (char)(1 << i % 8);
        assert_ok(io_write(in_folder(p, "t"), text, cut));
        text[at] ^= (char)(1 << i % 8);
        spill *s = NULL;
        err e = spill_open(in_folder(p, "t"), STREAMS, 42, &s);
        for (int k = 0; s && !e && k < STREAMS; k++) e = read_spill(s, k);
        refused += e || !s;
        err_free(e);
        spill_close(s);
    }
    assert_int_equal(refused, TRIES);
    free(text);
}

/* ---- groups -------------------------------------------------------------------------------- */

enum { ITEMS = 3000, SPILLS = 3 };
typedef struct groups {
    uint64_t first[ITEMS]; /* the least item that a pair named; itself: none */
} groups;

static void take_pairs(void *ctx, const group_pair *pairs, int n) {
    groups *g = ctx;
    for (int i = 0; i < n; i++) {
        assert_true(pairs[i].first < pairs[i].item && pairs[i].item < ITEMS);
        g->first[pairs[i].item] = MIN(g->first[pairs[i].item], pairs[i].first);
    }
}

/* Many keys of one item, some of a few, one of a thousand. */
static uint64_t key_of_item(int i) {
    uint64_t kind = draw(i, 10), key = kind < 4   ? 5
                                       : kind < 7 ? draw(i + ITEMS, 1000)
                                                  : (uint64_t)i + 1000;
    return hash_bytes(&key, sizeof key, 0);
}

/* The first item with the key of each. */
static groups first_items;

static void find_first_items(void) {
    static uint64_t keys[ITEMS];
    for (int i = 0; i < ITEMS; i++) {
        keys[i] = key_of_item(i);
        uint64_t k = 0;
        while (keys[k] != keys[i]) k++;
        first_items.first[i] = k;
    }
}

static void check_groups(spill *const *spills, const uint64_t *base, int threads, size_t memory) {
    static groups g;
    for (int i = 0; i < ITEMS; i++) g.first[i] = (uint64_t)i;
    group_job job = { NULL, spills, base, SPILLS, 0, threads, memory, &g, take_pairs };
    assert_ok(group_run(&job));
    assert_memory_equal(&g, &first_items, sizeof g);
}

/* Ranks as threads, each with every third spill file: all come to the sets of one rank. */
typedef struct group_rank {
    comm *c;
    spill *spills[SPILLS];
    const uint64_t *base;
    int threads;
    size_t memory;
    disjoint_sets sets;
    uint32_t temporary[ITEMS];
    err error;
} group_rank;

static void join_pairs(void *ctx, const group_pair *pairs, int n) {
    for (int i = 0; i < n; i++)
        disjoint_sets_join(ctx, (uint32_t)pairs[i].first, (uint32_t)pairs[i].item);
}

static err find_sets(group_rank *r) {
    group_job job = { r->c,       r->spills, r->base,  SPILLS,    0,
                      r->threads, r->memory, &r->sets, join_pairs };
    TRY(group_run(&job));
    TRY(disjoint_sets_merge(&r->sets, r->temporary, r->c));
    disjoint_sets_flatten(&r->sets);
    return OK;
}

static void *run_group_rank(void *arg) {
    group_rank *r = arg;
    r->error = find_sets(r);
    return NULL;
}

static void check_groups_on_ranks(spill *const *spills, const uint64_t *base, int ranks,
                                  int threads, size_t memory) {
    enum { MOST = 4 };
    static group_rank r[MOST];
    comm *ends[MOST];
    pthread_t thread[MOST];
    assert_ok(comm_threads((mesh){ .size = { [AX_DP_SHARD] = ranks } }, 20, ends));
    for (int i = 0; i < ranks; i++) {
        r[i] = (group_rank){ .c = ends[i], .base = base, .threads = threads, .memory = memory };
        for (int s = i; s < SPILLS; s += ranks) r[i].spills[s] = spills[s];
        assert_ok(disjoint_sets_init(&r[i].sets, ITEMS));
        pthread_create(&thread[i], NULL, run_group_rank, &r[i]);
    }
    for (int i = 0; i < ranks; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < ranks; i++) {
        assert_ok(r[i].error);
        for (int k = 0; k < ITEMS; k++) assert_int_equal(r[i].sets.parent[k], first_items.first[k]);
        disjoint_sets_free(&r[i].sets);
        comm_free(ends[i]);
    }
}

static void groups_are_found_within_any_memory(void **state) {
    test_folder *p = *state;
    spill *spills[SPILLS];
    uint64_t base[SPILLS];
    for (int s = 0; s < SPILLS; s++) {
        spill_writer *w = NULL;
        base[s] = (uint64_t)s * (ITEMS / SPILLS);
        assert_ok(spill_create(in_folder(p, "g"), GROUP_PARTITIONS, (uint64_t)s, &w));
        for (uint32_t i = 0; i < ITEMS / SPILLS; i++)
            assert_ok(group_write(w, 0, key_of_item((int)(base[s] + i)), i));
        assert_ok(spill_commit(w));
        const char *name = arena_printf(p->names, "g%d", s);
        assert_int_equal(rename(in_folder(p, "g"), in_folder(p, name)), 0);
        assert_ok(spill_open(in_folder(p, name), GROUP_PARTITIONS, (uint64_t)s, &spills[s]));
    }
    find_first_items();
    check_groups(spills, base, 1, 1 << 20);
    check_groups(spills, base, 3, 1 << 20);
    check_groups(spills, base, 2,
                 2 * 16 * 16); /* tables of 16 slots: parts are split into ranges */
    check_groups_on_ranks(spills, base, 2, 1, 1 << 20);
    check_groups_on_ranks(spills, base, 4, 2, 1 << 20); /* one of them has no spill file */
    check_groups_on_ranks(spills, base, 3, 2, 2 * 16 * 16);
    for (int s = 0; s < SPILLS; s++) spill_close(spills[s]);
}

/* ---- paragraphs ---------------------------------------------------------------------------- */

static void paragraphs_end_at_blank_lines(void **state) {
    const char *text = "one\ntwo\n \t\r\n\nthree\nfour\n";
    text_span all = { text, strlen(text) };
    static const struct {
        bool lines;
        const char *expected;
    } cases[] = { { false, "one\ntwo|three\nfour|" }, { true, "one|two|three|four|" } };
    for (int c = 0; c < 2; c++) {
        str got = { 0 };
        size_t at = 0, end = 0;
        paragraph q;
        while (paragraph_next(all, cases[c].lines, &at, &q)) {
            str_add(&got, "%.*s|", (int)q.text.len, q.text.at);
            end = q.end;
        }
        assert_string_equal(got.text, cases[c].expected);
        assert_int_equal(end, all.len);
        str_free(&got);
    }
}

/* ---- whole runs ---------------------------------------------------------------------------- */

typedef struct run {
    dedup_summary summary;
    int64_t kept, edited, dropped[2];
} run;

/* Runs dedup from `from` to the folder `to`. */
static err run_dedup(test_folder *p, const dedup_options *with, const char *from, const char *to,
                     run *out) {
    dedup_options o = *with;
    o.pass.work = arena_printf(p->names, "%s/%s.work", p->path, to);
    o.pass.quiet = true;
    if (!o.pass.threads) o.pass.threads = 2;
    const char *path = in_folder(p, from);
    text_inputs *inputs = NULL;
    TRY(text_inputs_open(
        &path, 1, &(text_input_options){ .segment_bytes = 4000, .block_bytes = 1500 }, &inputs));
    dedup *d = NULL;
    text_transform_report r = { 0 };
    err e = dedup_find_copies(&o, inputs, &d);
    if (!e) {
        text_transform s = dedup_transform(d);
        text_transform_options so = {
            .out = in_folder(p, to), .compress = "none", .threads = o.pass.threads, .quiet = true
        };
        e = text_transform_run(&s, inputs, &so, &r);
        if (!e) e = dedup_finish(d);
        if (!e && out) {
            *out = (run){ .summary = *dedup_get_summary(d), .kept = r.kept, .edited = r.edited };
            for (int i = 0; i < s.n_rules; i++) out->dropped[i] = r.dropped[i];
        }
    }
    text_transform_report_free(&r);
    dedup_free(d);
    text_inputs_close(inputs);
    return e;
}

/* All parts of an output, one after the other: owned. */
static char *all_parts(test_folder *p, const char *folder) {
    char **names = NULL;
    int n = 0;
    str all = { 0 };
    assert_ok(io_list(in_folder(p, folder), &names, &n));
    for (int i = 0; i < n; i++) {
        if (!str_starts(names[i], "part-") || !str_ends(names[i], ".jsonl")) continue;
        char *text = folder_read(p, arena_printf(p->names, "%s/%s", folder, names[i]));
        str_add(&all, "%s", text);
        free(text);
    }
    io_list_free(names, n);
    return all.text ? all.text : strdup("");
}

static void assert_same_output(test_folder *p, const char *a, const char *b) {
    char *x = all_parts(p, a), *y = all_parts(p, b);
    assert_string_equal(x, y);
    free(x);
    free(y);
}

/* "0 2 5": the ids that are left. */
static void assert_kept(test_folder *p, const char *folder, const char *expected) {
    char *text = all_parts(p, folder), *rest = NULL;
    str ids = { 0 };
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *o = NULL;
        assert_ok(io_json_parse(line, strlen(line), "line", &o));
        str_add(&ids, "%s%s", ids.len ? " " : "", json_string_value(json_object_get(o, "id")));
        json_decref(o);
    }
    assert_string_equal(ids.len ? ids.text : "", expected);
    str_free(&ids);
    free(text);
}

#define LONG                                                                                       \
    "the quick brown fox jumps over the lazy dog while nine other animals look on from "           \
    "the hill and say very little about it all day long until the sun goes down behind "           \
    "the barn"
static const char animals[] =
    "{\"id\":\"0\",\"text\":\"" LONG "\"}\n"
    "{\"id\":\"1\",\"text\":\"Something else entirely is said in this document about boats.\"}\n"
    "{\"id\":\"2\",\"text\":\"" LONG "\"}\n"
    "{\"id\":\"3\",\"text\":\"" LONG " again!\"}\n"
    "{\"id\":\"4\",\"text\":\"Short.\"}\n"
    "{\"id\":\"5\",\"text\":\"short\"}\n"
    "{\"id\":\"6\",\"text\":\"" LONG "\",\"source\":\"farm\"}\n";

static void keeps_one_of_each_cluster(void **state) {
    test_folder *p = *state;
    dedup_options o = dedup_defaults();
    run r;
    folder_write(p, "a.jsonl", animals);
    o.pass.report = in_folder(p, "report");
    assert_ok(run_dedup(p, &o, "a.jsonl", "near", &r));
    assert_kept(p, "near", "0 1 4");
    assert_int_equal(r.dropped[0], 2); /* 2 and 6: the text of 0 */
    assert_int_equal(r.dropped[1], 2); /* 3 and 5 */
    assert_int_equal(r.summary.clusters, 2);
    assert_int_equal(r.summary.copies, 4);
    assert_int_equal(r.summary.largest, 4);
    assert_int_equal(r.summary.sizes[1], 1);
    assert_int_equal(r.summary.sizes[2], 1);
    assert_false(io_exists(in_folder(p, "near.work")));
    char *report = folder_read(p, "report"), expected[1024];
    const char *file = in_folder(p, "a.jsonl");
    snprintf(
        expected, sizeof expected,
        "{\"kept\":0,\"members\":[{\"document\":0,\"file\":\"%s\",\"id\":\"0\"},"
        "{\"document\":2,\"file\":\"%s\",\"id\":\"2\"},{\"document\":3,\"file\":\"%s\",\"id\":\"3\"},"
        "{\"document\":6,\"file\":\"%s\",\"id\":\"6\",\"source\":\"farm\"}],\"size\":4}\n"
        "{\"kept\":4,\"members\":[{\"document\":4,\"file\":\"%s\",\"id\":\"4\"},"
        "{\"document\":5,\"file\":\"%s\",\"id\":\"5\"}],\"size\":2}\n",
        file, file, file, file, file, file);
    assert_string_equal(report, expected);
    free(report);
}

/* Reports of different years and runs: copies only for who asks that digits do not count. */
static void numbers_count_by_default(void **state) {
    test_folder *p = *state;
    dedup_options o = dedup_defaults();
    static const char *const figures[] = { "2019 1048 311 77", "2020 3977 482 15",
                                           "2021 6603 975 42" };
    str all = { 0 };
    for (int i = 0; i < 3; i++)
        str_add(&all, "{\"id\":\"%d\",\"text\":\"%s %s %s %s\"}\n", i, figures[i], figures[i],
                figures[i], figures[i]);
    folder_write(p, "a.jsonl", all.text);
    str_free(&all);
    for (int method = DEDUP_NEAR; method <= DEDUP_PARAGRAPH; method++) {
        if (method == DEDUP_EXACT) continue;
        o.method = (dedup_method)method;
        o.words = (normalization){ 0 };
        assert_ok(run_dedup(p, &o, "a.jsonl", method == DEDUP_NEAR ? "near" : "paragraph", NULL));
        assert_kept(p, method == DEDUP_NEAR ? "near" : "paragraph", "0 1 2");
        o.words.zero_digits = true; /* other words: other spill files and another output */
        const char *to = method == DEDUP_NEAR ? "near0" : "paragraph0";
        assert_ok(run_dedup(p, &o, "a.jsonl", to, NULL));
        assert_kept(p, to, "0");
    }
    o.method = DEDUP_NEAR;
    assert_error(run_dedup(p, &o, "a.jsonl", "near", NULL), "other options");
}

static void keeps_by_the_rule(void **state) {
    test_folder *p = *state;
    dedup_options o = dedup_defaults();
    run r;
    folder_write(p, "a.jsonl", animals);
    o.keep = DEDUP_LAST;
    assert_ok(run_dedup(p, &o, "a.jsonl", "last", &r));
    assert_kept(p, "last", "1 5 6");
    assert_int_equal(r.dropped[0], 2); /* 0 and 2 are the text of 6 */
    o.keep = DEDUP_LONGEST;
    assert_ok(run_dedup(p, &o, "a.jsonl", "longest", &r));
    assert_kept(p, "longest", "1 3 4");
    assert_int_equal(r.dropped[0], 0);
    assert_int_equal(r.dropped[1], 4);
    o.method = DEDUP_EXACT;
    assert_ok(run_dedup(p, &o, "a.jsonl", "exact", &r));
    assert_kept(p, "exact", "0 1 3 4 5");
    assert_int_equal(r.dropped[0], 2);
}

static void removes_repeated_paragraphs(void **state) {
    test_folder *p = *state;
    dedup_options o = dedup_defaults();
    run r;
    o.method = DEDUP_PARAGRAPH;
    o.paragraph_words = 4;
    folder_write(
        p, "a.jsonl",
        "{\"id\":\"0\",\"text\":\"All rights are reserved here.\\n\\nThe first story is told.\\n\\nMenu\"}\n"
        "{\"id\":\"1\",\"text\":\"ALL rights are reserved, here\\n\\nThe second story is told.\\n\\nMenu\"}\n"
        "{\"id\":\"2\",\"text\":\"The third story is told.\\n\\nThe third story is told.\\n\\n"
        "All rights are reserved here!\\n\"}\n"
        "{\"id\":\"3\",\"text\":\"The first story is told.\"}\n"
        "{\"id\":\"4\",\"text\":\"Menu\"}\n");
    assert_ok(run_dedup(p, &o, "a.jsonl", "out", &r));
    char *text = all_parts(p, "out");
    assert_string_equal(
        text,
        "{\"id\":\"0\",\"text\":\"All rights are reserved here.\\n\\nThe first story is told.\\n\\nMenu\"}\n"
        "{\"id\":\"1\",\"text\":\"The second story is told.\\n\\nMenu\"}\n"
        "{\"id\":\"2\",\"text\":\"The third story is told.\"}\n"
        "{\"id\":\"4\",\"text\":\"Menu\"}\n");
    assert_int_equal(r.dropped[0], 1);
    assert_int_equal(r.edited, 2);
    assert_int_equal(r.summary.copies, 4);
    assert_int_equal(r.summary.paragraphs, 8);
    free(text);
}

/* Stories with copies and near copies, in several segments and shares of work. */
static void put_stories(test_folder *p, const char *name, int n) {
    str all = { 0 };
    for (int i = 0; i < n; i++) {
        int of = i > 5 && draw(i, 3) == 0 ? (int)draw(i + n, (uint64_t)i) : i;
        str_add(&all, "{\"id\":\"%d\",\"text\":\"", i);
        for (int w = 0; w < 60; w++)
            str_add(&all, "%sw%llu%s",
                    w % 20 == 19 ? "\\n\\n"
                    : w          ? " "
                                 : "",
                    (unsigned long long)draw(of * 100 + w, 5000), i % 2 && w == 30 ? "x" : "");
        str_add(&all, "\"}\n");
    }
    folder_write(p, name, all.text);
    str_free(&all);
}

static void threads_and_memory_change_nothing(void **state) {
    test_folder *p = *state;
    put_stories(p, "a.jsonl", 300);
    for (int method = DEDUP_NEAR; method <= DEDUP_PARAGRAPH; method++) {
        dedup_options o = dedup_defaults();
        char name[3][16];
        run r[3];
        o.method = (dedup_method)method;
        for (int i = 0; i < 3; i++) {
            snprintf(name[i], sizeof name[i], "out%d%d", method, i);
            o.pass.threads = i == 1 ? 5 : 1;
            if (i == 2) o.pass.memory = (4 << 20) + 8192; /* little more than the least */
            if (method != DEDUP_PARAGRAPH)
                o.pass.report = in_folder(p, i == 0 ? "r0" : i == 1 ? "r1" : "r2");
            assert_ok(run_dedup(p, &o, "a.jsonl", name[i], &r[i]));
            assert_memory_equal(&r[i], &r[0], sizeof *r);
        }
        assert_true(r[0].summary.copies > 20);
        assert_same_output(p, name[0], name[1]);
        assert_same_output(p, name[0], name[2]);
        if (method == DEDUP_PARAGRAPH) continue;
        assert_same_files(p, "r0", "r1");
        assert_same_files(p, "r0", "r2");
    }
}

/* A run killed at any moment, again and again, then finished: the same bytes. */
static void killed_runs_are_finished_by_the_next(void **state) {
    test_folder *p = *state;
    put_stories(p, "a.jsonl", 400);
    dedup_options o = dedup_defaults();
    o.pass.report = in_folder(p, "report.whole");
    assert_ok(run_dedup(p, &o, "a.jsonl", "whole", NULL));
    o.pass.report = in_folder(p, "report.killed");
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            err e = run_dedup(p, &o, "a.jsonl", "killed", NULL);
            _exit(e ? 1 : 0);
        }
        usleep((useconds_t)draw(i, 60000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    assert_ok(run_dedup(p, &o, "a.jsonl", "killed", NULL));
    assert_same_output(p, "whole", "killed");
    assert_same_files(p, "report.whole", "report.killed");
    assert_false(io_exists(in_folder(p, "killed.work")));
}

static void spill_files_are_used_again(void **state) {
    test_folder *p = *state;
    put_stories(p, "a.jsonl", 50);
    dedup_options o = dedup_defaults();
    o.pass.keep_work = true;
    assert_ok(run_dedup(p, &o, "a.jsonl", "out", NULL));
    assert_true(io_exists(in_folder(p, "out.work/dedup-000000.spill")));
    /* Damage is noticed, so the file must have been read. */
    folder_write(p, "out.work/dedup-000000.spill",
                 "not a spill file, though long enough to hold a footer....");
    assert_error(run_dedup(p, &o, "a.jsonl", "out", NULL), "damaged");
    o.pass.fresh = true;
    assert_ok(run_dedup(p, &o, "a.jsonl", "out", NULL));
}

static void the_error_states_what_memory_it_needs(void **state) {
    test_folder *p = *state;
    put_stories(p, "a.jsonl", 50);
    dedup_options o = dedup_defaults();
    o.pass.memory = 1 << 20;
    assert_error(run_dedup(p, &o, "a.jsonl", "out", NULL), "clusters need 8.00 MiB");
}

static void refuses_standard_input(void **state) {
    dedup_options o = dedup_defaults();
    const char *path = "-";
    text_inputs *inputs = NULL;
    dedup *d = NULL;
    o.pass.work = in_folder(*state, "work");
    o.pass.threads = 1;
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &inputs));
    assert_error(dedup_find_copies(&o, inputs, &d), "reads its input twice");
    text_inputs_close(inputs);
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_do_not_depend_on_the_order_of_joins),
        IN_PLACE(spill_gives_back_every_stream),
        IN_PLACE(spill_of_other_settings_is_not_there),
        IN_PLACE(damaged_spill_is_refused),
        IN_PLACE(groups_are_found_within_any_memory),
        cmocka_unit_test(paragraphs_end_at_blank_lines),
        IN_PLACE(keeps_one_of_each_cluster),
        IN_PLACE(keeps_by_the_rule),
        IN_PLACE(numbers_count_by_default),
        IN_PLACE(removes_repeated_paragraphs),
        IN_PLACE(threads_and_memory_change_nothing),
        IN_PLACE(killed_runs_are_finished_by_the_next),
        IN_PLACE(spill_files_are_used_again),
        IN_PLACE(the_error_states_what_memory_it_needs),
        IN_PLACE(refuses_standard_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
