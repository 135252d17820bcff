/* Token files for other systems: what is written is read back token by token, and Arrow's bytes are those that its
 * format describes. */
#include "support/data.h"

#include "parquet/parquet.h"

enum { TOKENS = 5000 };

/* Ids below `vocab`, and documents of 1 to about 60 tokens that end in id 7. */
static data_source *make_source(int64_t vocab, int32_t *ids) {
    data_source *s = NULL;
    rng_key key = rng_key_of(39, (uint64_t)vocab);
    for (uint64_t i = 0; i < TOKENS; i++)
        ids[i] = rng_below(key, 2 * i, 20) == 0
                     ? 7
                     : (int32_t)rng_below(key, 2 * i + 1, (uint64_t)vocab);
    ids[TOKENS - 1] = 7;
    assert_ok(data_open_memory(ids, TOKENS, vocab, 7, &s));
    data_index_documents(s);
    return s;
}

static void expect_tokens(const char *path, const int32_t *ids, int64_t n) {
    data_source *s = NULL;
    assert_ok(data_open(path, 0, &s));
    assert_int_equal(data_source_info(s)->tokens, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(data_token(s, i), ids[i]);
    data_close(s);
}

static void megatron_files_come_back(void **state) {
    static const int64_t vocabularies[] = { 300, 65499, 65500, 200000 };
    for (size_t i = 0; i < COUNT_OF(vocabularies); i++) {
        int32_t ids[TOKENS];
        data_source *s = make_source(vocabularies[i], ids), *back = NULL;
        const char *prefix = in_folder(*state, "m");
        assert_ok(data_export(s, &(data_export_options){ .format = "megatron", .out = prefix }));
        expect_tokens(in_folder(*state, "m.bin"), ids, TOKENS);
        int64_t bytes = 0;
        assert_ok(io_size(in_folder(*state, "m.bin"), &bytes));
        assert_int_equal(bytes, TOKENS * (vocabularies[i] < 65500 ? 2 : 4));
        assert_ok(data_open(in_folder(*state, "m.idx"), 0, &back));
        const data_info *a = data_source_info(s), *b = data_source_info(back);
        assert_int_equal(a->documents, b->documents);
        for (int64_t d = 0; d < a->documents; d++)
            assert_int_equal(data_document(s, d).to, data_document(back, d).to);
        data_close(back);
        data_close(s);
    }
}

/* Each file ends with a document; together they have all tokens. */
static void llmc_files_come_back(void **state) {
    for (int64_t vocab = 300; vocab <= 300000; vocab *= 1000) {
        int32_t ids[TOKENS];
        data_source *s = make_source(vocab, ids);
        const data_export_options o = { .format = "llm.c",
                                        .out = in_folder(*state, "l"),
                                        .shard_tokens = 1500 };
        assert_ok(data_export(s, &o));
        int64_t at = 0;
        int n = 0;
        for (; at < TOKENS; n++) {
            data_source *back = NULL;
            assert_ok(data_open(
                in_folder(*state, arena_printf(((test_folder *)*state)->names, "l_%06d.bin", n)), 0,
                &back));
            int64_t here = data_source_info(back)->tokens;
            assert_in_range(here, n < 3 ? 1500 : 1, 1700);
            for (int64_t i = 0; i < here; i++) assert_int_equal(data_token(back, i), ids[at + i]);
            assert_int_equal(data_token(back, here - 1), 7);
            at += here;
            data_close(back);
        }
        assert_int_equal(at, TOKENS);
        assert_int_equal(n, 4);
        data_close(s);
    }
}

static void nanogpt_files_come_back(void **state) {
    int32_t ids[TOKENS];
    data_source *s = make_source(50000, ids);
    const char *path = in_folder(*state, "train.bin");
    assert_ok(data_export(s, &(data_export_options){ .format = "nanogpt", .out = path }));
    expect_tokens(path, ids, TOKENS);
    assert_error(
        data_export(s,
                    &(data_export_options){ .format = "nanogpt", .out = path, .shard_tokens = 9 }),
        "no effect");
    assert_error(data_export(s, &(data_export_options){ .format = "nanogpt", .out = "x" }), ".bin");
    assert_error(data_export(s, &(data_export_options){ .format = "numpy", .out = path }),
                 "is not megatron");
    data_close(s);
    s = make_source(70000, ids);
    assert_error(data_export(s, &(data_export_options){ .format = "nanogpt", .out = path }),
                 "70000");
    data_close(s);
    assert_ok(data_open_memory(ids, TOKENS, 0, 7, &s));
    assert_error(data_export(s, &(data_export_options){ .format = "nanogpt", .out = path }),
                 "32 bits", "unknown size");
    data_close(s);
}

/* ---- Arrow ------------------------------------------------------------------------------------- */
typedef struct arrow_bytes {
    char *bytes;
    size_t n;
} arrow_bytes;

static err read_bytes_at(void *ctx, int64_t offset, void *to, size_t n) {
    const arrow_bytes *b = ctx;
    assert_true(offset >= 0 && (size_t)offset + n <= b->n);
    memcpy(to, b->bytes + offset, n);
    return OK;
}

/* Our reader of Arrow checks every offset of the metadata; the ids follow each batch's metadata. */
static void arrow_files_have_a_row_per_document(void **state) {
    int32_t ids[TOKENS];
    data_source *s = make_source(60000, ids);
    const char *out = in_folder(*state, "hf");
    const data_export_options o = { .format = "arrow", .out = out, .shard_tokens = 2600 };
    assert_ok(data_export(s, &o));
    assert_true(io_exists(in_folder(*state, "hf/dataset_info.json")));
    assert_true(io_exists(in_folder(*state, "hf/state.json")));
    int64_t rows = 0, at = 0;
    for (int k = 0; k < 2; k++) {
        arrow_bytes b;
        const char *path = in_folder(*state, arena_printf(((test_folder *)*state)->names,
                                                          "hf/data-0000%d-of-00002.arrow", k));
        assert_ok(io_read(path, 1 << 20, &b.bytes, &b.n));
        parquet_source source = { path, (int64_t)b.n, &b, read_bytes_at };
        parquet_file *f = NULL;
        assert_ok(parquet_open(&source, &(parquet_limits){ 0 }, NULL, &f));
        assert_int_equal(parquet_columns(f), 1);
        assert_true(str_starts(parquet_column_at(f, 0)->name, "input_ids"));
        assert_true(parquet_column_at(f, 0)->repeated);
        assert_int_equal(parquet_column_at(f, 0)->kind, PARQUET_INTEGER);
        assert_int_equal(parquet_groups(f), 1);
        int64_t here = parquet_group_rows(f, 0), tokens;
        parquet_close(f);
        /* From the end: the mark of 8 bytes, padding, the ids. */
        data_range first = data_document(s, rows), last = data_document(s, rows + here - 1);
        tokens = last.to - first.from;
        assert_int_equal(first.from, at);
        size_t ids_at = b.n - 8 - (size_t)(tokens & 1) * 4 - (size_t)tokens * 4;
        assert_memory_equal(b.bytes + ids_at, ids + at, (size_t)tokens * 4);
        size_t ends_at = ids_at - (size_t)((here + 1 + 1) / 2 * 2) * 4;
        for (int64_t i = 0; i <= here; i++) {
            int32_t end;
            memcpy(&end, b.bytes + ends_at + 4 * i, sizeof end);
            assert_int_equal(end, i == 0 ? 0 : data_document(s, rows + i - 1).to - at);
        }
        rows += here;
        at += tokens;
        free(b.bytes);
    }
    assert_int_equal(rows, data_source_info(s)->documents);
    assert_int_equal(at, TOKENS);
    data_close(s);
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(megatron_files_come_back),
        IN_FOLDER(llmc_files_come_back),
        IN_FOLDER(nanogpt_files_come_back),
        IN_FOLDER(arrow_files_have_a_row_per_document),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
