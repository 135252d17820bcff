/* Safetensors: what HF wrote is read, what we write is read back, and nothing that is broken in
 * whatever way is believed. */
#include "support/folder.h"

#include "checkpoint/checkpoint.h"

/* A file of a given header and n bytes of data. */
static void put_file(const char *path, const char *header, size_t n) {
    size_t h = strlen(header);
    uint8_t *bytes = mem_alloc(8 + h + n);
    bytes[0] = (uint8_t)h;
    bytes[1] = (uint8_t)(h >> 8);
    bytes[2] = (uint8_t)(h >> 16);
    memcpy(bytes + 8, header, h);
    for (size_t i = 0; i < n; i++) bytes[8 + h + i] = (uint8_t)i;
    write_bytes(path, bytes, 8 + h + n);
    free(bytes);
}

/* ---- what HF wrote ----------------------------------------------------------------------- */

static void reads_hf_file(void **state) {
    st_file *f;
    assert_ok(st_open(FIXTURES "/llama/expected.safetensors", &f));
    const st_tensor *t;
    assert_ok(st_need(f, "logits", 3, (int64_t[]){ 2, 16, 80 }, &t));
    assert_int_equal(t->dt, DT_F32);
    assert_int_equal(t->bytes, 2 * 16 * 80 * 4);
    assert_ok(st_need(f, "targets", 2, (int64_t[]){ 2, 16 }, &t));
    assert_int_equal(t->dt, DT_I32);
    int32_t targets[32];
    st_read(t, 0, 32, targets);
    int valid = 0;
    for (int i = 0; i < 32; i++) {
        assert_true(targets[i] == -100 || (targets[i] >= 0 && targets[i] < 80));
        valid += targets[i] >= 0;
    }
    assert_in_range(valid, 16, 31);
    st_close(f);

    assert_ok(st_open(FIXTURES "/llama", &f));
    assert_string_equal(st_metadata(f, "format"), "pt");
    assert_null(st_metadata(f, "nothing"));
    assert_int_equal(st_count(f), 2 * 9 + 3);
    for (int i = 1; i < st_count(f); i++)
        assert_true(strcmp(st_at(f, i - 1)->name, st_at(f, i)->name) < 0);
    st_close(f);
}

static void shards_equal_the_single_file(void **state) {
    st_file *one, *many;
    assert_ok(st_open(FIXTURES "/llama3", &one));
    assert_ok(st_open(FIXTURES "/llama3_sharded", &many));
    assert_int_equal(st_count(one), st_count(many));
    int files = 1;
    for (int i = 0; i < st_count(one); i++) {
        const st_tensor *a = st_at(one, i), *b = st_at(many, i);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
        files += i && strcmp(b->where, st_at(many, i - 1)->where) != 0;
    }
    assert_true(files > 1);
    st_close(one);
    st_close(many);
}

/* ---- round trips ------------------------------------------------------------------------- */

static const st_spec mixed[] = {
    { "half", DT_BF16, 2, { 3, 5 } }, { "empty", DT_F32, 2, { 0, 7 } },
    { "flags", DT_U8, 1, { 3 } },     { "long \"name\"\n\xc3\xa9", DT_I64, 1, { 2 } },
    { "scalar", DT_F32, 0, { 0 } },   { "wide", DT_F32, 4, { 2, 1, 3, 2 } },
    { "small", DT_E4M3, 1, { 5 } },
};

static size_t bytes_of(const st_spec *s) {
    size_t n = dt_size(s->dt);
    for (int i = 0; i < s->ndim; i++) n *= (size_t)s->dim[i];
    return n;
}

/* Byte k of tensor i, sent in pieces of 7. */
static uint8_t mixed_byte(int i, size_t k) { return (uint8_t)(31 * i + 7 * (int)k + 1); }
static err fill_mixed(void *ctx, int i, st_sink *s) {
    size_t n = bytes_of(&mixed[i]);
    for (size_t at = 0; at < n; at += 7) {
        uint8_t piece[7];
        for (size_t k = 0; k < 7; k++) piece[k] = mixed_byte(i, at + k);
        TRY(st_emit(s, piece, MIN(7, n - at)));
    }
    if (ctx && i == *(int *)ctx) return ERR("the source failed");
    return OK;
}

static void check_mixed(const st_file *f) {
    assert_int_equal(st_count(f), COUNT_OF(mixed));
    for (int i = 0; i < (int)COUNT_OF(mixed); i++) {
        const st_tensor *t;
        assert_ok(st_need(f, mixed[i].name, mixed[i].ndim, mixed[i].dim, &t));
        assert_int_equal(t->dt, mixed[i].dt);
        assert_int_equal(t->bytes, bytes_of(&mixed[i]));
        assert_int_equal((uintptr_t)t->data % dt_size(t->dt), 0);
        for (size_t k = 0; k < t->bytes; k++)
            assert_int_equal(((const uint8_t *)t->data)[k], mixed_byte(i, k));
    }
}

static void round_trip(void **state) {
    const char *file = in_folder(*state, "a.safetensors");
    st_meta meta[] = { { "step", "12" }, { "quote", "\"\\" } };
    st_file *f;
    assert_ok(st_write(file, mixed, COUNT_OF(mixed), meta, 2, (st_source){ fill_mixed, NULL }));
    assert_ok(st_open(file, &f));
    check_mixed(f);
    assert_string_equal(st_metadata(f, "format"), "pt");
    assert_string_equal(st_metadata(f, "step"), "12");
    assert_string_equal(st_metadata(f, "quote"), "\"\\");
    st_close(f);
    assert_ok(st_write(file, NULL, 0, NULL, 0, (st_source){ fill_mixed, NULL }));
    assert_ok(st_open(file, &f));
    assert_int_equal(st_count(f), 0);
    assert_null(st_find(f, "wide"));
    st_close(f);
}

static void failed_write_leaves_the_old_file(void **state) {
    test_folder *p = *state;
    const char *file = in_folder(p, "a.safetensors");
    int fails_at = 4;
    char **names;
    int n;
    write_bytes(file, "old", 3);
    st_source source = { fill_mixed, &fails_at };
    assert_error(st_write(file, mixed, COUNT_OF(mixed), NULL, 0, source), "the source failed");
    int64_t bytes;
    assert_ok(io_size(file, &bytes));
    assert_int_equal(bytes, 3);
    assert_ok(io_list(p->path, &names, &n));
    assert_int_equal(n, 1);
    io_list_free(names, n);
}

static int files_in(const char *dir) {
    char **names;
    int n;
    assert_ok(io_list(dir, &names, &n));
    io_list_free(names, n);
    return n;
}

static void folder_round_trip(void **state) {
    test_folder *p = *state;
    st_source source = { fill_mixed, NULL };
    st_file *f;
    /* In order of width: 16 | 0 + 4 | 48 | 30 | 3 + 5 bytes. */
    assert_ok(st_write_folder(p->path, mixed, COUNT_OF(mixed), 20, source));
    assert_int_equal(files_in(p->path), 4 + 1);
    assert_ok(st_open(p->path, &f));
    check_mixed(f);
    assert_non_null(strstr(st_find(f, "wide")->where, "model-00002-of-00004.safetensors"));
    st_close(f);
    assert_error(st_write_folder(p->path, mixed, COUNT_OF(mixed), 0, source), "two models");
    char index[128];
    snprintf(index, sizeof index, "%s/%s", p->path, ST_INDEX_FILE);
    assert_int_equal(unlink(index), 0);
    assert_error(st_open(p->path, &f), "holds neither");
    assert_ok(st_write_folder(p->path, mixed, COUNT_OF(mixed), 1 << 20, source));
    assert_ok(st_open(p->path, &f));
    check_mixed(f);
    st_close(f);
    assert_error(st_write_folder(p->path, mixed, COUNT_OF(mixed), 20, source), "two models");
}

/* ---- reading elements -------------------------------------------------------------------- */

static void reads_unaligned_floats(void **state) {
    const char *file = in_folder(*state, "a.safetensors");
    enum { N = 1000 };
    st_file *f;
    char header[128];
    for (int pad = 0; pad < 4; pad++) {
        int n = snprintf(header, sizeof header,
                         "{\"x\":{\"dtype\":\"F16\",\"shape\":[%d],\"data_offsets\":[0,%d]}}%*s", N,
                         2 * N, pad, "");
        put_file(file, header, 2 * N);
        assert_ok(st_open(file, &f));
        const st_tensor *x = st_find(f, "x");
        float got[N];
        assert_ok(st_read_f32(x, 3, N - 3, got));
        for (int i = 3; i < N; i++) {
            uint16_t h = (uint16_t)((uint8_t)(2 * i) | (uint8_t)(2 * i + 1) << 8);
            float want = f16_to_f32(h);
            assert_memory_equal(&got[i - 3], &want, sizeof want);
        }
        assert_int_equal((n + 8) % 2, (uintptr_t)x->data % 2);
        st_close(f);
    }
}

static void foreign_types_are_listed_not_converted(void **state) {
    const char *file = in_folder(*state, "a.safetensors");
    st_file *f;
    put_file(file,
             "{\"a\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]},"
             "\"b\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[16,19]}}",
             19);
    assert_ok(st_open(file, &f));
    float out[6];
    assert_int_equal(st_find(f, "a")->dt, DT_NONE);
    assert_string_equal(st_find(f, "b")->type, "F4");
    assert_error(st_read_f32(st_find(f, "a"), 0, 2, out), "is F64, expected a floating-point");
    st_close(f);
}

/* The length of a header may be any number, also one whose bytes begin another format. */
static void a_header_of_any_length_is_read(void **state) {
    static const char entry[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}";
    const char *file = in_folder(*state, "a.safetensors");
    static const size_t lengths[] = { 640, 65536 + 640, 1 << 16, 'P' | 'K' << 8, 'G' | 'G' << 8 };
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        st_file *f;
        char *header = malloc(lengths[i] + 1);
        memset(header, ' ', lengths[i]);
        memcpy(header, entry, sizeof entry - 1);
        header[lengths[i] - 1] = '}';
        header[lengths[i]] = 0;
        put_file(file, header, 4);
        assert_ok(st_open(file, &f));
        assert_int_equal(st_count(f), 1);
        st_close(f);
        free(header);
    }
}

static void need_reports_what_is_wrong(void **state) {
    st_file *f;
    const st_tensor *t;
    assert_ok(st_open(FIXTURES "/llama", &f));
    int64_t shape[] = { 80, 32 };
    assert_error(st_need(f, "lm_head.weight", 2, (int64_t[]){ 81, 32 }, &t),
                 "expected shape [81, 32]; got [80, 32]");
    assert_error(st_need(f, "lm_head.weight", 1, shape, &t), "expected shape [80]; got [80, 32]");
    err e = st_need(f, "lm_head.wieght", 2, shape, &t);
    assert_non_null(strstr(err_remedy(e), "lm_head.weight"));
    assert_error(e, "has no tensor \"lm_head.wieght\"");
    st_close(f);
}

/* ---- broken files ------------------------------------------------------------------------ */

#define T(name, dtype, shape, range)                                                               \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" range "}"

static const struct {
    const char *header;
    size_t data;
    const char *says; /* NULL: valid */
} headers[] = {
    { "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "U8", "[1]", "[8,9]") "}", 9, NULL },
    { "{" T("b", "U8", "[1]", "[8,9]") "," T("a", "F32", "[2]", "[0,8]") "}   ", 9, NULL },
    { "{" T("a", "F32", "[0]", "[4,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, NULL },
    { "{}", 0, NULL },
    { "", 0, "does not begin" },
    { " {}", 0, "does not begin" },
    { "[1]", 0, "does not begin" },
    { "{\"a\":", 0, "not valid JSON" },
    { "{} x", 0, "not valid JSON" },
    { "{\"a\":1}", 0, "not an object" },
    { "{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "duplicate" },
    { "{" T("a", "Q7", "[1]", "[0,4]") "}", 4, "unknown dtype \"Q7\"" },
    { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no dtype" },
    { "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "pair of integers" },
    { "{" T("a", "F32", "[1]", "[0]") "}", 4, "pair of integers" },
    { "{" T("a", "F32", "[1]", "[0,4.0]") "}", 4, "pair of integers" },
    { "{" T("a", "F32", "[1]", "[4,0]") "}", 4, "not a range" },
    { "{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "not a range" },
    { "{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "not a count" },
    { "{" T("a", "F32", "[1.5]", "[0,4]") "}", 4, "not a count" },
    { "{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "9 dimensions" },
    { "{" T("a", "F32", "[4611686018427387904,4]", "[0,4]") "}", 4, "overflows" },
    { "{" T("a", "F32", "[4611686018427387905]", "[0,4]") "}", 4, "do not take the 4 bytes" },
    { "{" T("a", "F32", "[2]", "[0,4]") "}", 4, "do not take the 4 bytes" },
    { "{" T("a", "F4", "[1]", "[0,0]") "}", 0, "do not take the 0 bytes" },
    { "{" T("a", "F32", "[1]", "[0,4]") "}", 3, "truncated" },
    { "{" T("a", "F32", "[1]", "[0,4]") "}", 5, "1 bytes after the last" },
    { "{" T("a", "F32", "[1]", "[1,5]") "}", 5, "belong to none" },
    { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[5,9]") "}", 9, "to none" },
    { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[3,7]") "}", 7, "inside the" },
    { "{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, "inside the" },
    { "{\"__metadata__\":3}", 0, "not an object" },
    { "{\"__metadata__\":{\"a\":3}}", 0, "not text" },
};

static void broken_headers(void **state) {
    const char *file = in_folder(*state, "a.safetensors");
    for (size_t i = 0; i < COUNT_OF(headers); i++) {
        st_file *f = NULL;
        put_file(file, headers[i].header, headers[i].data);
        err e = st_open(file, &f);
        if (headers[i].says)
            assert_error(e, headers[i].says);
        else
            assert_ok(e);
        st_close(f);
    }
}

static const struct {
    const char *bytes;
    size_t n;
    const char *says;
} strangers[] = {
    { "", 0, "at least 8 bytes" },
    { "\0\0\0\0\0\0\0", 7, "at least 8 bytes" },
    { "\x10\0\0\0\0\0\0\0{}", 10, "truncated" },
    { "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "at most" },
    { "PK\x03\x04xxxxxxxx", 12, "zip archive" },
    { "GGUFxxxxxxxx", 12, "GGUF" },
    { "version https://git-lfs.github.com/spec/v1\n", 43, "Git LFS pointer" },
    { "<!DOCTYPE html>", 15, "HTML" },
    { "just some text", 14, "at most" },
};

static void strangers_are_named(void **state) {
    const char *file = in_folder(*state, "a.safetensors");
    st_file *f;
    for (size_t i = 0; i < COUNT_OF(strangers); i++) {
        write_bytes(file, strangers[i].bytes, strangers[i].n);
        assert_error(st_open(file, &f), strangers[i].says);
    }
    assert_error(st_open("/nonexistent/a.safetensors", &f), "/nonexistent/a.safetensors");
    assert_error(st_open("/", &f), "holds neither");
}

static const struct {
    const char *index, *says;
} indices[] = {
    { "{\"weight_map\":{\"x\":\"a.safetensors\"}}", NULL },
    { "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\"}}", "no such tensor" },
    { "{\"weight_map\":{\"x\":\"../a.safetensors\"}}", "not the name of a file" },
    { "{\"weight_map\":{\"x\":\"b.safetensors\"}}", "b.safetensors" },
    { "{\"weight_map\":{\"x\":1}}", "not a file name" },
    { "{\"weight_map\":[]}", "weight_map" },
    { "{}", "weight_map" },
    { "[]", "weight_map" },
    { "{", ST_INDEX_FILE },
};

static void broken_indices(void **state) {
    test_folder *p = *state;
    const char *file = in_folder(p, "a.safetensors");
    char path[128];
    snprintf(path, sizeof path, "%s/%s", p->path, ST_INDEX_FILE);
    put_file(file, "{" T("x", "F32", "[1]", "[0,4]") "}", 4);
    for (size_t i = 0; i < COUNT_OF(indices); i++) {
        st_file *f = NULL;
        write_bytes(path, indices[i].index, strlen(indices[i].index));
        err e = st_open(p->path, &f);
        if (indices[i].says)
            assert_error(e, indices[i].says);
        else
            assert_ok(e);
        st_close(f);
    }
}

/* Whatever a file was changed into, opening it is an error or gives tensors that can be read. */
static void open_and_touch(const char *path, int *opened) {
    st_file *f;
    size_t total = 0;
    err e = st_open(path, &f);
    if (e) {
        assert_true(strlen(err_message(e)) > 0);
        err_free(e);
        return;
    }
    ++*opened;
    for (int i = 0; i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        for (size_t k = 0; k < t->bytes; k++) total += ((const uint8_t *)t->data)[k];
        assert_ptr_equal(st_find(f, t->name), t);
    }
    assert_true(total < SIZE_MAX); /* a use of the sum, so that the reads stay */
    st_close(f);
}

static void damaged_anywhere(void **state) {
    const char *file = in_folder(*state, "a.safetensors");
    char *good;
    size_t n;
    int opened = 0;
    rng_key key = rng_key_of(1, 2);
    assert_ok(st_write(file, mixed, COUNT_OF(mixed), NULL, 0, (st_source){ fill_mixed, NULL }));
    assert_ok(io_read(file, 1 << 20, &good, &n));
    char *bad = mem_alloc(n);
    for (uint64_t round = 0; round < 2000; round++) {
        uint64_t r = round * 16;
        size_t left = n;
        memcpy(bad, good, n);
        int flips = (int)rng_below(key, r, 4);
        for (int i = 0; i < flips; i++)
            bad[rng_below(key, r + 1 + (uint64_t)i, n)] = (char)rng_u32(key, r + 5 + (uint64_t)i);
        if (flips == 0) left = rng_below(key, r + 9, n);
        write_bytes(file, bad, left);
        int before = opened;
        open_and_touch(file, &opened);
        if (left < n && opened > before) fail_msg("a file cut to %zu of %zu bytes opened", left, n);
    }
    assert_true(opened > 0); /* some changes hit data alone, or make another valid name */
    free(bad);
    free(good);
}

int main(void) {
#define WITH_DIR(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_hf_file),
        cmocka_unit_test(shards_equal_the_single_file),
        WITH_DIR(round_trip),
        WITH_DIR(failed_write_leaves_the_old_file),
        WITH_DIR(folder_round_trip),
        WITH_DIR(reads_unaligned_floats),
        WITH_DIR(foreign_types_are_listed_not_converted),
        WITH_DIR(a_header_of_any_length_is_read),
        cmocka_unit_test(need_reports_what_is_wrong),
        WITH_DIR(broken_headers),
        WITH_DIR(strangers_are_named),
        WITH_DIR(broken_indices),
        WITH_DIR(damaged_anywhere),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
