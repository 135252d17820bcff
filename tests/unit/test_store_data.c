/* Token shards and documents in an object store that fails a third of the requests: the same tokens as from the
 * disk, through a cache that holds a part of them. */
#include "support/data.h"
#include "support/store.h"

enum { SHARDS = 3, TOKENS = 1500000 }; /* each 2.9 MiB: three chunks */

typedef struct fixture {
    test_folder folder;
    s3_server server;
    store *s;
} fixture;

static void write_shard(const char *path, int number) {
    enum { PIECE = 1000 };
    token_writer *w = NULL;
    int32_t ids[PIECE];
    const token_writer_options o = { .vocab = 5000, .eos = 9, .tokenizer = TOKENIZER_BPE };
    rng_key key = rng_key_of(3, (uint64_t)number);
    assert_ok(token_writer_open(path, &o, &w));
    for (int64_t at = 0; at < TOKENS; at += PIECE) {
        for (int i = 0; i < PIECE; i++)
            ids[i] = i == PIECE - 1 ? 9 : (int32_t)rng_below(key, (uint64_t)(at + i), 5000);
        assert_ok(token_writer_add(w, ids, PIECE));
    }
    assert_ok(token_writer_close(w, NULL));
}

static void upload(fixture *f, const char *name) {
    char *path = io_join(f->folder.path, name), *url = store_join("s3://bucket/tokens", name);
    assert_ok(store_put_file(f->s, url, path));
    free(path);
    free(url);
}

static int64_t documents_of(const char *path) {
    data_source *s = NULL;
    assert_ok(data_open(path, 0, &s));
    int64_t n = data_source_info(s)->documents;
    data_close(s);
    return n;
}

/* A folder of shards, as data_tokenize_text leaves it, on the disk and in the store. */
static int setup(void **state) {
    fixture *f = mem_alloc(sizeof *f);
    json_t *train = json_array();
    *state = f;
    log_set_level(LOG_WARN);
    if (folder_make(&f->folder)) return -1;
    if (!s3_server_start(&f->server, "--faults", "0.34")) {
        s3_server_stop(&f->server);
        return 0;
    }
    assert_ok(store_open(&f->s));
    for (int i = 0; i < SHARDS; i++) {
        char name[32];
        snprintf(name, sizeof name, "train-%05d.tok", i);
        const char *path = in_folder(&f->folder, name);
        write_shard(path, i);
        json_array_append_new(train, json_pack("{s:s, s:I, s:I}", "file", name, "tokens",
                                               (json_int_t)TOKENS, "documents",
                                               (json_int_t)documents_of(path)));
        upload(f, name);
    }
    json_t *index = json_pack("{s:b, s:o, s:[]}", "complete", 1, "train", train, "validation");
    assert_ok(io_json_write(in_folder(&f->folder, "index.json"), index));
    json_decref(index);
    upload(f, "index.json");
    return 0;
}

static int teardown(void **state) {
    fixture *f = *state;
    store_close(f->s);
    s3_server_stop(&f->server);
    int failed = folder_remove(&f->folder);
    free(f);
    return failed;
}

static data_source *open_remote(fixture *f, int64_t cache_bytes) {
    const char *url = "s3://bucket/tokens";
    char dirs[256];
    data_source *s = NULL;
    snprintf(dirs, sizeof dirs, "%s/cache1,%s/cache2", f->folder.path, f->folder.path);
    data_options o = { .vocab_limit = 5000, .cache_dirs = dirs, .cache_bytes = cache_bytes };
    assert_ok(data_open_paths(&url, 1, &o, &s));
    return s;
}

static void batches_are_those_of_local_shards(void **state) {
    fixture *f = *state;
    data_source *local = NULL;
    if (!f->s) skip();
    assert_ok(data_open(f->folder.path, 5000, &local));
    data_source *remote = open_remote(f, 3 << 20);
    assert_int_equal(data_source_info(remote)->tokens, SHARDS * TOKENS);
    assert_true(data_hash(remote) == data_hash(local));
    loader_options o = { .seq_len = 2048,
                         .rows = 2,
                         .step_windows = 8,
                         .mask_documents = true,
                         .vocab_limit = 5000,
                         .prefetch = 2,
                         .workers = 2 };
    loader *a = loader_of(local, o), *b = loader_of(remote, o);
    for (int i = 0; i < 40; i++) {
        data_batch x = next(a), y = next(b);
        assert_int_equal(x.valid, y.valid);
        assert_memory_equal(x.tokens, y.tokens, 4096 * sizeof *x.tokens);
        assert_memory_equal(x.targets, y.targets, 4096 * sizeof *x.targets);
        if (i == 20) loader_seek(a, 800), loader_seek(b, 800);
    }
    loader_free(a);
    loader_free(b);
    chunk_cache_stats stats = data_cache_stats(remote);
    assert_true(stats.evicted > 0);
    assert_true(stats.resident <= 3 << 20);
    data_close(remote);
    data_close(local);
}

static void a_cache_that_holds_all_fetches_each_chunk_once(void **state) {
    fixture *f = *state;
    if (!f->s) skip();
    data_source *s = open_remote(f, 100 << 20);
    assert_ok(data_verify(s));
    assert_ok(data_verify(s));
    chunk_cache_stats stats = data_cache_stats(s);
    assert_int_equal(stats.fetched, SHARDS * 3);
    assert_int_equal(stats.evicted, 0);
    data_close(s);
}

static void a_damaged_chunk_is_an_error(void **state) {
    fixture *f = *state;
    char *bytes;
    size_t n;
    if (!f->s) skip();
    assert_ok(io_read(in_folder(&f->folder, "train-00001.tok"), 1 << 30, &bytes, &n));
    bytes[2000000] ^= 1;
    assert_ok(store_put(f->s, "s3://bucket/tokens/train-00001.tok", bytes, n));
    data_source *s = open_remote(f, 3 << 20);
    assert_ok(data_hold(s, TOKENS, 100000)); /* its first chunk is whole */
    data_release(s, TOKENS, 100000);
    assert_error(data_hold(s, TOKENS - 10, 1200000), "train-00001.tok", "checksum");
    assert_error(data_verify(s), "train-00001.tok", "checksum");
    data_close(s);
    upload(f, "train-00001.tok");
    free(bytes);
}

static void a_frame_that_is_damaged_is_refused(void **state) {
    fixture *f = *state;
    char *bytes;
    size_t n;
    data_source *s = NULL;
    if (!f->s) skip();
    const char *url = "s3://bucket/one.tok";
    assert_ok(io_read(in_folder(&f->folder, "train-00002.tok"), 1 << 30, &bytes, &n));
    assert_ok(store_put(f->s, url, bytes, n));
    assert_ok(data_open(url, 0, &s));
    assert_int_equal(data_source_info(s)->tokens, TOKENS);
    data_close(s);
    for (int i = 0; i < 4; i++) {
        size_t at = (size_t[]){ 0, 13, n - 40, n - 1000 }[i];
        bytes[at] ^= 0x20;
        assert_ok(store_put(f->s, url, bytes, n));
        assert_error(data_open(url, 0, &s), "one.tok");
        bytes[at] ^= 0x20;
    }
    assert_ok(store_put(f->s, url, bytes, 50));
    assert_error(data_open(url, 0, &s), "one.tok");
    free(bytes);
}

static void documents_are_read_from_a_store(void **state) {
    fixture *f = *state;
    data_source *s = NULL, *local = NULL;
    str text = { 0 };
    if (!f->s) skip();
    for (int i = 0; i < 4000; i++) str_add(&text, "{\"text\": \"document %d of a store\"}\n", i);
    assert_ok(io_write(in_folder(&f->folder, "a.jsonl"), text.text, text.len));
    assert_ok(store_put(f->s, "s3://bucket/texts/a.jsonl", text.text, text.len));
    assert_ok(store_put(f->s, "s3://bucket/texts/_log/b.jsonl", "{", 1)); /* hidden */
    assert_ok(data_open("s3://bucket/texts", 0, &s));
    assert_ok(data_open(in_folder(&f->folder, "a.jsonl"), 0, &local));
    assert_true(data_hash(s) == data_hash(local));
    assert_error(data_open("s3://bucket/nothing", 0, &local), "s3://bucket/nothing");
    data_close(s);
    data_close(local);
    str_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_are_those_of_local_shards),
        cmocka_unit_test(a_cache_that_holds_all_fetches_each_chunk_once),
        cmocka_unit_test(a_damaged_chunk_is_an_error),
        cmocka_unit_test(a_frame_that_is_damaged_is_refused),
        cmocka_unit_test(documents_are_read_from_a_store),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
