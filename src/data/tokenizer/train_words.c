/* Word counts that stay inside a cap on memory. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"
#include "tokenizer/train_internal.h"

enum {
    SHARDS = 64,
    LOCAL_SLOTS = 1 << 15, /* of a worker's own table: it should stay in a core's cache */
    LOCAL_BYTES = 256 << 10,
    LOCAL_WORD = 1 << 10, /* longer ones go to the shards at once */
    LOCAL_MEMORY = 1 << 20,
    VARINT_MAX = 10,
};

/* ---- records: a word as its length and its bytes ---------------------------------------------- */

static size_t put_varint(uint8_t *to, uint64_t v) {
    size_t n = 0;
    for (; v >= 0x80; v >>= 7) to[n++] = (uint8_t)(v | 0x80);
    to[n++] = (uint8_t)v;
    return n;
}

static size_t get_varint(const uint8_t *from, uint64_t *v) {
    size_t n = 0;
    *v = 0;
    do {
        *v |= (uint64_t)(from[n] & 0x7F) << (7 * n);
    } while (from[n++] & 0x80);
    return n;
}

/* ---- one table ---------------------------------------------------------------------------------- */

typedef struct word_slot {
    uint64_t count; /* 0: free */
    uint32_t hash;  /* where it belongs and, as good as always, which word it is */
    uint32_t at;    /* of the record in bytes */
} word_slot;

typedef struct word_table {
    word_slot *slots;
    size_t n, n_slots; /* n_slots is a power of two, or 0 */
    uint8_t *bytes;
    size_t used, cap;
} word_table;

static size_t table_capacity(size_t n_slots) { return n_slots - n_slots / 4; }

/* @return the word's slot, or the free one where it would go. The table has a free slot. */
static word_slot *table_find(const word_table *t, uint32_t hash, const char *word, size_t len) {
    for (size_t i = hash & (t->n_slots - 1);; i = (i + 1) & (t->n_slots - 1)) {
        word_slot *s = &t->slots[i];
        if (s->count == 0) return s;
        if (s->hash != hash) continue;
        uint64_t n;
        const uint8_t *at = t->bytes + s->at;
        at += get_varint(at, &n);
        if (n == len && memcmp(at, word, len) == 0) return s;
    }
}

/* Sizes that hold one more word. */
static size_t next_slots(const word_table *t) {
    return t->n < table_capacity(t->n_slots) ? t->n_slots : MAX(64, t->n_slots * 2);
}
static size_t next_bytes(const word_table *t, size_t len) {
    size_t needed = t->used + len + VARINT_MAX;
    return needed <= t->cap ? t->cap : MAX(needed, t->cap + t->cap / 4);
}
static size_t next_memory(const word_table *t, size_t len) {
    return next_slots(t) * sizeof(word_slot) + next_bytes(t, len);
}

static void table_widen(word_table *t) {
    size_t n_slots = next_slots(t);
    word_slot *slots = mem_alloc(n_slots * sizeof *slots);
    for (size_t k = 0; k < t->n_slots; k++) {
        if (t->slots[k].count == 0) continue;
        size_t i = t->slots[k].hash & (n_slots - 1);
        while (slots[i].count) i = (i + 1) & (n_slots - 1);
        slots[i] = t->slots[k];
    }
    free(t->slots);
    t->slots = slots;
    t->n_slots = n_slots;
}

static void table_add(word_table *t, uint32_t hash, const char *word, size_t len, uint64_t times) {
    if (t->n >= table_capacity(t->n_slots)) table_widen(t);
    word_slot *s = table_find(t, hash, word, len);
    s->count += times;
    if (s->count != times) return;
    if (t->used + len + VARINT_MAX > t->cap) {
        t->cap = next_bytes(t, len);
        t->bytes = mem_grow(t->bytes, t->cap);
    }
    s->hash = hash;
    s->at = (uint32_t)t->used;
    t->used += put_varint(t->bytes + t->used, len);
    memcpy(t->bytes + t->used, word, len);
    t->used += len;
    t->n++;
}

static void table_visit(const word_table *t, word_visit visit, void *ctx) {
    for (size_t i = 0; i < t->n_slots; i++) {
        if (t->slots[i].count == 0) continue;
        uint64_t len;
        const uint8_t *at = t->bytes + t->slots[i].at;
        at += get_varint(at, &len);
        visit(ctx, (const char *)at, (size_t)len, t->slots[i].count);
    }
}

static void table_clear(word_table *t) {
    if (t->n) memset(t->slots, 0, t->n_slots * sizeof *t->slots);
    t->n = t->used = 0;
}

static void table_free(word_table *t) {
    free(t->slots);
    free(t->bytes);
    *t = (word_table){ 0 };
}

/* ---- shards -------------------------------------------------------------------------------------- */

typedef struct count_shard {
    pthread_mutex_t lock;
    word_table t;
    FILE *spill; /* NULL: all is in the table */
} count_shard;

struct word_counts {
    size_t memory;
    count_shard shards[SHARDS];
    word_table *local; /* [workers] */
    int workers;
};

word_counts *word_counts_new(size_t memory, int workers) {
    word_counts *c = mem_alloc(sizeof *c);
    c->memory = memory - MIN(memory / 2, (size_t)workers * LOCAL_MEMORY);
    c->workers = workers;
    c->local = mem_alloc((size_t)workers * sizeof *c->local);
    for (int i = 0; i < SHARDS; i++) pthread_mutex_init(&c->shards[i].lock, NULL);
    return c;
}

void word_counts_free(word_counts *c) {
    if (!c) return;
    for (int i = 0; i < SHARDS; i++) {
        pthread_mutex_destroy(&c->shards[i].lock);
        table_free(&c->shards[i].t);
        if (c->shards[i].spill) fclose(c->shards[i].spill);
    }
    for (int i = 0; i < c->workers; i++) table_free(&c->local[i]);
    free(c->local);
    free(c);
}

/* ---- temporary files ------------------------------------------------------------------------------ */

/* Not /tmp by default: it is often in memory, which is what has run out. */
static const char *spill_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder && folder[0] ? folder : "/var/tmp";
}

static err spill_error(const char *what) {
    int code = errno;
    return err_hint(
        ERR("cannot %s a temporary file in %s: %s", what, spill_folder(), strerror(code)),
        "name a folder with more space in TMPDIR, or raise the memory cap so that the "
        "word counts fit");
}

/* Opens a file that has no name any more: it goes when it is closed, or when the program dies. */
static err open_spill_temp(FILE **out) {
    char *path = PATH_IN(spill_folder(), "ingot-words-XXXXXX");
    int fd = mkstemp(path);
    if (fd >= 0) unlink(path);
    if (fd >= 0) *out = fdopen(fd, "w+b");
    if (fd >= 0 && !*out) close(fd);
    return *out ? OK : spill_error("make");
}

static void spill_word(void *ctx, const char *word, size_t len, uint64_t count) {
    FILE *to = ctx;
    uint8_t head[2 * VARINT_MAX];
    size_t n = put_varint(head, count);
    n += put_varint(head + n, len);
    fwrite(head, 1, n, to);
    fwrite(word, 1, len, to);
}

static err spill_shard(count_shard *s) {
    if (!s->spill) TRY(open_spill_temp(&s->spill));
    table_visit(&s->t, spill_word, s->spill);
    table_clear(&s->t);
    return ferror(s->spill) ? spill_error("write to") : OK;
}

static bool spill_read_varint(FILE *from, uint64_t *v) {
    uint8_t bytes[VARINT_MAX];
    size_t n = 0;
    do {
        int c = getc_unlocked(from);
        if (c == EOF || n == VARINT_MAX) return false;
        bytes[n++] = (uint8_t)c;
    } while (bytes[n - 1] & 0x80);
    get_varint(bytes, v);
    return true;
}

static uint64_t word_table_hash(const char *word, size_t len) { return hash_bytes(word, len, 0); }

static err out_of_memory(size_t cap) {
    char size[32];
    return err_hint(ERR("the distinct words are too many for a memory cap of %s",
                        str_bytes(size, sizeof size, (double)cap)),
                    "raise the cap, or train on a sample of the text");
}

/* Sums what was spilled. @param memory the most it may take. */
static err spill_load(FILE *from, size_t memory, word_table *out) {
    str word = { 0 };
    err e = OK;
    uint64_t count, len;
    rewind(from);
    while (spill_read_varint(from, &count) && spill_read_varint(from, &len)) {
        if (next_memory(out, len) > memory) TRY_CLEAN(out_of_memory(memory));
        word.len = 0;
        str_reserve(&word, len);
        if (fread(word.text, 1, len, from) != len) break;
        table_add(out, (uint32_t)word_table_hash(word.text, len), word.text, len, count);
    }
    if (ferror(from) || !feof(from)) e = spill_error("read");
cleanup:
    str_free(&word);
    return e;
}

/* ---- adding --------------------------------------------------------------------------------------- */

/* @return whether a word may be added without more memory than the shard may have. */
static bool fits_shard(const word_counts *c, const word_table *t, size_t len) {
    size_t most = MIN(c->memory / SHARDS, (size_t)UINT32_MAX);
    return next_memory(t, len) <= most;
}

/* Under the shard's lock. */
static err shard_add(word_counts *c, count_shard *s, uint32_t hash, const char *word, size_t len,
                     uint64_t times) {
    if (!fits_shard(c, &s->t, len)) TRY(spill_shard(s));
    if (fits_shard(c, &s->t, len)) return table_add(&s->t, hash, word, len, times), OK;
    spill_word(s->spill, word, len, times);
    return ferror(s->spill) ? spill_error("write to") : OK;
}

typedef struct flush_job {
    word_counts *counts;
    err e;
} flush_job;

static void flush_word(void *ctx, const char *word, size_t len, uint64_t count) {
    flush_job *p = ctx;
    if (p->e) return;
    uint64_t hash = word_table_hash(word, len);
    count_shard *s = &p->counts->shards[(hash >> 32) % SHARDS];
    pthread_mutex_lock(&s->lock);
    p->e = shard_add(p->counts, s, (uint32_t)hash, word, len, count);
    pthread_mutex_unlock(&s->lock);
}

static err flush_local(word_counts *c, word_table *local) {
    flush_job p = { c, OK };
    table_visit(local, flush_word, &p);
    table_clear(local);
    return p.e;
}

err word_counts_add(word_counts *c, int worker, const char *word, size_t len, uint64_t times) {
    if (len > LOCAL_WORD) {
        flush_job p = { c, OK };
        flush_word(&p, word, len, times);
        return p.e;
    }
    word_table *t = &c->local[worker];
    if (t->n >= table_capacity(LOCAL_SLOTS) || t->used >= LOCAL_BYTES) TRY(flush_local(c, t));
    table_add(t, (uint32_t)word_table_hash(word, len), word, len, times);
    return OK;
}

err word_counts_seal(word_counts *c) {
    for (int i = 0; i < c->workers; i++) {
        TRY(flush_local(c, &c->local[i]));
        table_free(&c->local[i]);
    }
    for (int i = 0; i < SHARDS; i++) {
        count_shard *s = &c->shards[i];
        if (!s->spill) continue;
        TRY(spill_shard(s));
        table_free(&s->t);
        if (fflush(s->spill) != 0)
            return spill_error("write to"); /* rewind does not report errors */
    }
    return OK;
}

/* ---- visiting ------------------------------------------------------------------------------------- */

err word_counts_each(word_counts *c, bool last, word_visit visit, void *ctx) {
    for (int i = 0; i < SHARDS; i++) {
        count_shard *s = &c->shards[i];
        if (s->spill) {
            word_table sum = { 0 };
            err e = spill_load(s->spill, MIN(c->memory, (size_t)UINT32_MAX), &sum);
            if (!e) table_visit(&sum, visit, ctx);
            table_free(&sum);
            TRY(e);
        } else {
            table_visit(&s->t, visit, ctx);
        }
        if (last) table_free(&s->t);
    }
    return OK;
}

int64_t word_counts_spilled(const word_counts *c) {
    int64_t bytes = 0;
    for (int i = 0; i < SHARDS; i++)
        if (c->shards[i].spill) bytes += ftell(c->shards[i].spill);
    return bytes;
}
