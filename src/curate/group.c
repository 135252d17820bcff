/* Finds equal keys among more records than memory holds: see dedup_internal.h. Threads work on
 * different partitions, each with a hash table of its own; pairs are passed on in batches under
 * a lock, so the callback needs no synchronization. */
#include "curate/dedup_internal.h"

#include <pthread.h>
#include <stdlib.h>

enum { BATCH = 1024, MAX_RANGE_BITS = 20 }; /* at most 2^20 key ranges per partition */

err group_write(spill_writer *w, int section, uint64_t key, uint32_t item) {
    char record[GROUP_RECORD_BYTES];
    memcpy(record, &key, sizeof key);
    memcpy(record + sizeof key, &item, sizeof item);
    return spill_write(w, section + (int)(key >> 56), record, sizeof record);
}

typedef struct key_slot {
    uint64_t key;
    uint64_t next; /* the first item with this key plus one; 0: free */
} key_slot;

typedef struct group_worker {
    key_slot *slots;
    int bits; /* 2^bits slots are in use */
    size_t filled;
    group_pair pairs[BATCH];
    int n;
} group_worker;

typedef struct group_state {
    const group_job *job;
    group_worker *workers;
    size_t max_slots;
    err *errors; /* [GROUP_PARTITIONS] */
    pthread_mutex_t lock;
} group_state;

static void flush_pairs(group_state *g, group_worker *w) {
    if (w->n == 0) return;
    pthread_mutex_lock(&g->lock);
    g->job->same(g->job->ctx, w->pairs, w->n);
    pthread_mutex_unlock(&g->lock);
    w->n = 0;
}

/* @return false if the table is full. */
static bool group_record(group_state *g, group_worker *w, uint64_t key, uint64_t item) {
    size_t mask = ((size_t)1 << w->bits) - 1;
    size_t i = (size_t)(key * NGRAM_BASE >> (64 - w->bits));
    while (w->slots[i].next && w->slots[i].key != key) i = (i + 1) & mask;
    if (w->slots[i].next) {
        w->pairs[w->n++] = (group_pair){ w->slots[i].next - 1, item };
        if (w->n == BATCH) flush_pairs(g, w);
        return true;
    }
    if (w->filled >= mask - mask / 8) return false;
    w->filled++;
    w->slots[i] = (key_slot){ key, item + 1 };
    return true;
}

/* Reads the records of one partition in one spill file whose key is in range `range` of
 * 2^range_bits. */
static err read_partition(group_state *g, group_worker *w, int partition, int spill_index,
                          int range_bits, uint64_t range, bool *full) {
    const group_job *job = g->job;
    const spill *s = job->spills[spill_index];
    uint64_t n = spill_bytes(s, job->section + partition) / GROUP_RECORD_BYTES;
    spill_reader r;
    TRY(spill_reader_open(s, job->section + partition, &r));
    err e = OK;
    for (uint64_t i = 0; i < n && !e && !*full; i++) {
        char record[GROUP_RECORD_BYTES];
        uint64_t key;
        uint32_t item;
        e = spill_read(&r, record, sizeof record);
        memcpy(&key, record, sizeof key);
        memcpy(&item, record + sizeof key, sizeof item);
        if (e || (range_bits && (key << 8) >> (64 - range_bits) != range)) continue;
        *full = !group_record(g, w, key, job->base[spill_index] + item);
    }
    spill_reader_close(&r);
    return e;
}

static err try_partition(group_state *g, group_worker *w, int partition, int range_bits,
                         bool *full) {
    for (uint64_t range = 0; range < (uint64_t)1 << range_bits && !*full; range++) {
        memset(w->slots, 0, ((size_t)1 << w->bits) * sizeof *w->slots);
        w->filled = 0;
        for (int s = 0; s < g->job->n_spills && !*full; s++)
            TRY(read_partition(g, w, partition, s, range_bits, range, full));
    }
    return OK;
}

/* Pairs found before a table was full are found again, which is harmless: joining is idempotent. */
static err group_partition(group_state *g, group_worker *w, int partition) {
    uint64_t records = 0;
    for (int s = 0; s < g->job->n_spills; s++)
        records += spill_bytes(g->job->spills[s], g->job->section + partition) / GROUP_RECORD_BYTES;
    if (records == 0) return OK;
    for (w->bits = 4; (size_t)1 << w->bits < records + records / 2; w->bits++)
        if ((size_t)2 << w->bits > g->max_slots) break;
    bool full = true;
    for (int range_bits = 0; full; range_bits++) {
        if (range_bits > MAX_RANGE_BITS)
            return err_hint(
                ERR("too little memory to compare %llu records", (unsigned long long)records),
                "raise --memory");
        full = false;
        TRY(try_partition(g, w, partition, range_bits, &full));
    }
    flush_pairs(g, w);
    return OK;
}

static void run_partition_task(void *ctx, int64_t partition, int worker) {
    group_state *g = ctx;
    g->errors[partition] = group_partition(g, &g->workers[worker], (int)partition);
}

static size_t slots_for(size_t bytes) {
    size_t n = 16;
    while (n * 2 * sizeof(key_slot) <= bytes) n *= 2;
    return n;
}

err group_run(const group_job *job) {
    pool *p = pool_new(job->threads);
    int threads = pool_size(p);
    group_state g = { .job = job, .max_slots = slots_for(job->memory / (size_t)threads) };
    size_t table = g.max_slots * sizeof(key_slot);
    g.workers = mem_alloc((size_t)threads * sizeof *g.workers);
    g.errors = mem_alloc(GROUP_PARTITIONS * sizeof *g.errors);
    pthread_mutex_init(&g.lock, NULL);
    err e = OK;
    for (int i = 0; i < threads && !e; i++) {
        void *slots = NULL; /* pages that a small partition does not touch cost nothing */
        e = mem_map(table, &slots);
        g.workers[i].slots = slots;
    }
    if (!e) pool_run(p, GROUP_PARTITIONS, run_partition_task, &g);
    for (int i = 0; i < GROUP_PARTITIONS; i++) {
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
