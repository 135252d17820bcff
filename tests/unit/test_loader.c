/* The loader: order, cursor, ranks, prefetch, documents, curriculum, held-out part. */
#include "support/data.h"

enum { NONE = DATA_NO_TARGET, END = 9 };

static data_source *source_of(const int32_t *tokens, int64_t n) {
    data_source *s = NULL;
    assert_ok(data_open_memory(tokens, n, 1 << 20, END, &s));
    return s;
}

/* Tokens 100, 101, ... with an END now and then. */
static data_source *counting_source(int64_t n) {
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    rng_key key = rng_key_of(2, 2);
    for (int64_t i = 0; i < n; i++)
        tokens[i] = rng_below(key, (uint64_t)i, 7) == 0 ? END : (int32_t)(100 + i);
    data_source *s = source_of(tokens, n);
    free(tokens);
    return s;
}

static void assert_ids(const int32_t *got, const int32_t *expected, int n) {
    for (int i = 0; i < n; i++) assert_int_equal(got[i], expected[i]);
}

static void assert_same_batch(const data_batch *a, const data_batch *b, int64_t rows, int64_t T) {
    size_t n = (size_t)(rows * T);
    assert_memory_equal(a->tokens, b->tokens, n * sizeof *a->tokens);
    assert_memory_equal(a->targets, b->targets, n * sizeof *a->targets);
    assert_memory_equal(a->pos, b->pos, n * sizeof *a->pos);
    assert_memory_equal(a->start, b->start, n * sizeof *a->start);
    assert_memory_equal(a->id, b->id, n * sizeof *a->id);
    assert_memory_equal(a->window, b->window, (size_t)rows * sizeof *a->window);
    assert_int_equal(a->valid, b->valid);
    assert_int_equal(a->valid_here, b->valid_here);
    assert_int_equal(a->microbatch, b->microbatch);
    assert_int_equal(a->microbatches, b->microbatches);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->consumed, b->consumed);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void the_order_is_a_bijection(void **state) {
    static const int64_t sizes[] = { 1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097 };
    bool seen[4097];
    for (size_t k = 0; k < COUNT_OF(sizes); k++)
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < sizes[k]; i++) {
                int64_t w = data_permute(42, epoch, sizes[k], i);
                assert_in_range(w, 0, sizes[k] - 1);
                assert_false(seen[w]);
                seen[w] = true;
            }
        }
}

static void epochs_and_seeds_have_orders_of_their_own(void **state) {
    enum { N = 1000 };
    int same_epoch = 0, same_seed = 0, in_place = 0, close_by = 0;
    for (int64_t i = 0; i < N; i++) {
        int64_t w = data_permute(1, 0, N, i);
        same_epoch += w == data_permute(1, 1, N, i);
        same_seed += w == data_permute(2, 0, N, i);
        in_place += w == i;
        close_by += i > 0 && llabs(w - data_permute(1, 0, N, i - 1)) < N / 20; /* 97 expected */
    }
    assert_true(same_epoch < 10 && same_seed < 10 && in_place < 10 && close_by < 150);
}

/* Known values: another order would be other training data for a run that continues in a later version. */
static void the_order_stays_what_it_was(void **state) {
    static const int64_t small[] = { 753, 435, 783, 721, 633, 266, 945, 524 };
    static const int64_t large[] = { 223857263163, 334944646583, 12161785581, 739355442991 };
    for (size_t i = 0; i < COUNT_OF(small); i++)
        assert_int_equal(data_permute(42, 1, 1000, (int64_t)i), small[i]);
    for (size_t i = 0; i < COUNT_OF(large); i++)
        assert_int_equal(data_permute(42, 0, (int64_t)1 << 40, (int64_t)i), large[i]);
}

static void an_epoch_visits_every_window_once(void **state) {
    data_source *s = counting_source(321); /* 10 windows of 32 and a last target */
    loader *l = loader_of(s, (loader_options){ .seq_len = 32, .rows = 2, .seed = 5 });
    assert_int_equal(loader_windows(l), 10);
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[10] = { 0 };
        for (int i = 0; i < 5; i++) {
            data_batch b = next(l);
            assert_int_equal(b.epoch, epoch);
            for (int row = 0; row < 2; row++) {
                assert_in_range(b.window[row], 0, 9);
                seen[b.window[row]]++;
            }
        }
        for (int w = 0; w < 10; w++) assert_int_equal(seen[w], 1);
    }
    loader_free(l);
    l = loader_of(s, (loader_options){ .seq_len = 32, .rows = 5, .in_order = true });
    for (int i = 0; i < 4; i++) {
        data_batch b = next(l);
        for (int row = 0; row < 5; row++) assert_int_equal(b.window[row], (i * 5 + row) % 10);
    }
    loader_free(l);
    data_close(s);
}

/* Tokens 0 ... n - 1, so that a batch's tokens and targets name themselves. */
static data_source *numbered_source(int64_t n) {
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    for (int64_t i = 0; i < n; i++) tokens[i] = (int32_t)i;
    data_source *s = NULL;
    assert_ok(data_open_memory(tokens, n, 1 << 20, -1, &s));
    free(tokens);
    return s;
}

enum { SHIFT_T = 32 };
/* Reads an epoch. Each token must come at most once, and be followed by its own neighbor, none of
 * them outside the range. @return where window 0 begins. */
static int64_t read_epoch(loader *l, data_range range, int64_t epoch, int *times) {
    int64_t windows = loader_windows(l), ends = 0, at = -1;
    int *here = calloc((size_t)range.to, sizeof *here);
    for (int64_t i = 0; i < windows; i++) {
        data_batch b = next(l);
        int64_t valid = 0;
        assert_int_equal(b.epoch, epoch);
        assert_int_equal(loader_row_token(l, &b, 0), b.tokens[0]);
        if (b.window[0] == 0) at = b.tokens[0];
        for (int t = 0; t < SHIFT_T; t++) {
            int32_t token = b.tokens[t], target = b.targets[t];
            assert_in_range(token, range.from, range.to - 1);
            assert_int_equal(here[token]++, 0);
            times[token]++;
            valid += target != DATA_NO_TARGET;
            assert_int_equal(b.id[t], token);
            if (token == range.to - 1) {
                assert_int_equal(target, DATA_NO_TARGET);
                ends++;
            } else {
                assert_int_equal(target, token + 1);
            }
            if (b.start[t] > 0) assert_int_equal(b.tokens[b.start[t]], range.from);
        }
        assert_int_equal(b.valid, valid);
        assert_int_equal(b.row_valid[0], valid);
    }
    assert_in_range(ends, 0, 1);
    free(here);
    return at;
}

static void epochs_split_the_data_at_offsets_of_their_own(void **state) {
    enum { EPOCHS = 60 };
    static const data_range ranges[] = { { 0, 321 }, { 7, 340 }, { 0, 352 }, { 3, 36 } };
    for (size_t k = 0; k < COUNT_OF(ranges); k++) {
        data_source *s = numbered_source(400);
        int times[400] = { 0 }, plain[400] = { 0 }, differ = 0;
        loader_options o = { .seq_len = SHIFT_T, .rows = 1, .seed = 5, .range = ranges[k] };
        loader *l = loader_of(s, o);
        int64_t first = read_epoch(l, ranges[k], 0, plain);
        assert_int_equal(first, ranges[k].from);
        for (int e = 1; e < 5; e++) assert_int_equal(read_epoch(l, ranges[k], e, plain), first);
        loader_free(l);
        o.epoch_offset = true;
        l = loader_of(s, o);
        assert_int_equal(read_epoch(l, ranges[k], 0, times), first);
        int64_t before = first;
        for (int e = 1; e < EPOCHS; e++) {
            int64_t now = read_epoch(l, ranges[k], e, times);
            differ += now != before;
            before = now;
        }
        assert_true(differ > EPOCHS * 3 / 4);
        for (int64_t i = ranges[k].from; i < ranges[k].to; i++) assert_true(times[i] > EPOCHS / 2);
        loader_free(l);
        data_close(s);
    }
}

/* A loader configured so later reads again what a run without offsets read, as after a resume. */
static void offsets_can_be_set_before_a_seek(void **state) {
    data_source *s = numbered_source(1000);
    loader_options o = { .seq_len = 32, .rows = 2, .seed = 5 };
    loader *without = loader_of(s, o);
    o.epoch_offset = true;
    o.prefetch = 2;
    loader *l = loader_of(s, o);
    next(l);
    loader_set_epoch_offset(l, false);
    loader_seek(l, 60);
    loader_seek(without, 60);
    for (int i = 0; i < 60; i++) {
        data_batch a = next(l), b = next(without);
        assert_same_batch(&a, &b, 2, 32);
    }
    loader_free(l);
    loader_free(without);
    data_close(s);
}

/* ---- cursor, ranks, prefetch ----------------------------------------------------------------- */

static const loader_options USUAL = { .seq_len = 16,
                                      .rows = 3,
                                      .step_windows = 12,
                                      .seed = 8,
                                      .mask_documents = true,
                                      .epoch_offset = true,
                                      .curriculum_start = 4,
                                      .curriculum_windows = 100 };

static void seeking_equals_reading_on(void **state) {
    data_source *s = counting_source(1000);
    for (int prefetch = 0; prefetch < 3; prefetch++) {
        loader_options o = USUAL;
        o.prefetch = prefetch;
        loader *on = loader_of(s, USUAL), *jumps = loader_of(s, o);
        for (int64_t step = 0; step < 15; step++) {
            if (step % 3 == 1) { /* away and back, in the middle of things */
                loader_seek(jumps, step * 100);
                if (step % 2) next(jumps);
                loader_seek(jumps, step * 12);
            }
            for (int m = 0; m < 4; m++) {
                data_batch a = next(on), b = next(jumps);
                assert_int_equal(a.microbatch, m);
                assert_same_batch(&a, &b, o.rows, o.seq_len);
            }
        }
        loader_free(on);
        loader_free(jumps);
    }
    data_close(s);
}

static void prefetching_changes_nothing(void **state) {
    data_source *s = counting_source(3000);
    for (int prefetch = 1; prefetch <= 5; prefetch += 2) {
        loader_options ahead = USUAL;
        ahead.prefetch = prefetch;
        loader *a = loader_of(s, USUAL), *b = loader_of(s, ahead);
        for (int i = 0; i < 200; i++) {
            data_batch x = next(a), y = next(b);
            assert_same_batch(&x, &y, USUAL.rows, USUAL.seq_len);
        }
        loader_free(a);
        loader_free(b);
    }
    for (int i = 0; i < 50; i++) { /* stopping at any moment is clean */
        loader_options ahead = USUAL;
        ahead.prefetch = 2;
        loader *l = loader_of(s, ahead);
        if (i % 2) next(l);
        loader_free(l);
    }
    data_close(s);
}

/* Marks the windows of one step, over all ranks and microbatches. */
static void collect_step(const data_source *s, int ranks, int64_t rows, int64_t step, int *count,
                         int64_t *valid) {
    *valid = 0;
    for (int rank = 0; rank < ranks; rank++) {
        int64_t own = -1, sum = 0;
        loader_options o = USUAL;
        o.rank = rank;
        o.ranks = ranks;
        o.rows = rows;
        loader *l = loader_of(s, o);
        loader_seek(l, step * o.step_windows);
        data_batch b;
        do {
            b = next(l);
            for (int64_t row = 0; row < rows; row++) count[b.window[row]]++;
            if (own >= 0) assert_int_equal(b.valid, own);
            own = b.valid;
            sum += b.valid_here;
        } while (b.microbatch + 1 < b.microbatches);
        assert_int_equal(b.consumed, (step + 1) * o.step_windows);
        assert_int_equal(sum, own);
        *valid += own;
        loader_free(l);
    }
}

static void any_number_of_ranks_sees_the_same_step(void **state) {
    static const struct {
        int ranks;
        int64_t rows;
    } layouts[] = { { 1, 12 }, { 1, 3 }, { 2, 3 }, { 2, 6 }, { 4, 3 }, { 4, 1 }, { 12, 1 } };
    data_source *s = counting_source(1000); /* 62 windows: steps cross the end of epochs */
    for (int64_t step = 0; step < 12; step++) {
        int expected[62] = { 0 }, count[62];
        int64_t valid, other;
        collect_step(s, 1, 12, step, expected, &valid);
        for (size_t i = 0; i < COUNT_OF(layouts); i++) {
            memset(count, 0, sizeof count);
            collect_step(s, layouts[i].ranks, layouts[i].rows, step, count, &other);
            assert_memory_equal(count, expected, sizeof count);
            assert_int_equal(other, valid);
        }
    }
    data_close(s);
}

static void the_batch_ramp_grows_by_increments(void **state) {
    data_source *s = counting_source(1000);
    loader_options o = USUAL;
    o.rows = 2;
    o.ramp.start = 4;
    o.ramp.increment = 2;
    o.ramp.windows = 40;
    loader *l = loader_of(s, o);
    int64_t consumed = 0, size[8];
    for (int step = 0; step < 8; step++) {
        data_batch b = next(l);
        assert_int_equal(b.microbatch, 0);
        size[step] = b.microbatches * 2;
        for (int64_t m = 1; m < b.microbatches; m++) assert_int_equal(next(l).microbatch, m);
        consumed += size[step];
    }
    static const int64_t expected[] = { 4, 4, 4, 6, 6, 8, 10, 12 }; /* 4 + 2 (place / 10) */
    for (int i = 0; i < 8; i++) assert_int_equal(size[i], expected[i]);
    loader *again = loader_of(s, o);
    loader_seek(again, consumed);
    data_batch a = next(l), b = next(again);
    assert_same_batch(&a, &b, o.rows, o.seq_len);
    loader_free(again);
    loader_free(l);
    data_close(s);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Two windows of six over three documents, by hand. */
static const int32_t SMALL[] = { 1, 2, END, 3, 4, 5, 6, END, END, 7, 8, 1, 2 };

static void documents_are_kept_apart(void **state) {
    data_source *s = source_of(SMALL, COUNT_OF(SMALL));
    loader *l = loader_of(
        s, (loader_options){ .seq_len = 6, .rows = 2, .in_order = true, .mask_documents = true });
    data_batch b = next(l);
    assert_ids(b.tokens, (int32_t[]){ 1, 2, END, 3, 4, 5, 6, END, END, 7, 8, 1 }, 12);
    assert_ids(b.targets, (int32_t[]){ 2, END, NONE, 4, 5, 6, END, NONE, NONE, 8, 1, 2 }, 12);
    assert_ids(b.pos, (int32_t[]){ 0, 1, 2, 0, 1, 2, 0, 1, 0, 0, 1, 2 }, 12);
    assert_ids(b.start, (int32_t[]){ 0, 0, 0, 3, 3, 3, 6, 6, 8, 9, 9, 9 }, 12);
    for (int i = 0; i < 12; i++) assert_int_equal(b.id[i], i);
    assert_int_equal(b.valid, 9);
    assert_int_equal(b.valid_here, 9);
    loader_free(l);
    data_close(s);
}

static void without_masks_a_row_is_one_document(void **state) {
    data_source *s = source_of(SMALL, COUNT_OF(SMALL));
    loader *l = loader_of(s, (loader_options){ .seq_len = 6, .rows = 2, .in_order = true });
    data_batch b = next(l);
    assert_ids(b.targets, SMALL + 1, 12);
    assert_ids(b.pos, (int32_t[]){ 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5 }, 12);
    assert_ids(b.start, (int32_t[]){ 0, 0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6 }, 12);
    assert_int_equal(b.valid, 12);
    loader_free(l);
    data_close(s);
}

static void the_curriculum_shortens_documents(void **state) {
    data_source *s = source_of(SMALL, COUNT_OF(SMALL));
    loader_options o = {
        .seq_len = 6, .rows = 2, .in_order = true, .mask_documents = true, .curriculum_start = 2
    };
    loader *l = loader_of(s, o);
    data_batch b = next(l);
    assert_ids(b.targets, (int32_t[]){ 2, END, NONE, 4, 5, 6, END, NONE, NONE, 8, 1, 2 }, 12);
    assert_ids(b.pos, (int32_t[]){ 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0 }, 12);
    assert_ids(b.start, (int32_t[]){ 0, 0, 2, 3, 3, 5, 6, 6, 8, 9, 9, 11 }, 12);
    assert_int_equal(b.valid, 9);
    loader_free(l);
    o.mask_documents = false;
    o.curriculum_windows = 8; /* limits 2, 3, 4, 5, 6, 6 */
    l = loader_of(s, o);
    for (int step = 0; step < 6; step++) {
        int32_t longest = 0;
        b = next(l);
        for (int i = 0; i < 12; i++) longest = MAX(longest, b.pos[i]);
        assert_int_equal(longest + 1, MIN(2 + step, 6));
    }
    loader_free(l);
    data_close(s);
}

static void starts_suit_the_attention(void **state) {
    data_source *s = counting_source(2000);
    loader_options o = USUAL;
    o.rows = 4;
    loader *l = loader_of(s, o);
    for (int step = 0; step < 40; step++) {
        data_batch b = next(l);
        for (int32_t i = 0; i < 64; i++) {
            assert_in_range(b.start[i], i / 16 * 16, i);
            assert_int_equal(b.pos[i], i - b.start[i]);
            if (i > 0) assert_true(b.start[i] >= b.start[i - 1]);
            assert_int_equal(b.tokens[i], data_token(s, b.id[i]));
            if (b.targets[i] != NONE)
                assert_int_equal(b.targets[i], data_token(s, b.id[i] + 1));
            else /* at the end of a document, or of the source */
                assert_true(b.tokens[i] == END || b.id[i] == 1999);
        }
    }
    loader_free(l);
    data_close(s);
}

/* ---- evaluation and the held-out part ------------------------------------------------------ */

static void evaluation_reads_everything_once(void **state) {
    data_source *s = source_of(SMALL, COUNT_OF(SMALL));
    for (int ranks = 1; ranks <= 3; ranks++) {
        int seen[COUNT_OF(SMALL)] = { 0 };
        for (int rank = 0; rank < ranks; rank++) {
            loader *l = loader_of(
                s, (loader_options){
                       .seq_len = 5, .rows = 2, .rank = rank, .ranks = ranks, .evaluation = true });
            assert_int_equal(loader_windows(l), 3); /* of 12 inputs, the last has 2 */
            int64_t batches = loader_batches(l);
            assert_int_equal(batches, ranks == 1 ? 2 : 1);
            for (int64_t i = 0; i < batches; i++) {
                data_batch b = next(l);
                for (int t = 0; t < 10; t++) {
                    assert_in_range(b.start[t], t / 5 * 5, t);
                    if (b.targets[t] == NONE) continue;
                    assert_int_equal(b.targets[t], SMALL[b.id[t] + 1]);
                    seen[b.id[t]]++;
                }
            }
            assert_int_equal(next(l).epoch, 1);
            loader_free(l);
        }
        for (size_t i = 0; i + 1 < COUNT_OF(SMALL); i++) assert_int_equal(seen[i], 1);
        assert_int_equal(seen[COUNT_OF(SMALL) - 1], 0);
    }
    data_close(s);
}

static void padding_is_a_document_of_its_own(void **state) {
    const int32_t tokens[] = { 1, 2, 3, 4, 5, 6, 7 };
    data_source *s = source_of(tokens, 7);
    loader *l = loader_of(s, (loader_options){ .seq_len = 4, .rows = 3, .evaluation = true });
    data_batch b = next(l);
    assert_ids(b.tokens, (int32_t[]){ 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0 }, 12);
    assert_ids(b.targets, (int32_t[]){ 2, 3, 4, 5, 6, 7, NONE, NONE, NONE, NONE, NONE, NONE }, 12);
    assert_ids(b.start, (int32_t[]){ 0, 0, 0, 0, 4, 4, 4, 7, 8, 8, 8, 8 }, 12);
    assert_int_equal(b.window[1], 1);
    assert_int_equal(b.window[2], -1);
    assert_int_equal(b.valid, 6);
    loader_free(l);
    data_close(s);
}

static void the_held_out_part_is_apart(void **state) {
    data_source *s = counting_source(1000);
    data_range train, held_out;
    assert_ok(data_split(s, 0.1, 16, &train, &held_out));
    assert_int_equal(train.from, 0);
    assert_int_equal(train.to, held_out.from);
    assert_int_equal(held_out.to, 1000);
    assert_in_range(held_out.from, 810, 900);
    assert_int_equal(data_token(s, train.to - 1), END); /* a document is not cut */
    loader *l = loader_of(
        s, (loader_options){ .seq_len = 16, .rows = 1, .range = held_out, .evaluation = true });
    for (int64_t i = 0; i < loader_batches(l); i++) {
        data_batch b = next(l);
        for (int t = 0; t < 16; t++)
            if (b.targets[t] != NONE) assert_in_range(b.id[t], held_out.from, 999);
    }
    loader_free(l);
    l = loader_of(s, (loader_options){ .seq_len = 16, .rows = 1, .range = train });
    for (int64_t i = 0; i < loader_windows(l); i++) {
        data_batch b = next(l);
        for (int t = 0; t < 16; t++) assert_in_range(b.id[t] + 1, 1, train.to - 1);
    }
    loader_free(l);
    err e = data_split(s, 0.1, 600, &train, &held_out);
    assert_non_null(strstr(err_message(e), "too few"));
    err_free(e);
    e = data_split(s, 1.0, 16, &train, &held_out);
    assert_non_null(e);
    err_free(e);
    data_close(s);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void unfit_data_is_refused(void **state) {
    data_source *s = counting_source(100);
    loader *l = NULL;
    err e = loader_new(s, &(loader_options){ .seq_len = 100, .rows = 1 }, &l);
    assert_non_null(strstr(err_message(e), "100 tokens"));
    err_free(e);
    e = loader_new(s, &(loader_options){ .seq_len = 4, .rows = 3, .ranks = 2, .step_windows = 8 },
                   &l);
    assert_non_null(strstr(err_message(e), "multiple"));
    err_free(e);
    assert_ok(loader_new(s, &(loader_options){ .seq_len = 99, .rows = 1 }, &l));
    loader_free(l);
    data_close(s);
}

static void ids_beyond_the_vocabulary_are_found_in_the_window(void **state) {
    int32_t tokens[60];
    for (int i = 0; i < 60; i++) tokens[i] = i == 33 ? 500 : i;
    data_source *s = source_of(tokens, 60);
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        loader *l = loader_of(s, (loader_options){ .seq_len = 10,
                                                   .rows = 1,
                                                   .in_order = true,
                                                   .vocab_limit = 100,
                                                   .prefetch = prefetch });
        data_batch b;
        for (int i = 0; i < 3; i++) next(l);
        err e = loader_next(l, &b);
        assert_non_null(e);
        assert_non_null(strstr(err_message(e), "token 33 has id 500"));
        err_free(e);
        assert_int_equal(next(l).window[0], 4); /* the loader itself is none the worse */
        loader_seek(l, 2);                      /* an error made ahead and never asked for */
        next(l);
        loader_free(l);
    }
    data_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_is_a_bijection),
        cmocka_unit_test(epochs_and_seeds_have_orders_of_their_own),
        cmocka_unit_test(the_order_stays_what_it_was),
        cmocka_unit_test(an_epoch_visits_every_window_once),
        cmocka_unit_test(epochs_split_the_data_at_offsets_of_their_own),
        cmocka_unit_test(offsets_can_be_set_before_a_seek),
        cmocka_unit_test(seeking_equals_reading_on),
        cmocka_unit_test(prefetching_changes_nothing),
        cmocka_unit_test(any_number_of_ranks_sees_the_same_step),
        cmocka_unit_test(the_batch_ramp_grows_by_increments),
        cmocka_unit_test(documents_are_kept_apart),
        cmocka_unit_test(without_masks_a_row_is_one_document),
        cmocka_unit_test(the_curriculum_shortens_documents),
        cmocka_unit_test(starts_suit_the_attention),
        cmocka_unit_test(evaluation_reads_everything_once),
        cmocka_unit_test(padding_is_a_document_of_its_own),
        cmocka_unit_test(the_held_out_part_is_apart),
        cmocka_unit_test(unfit_data_is_refused),
        cmocka_unit_test(ids_beyond_the_vocabulary_are_found_in_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
