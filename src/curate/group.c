/* Equal keys among more records than memory holds: see dedup_internal.h. */
#include "curate/dedup_internal.h"

#include <pthread.h>
#include <stdlib.h>

enum { BATCH = 1024, MOST_CUTS = 20 }; /* MOST_CUTS: a part is cut in at most 2^20 ranges */

err group_write(spill_writer *w, int stream, uint64_t key, uint32_t item) {
    char record[GROUP_RECORD];
    memcpy(record, &key, sizeof key);
    memcpy(record + sizeof key, &item, sizeof item);
    return spill_write(w, stream + (int)(key >> 56), record, sizeof record);
}

typedef struct slot {
    uint64_t key;
    uint64_t next; /* the first item with this key, plus one; 0: free */
} slot;

typedef struct group_worker {
    slot *slots;
    int bits; /* slots in use: 2^bits */
    size_t filled;
    group_pair pairs[BATCH];
    int n;
} group_worker;

typedef struct group {
    const group_job *job;
    group_worker *workers;
    size_t most_slots;
    err *errors; /* [GROUP_PARTS] */
    pthread_mutex_t lock;
} group;

static void flush(group *g, group_worker *w) {
    if (w->n == 0) return;
    pthread_mutex_lock(&g->lock);
    g->job->same(g->job->ctx, w->pairs, w->n);
    pthread_mutex_unlock(&g->lock);
    w->n = 0;
}

/* @return false when the table is full. */
static bool add_record(group *g, group_worker *w, uint64_t key, uint64_t item) {
    size_t mask = ((size_t)1 << w->bits) - 1;
    size_t i = (size_t)(key * GRAM_BASE >> (64 - w->bits));
    while (w->slots[i].next && w->slots[i].key != key) i = (i + 1) & mask;
    if (w->slots[i].next) {
        w->pairs[w->n++] = (group_pair){ w->slots[i].next - 1, item };
        if (w->n == BATCH) flush(g, w);
        return true;
    }
    if (w->filled >= mask - mask / 8) return false;
    w->filled++;
    w->slots[i] = (slot){ key, item + 1 };
    return true;
}

/* The records of one part and spill whose key lies in range `range` of 2^cuts. */
static err read_part(group *g, group_worker *w, int part, int spill_index, int cuts, uint64_t range,
                     bool *full) {
    const group_job *job = g->job;
    const spill *s = job->spills[spill_index];
    uint64_t n = spill_bytes(s, job->stream + part) / GROUP_RECORD;
    spill_reader r;
    TRY(spill_reader_open(s, job->stream + part, &r));
    err e = OK;
    for (uint64_t i = 0; i < n && !e && !*full; i++) {
        char record[GROUP_RECORD];
        uint64_t key;
        uint32_t item;
        e = spill_read(&r, record, sizeof record);
        memcpy(&key, record, sizeof key);
        memcpy(&item, record + sizeof key, sizeof item);
        if (e || (cuts && (key << 8) >> (64 - cuts) != range)) continue;
        *full = !add_record(g, w, key, job->base[spill_index] + item);
    }
    spill_reader_close(&r);
    return e;
}

static err try_part(group *g, group_worker *w, int part, int cuts, bool *full) {
    for (uint64_t range = 0; range < (uint64_t)1 << cuts && !*full; range++) {
        memset(w->slots, 0, ((size_t)1 << w->bits) * sizeof *w->slots);
        w->filled = 0;
        for (int s = 0; s < g->job->n_spills && !*full; s++)
            TRY(read_part(g, w, part, s, cuts, range, full));
    }
    return OK;
}

/* Pairs found before the table was full are found again: joining twice is joining. */
static err run_part(group *g, group_worker *w, int part) {
    uint64_t records = 0;
    for (int s = 0; s < g->job->n_spills; s++)
        records += spill_bytes(g->job->spills[s], g->job->stream + part) / GROUP_RECORD;
    if (records == 0) return OK;
    for (w->bits = 4; (size_t)1 << w->bits < records + records / 2; w->bits++)
        if ((size_t)2 << w->bits > g->most_slots) break;
    bool full = true;
    for (int cuts = 0; full; cuts++) {
        if (cuts > MOST_CUTS)
            return err_hint(
                ERR("too little memory to compare %llu records", (unsigned long long)records),
                "raise --memory");
        full = false;
        TRY(try_part(g, w, part, cuts, &full));
    }
    flush(g, w);
    return OK;
}

static void run_task(void *ctx, int64_t part, int worker) {
    group *g = ctx;
    g->errors[part] = run_part(g, &g->workers[worker], (int)part);
}

static size_t slots_for(size_t bytes) {
    size_t n = 16;
    while (n * 2 * sizeof(slot) <= bytes) n *= 2;
    return n;
}

err group_run(const group_job *job) {
    pool *p = pool_new(job->threads);
    int threads = pool_size(p);
    group g = { .job = job, .most_slots = slots_for(job->memory / (size_t)threads) };
    size_t table = g.most_slots * sizeof(slot);
    g.workers = mem_alloc((size_t)threads * sizeof *g.workers);
    g.errors = mem_alloc(GROUP_PARTS * sizeof *g.errors);
    pthread_mutex_init(&g.lock, NULL);
    err e = OK;
    for (int i = 0; i < threads && !e; i++) {
        void *slots = NULL; /* pages that a small part does not touch cost nothing */
        e = mem_map(table, &slots);
        g.workers[i].slots = slots;
    }
    if (!e) pool_run(p, GROUP_PARTS, run_task, &g);
    for (int i = 0; i < GROUP_PARTS; i++) {
        if (!e)
            e = g.errors[i];
        else
            err_free(g.errors[i]);
    }
    for (int i = 0; i < threads; i++) mem_unmap(g.workers[i].slots, table);
    pthread_mutex_destroy(&g.lock);
    free(g.workers);
    free(g.errors);
    pool_free(p);
    return e;
}
