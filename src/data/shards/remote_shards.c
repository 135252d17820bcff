/* Token shards in an object store: s3://bucket/folder, as `ingot data tokenize` wrote it, or one .tok file.
 *
 * The header and what follows the tokens (document index, checksums, provenance, trailer) are fetched when the
 * source is opened and are checked as a local file's are; the tokens come by the chunk, when they are needed or
 * just before (chunk_cache.c). */
#include "shards/data_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "store/store.h"

enum { OPENERS = 8, MOST_INDEX = 1 << 30, MOST_TOKENIZER = 256 << 20 };

bool remote_is(const char *path) { return store_is_url(path); }

/* ---- one shard --------------------------------------------------------------------------------------------------- */
typedef struct remote_file {
    char *url;
    int64_t bytes;             /* of the file */
    int64_t tokens, documents; /* as the index lists them; -1: there is none */
    uint8_t *data;             /* mapped */
    int shard;                 /* in the cache */
} remote_file;

/* All of a file but its tokens: the header, and what follows them from byte `to` on. */
typedef struct remote_frame {
    uint8_t head[TOKFILE_HEADER];
    uint8_t *rest; /* owned */
    size_t rest_bytes;
    int64_t to;
} remote_frame;

static err read_frame(store *s, const char *url, int64_t bytes, remote_frame *f) {
    uint8_t tail[TOKFILE_TRAILER];
    int64_t from;
    f->rest = NULL;
    if (bytes < TOKFILE_HEADER + TOKFILE_TRAILER)
        return ERR("%s: %lld bytes are too few for a token file", url, (long long)bytes);
    TRY(store_get(s, url, 0, sizeof f->head, f->head));
    TRY(store_get(s, url, bytes - TOKFILE_TRAILER, sizeof tail, tail));
    TRY(tokfile_tokens(url, f->head, tail, bytes, &from, &f->to));
    f->rest_bytes = (size_t)(bytes - f->to);
    f->rest = mem_grow(NULL, f->rest_bytes);
    return store_get(s, url, f->to, f->rest_bytes, f->rest);
}

static err fetch_frame(chunk_cache *c, store *s, const remote_file *file) {
    remote_frame f;
    err e = read_frame(s, file->url, file->bytes, &f);
    if (!e) e = chunk_cache_write(c, file->shard, 0, f.head, sizeof f.head);
    if (!e) e = chunk_cache_write(c, file->shard, f.to, f.rest, f.rest_bytes);
    free(f.rest);
    return e;
}

/* Only the pages that are written to take memory. */
err remote_map_frame(store *s, const char *url, int64_t bytes, io_mapping *out) {
    remote_frame f;
    err e = read_frame(s, url, bytes, &f);
    void *p = MAP_FAILED;
    if (!e) {
        p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) e = ERR("cannot map %s: %s", url, strerror(errno));
    }
    if (!e) {
        memcpy(p, f.head, sizeof f.head);
        memcpy((uint8_t *)p + f.to, f.rest, f.rest_bytes);
        *out = (io_mapping){ p, (size_t)bytes };
    }
    free(f.rest);
    return e;
}

void remote_unmap_frame(io_mapping *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
    *m = (io_mapping){ 0 };
}

typedef struct opening {
    chunk_cache *c;
    remote_file *file; /* [n] */
    store *store[OPENERS];
    err error[OPENERS];
} opening;

static void fetch_task(void *ctx, int64_t i, int worker) {
    opening *o = ctx;
    if (o->error[worker]) return;
    if (!o->store[worker]) o->error[worker] = store_open(&o->store[worker]);
    if (!o->error[worker]) o->error[worker] = fetch_frame(o->c, o->store[worker], &o->file[i]);
}

/* Several at a time: each takes two round trips. */
static err fetch_frames(chunk_cache *c, remote_file *file, int n) {
    opening o = { .c = c, .file = file };
    pool *p = pool_new(OPENERS);
    err first = OK;
    pool_run(p, n, fetch_task, &o);
    pool_free(p);
    for (int i = 0; i < OPENERS; i++) {
        store_close(o.store[i]);
        if (!first)
            first = o.error[i];
        else
            err_free(o.error[i]);
    }
    return first;
}

/* Adds a shard whose frame is there to the source. */
static err join_shard(data_source *s, const remote_file *f) {
    data_shard *shard = source_add(s, f->url);
    data_info info = { .eos = -1 };
    bool found;
    shard->file = (io_mapping){ f->data, (size_t)f->bytes };
    shard->cached = f->shard;
    TRY(tokfile_parse(shard, &info, &found));
    if (!shard->ends)
        return err_hint(ERR("%s: a token file of version 1 is not read from a store", f->url),
                        "write it again with this program's `ingot data tokenize`");
    if (f->tokens >= 0 && (shard->n != f->tokens || shard->docs != f->documents))
        return err_hint(ERR("%s: %lld tokens in %lld documents, the index lists %lld in %lld",
                            f->url, (long long)shard->n, (long long)shard->docs,
                            (long long)f->tokens, (long long)f->documents),
                        "the folder mixes the results of two runs; write it anew with --fresh");
    int64_t bytes = shard->n * shard->width;
    chunk_cache_describe(s->cache, f->shard, TOKFILE_HEADER, bytes,
                         shard->chunk_hash ? TOKFILE_CHUNK : MAX(bytes, 1), shard->chunk_hash,
                         shard->checksum);
    return source_join(s, &info);
}

/* ---- a folder ----------------------------------------------------------------------------------------------------- */
static err add_listed(const char *folder, const char *index, const json_t *entry,
                      const store_list *objects, remote_file *f) {
    const char *name;
    TRY(io_json_text(entry, index, "file", &name));
    TRY(io_json_int(entry, index, "tokens", &f->tokens));
    TRY(io_json_int(entry, index, "documents", &f->documents));
    TRY(shards_check_name(index, name));
    f->url = store_join(folder, name);
    for (int i = 0; i < objects->n; i++)
        if (!strcmp(objects->at[i].url, f->url)) f->bytes = objects->at[i].bytes;
    if (f->bytes > 0) return OK;
    return err_hint(ERR("%s: %s lists it, and it is not there", f->url, index),
                    "upload the folder again");
}

static err list_files(const char *folder, const char *index, const json_t *doc, bool held_out,
                      const store_list *objects, remote_file **out, int *n) {
    json_t *list;
    *out = NULL;
    *n = 0;
    TRY(shards_list(index, doc, held_out, &list));
    *out = mem_alloc((json_array_size(list) + 1) * sizeof **out);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        if (json_integer_value(json_object_get(entry, "tokens")) == 0) continue;
        TRY(add_listed(folder, index, entry, objects, &(*out)[(*n)++]));
    }
    return OK;
}

static err open_files(data_source *s, remote_file *file, int n) {
    for (int i = 0; i < n; i++)
        TRY(chunk_cache_add(s->cache, file[i].url, file[i].bytes, &file[i].data, &file[i].shard));
    TRY(fetch_frames(s->cache, file, n));
    for (int i = 0; i < n; i++) TRY(join_shard(s, &file[i]));
    return OK;
}

/* The tokenizer is kept as a file, under a name of its content. */
static err fetch_tokenizer(data_source *s, store *from, const char *folder, const char *cache) {
    const char *url = URL_IN(folder, SHARDS_TOKENIZER);
    char *text = NULL;
    store_object o;
    bool found;
    size_t n;
    str path = { 0 };
    err e = store_head(from, url, &found, &o);
    if (!e && found) e = store_read(from, url, MOST_TOKENIZER, &text, &n);
    if (!e && found) {
        str_add(&path, "%.*s/tokenizer-%016llx.json", (int)strcspn(cache, ","), cache,
                (unsigned long long)hash_bytes(text, n, 0));
        e = io_write(path.text, text, n);
    }
    if (!e && found && !s->tokenizer) {
        s->tokenizer = path.text;
        s->info.tokenizer_path = path.text;
        path = (str){ 0 };
    }
    str_free(&path);
    free(text);
    return e;
}

static err open_remote_folder(data_source *s, store *from, const char *folder, const char *index,
                              const data_options *o) {
    char *text = NULL;
    size_t size;
    json_t *doc = NULL;
    store_list objects = { 0 };
    remote_file *file = NULL;
    int n = 0;
    err e = OK;
    TRY_CLEAN(store_read(from, index, MOST_INDEX, &text, &size));
    TRY_CLEAN(io_json_parse(text, size, index, &doc));
    TRY_CLEAN(store_list_folder(from, folder, &objects));
    TRY_CLEAN(list_files(folder, index, doc, o->held_out, &objects, &file, &n));
    TRY_CLEAN(open_files(s, file, n));
    s->info.format = "ingot shards";
    TRY_CLEAN(fetch_tokenizer(s, from, folder, o->cache_dirs));
cleanup:
    for (int i = 0; file && i < n; i++) free(file[i].url);
    free(file);
    store_list_free(&objects);
    json_decref(doc);
    free(text);
    return e;
}

static err open_single(data_source *s, const char *url, int64_t bytes) {
    remote_file f = { .url = strdup(url), .bytes = bytes, .tokens = -1, .documents = -1 };
    err e = open_files(s, &f, 1);
    free(f.url);
    return e;
}

err remote_open(data_source *s, const char *url, const data_options *given, bool *found) {
    static const int64_t USUAL_BYTES = (int64_t)1 << 30;
    const char *root = getenv("TMPDIR");
    data_options o = *given;
    store *from = NULL;
    const char *index = URL_IN(url, SHARDS_INDEX);
    store_object there;
    err e = OK;
    *found = false;
    if (!o.cache_dirs || !*o.cache_dirs) o.cache_dirs = root && *root ? root : "/tmp";
    if (o.cache_bytes <= 0) o.cache_bytes = USUAL_BYTES;
    TRY_CLEAN(store_open(&from));
    bool single = str_ends(url, ".tok");
    TRY_CLEAN(store_head(from, single ? url : index, found, &there));
    if (single && !*found)
        TRY_CLEAN(err_hint(ERR("%s: the object does not exist", url), "check the path"));
    if (!*found) goto cleanup;
    if (!s->cache) TRY_CLEAN(chunk_cache_new(o.cache_dirs, o.cache_bytes, &s->cache));
    TRY_CLEAN(single ? open_single(s, url, there.bytes)
                     : open_remote_folder(s, from, url, index, &o));
cleanup:
    store_close(from);
    return e;
}
