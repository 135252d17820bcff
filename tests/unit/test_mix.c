/* Mixtures: exact proportions, phases, skipped windows, any place reached directly; mix files. */
#include "support/data.h"

#include <math.h>

#include "shards/data_internal.h"

enum { END = 9, T = 16, MOST_PARTS = 5 };

/* ---- the schedule ------------------------------------------------------------------------------ */

static mix *mix_of(int n, const double *weights, const double *epochs, const int64_t *windows) {
    mix_source parts[MOST_PARTS] = { 0 };
    for (int i = 0; i < n; i++) {
        parts[i].name = "part";
        parts[i].weight = weights ? weights[i] : 0;
        parts[i].epochs = epochs ? epochs[i] : 0;
    }
    mix *m = NULL;
    assert_ok(mix_new(parts, n, windows, 0, NULL, &m));
    return m;
}

/* Walks the schedule from its beginning: numbers come one after the other, counts agree. */
static void assert_consistent(const mix *m, int n, int64_t positions) {
    int64_t count[MOST_PARTS] = { 0 };
    for (int64_t p = 0; p < positions; p++) {
        for (int i = 0; i < n; i++) assert_int_equal(mix_count(m, i, p), count[i]);
        mix_turn at = mix_at(m, p);
        assert_in_range(at.source, 0, n - 1);
        assert_int_equal(at.number, count[at.source]++);
    }
}

static void proportions_are_exact_in_every_round(void **state) {
    const double weights[] = { 67, 15, 4.5, 4.5, 9 }; /* a round is 200 windows */
    const int64_t windows[] = { 1000, 7, 50, 1, 3 };
    mix *m = mix_of(5, weights, NULL, windows);
    assert_consistent(m, 5, 1000);
    for (int64_t round = 0; round < 50; round++)
        for (int i = 0; i < 5; i++)
            assert_int_equal(mix_count(m, i, (round + 1) * 200) - mix_count(m, i, round * 200),
                             (int64_t)(weights[i] * 2));
    /* Inside a round nothing is bunched: no part is ever far from its share. */
    for (int64_t p = 0; p < 400; p++)
        for (int i = 0; i < 5; i++) {
            double off = (double)mix_count(m, i, p) - (double)p * mix_share(m, i, 0);
            assert_true(off > -2 && off < 2);
        }
    assert_true(mix_total(m) == INT64_MAX);
    mix_free(m);
}

/* 0.29 * 100 is a little less than 29 in binary. */
static void weights_with_decimals_are_exact_too(void **state) {
    mix *m = mix_of(2, (const double[]){ 0.29, 0.71 }, NULL, (const int64_t[]){ 500, 500 });
    assert_int_equal(mix_count(m, 0, 100), 29);
    assert_int_equal(mix_count(m, 1, 100), 71);
    mix_free(m);
}

static void without_weights_an_epoch_has_every_window_once(void **state) {
    const int64_t windows[] = { 1000, 7, 50, 1, 342 };
    mix *m = mix_of(5, NULL, NULL, windows);
    for (int epoch = 1; epoch < 4; epoch++)
        for (int i = 0; i < 5; i++)
            assert_int_equal(mix_count(m, i, epoch * 1400), epoch * windows[i]);
    assert_consistent(m, 5, 1500);
    mix_free(m);
}

static void parts_leave_after_their_epochs(void **state) {
    const double weights[] = { 0.5, 0.3, 0.2 }, epochs[] = { 2, 0, 1.5 };
    const int64_t windows[] = { 100, 1000, 20 };
    mix *m = mix_of(3, weights, epochs, windows);
    assert_consistent(m, 3, 3000);
    /* The third leaves after 30 windows, near position 150; the first after 200. */
    assert_in_range(mix_count(m, 2, 140), 27, 29);
    assert_int_equal(mix_count(m, 2, 160), 30);
    assert_int_equal(mix_count(m, 2, 3000), 30);
    assert_int_equal(mix_count(m, 0, 3000), 200);
    /* Between, the first two share alone, 5 : 3. */
    int64_t first = mix_count(m, 0, 230) - mix_count(m, 0, 150);
    assert_in_range(first, 49, 51);
    assert_int_equal(mix_at(m, 2999).source, 1);
    mix_free(m);
}

static void a_mix_with_limits_everywhere_ends(void **state) {
    const double weights[] = { 1, 1, 1 }, epochs[] = { 1, 2, 0.5 };
    const int64_t windows[] = { 10, 20, 30 };
    mix *m = mix_of(3, weights, epochs, windows);
    assert_int_equal(mix_total(m), 10 + 40 + 15);
    assert_consistent(m, 3, mix_total(m));
    for (int i = 0; i < 3; i++)
        assert_int_equal(mix_count(m, i, mix_total(m)), (int64_t)(epochs[i] * (double)windows[i]));
    mix_free(m);
}

/* A part that is only in the last phase, one that is in the first alone, one that runs out in the second. */
static void phases_have_weights_of_their_own(void **state) {
    static const double weights[3][3] = { { 3, 1, 0 }, { 1, 3, 1 }, { 0, 0, 1 } };
    const int64_t windows[] = { 1000, 50, 200 }, begin[] = { 0, 400, 900 };
    mix_source parts[3] = { { .name = "a", .phase_weights = weights[0] },
                            { .name = "b", .phase_weights = weights[1], .epochs = 4 },
                            { .name = "c", .phase_weights = weights[2] } };
    mix *m = NULL;
    assert_ok(mix_new(parts, 3, windows, 3, begin, &m));
    assert_consistent(m, 3, 1500);
    assert_int_equal(mix_count(m, 0, 400), 300);
    assert_int_equal(mix_count(m, 1, 400), 100);
    /* b has 100 windows left in the second phase, in which three of four are its own */
    assert_int_equal(mix_count(m, 1, 400 + 80), 160);
    assert_int_equal(mix_count(m, 1, 900), 200);
    assert_int_equal(mix_count(m, 0, 900), 700);
    /* ... and in the last one c is alone: a is not in it, b has left */
    assert_int_equal(mix_count(m, 0, 1500), 700);
    assert_int_equal(mix_count(m, 2, 1500), 600);
    assert_true(fabs(mix_share(m, 1, 400) - 0.75) < 1e-9 && mix_share(m, 2, 1000) == 1);
    mix_free(m);
}

/* The sources of the first phase are through: the next one begins before it was to. */
static void a_stage_that_runs_out_ends_early(void **state) {
    static const double later[2][1] = { { 0 }, { 1 } };
    const int64_t windows[] = { 10, 30 }, begin[] = { 0, 1000 };
    static const double first[2][2] = { { 1, 0 }, { 0, 1 } };
    mix_source parts[2] = { { .name = "a", .epochs = 2, .phase_weights = first[0] },
                            { .name = "b", .epochs = 1, .phase_weights = first[1] } };
    mix *m = NULL;
    assert_ok(mix_new(parts, 2, windows, 2, begin, &m));
    assert_int_equal(mix_total(m), 20 + 30);
    assert_consistent(m, 2, 50);
    assert_int_equal(mix_count(m, 0, 20), 20);
    mix_free(m);
    parts[0] = (mix_source){ .name = "a", .weight = 1, .phase_weights = later[0] };
    parts[1] = (mix_source){ .name = "b", .weight = 1, .phase_weights = later[0] };
    assert_error(mix_new(parts, 2, windows, 1, begin + 1, &m), "none of the sources");
}

static void odd_weights_are_refused_or_rounded(void **state) {
    const int64_t windows[] = { 10, 20 };
    mix_source parts[2] = { { .name = "a", .weight = 1 }, { .name = "b" } };
    mix *m = NULL;
    assert_error(mix_new(parts, 2, windows, 0, NULL, &m), "some have none");
    parts[1].weight = -1;
    assert_error(mix_new(parts, 2, windows, 0, NULL, &m), "weight of -1");
    const double thirds[] = { 1.0 / 3, 2.0 / 3 };
    m = mix_of(2, thirds, NULL, windows);
    assert_in_range(mix_count(m, 0, 3000000), 999999, 1000001);
    mix_free(m);
}

/* ---- skipped windows ---------------------------------------------------------------------------- */

static void skips_join_and_shift(void **state) {
    data_skips s;
    assert_ok(data_skips_parse("10-20, 30-40,15-25", &s));
    assert_int_equal(s.n, 2);
    assert_int_equal(s.at[0].from, 10);
    assert_int_equal(s.at[0].to, 25);
    static const int64_t at[] = { 0, 9, 10, 14, 15, 16, 100 };
    static const int64_t expected[] = { 0, 9, 25, 29, 40, 41, 125 };
    for (size_t i = 0; i < COUNT_OF(at); i++)
        assert_int_equal(data_skips_position(&s, at[i]), expected[i]);
    assert_ok(data_skips_add(&s, (data_range){ 0, 5 }, 50)); /* the past stays as it was */
    assert_int_equal(s.n, 2);
    assert_ok(data_skips_add(&s, (data_range){ 25, 30 }, 0));
    assert_int_equal(s.n, 1);
    assert_int_equal(s.at[0].to, 40);
    static const char *const bad[] = { "5", "5-", "-5", "7-7", "9-3", "1-2;", "1-2 3-4", "a-b" };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_error(data_skips_parse(bad[i], &s), "not a list of ranges");
    s.n = 0;
    for (int i = 0; i < DATA_MAX_SKIPS; i++)
        assert_ok(data_skips_add(&s, (data_range){ 10 * i, 10 * i + 5 }, 0));
    assert_error(data_skips_add(&s, (data_range){ 9999, 10000 }, 0), "more than 64");
}

/* ---- loaders over mixtures ---------------------------------------------------------------------- */

/* Documents of a few tokens; the ids tell the source. */
static data_source *source_of(int number, int64_t n) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    rng_key key = rng_key_of(7, (uint64_t)number);
    for (int64_t i = 0; i < n; i++)
        ids[i] =
            rng_below(key, (uint64_t)i, 11) == 0 ? END : (int32_t)(1000 * number + 10 + i % 900);
    data_source *s = NULL;
    assert_ok(data_open_memory(ids, n, 100000, END, &s));
    data_index_documents(s);
    free(ids);
    return s;
}

typedef struct corpus {
    data_source *source[3];
    mix_source part[3];
} corpus;

static int make_corpus(void **state) {
    corpus *c = calloc(1, sizeof *c);
    static const int64_t tokens[] = { 1601, 481, 321 }; /* 100, 30, 20 windows */
    static const double weights[] = { 5, 3, 2 }, epochs[] = { 0, 2, 1 };
    for (int i = 0; i < 3; i++) {
        c->source[i] = source_of(i, tokens[i]);
        c->part[i] = (mix_source){ "s", c->source[i], { 0 }, weights[i], epochs[i] };
    }
    *state = c;
    return 0;
}

static int free_corpus(void **state) {
    corpus *c = *state;
    for (int i = 0; i < 3; i++) data_close(c->source[i]);
    free(c);
    return 0;
}

static const loader_options USUAL = { .seq_len = T,
                                      .rows = 24,
                                      .step_windows = 24,
                                      .seed = 3,
                                      .mask_documents = true,
                                      .guard = { .on = true, .repeated = 0.8, .few_ids = 3 },
                                      .skips = { 2, { { 30, 41 }, { 100, 137 } } } };

static loader *mixed_loader(const corpus *c, loader_options o) {
    loader *l = NULL;
    assert_ok(loader_new_mix(c->part, 3, &o, &l));
    return l;
}

/* The same global batches, whatever the ranks, rows, packing and threads; across epochs of each
 * source, two phases and what is skipped. */
static void any_number_of_ranks_sees_the_same_tokens(void **state) {
    static const struct {
        int ranks, prefetch, workers;
        int64_t rows;
    } layouts[] = { { 1, 0, 0, 24 }, { 1, 3, 2, 6 }, { 2, 0, 0, 12 }, { 2, 2, 1, 3 },
                    { 3, 1, 1, 8 },  { 3, 4, 3, 4 }, { 8, 0, 0, 3 },  { 8, 2, 2, 1 } };
    for (int kind = 0; kind < 2; kind++) {
        loader_options whole = USUAL;
        whole.packing = (data_packing)kind;
        for (size_t k = 0; k < COUNT_OF(layouts); k++) {
            loader *one = mixed_loader(*state, whole);
            loader_options o = whole;
            o.ranks = layouts[k].ranks;
            o.rows = layouts[k].rows;
            o.prefetch = layouts[k].prefetch;
            o.workers = layouts[k].workers;
            loader *l[8];
            for (o.rank = 0; o.rank < o.ranks; o.rank++) l[o.rank] = mixed_loader(*state, o);
            for (int step = 0; step < 12; step++) {
                data_batch a = next(one);
                int64_t row = 0, valid = 0, of_ranks = 0;
                for (int64_t micro = 0; micro < 24 / (o.rows * o.ranks); micro++)
                    for (int r = 0; r < o.ranks; r++) {
                        data_batch b = next(l[r]);
                        assert_int_equal(b.microbatch, micro);
                        if (micro == 0) of_ranks += b.valid;
                        size_t bytes = (size_t)(o.rows * T) * sizeof(int32_t);
                        assert_memory_equal(b.tokens, a.tokens + row * T, bytes);
                        assert_memory_equal(b.targets, a.targets + row * T, bytes);
                        assert_memory_equal(b.pos, a.pos + row * T, bytes);
                        assert_memory_equal(b.id, a.id + row * T, 2 * bytes);
                        assert_memory_equal(b.source, a.source + row, (size_t)o.rows * 4);
                        assert_memory_equal(b.window, a.window + row, (size_t)o.rows * 8);
                        row += o.rows;
                        valid += b.valid_here;
                    }
                assert_int_equal(row, 24);
                assert_int_equal(valid, a.valid);
                assert_int_equal(of_ranks, a.valid);
            }
            for (int r = 0; r < o.ranks; r++) loader_free(l[r]);
            loader_free(one);
        }
    }
}

/* Ids decide what dropout drops: no token of one source has that of another. */
static void sources_have_ids_of_their_own(void **state) {
    enum { ALL = 1601 + 481 + 321 };
    int owner[ALL] = { 0 };
    loader_options o = USUAL;
    o.guard.on = false;
    loader *l = mixed_loader(*state, o);
    for (int step = 0; step < 12; step++) {
        data_batch b = next(l);
        for (int64_t i = 0; i < 24 * T; i++) {
            int part = 1 + b.source[i / T];
            assert_in_range(b.id[i], 0, ALL - 1);
            assert_true(owner[b.id[i]] == 0 || owner[b.id[i]] == part);
            owner[b.id[i]] = part;
        }
    }
    loader_free(l);
}

static void any_step_is_reached_directly(void **state) {
    for (int kind = 0; kind < 2; kind++) {
        loader_options o = USUAL;
        o.packing = (data_packing)kind;
        o.rows = 6;
        o.step_windows = 12;
        o.prefetch = 2;
        o.workers = 2;
        loader *on = mixed_loader(*state, o), *jumps = mixed_loader(*state, o);
        int64_t consumed[MOST_PARTS] = { 0 };
        for (int64_t step = 0; step < 60; step++) { /* 720 windows: past every limit */
            loader_seek(jumps, (step * 37 % 60) * 12);
            next(jumps);
            loader_seek(jumps, step * 12);
            for (int m = 0; m < 2; m++) {
                data_batch a = next(on), b = next(jumps);
                assert_memory_equal(a.tokens, b.tokens, sizeof(int32_t) * 6 * T);
                assert_memory_equal(a.start, b.start, sizeof(int32_t) * 6 * T);
                assert_int_equal(a.epoch, b.epoch);
                assert_int_equal(a.valid, b.valid);
                for (int row = 0; row < 6; row++) consumed[a.source[row]]++;
                for (int i = 0; i < 3; i++)
                    assert_int_equal(loader_source_consumed(on, i, a.consumed), consumed[i]);
            }
        }
        loader_free(on);
        loader_free(jumps);
    }
}

static void each_epoch_of_a_source_has_every_window_once(void **state) {
    loader_options o = USUAL;
    o.skips.n = 0;
    o.rows = o.step_windows = 10;
    loader *l = mixed_loader(*state, o);
    int seen[3][100] = { { 0 } }, again = 0;
    int64_t count[3] = { 0 }, order[100];
    const int64_t windows[] = { 100, 30, 20 };
    while (count[0] < 200) {
        data_batch b = next(l);
        for (int row = 0; row < 10; row++) {
            int part = b.source[row];
            int epoch = (int)(count[part]++ / windows[part]);
            assert_int_equal(seen[part][b.window[row]]++, epoch); /* once, then once more ... */
            if (part != 0) continue;
            if (epoch == 0) order[count[0] - 1] = b.window[row];
            if (epoch == 1) again += order[count[0] - 101] == b.window[row];
        }
    }
    assert_true(again < 10); /* in another order */
    assert_int_equal(count[1], 60);
    assert_int_equal(count[2], 20);
    loader_free(l);
}

static void the_end_of_all_sources_is_an_error(void **state) {
    corpus *c = *state;
    mix_source part = c->part[2]; /* 20 windows, one epoch */
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        loader *l = NULL;
        loader_options o = { .seq_len = T, .rows = 3, .step_windows = 6, .prefetch = prefetch };
        assert_ok(data_skips_add(&o.skips, (data_range){ 4, 7 }, 0));
        assert_ok(loader_new_mix(&part, 1, &o, &l));
        assert_int_equal(loader_total(l), 17);
        for (int i = 0; i < 4; i++) next(l);
        data_batch b;
        assert_error(loader_next(l, &b), "ends after 17 windows");
        loader_free(l);
    }
}

static void the_guard_takes_weight_not_place(void **state) {
    enum { N = 6 * 64 };
    int32_t ids[N + 1];
    rng_key key = rng_key_of(1, 1);
    for (int i = 0; i <= N; i++) ids[i] = (int32_t)(10 + rng_below(key, (uint64_t)i, 80));
    for (int i = 64; i < 128; i++) ids[i] = i % 8 ? 50 : ids[i]; /* window 1: one id, nearly */
    for (int i = 192; i < 256; i++) ids[i] = 20 + i % 3;         /* window 3: three ids */
    ids[4 * 64 + 5] = 5000;                                      /* window 4: no such id */
    data_source *s = NULL;
    assert_ok(data_open_memory(ids, N + 1, 10000, -1, &s));
    loader *l = NULL;
    loader_options o = { .seq_len = 64,
                         .rows = 1,
                         .step_windows = 6,
                         .in_order = true,
                         .vocab_limit = 100,
                         .guard = { .on = true, .repeated = 0.8, .few_ids = 8 } };
    assert_ok(loader_new(s, &o, &l));
    static const int expected[] = { GUARD_FINE,    GUARD_REPEATED,   GUARD_FINE,
                                    GUARD_FEW_IDS, GUARD_VOCABULARY, GUARD_FINE };
    for (int i = 0; i < 12; i++) {
        data_batch b = next(l);
        assert_int_equal(b.valid, 3 * 64);
        assert_int_equal(b.window[0], i % 6);
        assert_int_equal(b.guard[0], expected[i % 6]);
        for (int t = 0; t < 64; t++) {
            assert_true((b.targets[t] == DATA_NO_TARGET) == (expected[i % 6] != GUARD_FINE));
            assert_in_range(b.tokens[t], 0, 99);
        }
        assert_int_equal(loader_row_token(l, &b, 0), 64 * (i % 6));
    }
    loader_free(l);
    o.guard.repeated = 0;
    o.guard.few_ids = 0;
    assert_ok(loader_new(s, &o, &l));
    assert_int_equal(next(l).valid, 5 * 64);
    loader_free(l);
    ids[3 * 64] = 5000; /* a window's last target counts as much */
    data_close(s);
    assert_ok(data_open_memory(ids, N + 1, 10000, -1, &s));
    assert_ok(loader_new(s, &o, &l));
    assert_int_equal(next(l).valid, 3 * 64);
    loader_free(l);
    data_close(s);
    for (int i = 0; i <= N; i++) ids[i] = 7;
    assert_ok(data_open_memory(ids, N + 1, 10000, -1, &s));
    o.guard.few_ids = 8;
    assert_ok(loader_new(s, &o, &l));
    data_batch b = next(l);
    assert_int_equal(b.valid, 0);
    assert_int_equal(b.guard[0], GUARD_FEW_IDS);
    loader_free(l);
    data_close(s);
}

/* ---- mix files ---------------------------------------------------------------------------------- */

static err read_mix(const char *text, mix_file *m) {
    test_folder f;
    assert_int_equal(folder_make(&f), 0);
    err e = mix_file_read(folder_write(&f, "mix.yaml", text), m);
    assert_int_equal(folder_remove(&f), 0);
    return e;
}

static void mix_files_are_read(void **state) {
    mix_file m;
    assert_ok(read_mix("preset: llama1\nsources:\n"
                       "  - name: CommonCrawl\n    path: /a\n"
                       "  - name: c4\n    paths: [ /b, /c ]\n    weight: 20\n    epochs: 1.5\n",
                       &m));
    assert_int_equal(m.n, 2);
    assert_string_equal(m.entries[0].name, "CommonCrawl");
    assert_true(m.entries[0].weight == 67 && m.entries[0].epochs == 0);
    assert_string_equal(m.entries[1].paths[1], "/c");
    assert_int_equal(m.entries[1].n_paths, 2);
    assert_true(m.entries[1].weight == 20 && m.entries[1].epochs == 1.5);
    mix_file_free(&m);
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "", "sources" },
        { "- a\n", "sources" },
        { "sources: []\n", "expected a list" },
        { "sources:\n  - name: a\n", "name and a path" },
        { "sources:\n  - {name: a, path: b, weight: none}\n", "number above 0" },
        { "sources:\n  - {name: a, path: b, weight: -1}\n", "number above 0" },
        { "sources:\n  - {name: a, path: b, color: red}\n", "\"color\"" },
        { "sources:\n  - {name: a, path: b}\n  - {name: a, path: c}\n", "two sources" },
        { "sources:\n  - {name: a, path: b}\nsources:\n  - {name: c, path: c}\n", "twice" },
        { "preset: lama1\nsources:\n  - {name: c4, path: b}\n", "\"lama1\"" },
        { "preset: llama2\nsources:\n  - {name: c4, path: b}\n", "\"llama2\"" },
        { "preset: llama1\nsources:\n  - {name: tweets, path: b}\n", "no source \"tweets\"" },
        { "sources:\n\t- x", "not valid YAML" },
        { "mixture: 3\n", "unknown key \"mixture\"" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) assert_error(read_mix(bad[i].text, &m), bad[i].says);
}

/* By temperature, shares are those of sizes to the power 1/T; by UniMax, equal shares of the run's tokens but for
 * sources that would be read more often than that. */
static void weights_follow_from_sizes(void **state) {
    static const char sources[] =
        "sources:\n  - {name: a, path: a}\n  - {name: b, path: b}\n  - {name: c, path: c}\n";
    static const int64_t tokens[] = { 100, 8100, 400 };
    static const struct {
        const char *rule;
        double want[3];
    } of[] = {
        { "temperature: 2\n", { 10, 90, 20 } },
        { "temperature: 1\n", { 100, 8100, 400 } },
        /* 100 has two epochs, 200; of the other 2800, 400 has two epochs, 800, and the rest is the largest's */
        { "unimax: {tokens: 3000, epochs: 2}\n", { 200, 2000, 800 } },
        { "unimax: {tokens: 300, epochs: 2}\n", { 100, 100, 100 } },
        { "", { 0, 0, 0 } },
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        mix_file m;
        str text = { 0 };
        str_add(&text, "%s%s", of[i].rule, sources);
        assert_ok(read_mix(text.text, &m));
        mix_file_weigh(&m, tokens);
        double sum = 0, want = 0;
        for (int k = 0; k < 3; k++) sum += m.entries[k].weight, want += of[i].want[k];
        for (int k = 0; k < 3 && want > 0; k++)
            assert_true(fabs(m.entries[k].weight / sum - of[i].want[k] / want) < 1e-12);
        assert_true(want > 0 || sum == 0);
        mix_file_free(&m);
        str_free(&text);
    }
}

static void two_rules_for_weights_are_refused(void **state) {
    static const char *const of[][2] = {
        { "temperature: 2\nunimax: {tokens: 10, epochs: 1}\nsources: [{name: c4, path: a}]\n",
          "two rules" },
        { "temperature: 2\npreset: c4\nsources: [{name: c4, path: a}]\n", "two rules" },
        { "temperature: 2\nsources: [{name: c4, path: a, weight: 1}]\n", "two rules" },
        { "temperature: 0\nsources: [{name: c4, path: a}]\n", "expected a number above 0" },
        { "unimax: {tokens: 10}\nsources: [{name: c4, path: a}]\n", "needs tokens" },
        { "unimax: 10\nsources: [{name: c4, path: a}]\n", "expected tokens and epochs" },
        { "unimax: {tokens: 10, passes: 1}\nsources: [{name: c4, path: a}]\n",
          "not a member of unimax" },
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        mix_file m;
        assert_error(read_mix(of[i][0], &m), "mix.yaml", of[i][1]);
    }
}

static void published_mixes_add_up(void **state) {
    static const struct {
        const char *preset, *source;
        double share;
    } facts[] = { { "gpt3", "Wikipedia", 3 },   { "llama1", "arXiv", 2.5 },
                  { "pile", "Pile-CC", 18.11 }, { "slimpajama", "C4", 26.7 },
                  { "redpajama", "books", 26 }, { "dolma", "peS2o", 70 },
                  { "c4", "C4", 100 },          { "fineweb", "FineWeb", 100 } };
    for (size_t i = 0; i < COUNT_OF(facts); i++)
        assert_true(mix_preset_weight(facts[i].preset, facts[i].source) == facts[i].share);
    assert_true(mix_preset_weight("llama1", "books3") == 0);
    int n = 0;
    while (mix_preset_name(n)) n++;
    assert_int_equal(n, 8);
}

static void phases_of_mix_files_are_read(void **state) {
#define TWO "sources: [{name: a, path: a, weight: 1}, {name: b, path: b, weight: 3}]\n"
    static const struct {
        const char *phases, *error;
    } bad[] = {
        { "- {from: 5}", "needs from" },
        { "- {weights: {a: 1}}", "needs from" },
        { "- {from: 5, weights: {c: 1}}", "no source is called \"c\"" },
        { "- {from: -5, weights: {a: 1}}", "above 0" },
        { "- {from: 5, weights: {a: 0}}", "above 0" },
        { "- {from: 5, weights: {a: 1}}\n  - {from: 5, weights: {b: 1}}", "after one at 5" },
        { "- {at: 5, weights: {a: 1}}", "\"at\" is not a member" },
        { "- 7", "expected a phase" },
    };
    mix_file m;
    assert_ok(read_mix(TWO "phases:\n  - {from: 0, weights: {a: 2}}\n"
                           "  - {from: 9e11, weights: {b: 0.7, a: 0.3}}\n",
                       &m));
    mix_file_free(&m); /* files written for earlier versions call them stages */
    assert_ok(read_mix(TWO "stages:\n  - {from: 0, weights: {a: 2}}\n"
                           "  - {from: 9e11, weights: {b: 0.7, a: 0.3}}\n",
                       &m));
    assert_int_equal(m.n_phases, 2);
    assert_true(m.phases[0].from == 0 && m.phases[1].from == 9e11);
    assert_true(m.phases[0].weights[0] == 2 && m.phases[0].weights[1] == 0);
    assert_true(m.phases[1].weights[0] == 0.3 && m.phases[1].weights[1] == 0.7);
    mix_file_free(&m);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        str text = { 0 };
        str_add(&text, TWO "phases:\n  %s\n", bad[i].phases);
        assert_error(read_mix(text.text, &m), bad[i].error);
        str_free(&text);
    }
    assert_error(read_mix("phases: []\n" TWO, &m), "after the sources");
}

#define WITH_CORPUS(f) cmocka_unit_test_setup_teardown(f, make_corpus, free_corpus)
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proportions_are_exact_in_every_round),
        cmocka_unit_test(weights_with_decimals_are_exact_too),
        cmocka_unit_test(without_weights_an_epoch_has_every_window_once),
        cmocka_unit_test(parts_leave_after_their_epochs),
        cmocka_unit_test(a_mix_with_limits_everywhere_ends),
        cmocka_unit_test(phases_have_weights_of_their_own),
        cmocka_unit_test(a_stage_that_runs_out_ends_early),
        cmocka_unit_test(phases_of_mix_files_are_read),
        cmocka_unit_test(odd_weights_are_refused_or_rounded),
        cmocka_unit_test(skips_join_and_shift),
        WITH_CORPUS(any_number_of_ranks_sees_the_same_tokens),
        WITH_CORPUS(sources_have_ids_of_their_own),
        WITH_CORPUS(any_step_is_reached_directly),
        WITH_CORPUS(each_epoch_of_a_source_has_every_window_once),
        WITH_CORPUS(the_end_of_all_sources_is_an_error),
        cmocka_unit_test(the_guard_takes_weight_not_place),
        cmocka_unit_test(mix_files_are_read),
        cmocka_unit_test(weights_follow_from_sizes),
        cmocka_unit_test(two_rules_for_weights_are_refused),
        cmocka_unit_test(published_mixes_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
