/* Best-fit packing: nothing lost, nothing twice, few splits, the same from anywhere. */
#include "support/data.h"

enum { END = 9, NONE = DATA_NO_TARGET };

/* Documents of many lengths, up to three windows; the last has no end. */
static data_source *source_of(int64_t documents, int64_t T, uint64_t seed) {
    rng_key key = rng_key_of(seed, 1);
    int64_t n = 0, cap = documents * 3 * T + 1;
    int32_t *ids = malloc((size_t)cap * sizeof *ids);
    for (int64_t d = 0; d < documents; d++) {
        uint64_t longest = rng_below(key, (uint64_t)d, 10) == 0 ? 3 * (uint64_t)T : (uint64_t)T / 2;
        int64_t length = 1 + (int64_t)rng_below(key, (uint64_t)(d + documents), longest);
        for (int64_t i = 0; i < length; i++, n++) ids[n] = (int32_t)(100 + n % 1000);
        if (d + 1 < documents) ids[n - 1] = END;
    }
    data_source *s = NULL;
    assert_ok(data_open_memory(ids, n, 2000, END, &s));
    data_index_documents(s);
    assert_int_equal(data_source_info(s)->documents, documents);
    free(ids);
    return s;
}

static loader_options options_of(int64_t T, data_packing packing) {
    return (loader_options){
        .seq_len = T, .rows = 1, .seed = 5, .mask_documents = true, .packing = packing
    };
}

typedef struct epoch {
    int *seen, *predicted; /* of each token of the source */
    int64_t splits;        /* documents that continue in another window */
    int64_t windows, valid;
} epoch;

/* Reads one epoch and checks every row against the source. */
static epoch read_epoch(const data_source *s, loader *l, int64_t T, data_range range) {
    size_t n = (size_t)data_source_info(s)->tokens;
    epoch e = { calloc(n + 1, sizeof(int)), calloc(n + 1, sizeof(int)), 0, loader_windows(l), 0 };
    for (int64_t w = 0; w < e.windows; w++) {
        data_batch b = next(l);
        assert_int_equal(b.epoch, 0);
        int64_t valid = 0;
        for (int64_t t = 0; t < T; t++) {
            assert_in_range(b.start[t], 0, t);
            assert_int_equal(b.pos[t], t - b.start[t]);
            if (b.targets[t] == NONE && b.tokens[t] == 0) continue; /* padding */
            int64_t id = b.id[t];
            assert_in_range(id, range.from, range.to - 1);
            assert_int_equal(b.tokens[t], data_token(s, id));
            e.seen[id]++;
            data_range doc = data_document(s, data_document_of(s, id));
            bool last = id + 1 == MIN(doc.to, range.to);
            assert_true((b.targets[t] == NONE) == last);
            /* A piece begins where a document does, or where a window split it. */
            assert_int_equal(b.id[b.start[t]], id - b.pos[t]);
            assert_in_range(b.id[b.start[t]], doc.from, doc.to - 1);
            if (last) continue;
            assert_int_equal(b.targets[t], data_token(s, id + 1));
            e.predicted[id + 1]++;
            valid++;
            e.splits += t + 1 == T || b.id[t + 1] != id + 1;
        }
        assert_int_equal(valid, b.valid);
        e.valid += valid;
    }
    return e;
}

static void every_token_comes_once_and_few_documents_are_split(void **state) {
    static const int64_t lengths[] = { 16, 64, 257 };
    for (size_t k = 0; k < COUNT_OF(lengths); k++) {
        int64_t T = lengths[k];
        data_source *s = source_of(1500, T, k);
        int64_t n = data_source_info(s)->tokens, unavoidable = 0;
        loader *l = loader_of(s, options_of(T, PACK_BEST_FIT));
        epoch e = read_epoch(s, l, T, (data_range){ 0, n });
        for (int64_t i = 0; i < n; i++) assert_int_equal(e.seen[i], 1);
        for (int64_t d = 0; d < 1500; d++) {
            data_range r = data_document(s, d);
            for (int64_t i = r.from; i < r.to; i++) assert_int_equal(e.predicted[i], i > r.from);
            unavoidable += (r.to - r.from - 1) / T;
        }
        assert_int_equal(e.splits, unavoidable);
        int64_t concat_splits = 0; /* ends of windows that are not ends of documents */
        for (int64_t i = T; i < n; i += T) concat_splits += data_token(s, i - 1) != END;
        assert_true(2 * e.splits < concat_splits);
        /* And hardly any of a window is wasted. */
        assert_true(e.windows * T < n + n / 20 + T);
        free(e.seen);
        free(e.predicted);
        loader_free(l);
        data_close(s);
    }
}

/* Against a walk over the documents: each window begins with the one after the document that the last window's end cropped. */
static void aligned_windows_begin_with_documents(void **state) {
    static const int64_t lengths[] = { 16, 64, 257 };
    for (size_t k = 0; k < COUNT_OF(lengths); k++) {
        int64_t T = lengths[k], document = 0, tokens = 0;
        data_source *s = source_of(1500, T, k);
        loader_options o = options_of(T, PACK_ALIGNED);
        o.in_order = true;
        loader *l = loader_of(s, o);
        int64_t windows = loader_windows(l);
        for (int64_t w = 0; w < windows; w++) {
            data_batch b = next(l);
            assert_int_equal(b.epoch, 0);
            int64_t t = 0;
            for (; t < T && document < 1500; document++) {
                data_range r = data_document(s, document);
                for (int64_t id = r.from; id < r.to && t < T; id++, t++) {
                    assert_int_equal(b.id[t], id);
                    assert_int_equal(b.tokens[t], data_token(s, id));
                    assert_int_equal(b.pos[t], id - r.from);
                    assert_int_equal(b.targets[t], id + 1 < r.to ? data_token(s, id + 1) : NONE);
                }
            }
            assert_true(t == T || w + 1 == windows);
            tokens += t;
        }
        assert_int_equal(document, 1500);
        assert_true(tokens < data_source_info(s)->tokens); /* some of them were cropped */
        loader_free(l);
        data_close(s);
    }
}

/* However short documents are, a group has at most 16384 of them, which bounds what a window costs: those of
 * one to three tokens fill half of a group's 64 windows. */
static void groups_of_short_documents_are_bounded(void **state) {
    enum { T = 1024, DOCUMENTS = 40000, GROUP = 16384 };
    int32_t *ids = malloc(3 * DOCUMENTS * sizeof *ids);
    int64_t n = 0, first = 0; /* tokens of the first group */
    for (int d = 0; d < DOCUMENTS; d++) {
        for (int i = d % 3; i < 2; i++) ids[n++] = 100 + d % 1000;
        ids[n++] = END;
        if (d + 1 == GROUP) first = n;
    }
    data_source *s = NULL;
    assert_ok(data_open_memory(ids, n, 2000, END, &s));
    data_index_documents(s);
    loader_options o = options_of(T, PACK_BEST_FIT);
    o.in_order = true;
    loader *l = loader_of(s, o);
    for (int64_t w = 0; w < first / T; w++) {
        data_batch b = next(l);
        for (int64_t t = 0; t < T; t++) assert_in_range(b.id[t], 0, first - 1);
    }
    loader_free(l);
    data_close(s);
    free(ids);
}

static void a_range_is_packed_without_its_neighbours(void **state) {
    enum { T = 32 };
    data_source *s = source_of(400, T, 9);
    int64_t n = data_source_info(s)->tokens;
    loader_options o = options_of(T, PACK_BEST_FIT);
    o.range = (data_range){ n / 3 + 1, n - n / 4 }; /* splits through documents */
    loader *l = loader_of(s, o);
    epoch e = read_epoch(s, l, T, o.range);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(e.seen[i], i >= o.range.from && i < o.range.to);
    free(e.seen);
    free(e.predicted);
    loader_free(l);
    data_close(s);
}

/* By hand: lengths 5, 1, 7 and 4 in windows of 10. 7 and 5 need a window each, 4 fits beside 5, and
 * 1 goes where it leaves nothing, not where it fits first. */
static void documents_go_where_they_fit_best(void **state) {
    const int32_t ids[] = { 1, 1, 1, 1, END, END, 3, 3, 3, 3, 3, 3, END, 4, 4, 4, END };
    data_source *s = NULL;
    assert_ok(data_open_memory(ids, COUNT_OF(ids), 100, END, &s));
    data_index_documents(s);
    loader_options o = options_of(10, PACK_BEST_FIT);
    o.in_order = true;
    loader *l = loader_of(s, o);
    assert_int_equal(loader_windows(l), 2);
    const int32_t first[] = { 3, 3, 3, 3, 3, 3, END, 0, 0, 0 };
    const int32_t second[] = { 1, 1, 1, 1, END, 4, 4, 4, END, END };
    const int32_t targets[] = { 1, 1, 1, END, NONE, 4, 4, END, NONE, NONE };
    const int32_t start[] = { 0, 0, 0, 0, 0, 5, 5, 5, 5, 9 };
    data_batch b = next(l);
    assert_memory_equal(b.tokens, first, sizeof first);
    assert_int_equal(b.valid, 6);
    assert_int_equal(b.start[8], 7); /* padding is a document of its own */
    b = next(l);
    assert_memory_equal(b.tokens, second, sizeof second);
    assert_memory_equal(b.targets, targets, sizeof targets);
    assert_memory_equal(b.start, start, sizeof start);
    assert_int_equal(b.valid, 7);
    loader_free(l);
    data_close(s);
}

static void check_shuffled(data_packing kind) {
    enum { T = 64 };
    data_source *s = source_of(900, T, 3);
    loader_options o = options_of(T, kind);
    loader *mixed = loader_of(s, o);
    o.in_order = true;
    loader *in_order = loader_of(s, o);
    int64_t windows = loader_windows(in_order);
    int32_t *all = malloc((size_t)(windows * T) * sizeof *all);
    for (int64_t w = 0; w < windows; w++) {
        data_batch b = next(in_order);
        assert_int_equal(b.window[0], w);
        memcpy(all + w * T, b.tokens, T * sizeof *all);
    }
    for (int64_t i = 0; i < 2 * windows; i++) { /* two epochs */
        data_batch b = next(mixed);
        assert_memory_equal(b.tokens, all + b.window[0] * T, T * sizeof *all);
    }
    free(all);
    loader_free(mixed);
    loader_free(in_order);
    data_close(s);
}

static void a_shuffled_epoch_is_the_same_windows(void **state) {
    check_shuffled(PACK_BEST_FIT);
    check_shuffled(PACK_ALIGNED);
}

static void packing_needs_masks(void **state) {
    data_source *s = source_of(10, 16, 1);
    loader_options o = options_of(16, PACK_ALIGNED);
    o.mask_documents = false;
    loader *l = NULL;
    err e = loader_new(s, &o, &l);
    assert_non_null(e);
    assert_non_null(strstr(err_remedy(e), "data.documents"));
    err_free(e);
    data_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_comes_once_and_few_documents_are_split),
        cmocka_unit_test(aligned_windows_begin_with_documents),
        cmocka_unit_test(groups_of_short_documents_are_bounded),
        cmocka_unit_test(a_range_is_packed_without_its_neighbours),
        cmocka_unit_test(documents_go_where_they_fit_best),
        cmocka_unit_test(a_shuffled_epoch_is_the_same_windows),
        cmocka_unit_test(packing_needs_masks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
