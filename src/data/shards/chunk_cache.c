/* A bounded cache of chunks of token shards in an object store.
 *
 * A shard is a region of a sparse file without a name, one file per cache folder, so that nothing is left when
 * the process ends, however that happens. The region is mapped as a local shard's file would be: its tokens have one
 * address for good. A chunk is fetched into its part of the region, and its pages are given back (a hole is
 * punched) when it is evicted:
 *
 *     ABSENT --request, hold--> QUEUED --a thread--> LOADING --verified--> READY --least recently used--> ABSENT
 *                                  ^                    |
 *                                  +--- (next hold) ----+ FAILED: the error is that of whoever holds it
 *
 * A reader holds the chunks it reads, which are not evicted meanwhile. What is held or being fetched may exceed the
 * bound by a few chunks; all else stays within it. A chunk that is needed now goes to the head of the queue,
 * one that will be needed to its end. Its checksum (xxHash64) is verified when it arrives; damaged, it is fetched
 * once more, then it is an error. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shards/data_internal.h"
#include "store/store.h"

enum { THREADS = 6, MOST_FOLDERS = 16, PAGE = 65536 /* at least the system's */ };

typedef enum { ABSENT, QUEUED, LOADING, READY, FAILED } chunk_state;
typedef struct chunk {
    int shard;
    uint32_t held; /* readers */
    chunk_state state;
    int64_t next,
        before; /* in the list of those that may be evicted, newest first, or in the queue; -1 */
} chunk;

typedef struct cached_shard {
    char *url;
    void *data; /* the region, mapped */
    size_t file_bytes;
    int folder;
    int64_t base;        /* of the region, in the folder's file */
    int64_t from, bytes; /* of the tokens, in the shard's file */
    int64_t chunk_bytes, first_chunk;
    const uint64_t *hash; /* [chunks], inside the mapping, or `whole` */
    uint64_t whole;
} cached_shard;

typedef struct chunk_list {
    int64_t head, tail; /* -1: empty */
} chunk_list;

struct chunk_cache {
    char *folder[MOST_FOLDERS];
    int fd[MOST_FOLDERS];
    int64_t used[MOST_FOLDERS]; /* of the file: end of its last region */
    int folders;
    int64_t limit;

    cached_shard *shard;
    int shards, shards_cap;
    pthread_t thread[THREADS];
    int started;

    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    chunk *at; /* [chunks] */
    int64_t chunks;
    chunk_list queue, recent;
    int64_t resident;  /* bytes */
    _Atomic bool stop; /* set under the lock; requests in flight end with it */
    err failed;        /* of the last fetch that failed; owned */
    chunk_cache_stats stats;
};

/* ---- lists ---------------------------------------------------------------------------------------------------- */
static void list_remove(chunk_cache *c, chunk_list *l, int64_t i) {
    chunk *x = &c->at[i];
    *(x->before < 0 ? &l->head : &c->at[x->before].next) = x->next;
    *(x->next < 0 ? &l->tail : &c->at[x->next].before) = x->before;
    x->next = x->before = -1;
}

static void list_add(chunk_cache *c, chunk_list *l, int64_t i, bool at_head) {
    chunk *x = &c->at[i];
    x->next = at_head ? l->head : -1;
    x->before = at_head ? -1 : l->tail;
    if (l->head < 0)
        l->head = l->tail = i;
    else if (at_head)
        c->at[l->head].before = i, l->head = i;
    else
        c->at[l->tail].next = i, l->tail = i;
}

/* ---- chunks -------------------------------------------------------------------------------------------------------- */
static int64_t chunk_number(const chunk_cache *c, int64_t i) {
    return i - c->shard[c->at[i].shard].first_chunk;
}
static int64_t chunk_offset(const chunk_cache *c, int64_t i) {
    return chunk_number(c, i) * c->shard[c->at[i].shard].chunk_bytes;
}
static size_t chunk_size(const chunk_cache *c, int64_t i) {
    const cached_shard *s = &c->shard[c->at[i].shard];
    return (size_t)MIN(s->chunk_bytes, s->bytes - chunk_offset(c, i));
}

/* Gives the pages of a chunk back. Its first and last page, which it may share with its neighbors, stay. */
static void punch_hole(chunk_cache *c, int64_t i) {
    const cached_shard *s = &c->shard[c->at[i].shard];
    int64_t from = s->base + s->from + chunk_offset(c, i), to = from + (int64_t)chunk_size(c, i);
    from = (int64_t)align_up((size_t)from, PAGE);
    to = to / PAGE * PAGE;
    if (to > from)
        fallocate(c->fd[s->folder], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, to - from);
}

/* Evicts until `more` bytes fit, as far as chunks are not held. The lock is held. */
static void make_space(chunk_cache *c, int64_t more) {
    while (c->resident + more > c->limit && c->recent.tail >= 0) {
        int64_t i = c->recent.tail;
        list_remove(c, &c->recent, i);
        c->at[i].state = ABSENT;
        c->resident -= (int64_t)chunk_size(c, i);
        c->stats.evicted++;
        punch_hole(c, i);
    }
}

static err write_chunk(const chunk_cache *c, const cached_shard *s, int64_t i, const char *bytes) {
    size_t n = chunk_size(c, i);
    off_t at = (off_t)(s->base + s->from + chunk_offset(c, i));
    for (size_t done = 0; done < n;) {
        ssize_t now = pwrite(c->fd[s->folder], bytes + done, n - done, at + (off_t)done);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0)
            return err_hint(
                ERR("cannot write to the cache in %s: %s", c->folder[s->folder], strerror(errno)),
                "free some space there, lower data.cache_size, or name other folders in "
                "data.cache_dirs");
        done += (size_t)now;
    }
    return OK;
}

/* Fetches a chunk, twice where the first is damaged. */
static err fetch_chunk(chunk_cache *c, store *from, int64_t i) {
    const cached_shard *s = &c->shard[c->at[i].shard];
    size_t n = chunk_size(c, i);
    char *bytes = mem_grow(NULL, n);
    uint64_t want = s->hash ? s->hash[chunk_number(c, i)] : s->whole;
    err e = OK;
    bool good = false;
    for (int attempt = 0; attempt < 2 && !good && !e; attempt++) {
        e = store_get(from, s->url, s->from + chunk_offset(c, i), n, bytes);
        good = !e && hash_bytes(bytes, n, 0) == want;
    }
    if (!e && !good)
        e = err_hint(ERR("%s: bytes %lld to %lld do not match their checksum", s->url,
                         (long long)(s->from + chunk_offset(c, i)),
                         (long long)(s->from + chunk_offset(c, i)) + (long long)n - 1),
                     "the object was damaged or replaced: upload it again");
    if (!e) e = write_chunk(c, s, i, bytes);
    free(bytes);
    return e;
}

/* Fetches the chunk at the queue's head; the lock is held on entry and exit, not while working. */
static void load_next(chunk_cache *c, store *from) {
    int64_t i = c->queue.head;
    list_remove(c, &c->queue, i);
    c->at[i].state = LOADING;
    make_space(c, (int64_t)chunk_size(c, i));
    c->resident += (int64_t)chunk_size(c, i);
    pthread_mutex_unlock(&c->lock);
    err e = fetch_chunk(c, from, i);
    pthread_mutex_lock(&c->lock);
    c->at[i].state = e ? FAILED : READY;
    if (e) {
        c->resident -= (int64_t)chunk_size(c, i);
        err_free(c->failed);
        c->failed = e;
    } else {
        c->stats.fetched++;
        if (!c->at[i].held) list_add(c, &c->recent, i, true);
    }
    pthread_cond_broadcast(&c->changed);
}

static void *fetcher_main(void *arg) {
    chunk_cache *c = arg;
    store *from = NULL;
    err e = store_open(&from); /* it was opened before: see store_open in remote_shards.c */
    if (!e)
        store_cancel_by(from, &c->stop); /* not a signal: the step is finished and saved first */
    pthread_mutex_lock(&c->lock);
    while (!e && !c->stop) {
        if (c->queue.head < 0)
            pthread_cond_wait(&c->changed, &c->lock);
        else
            load_next(c, from);
    }
    pthread_mutex_unlock(&c->lock);
    err_free(e);
    store_close(from);
    return NULL;
}

/* ---- readers ---------------------------------------------------------------------------------------------------------- */
static void enqueue_chunk(chunk_cache *c, int64_t i, bool now) {
    if (c->at[i].state == QUEUED && now) list_remove(c, &c->queue, i);
    c->at[i].state = QUEUED;
    list_add(c, &c->queue, i, now);
    pthread_cond_broadcast(&c->changed);
}

static void span_chunks(const cached_shard *s, int64_t from, int64_t to, int64_t *first,
                        int64_t *last) {
    *first = s->first_chunk + from / s->chunk_bytes;
    *last = s->first_chunk + (to - 1) / s->chunk_bytes;
}

void chunk_cache_request(chunk_cache *c, int shard, int64_t from, int64_t to) {
    int64_t first, last;
    span_chunks(&c->shard[shard], from, to, &first, &last);
    pthread_mutex_lock(&c->lock);
    for (int64_t i = first; i <= last; i++)
        if (c->at[i].state == ABSENT || c->at[i].state == FAILED) enqueue_chunk(c, i, false);
    pthread_mutex_unlock(&c->lock);
}

static void hold_chunk(chunk_cache *c, int64_t i) {
    chunk *x = &c->at[i];
    if (x->state == READY && !x->held) list_remove(c, &c->recent, i);
    x->held++;
    if (x->state != READY) c->stats.waited++;
    if (x->state == ABSENT || x->state == FAILED || x->state == QUEUED) enqueue_chunk(c, i, true);
}

static void release_chunk(chunk_cache *c, int64_t i) {
    chunk *x = &c->at[i];
    BUG_IF(!x->held);
    if (--x->held == 0 && x->state == READY) list_add(c, &c->recent, i, true);
}

err chunk_cache_hold(chunk_cache *c, int shard, int64_t from, int64_t to) {
    int64_t first, last;
    err e = OK;
    span_chunks(&c->shard[shard], from, to, &first, &last);
    pthread_mutex_lock(&c->lock);
    for (int64_t i = first; i <= last; i++) hold_chunk(c, i);
    for (int64_t i = first; i <= last && !e; i++) {
        while (c->at[i].state != READY && c->at[i].state != FAILED)
            pthread_cond_wait(&c->changed, &c->lock);
        if (c->at[i].state == FAILED) /* the error of the fetch, for each who waits for it */
            e = err_hint(
                ERR("%s", c->failed ? err_message(c->failed) : "a chunk could not be fetched"),
                "%s", c->failed ? err_remedy(c->failed) : "try again");
    }
    for (int64_t i = first; i <= last && e; i++) release_chunk(c, i);
    pthread_mutex_unlock(&c->lock);
    return e;
}

void chunk_cache_release(chunk_cache *c, int shard, int64_t from, int64_t to) {
    int64_t first, last;
    span_chunks(&c->shard[shard], from, to, &first, &last);
    pthread_mutex_lock(&c->lock);
    for (int64_t i = first; i <= last; i++) release_chunk(c, i);
    make_space(c, 0);
    pthread_mutex_unlock(&c->lock);
}

int64_t chunk_cache_limit(const chunk_cache *c) { return c->limit; }

chunk_cache_stats chunk_cache_statistics(chunk_cache *c) {
    pthread_mutex_lock(&c->lock);
    chunk_cache_stats s = c->stats;
    s.resident = c->resident;
    pthread_mutex_unlock(&c->lock);
    return s;
}

/* ---- making ---------------------------------------------------------------------------------------------------------- */
/* Opens a file without a name. */
static err open_cache_folder(chunk_cache *c, const char *path) {
    if (c->folders == MOST_FOLDERS)
        return ERR_USAGE("--data.cache_dirs: more than %d folders", MOST_FOLDERS);
    TRY(io_make_dirs(path));
    int fd = open(path, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        str name = { 0 };
        str_add(&name, "%s/ingot-cache-XXXXXX", path);
        fd = mkostemp(name.text, O_CLOEXEC);
        if (fd >= 0) unlink(name.text);
        str_free(&name);
    }
    if (fd < 0)
        return err_hint(ERR("cannot write to the cache folder %s: %s", path, strerror(errno)),
                        "name another one in data.cache_dirs");
    c->folder[c->folders] = strdup(path);
    c->fd[c->folders++] = fd;
    return OK;
}

err chunk_cache_new(const char *folders, int64_t bytes, chunk_cache **out) {
    chunk_cache *c = mem_alloc(sizeof *c);
    char *copy = strdup(folders), *rest = copy, *path;
    err e = OK;
    c->limit = bytes;
    c->queue = c->recent = (chunk_list){ -1, -1 };
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    while (!e && (path = strsep(&rest, ",")))
        if (*path) e = open_cache_folder(c, path);
    if (!e && !c->folders) e = ERR_USAGE("--data.cache_dirs: \"%s\" names no folder", folders);
    free(copy);
    if (e) {
        chunk_cache_free(c);
        return e;
    }
    *out = c;
    return OK;
}

err chunk_cache_add(chunk_cache *c, const char *url, int64_t file_bytes, uint8_t **data,
                    int *shard) {
    BUG_IF(c->started); /* chunks do not move once threads know them */
    int folder = c->shards % c->folders;
    int64_t base = c->used[folder], size = (int64_t)align_up((size_t)file_bytes, PAGE);
    if (ftruncate(c->fd[folder], (off_t)(base + size)) != 0)
        return ERR("cannot write to the cache in %s: %s", c->folder[folder], strerror(errno));
    void *at = mmap(NULL, (size_t)file_bytes, PROT_READ, MAP_SHARED, c->fd[folder], (off_t)base);
    if (at == MAP_FAILED) return ERR("cannot map %s: %s", url, strerror(errno));
    c->used[folder] = base + size;
    c->shard = mem_reserve(c->shard, &c->shards_cap, c->shards, sizeof *c->shard);
    c->shard[c->shards] = (cached_shard){ .url = strdup(url),
                                          .data = at,
                                          .file_bytes = (size_t)file_bytes,
                                          .folder = folder,
                                          .base = base };
    *shard = c->shards++;
    *data = at;
    return OK;
}

err chunk_cache_write(chunk_cache *c, int shard, int64_t offset, const void *bytes, size_t n) {
    const cached_shard *s = &c->shard[shard];
    ssize_t done = pwrite(c->fd[s->folder], bytes, n, (off_t)(s->base + offset));
    if (done == (ssize_t)n) return OK;
    return ERR("cannot write to the cache in %s: %s", c->folder[s->folder],
               done < 0 ? strerror(errno) : "it is full");
}

void chunk_cache_describe(chunk_cache *c, int shard, int64_t from, int64_t bytes,
                          int64_t chunk_bytes, const uint64_t *hash, uint64_t whole) {
    cached_shard *s = &c->shard[shard];
    int64_t n = (bytes + chunk_bytes - 1) / chunk_bytes;
    s->from = from;
    s->bytes = bytes;
    s->chunk_bytes = chunk_bytes;
    s->hash = hash;
    s->whole = whole;
    s->first_chunk = c->chunks;
    c->at = mem_grow(c->at, (size_t)(c->chunks + n + 1) * sizeof *c->at);
    for (int64_t i = 0; i < n; i++)
        c->at[c->chunks++] = (chunk){ .shard = shard, .next = -1, .before = -1 };
}

err chunk_cache_start(chunk_cache *c) {
    sigset_t all, before;
    int rc = 0;
    sigfillset(&all); /* the main thread handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (c->started < THREADS && rc == 0) {
        rc = pthread_create(&c->thread[c->started], NULL, fetcher_main, c);
        c->started += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (c->started) return OK;
    return err_hint(ERR("a thread that fetches shards does not start: %s", strerror(rc)),
                    "raise the limit of threads");
}

void chunk_cache_free(chunk_cache *c) {
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->started; i++) pthread_join(c->thread[i], NULL);
    for (int i = 0; i < c->folders; i++) {
        close(c->fd[i]);
        free(c->folder[i]);
    }
    for (int i = 0; i < c->shards; i++) {
        munmap(c->shard[i].data, c->shard[i].file_bytes);
        free(c->shard[i].url);
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    err_free(c->failed);
    free(c->shard);
    free(c->at);
    free(c);
}
