/* Token files of all kinds: version 1 of our own, Megatron's written byte by byte, and what becomes
 * of files that were truncated or changed anywhere. */
#include "support/data.h"

static void assert_tokens(const data_source *s, const int32_t *expected, int64_t n) {
    assert_int_equal(data_source_info(s)->tokens, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(data_token(s, i), expected[i]);
}

/* Reads all there is through the loader: nothing in a file that opens may lead outside it. */
static void read_through(data_source *s) {
    data_index_documents(s);
    const data_info *info = data_source_info(s);
    for (int64_t d = 0; d < info->documents; d++) {
        data_range r = data_document(s, d);
        assert_true(r.from >= 0 && r.from < r.to && r.to <= info->tokens);
    }
    for (int packing = 0; packing < 2; packing++) {
        loader *l = NULL;
        loader_options o = {
            .seq_len = 4, .rows = 1, .mask_documents = true, .packing = (data_packing)packing
        };
        err e = loader_new(s, &o, &l);
        data_batch b;
        for (int64_t i = 0; !e && i < MIN(loader_windows(l), 100); i++) e = loader_next(l, &b);
        err_free(e);
        loader_free(l);
    }
}

/* Opening succeeds or says why, and names the file. */
static bool try_open(const char *path, const char *name) {
    data_source *s = NULL;
    err e = data_open(path, 0, &s);
    if (!e) read_through(s);
    if (e) assert_non_null(strstr(err_message(e), name));
    err_free(e);
    data_close(s);
    return e == OK;
}

/* ---- our own ------------------------------------------------------------------------------------ */

static void version_1_is_still_read(void **state) {
    struct {
        char magic[8];
        uint32_t version;
        uint16_t width, kind;
        uint32_t vocab, eos;
        uint64_t hash;
        uint16_t tokens[4];
        uint64_t count, documents, checksum, frame;
    } f = { .version = 1,
            .width = 2,
            .kind = TOKENIZER_BPE,
            .vocab = 100,
            .eos = 9,
            .hash = 5,
            .tokens = { 1, 9, 3, 9 },
            .count = 4,
            .documents = 2 };
    memcpy(f.magic, "INGOTTOK", 8);
    f.checksum = hash_bytes(f.tokens, 8, 0);
    f.frame = hash_bytes(&f.count, 24, hash_bytes(&f, 32, 0));
    assert_int_equal(sizeof f, 72);
    data_source *s = NULL;
    assert_ok(data_open(folder_write_bytes(*state, "v1.tok", &f, sizeof f), 0, &s));
    assert_tokens(s, (const int32_t[]){ 1, 9, 3, 9 }, 4);
    assert_int_equal(data_source_info(s)->documents, 2);
    read_through(s);
    assert_int_equal(data_source_info(s)->documents, 2);
    data_close(s);
    f.version = 5;
    assert_error(data_open(folder_write_bytes(*state, "v5.tok", &f, sizeof f), 0, &s), "version 5",
                 "v5.tok");
}

/* As version 3, without the checksums of chunks. */
static void version_2_is_still_read(void **state) {
    struct {
        char magic[8];
        uint32_t version;
        uint16_t width, kind;
        uint32_t vocab, eos;
        uint64_t hash;
        uint16_t tokens[4];
        uint64_t ends[2];
        char provenance[8];
        uint64_t count, documents, checksum, provenance_bytes, index_checksum, frame;
    } f = { .version = 2,
            .width = 2,
            .kind = TOKENIZER_BPE,
            .vocab = 100,
            .eos = 9,
            .tokens = { 1, 9, 3, 9 },
            .ends = { 2, 4 },
            .provenance = { '{', '}', ' ', ' ', ' ', ' ', ' ', ' ' },
            .count = 4,
            .documents = 2,
            .provenance_bytes = 2 };
    memcpy(f.magic, "INGOTTOK", 8);
    f.checksum = hash_bytes(f.tokens, 8, 0);
    f.index_checksum = hash_bytes(f.ends, 24, 0);
    f.frame = hash_bytes(&f.count, 40, hash_bytes(&f, 32, 0));
    data_source *s = NULL;
    assert_ok(data_open(folder_write_bytes(*state, "v2.tok", &f, sizeof f), 0, &s));
    assert_tokens(s, (const int32_t[]){ 1, 9, 3, 9 }, 4);
    assert_int_equal(data_source_info(s)->documents, 2);
    read_through(s);
    data_close(s);
}

static const char *write_tok(test_folder *f, const char *name, const int32_t *ids, int64_t n) {
    token_writer *w = NULL;
    const token_writer_options o = { .vocab = 300, .eos = 9, .tokenizer = TOKENIZER_BPE };
    assert_ok(token_writer_open(in_folder(f, name), &o, &w));
    assert_ok(token_writer_add(w, ids, n));
    assert_ok(token_writer_close(w, "{\"input\":\"a.txt\"}"));
    return in_folder(f, name);
}

static void the_index_and_provenance_come_back(void **state) {
    const int32_t ids[] = { 5, 6, 9, 9, 7, 8, 9, 4, 4 };
    static const data_range docs[] = { { 0, 3 }, { 3, 4 }, { 4, 7 }, { 7, 9 } };
    data_source *s = NULL;
    assert_ok(data_open(write_tok(*state, "a.tok", ids, 9), 0, &s));
    assert_int_equal(data_source_info(s)->documents, 4);
    for (int d = 0; d < 4; d++) {
        data_range r = data_document(s, d);
        assert_int_equal(r.from, docs[d].from);
        assert_int_equal(r.to, docs[d].to);
        for (int64_t i = r.from; i < r.to; i++) assert_int_equal(data_document_of(s, i), d);
    }
    data_shard_info info = data_shard_at(s, 0);
    assert_int_equal(info.provenance_len, 17);
    assert_memory_equal(info.provenance, "{\"input\":\"a.txt\"}", 17);
    data_close(s);
}

static void several_files_are_one_source(void **state) {
    const int32_t first[] = { 5, 6, 9 }, second[] = { 7, 8, 8, 8, 9, 6, 6, 9 };
    char a[128], b[128];
    strcpy(a, write_tok(*state, "a.tok", first, 3));
    strcpy(b, write_tok(*state, "b.tok", second, 8));
    const char *paths[] = { a, b, a };
    data_source *s = NULL;
    assert_ok(data_open_paths(paths, 3, &(data_options){ 0 }, &s));
    const int32_t all[] = { 5, 6, 9, 7, 8, 8, 8, 9, 6, 6, 9, 5, 6, 9 };
    assert_tokens(s, all, 14);
    int32_t got[14];
    for (int64_t from = 0; from < 14; from++)
        for (int64_t n = 0; from + n <= 14; n++) {
            data_read(s, from, n, got);
            assert_memory_equal(got, all + from, (size_t)n * sizeof *got);
        }
    assert_int_equal(data_source_info(s)->documents, 4);
    assert_int_equal(data_document(s, 3).from, 11);
    assert_int_equal(data_document_of(s, 10), 2);
    /* Windows over the joints of files are like any other. */
    loader *l = NULL;
    assert_ok(loader_new(s, &(loader_options){ .seq_len = 4, .rows = 3, .in_order = true }, &l));
    data_batch batch;
    assert_ok(loader_next(l, &batch));
    assert_memory_equal(batch.tokens, all, 12 * sizeof *all);
    assert_memory_equal(batch.targets, all + 1, 12 * sizeof *all);
    loader_free(l);
    data_close(s);
    const char *mixed[] = { a, folder_write_bytes(*state, "c.txt", "some text", 9) };
    assert_error(data_open_paths(mixed, 2, &(data_options){ 0 }, &s), "c.txt", "end of document");
}

/* ---- Megatron ----------------------------------------------------------------------------------- */

typedef struct bytes {
    unsigned char at[4096];
    size_t n;
} bytes;

static void put(bytes *b, uint64_t value, int size) {
    for (int i = 0; i < size; i++) b->at[b->n++] = (unsigned char)(value >> (8 * i));
}

/* Three documents of one, two and one sequences: the arrays are at odd addresses. */
static bytes megatron_idx(int type, int width) {
    static const int lengths[] = { 3, 2, 4, 1 };
    static const int documents[] = { 0, 1, 3, 4 };
    bytes b = { 0 };
    memcpy(b.at, "MMIDIDX\0\0", 9);
    b.n = 9;
    put(&b, 1, 8);
    put(&b, (uint64_t)type, 1);
    put(&b, 4, 8);
    put(&b, 4, 8);
    for (int i = 0; i < 4; i++) put(&b, (uint64_t)lengths[i], 4);
    for (int i = 0, at = 0; i < 4; at += lengths[i++] * width) put(&b, (uint64_t)at, 8);
    for (int i = 0; i < 4; i++) put(&b, (uint64_t)documents[i], 8);
    return b;
}

static const int32_t MEGATRON[] = { 10, 11, 12, 20, 21, 22, 23, 24, 25, 30 };

static bytes megatron_bin(int width) {
    bytes b = { 0 };
    for (int i = 0; i < 10; i++) put(&b, (uint64_t)MEGATRON[i], width);
    return b;
}

static void megatron_files_are_read(void **state) {
    static const struct { int type, width; } kinds[] = { { 8, 2 }, { 4, 4 }, { 3, 2 }, { 5, 8 } };
    static const char *const names[] = { "m.bin", "m.idx", "m" };
    for (size_t k = 0; k < COUNT_OF(kinds); k++)
        for (size_t i = 0; i < COUNT_OF(names); i++) {
            bytes idx = megatron_idx(kinds[k].type, kinds[k].width);
            bytes bin = megatron_bin(kinds[k].width);
            folder_write_bytes(*state, "m.idx", idx.at, idx.n);
            folder_write_bytes(*state, "m.bin", bin.at, bin.n);
            data_source *s = NULL;
            assert_ok(data_open(in_folder(*state, names[i]), 0, &s));
            assert_tokens(s, MEGATRON, 10);
            assert_int_equal(data_source_info(s)->documents, 3);
            assert_int_equal(data_document(s, 1).from, 3);
            assert_int_equal(data_document(s, 1).to, 9);
            read_through(s);
            data_close(s);
        }
}

/* The index alone keeps documents apart: there is no id that ends them. */
static void megatron_documents_are_kept_apart(void **state) {
    bytes idx = megatron_idx(8, 2), bin = megatron_bin(2);
    folder_write_bytes(*state, "m.idx", idx.at, idx.n);
    data_source *s = NULL;
    assert_ok(data_open(folder_write_bytes(*state, "m.bin", bin.at, bin.n), 0, &s));
    loader *l = NULL;
    data_batch b;
    assert_ok(loader_new(
        s, &(loader_options){ .seq_len = 9, .rows = 1, .in_order = true, .mask_documents = true },
        &l));
    assert_ok(loader_next(l, &b));
    const int32_t none = DATA_NO_TARGET;
    const int32_t targets[] = { 11, 12, none, 21, 22, 23, 24, 25, none };
    const int32_t start[] = { 0, 0, 0, 3, 3, 3, 3, 3, 3 };
    assert_memory_equal(b.targets, targets, sizeof targets);
    assert_memory_equal(b.start, start, sizeof start);
    assert_int_equal(b.valid, 7);
    loader_free(l);
    data_close(s);
}

static void wrong_megatron_files_are_refused(void **state) {
    static const struct {
        int at, value;
        const char *says;
    } changes[] = {
        { 0, 'X', "begin like" },     { 9, 2, "version 2" },
        { 17, 7, "float32" },         { 17, 77, "unknown" },
        { 18, 5, "add up" },          { 25, 255, "add up" },
        { 26, 3, "add up" },          { 34, 4, "where the one" },
        { 37, 128, "where the one" }, { 50 + 8, 4, "where the one" },
        { 82 + 8, 9, "not there" },   { 82 + 24, 5, "not there" },
    };
    bytes bin = megatron_bin(2);
    folder_write_bytes(*state, "m.bin", bin.at, bin.n);
    data_source *s = NULL;
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        bytes idx = megatron_idx(8, 2);
        idx.at[changes[i].at] = (unsigned char)changes[i].value;
        assert_error(data_open(folder_write_bytes(*state, "m.idx", idx.at, idx.n), 0, &s),
                     changes[i].says, "m.idx");
    }
    bytes idx = megatron_idx(8, 2);
    folder_write_bytes(*state, "m.idx", idx.at, idx.n);
    assert_error(data_open(folder_write_bytes(*state, "m.bin", bin.at, bin.n - 2), 0, &s), "add up",
                 "m.idx");
    idx = megatron_idx(5, 8);
    bin = megatron_bin(8);
    bin.at[8 * 3 + 7] = 0x80; /* a negative id */
    folder_write_bytes(*state, "m.idx", idx.at, idx.n);
    assert_error(data_open(folder_write_bytes(*state, "m.bin", bin.at, bin.n), 0, &s), "token 3",
                 "m.bin");
    unlink(in_folder(*state, "m.bin"));
    assert_error(data_open(in_folder(*state, "m.idx"), 0, &s), "m.bin");
}

/* A file without a vocabulary opens without a limit, and is compared with the model's later. */
static void ids_of_raw_files_are_compared_with_the_model(void **state) {
    const uint16_t ids[] = { 1, 2, 700, 3 };
    data_source *s = NULL;
    assert_ok(data_open(folder_write_bytes(*state, "raw.bin", ids, sizeof ids), 0, &s));
    assert_ok(data_check_ids(s, 701));
    assert_error(data_check_ids(s, 700), "raw.bin", "id 700", "token 2");
    data_close(s);
}

/* ---- damage ------------------------------------------------------------------------------------- */

/* Cuts and changes files at random positions. What still opens must be safe to read. */
static void damaged_files_never_crash(void **state) {
    int32_t ids[200];
    rng_key key = rng_key_of(11, 1);
    for (uint64_t i = 0; i < 200; i++)
        ids[i] = rng_below(key, i, 6) == 0 ? 9 : (int32_t)rng_below(key, 1000 + i, 300);
    char *tok = NULL;
    size_t tok_bytes = 0;
    assert_ok(io_read(write_tok(*state, "a.tok", ids, 200), 1 << 20, &tok, &tok_bytes));
    bytes idx = megatron_idx(8, 2), bin = megatron_bin(2);
    folder_write_bytes(*state, "m.bin", bin.at, bin.n);
    uint64_t draw = 5000;
    int opened = 0;
    for (int round = 0; round < 400; round++) {
        size_t at = (size_t)rng_below(key, draw++, tok_bytes);
        char bit = (char)(1 << rng_below(key, draw++, 8));
        tok[at] ^= bit;
        opened += try_open(folder_write_bytes(*state, "bad.tok", tok, tok_bytes), "bad.tok");
        tok[at] ^= bit;
        size_t cut = (size_t)rng_below(key, draw++, tok_bytes);
        opened += try_open(folder_write_bytes(*state, "cut.tok", tok, cut), "cut.tok");
        bytes x = idx;
        for (int changes = round % 3; changes >= 0; changes--) {
            size_t where = (size_t)rng_below(key, draw++, x.n);
            x.at[where] ^= (unsigned char)(1 << rng_below(key, draw++, 8));
        }
        if (round % 3 == 0) x.n = (size_t)rng_below(key, draw++, x.n);
        try_open(folder_write_bytes(*state, "m.idx", x.at, x.n), "m.");
    }
    assert_int_equal(opened, 0); /* every change to our own files is noticed */
    free(tok);
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(version_1_is_still_read),
        IN_FOLDER(version_2_is_still_read),
        IN_FOLDER(the_index_and_provenance_come_back),
        IN_FOLDER(several_files_are_one_source),
        IN_FOLDER(megatron_files_are_read),
        IN_FOLDER(megatron_documents_are_kept_apart),
        IN_FOLDER(wrong_megatron_files_are_refused),
        IN_FOLDER(ids_of_raw_files_are_compared_with_the_model),
        IN_FOLDER(damaged_files_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
