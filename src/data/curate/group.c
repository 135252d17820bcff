/* Finds equal keys among more records than memory holds: see dedup_internal.h. Threads work on
 * different partitions, each with a hash table of its own; pairs are passed on in batches under
 * a lock, so the callback needs no synchronization.
 *
 * Several ranks work in rounds: in each, a rank groups as many partitions as it has threads. Its records come from
 * the spill files of all ranks, by all-to-all exchanges of bounded size:
 *
 *     first = 0        partition 0 1 | 2 3 | 4 5 | 6 7           2 threads on each of 4 ranks
 *     first = 8                  8 9 | ...
 *                         rank    0     1     2     3
 *
 *     until all records of the round are read:
 *         read   up to `chunk` records for each rank from this rank's own spill files
 *         move   them to the ranks that group their partitions
 *         add    what has arrived to the tables
 *
 * Ranks know beforehand how many records each has of each partition, so they agree on the number of exchanges and on
 * the ranges of keys without further communication. */
#include "comm/comm.h"
#include "curate/dedup_internal.h"

#include <pthread.h>
#include <stdlib.h>

enum { BATCH = 1024, MAX_RANGE_BITS = 20 }; /* at most 2^20 key ranges per partition */

err group_write(spill_writer *w, int section, uint64_t key, uint32_t item) {
    char bytes[GROUP_RECORD_BYTES];
    memcpy(bytes, &key, sizeof key);
    memcpy(bytes + sizeof key, &item, sizeof item);
    return spill_write(w, section + (int)(key >> 56), bytes, sizeof bytes);
}

typedef struct key_slot {
    uint64_t key;
    uint64_t next; /* the first item with this key plus one; 0: free */
} key_slot;

typedef struct group_worker {
    key_slot *slots;
    int bits; /* 2^bits slots are in use */
    bool full;
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
        uint64_t first = w->slots[i].next - 1;
        w->pairs[w->n++] = (group_pair){ MIN(first, item), MAX(first, item) };
        w->slots[i].next = MIN(first, item) + 1; /* other ranks' records come in any order */
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
        char bytes[GROUP_RECORD_BYTES];
        uint64_t key;
        uint32_t item;
        e = spill_read(&r, bytes, sizeof bytes);
        memcpy(&key, bytes, sizeof key);
        memcpy(&item, bytes + sizeof key, sizeof item);
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

static err too_little_memory(uint64_t records) {
    return err_hint(ERR("too little memory to compare %llu records", (unsigned long long)records),
                    "raise --memory");
}

/* @return bits of a table for this many records, as far as memory allows. */
static int table_bits(uint64_t records, size_t max_slots) {
    int bits = 4;
    for (; (size_t)1 << bits < records + records / 2; bits++)
        if ((size_t)2 << bits > max_slots) break;
    return bits;
}

static uint64_t records_of(const group_job *job, int partition) {
    uint64_t n = 0;
    for (int s = 0; s < job->n_spills; s++)
        if (job->spills[s])
            n += spill_bytes(job->spills[s], job->section + partition) / GROUP_RECORD_BYTES;
    return n;
}

/* Pairs found before a table was full are found again, which is harmless: joining is idempotent. */
static err group_partition(group_state *g, group_worker *w, int partition) {
    uint64_t records = records_of(g->job, partition);
    if (records == 0) return OK;
    w->bits = table_bits(records, g->max_slots);
    bool full = true;
    for (int range_bits = 0; full; range_bits++) {
        if (range_bits > MAX_RANGE_BITS) return too_little_memory(records);
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

static err group_alone(group_state *g, pool *p) {
    err e = OK;
    g->errors = mem_alloc(GROUP_PARTITIONS * sizeof *g->errors);
    pool_run(p, GROUP_PARTITIONS, run_partition_task, g);
    for (int i = 0; i < GROUP_PARTITIONS; i++) {
        if (!e)
            e = g->errors[i];
        else
            err_free(g->errors[i]);
    }
    free(g->errors);
    return e;
}

/* ---- several ranks --------------------------------------------------------------------------- */
typedef struct key_record {
    uint64_t key, item;
} key_record;

/* Facts that ranks know about one another. */
typedef struct rank_facts {
    uint64_t records[GROUP_PARTITIONS];
    uint64_t threads, slots, chunk;
} rank_facts;

/* Where reading stands among the records for one rank. */
typedef struct cursor {
    int table, spill; /* of that rank; of this rank */
    uint64_t left;    /* records in the section that `from` reads */
    spill_reader from;
    err error;
} cursor;

typedef struct exchange {
    group_state *g;
    pool *p;
    comm *c;
    int ranks, tables;                  /* tables: partitions that each rank groups in a round */
    rank_facts *facts;                  /* [ranks] */
    size_t slots;                       /* of a table, on every rank at least */
    int64_t chunk;                      /* most records to each rank in one exchange */
    key_record *send, *received;        /* [ranks, chunk] */
    size_t buffer_bytes;                /* of each of them */
    int32_t *send_rows, *received_rows; /* [ranks] */
    cursor *cursors;                    /* [ranks] */
    /* of the round */
    int first; /* its first partition */
    int range_bits;
    uint64_t range;
} exchange;

static int partition_of(const exchange *x, int rank, int table) {
    return x->first + rank * x->tables + table;
}

/* Moves on to the next section with records for this rank. @return false at the end. */
static bool next_section(exchange *x, int rank, cursor *k) {
    const group_job *job = x->g->job;
    spill_reader_close(&k->from);
    for (; k->table < x->tables; k->table++, k->spill = 0)
        for (; k->spill < job->n_spills; k->spill++) {
            int partition = partition_of(x, rank, k->table), section = job->section + partition;
            const spill *s = job->spills[k->spill];
            if (!s || partition >= GROUP_PARTITIONS) continue;
            k->left = spill_bytes(s, section) / GROUP_RECORD_BYTES;
            if (!k->left) continue;
            k->error = spill_reader_open(s, section, &k->from);
            return !k->error;
        }
    return false;
}

/* Reads up to a chunk of records for one rank. */
static void read_records_for_rank(void *ctx, int64_t rank, int worker) {
    exchange *x = ctx;
    const group_job *job = x->g->job;
    cursor *k = &x->cursors[rank];
    key_record *to = x->send + rank * x->chunk;
    int64_t n = 0;
    while (n < x->chunk && !k->error) {
        if (!k->left && !next_section(x, (int)rank, k)) break;
        char bytes[GROUP_RECORD_BYTES];
        uint64_t key;
        uint32_t item;
        k->error = spill_read(&k->from, bytes, sizeof bytes);
        memcpy(&key, bytes, sizeof key);
        memcpy(&item, bytes + sizeof key, sizeof item);
        if (!x->range_bits || (key << 8) >> (64 - x->range_bits) == x->range)
            to[n++] = (key_record){ key, job->base[k->spill] + item };
        if (--k->left == 0) k->spill++;
    }
    x->send_rows[rank] = (int32_t)n;
}

static err move_rows(exchange *x) {
    comm_move rows = { .axes = mesh_axes(comm_mesh(x->c)),
                       .kind = MOVE_ROWS,
                       .send_rows = x->send_rows,
                       .recv_rows = x->received_rows,
                       .name = "keys" };
    int64_t n = 0; /* rows for all ranks, packed back to back */
    for (int r = 0; r < x->ranks; r++) {
        memmove(x->send + n, x->send + r * x->chunk, (size_t)x->send_rows[r] * sizeof *x->send);
        n += x->send_rows[r];
    }
    int64_t dims[2] = { MAX(n, (int64_t)1), sizeof(key_record) };
    tensor in = tensor_of(x->send, DT_U8, 2, dims);
    dims[0] = x->ranks * x->chunk;
    tensor out = tensor_of(x->received, DT_U8, 2, dims);
    comm_ticket ticket;
    TRY(comm_start(x->c, &rows, &in, &out, &ticket));
    return comm_wait(x->c, &ticket);
}

static void add_received(void *ctx, int64_t table, int worker) {
    exchange *x = ctx;
    group_worker *w = &x->g->workers[table];
    uint64_t mine = (uint64_t)partition_of(x, comm_rank(x->c), (int)table);
    int64_t n = 0;
    for (int r = 0; r < x->ranks; r++) n += x->received_rows[r];
    for (int64_t i = 0; i < n && !w->full; i++)
        if (x->received[i].key >> 56 == mine)
            w->full = !group_record(x->g, w, x->received[i].key, x->received[i].item);
}

/* Records of a partition on all ranks. */
static uint64_t total_records(const exchange *x, int partition) {
    uint64_t n = 0;
    for (int r = 0; r < x->ranks && partition < GROUP_PARTITIONS; r++)
        n += x->facts[r].records[partition];
    return n;
}

/* Exchanges until the rank with the most records for another has sent them: the same on all ranks. */
static int64_t count_exchanges(const exchange *x) {
    uint64_t most = 0;
    for (int from = 0; from < x->ranks; from++)
        for (int to = 0; to < x->ranks; to++) {
            uint64_t n = 0;
            for (int t = 0; t < x->tables; t++)
                if (partition_of(x, to, t) < GROUP_PARTITIONS)
                    n += x->facts[from].records[partition_of(x, to, t)];
            most = MAX(most, n);
        }
    return (int64_t)((most + (uint64_t)x->chunk - 1) / (uint64_t)x->chunk);
}

static err group_range(exchange *x) {
    for (int t = 0; t < x->tables; t++) {
        group_worker *w = &x->g->workers[t];
        uint64_t records = total_records(x, partition_of(x, comm_rank(x->c), t)) >> x->range_bits;
        w->bits = table_bits(records, x->g->max_slots);
        memset(w->slots, 0, ((size_t)1 << w->bits) * sizeof *w->slots);
        w->filled = 0;
    }
    memset(x->cursors, 0, (size_t)x->ranks * sizeof *x->cursors);
    err e = OK;
    for (int64_t i = count_exchanges(x); i > 0 && !e; i--) {
        pool_run(x->p, x->ranks, read_records_for_rank, x);
        for (int r = 0; r < x->ranks && !e; r++) e = x->cursors[r].error;
        if (!e) e = move_rows(x);
        if (!e) pool_run(x->p, x->tables, add_received, x);
    }
    for (int r = 0; r < x->ranks; r++) spill_reader_close(&x->cursors[r].from);
    return e;
}

/* Pairs found before a table was full are found again, as in group_partition. */
static err group_round(exchange *x) {
    uint64_t most = 0;
    for (int p = x->first; p < x->first + x->ranks * x->tables; p++)
        most = MAX(most, total_records(x, p));
    x->range_bits = 0;
    while (most >> x->range_bits > x->slots / 4 * 3) x->range_bits++;
    bool full = most > 0;
    for (; full; x->range_bits++) {
        if (x->range_bits > MAX_RANGE_BITS) return too_little_memory(most);
        full = false;
        for (int t = 0; t < x->tables; t++) x->g->workers[t].full = false;
        for (x->range = 0; x->range < (uint64_t)1 << x->range_bits; x->range++) TRY(group_range(x));
        for (int t = 0; t < x->tables; t++) full |= x->g->workers[t].full;
        TRY(comm_merge(x->c, &full, sizeof full));
    }
    for (int t = 0; t < x->tables; t++) flush_pairs(x->g, &x->g->workers[t]);
    return OK;
}

static err exchange_facts(exchange *x, int threads, int64_t chunk) {
    rank_facts *mine = &x->facts[comm_rank(x->c)];
    for (int p = 0; p < GROUP_PARTITIONS; p++) mine->records[p] = records_of(x->g->job, p);
    mine->threads = (uint64_t)threads;
    mine->slots = x->g->max_slots;
    mine->chunk = (uint64_t)chunk;
    TRY(comm_merge(x->c, x->facts, (size_t)x->ranks * sizeof *x->facts));
    x->tables = threads;
    x->slots = x->g->max_slots;
    x->chunk = chunk;
    for (int r = 0; r < x->ranks; r++) {
        x->tables = (int)MIN((uint64_t)x->tables, x->facts[r].threads);
        x->slots = MIN(x->slots, (size_t)x->facts[r].slots);
        x->chunk = MIN(x->chunk, (int64_t)x->facts[r].chunk);
    }
    return OK;
}

static err group_on_ranks(group_state *g, pool *p, int64_t chunk) {
    comm *c = g->job->comm;
    int ranks = comm_world(c);
    exchange x = { .g = g, .p = p, .c = c, .ranks = ranks };
    err e = OK;
    void *send = NULL, *received = NULL;
    x.facts = mem_alloc((size_t)ranks * sizeof *x.facts);
    x.cursors = mem_alloc((size_t)ranks * sizeof *x.cursors);
    x.send_rows = mem_alloc((size_t)ranks * sizeof *x.send_rows);
    x.received_rows = mem_alloc((size_t)ranks * sizeof *x.received_rows);
    TRY_CLEAN(exchange_facts(&x, pool_size(p), chunk));
    x.buffer_bytes = (size_t)(ranks * x.chunk) * sizeof(key_record);
    TRY_CLEAN(comm_map(c, x.buffer_bytes, &send));
    TRY_CLEAN(comm_map(c, x.buffer_bytes, &received));
    x.send = send;
    x.received = received;
    for (x.first = 0; x.first < GROUP_PARTITIONS; x.first += ranks * x.tables)
        TRY_CLEAN(group_round(&x));
cleanup:
    comm_unmap(c, send, x.buffer_bytes);
    comm_unmap(c, received, x.buffer_bytes);
    free(x.facts);
    free(x.cursors);
    free(x.send_rows);
    free(x.received_rows);
    return e;
}

/* ---- the whole ------------------------------------------------------------------------------- */
err group_run(const group_job *job) {
    int ranks = comm_world(job->comm);
    /* Records to each rank in one exchange: the buffers take an eighth of the memory, at most 64 MiB. */
    enum { MOST_BUFFER = 32 << 20, LEAST_CHUNK = 256 };
    size_t buffer = MIN(job->memory / 16, (size_t)MOST_BUFFER);
    int64_t chunk =
        MAX((int64_t)(buffer / sizeof(key_record) / (size_t)ranks), (int64_t)LEAST_CHUNK);
    size_t buffers = ranks > 1 ? 2 * (size_t)(ranks * chunk) * sizeof(key_record) : 0;
    pool *p = pool_new(job->threads);
    int threads = pool_size(p);
    size_t each = (job->memory - MIN(buffers, job->memory)) / (size_t)threads;
    group_state g = { .job = job, .max_slots = 16 };
    while (g.max_slots * 2 * sizeof(key_slot) <= each) g.max_slots *= 2;
    size_t table = g.max_slots * sizeof(key_slot);
    g.workers = mem_alloc((size_t)threads * sizeof *g.workers);
    pthread_mutex_init(&g.lock, NULL);
    err e = OK;
    for (int i = 0; i < threads && !e; i++) {
        void *slots = NULL; /* pages that a small partition does not touch cost nothing */
        e = mem_map(table, &slots);
        g.workers[i].slots = slots;
    }
    e = comm_agree(job->comm, e);
    if (!e) e = ranks > 1 ? group_on_ranks(&g, p, chunk) : group_alone(&g, p);
    for (int i = 0; i < threads; i++) mem_unmap(g.workers[i].slots, table);
    pthread_mutex_destroy(&g.lock);
    free(g.workers);
    pool_free(p);
    return e;
}
