/* Runs work over the blocks of a segment on several threads, with the result that one thread would
 * give.
 *
 *     worker:  read -> parse -> number -> work -> merge
 *              '--'             '----'            '---'
 *              serialized, in input order; parse and work run in parallel
 *
 * Design. Every block gets a ticket when it is read, under read_lock. Two steps must happen in
 * ticket order: numbering, since a document's number is the count of all documents before it in
 * the segment, and merging. A worker waits at each of these steps until all earlier tickets have
 * passed it (take_turn), runs the step, and lets the next ticket through (pass_turn). What the
 * step touches needs no lock of its own: the turn itself is the exclusion, and turn_lock orders
 * the memory accesses of consecutive turns.
 *
 * Progress. The holder of the lowest ticket never waits, since all earlier tickets have passed; so
 * there is no deadlock. A worker holds one block while it waits, so at most `threads` blocks exist.
 *
 * Errors. The first error in input order wins, whichever thread meets it first: later blocks pass
 * through both turns, are dropped instead of merged, and their errors are freed. `failed` only
 * makes workers stop reading early. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "text/block_reader_internal.h"
#include "text/inputs_internal.h"

typedef struct pipeline_run {
    text_inputs *in;
    int segment;
    const text_pipeline *f;
    text_counts *counts;
    block_reader from;
    pthread_mutex_t read_lock; /* guards `from` and `tickets` */
    int64_t tickets;           /* handed out so far */
    pthread_mutex_t turn_lock; /* guards the counts of tickets that have passed each step */
    pthread_cond_t turn_moved;
    int64_t numbered, merged;
    int64_t documents; /* so far; owned by the worker whose turn it is to number */
    bad_records bad;   /* owned by the worker whose turn it is to merge, as is `first` */
    err first;         /* the first error in input order; later blocks are dropped */
    atomic_bool failed;
} pipeline_run;

typedef struct pipeline_worker {
    int64_t ticket;
    raw_block raw;
    parser parser;
    text_block block;
    void *result;
} pipeline_worker;

/* Reads the next block and takes its ticket. @return false at the end. */
static bool read_next_block(pipeline_run *r, pipeline_worker *w, err *e) {
    pthread_mutex_lock(&r->read_lock);
    bool more = false;
    if (!atomic_load(&r->failed)) {
        *e = block_reader_next(&r->from, &w->raw, &more);
        if (*e) r->from.done = true;
    }
    w->ticket = r->tickets;
    r->tickets += more;
    pthread_mutex_unlock(&r->read_lock);
    return more;
}

/* Waits until all earlier tickets have passed `step`. Until pass_turn the step belongs to this
 * ticket alone. */
static void take_turn(pipeline_run *r, const int64_t *step, int64_t ticket) {
    pthread_mutex_lock(&r->turn_lock);
    while (*step != ticket) pthread_cond_wait(&r->turn_moved, &r->turn_lock);
    pthread_mutex_unlock(&r->turn_lock);
}

static void pass_turn(pipeline_run *r, int64_t *step) {
    pthread_mutex_lock(&r->turn_lock);
    ++*step;
    pthread_cond_broadcast(&r->turn_moved);
    pthread_mutex_unlock(&r->turn_lock);
}

/* Numbers the documents of a block, which needs the count of all documents before it. */
static void number_block(pipeline_run *r, pipeline_worker *w) {
    take_turn(r, &r->numbered, w->ticket);
    int64_t first = r->documents;
    r->documents += w->parser.n;
    pass_turn(r, &r->numbered);
    for (int i = 0; i < w->parser.n; i++) w->parser.docs[i].number = first + i;
    w->block = (text_block){ w->parser.docs, w->parser.n, r->segment, w->raw.raw_bytes };
}

static const char *input_name(const pipeline_run *r) {
    const char *path = text_segment_path(r->in, r->segment);
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* Handles records that could not be read: an error with --strict, otherwise counted for the
 * warning at the end. */
static err handle_bad_records(pipeline_run *r, pipeline_worker *w) {
    const char *path = input_name(r);
    bad_records bad = w->raw.bad;
    bad_records_merge(&bad, &w->parser.bad);
    if (bad.n && r->in->o.strict)
        return err_hint(
            ERR("%s: the record at byte %lld: %s", path, (long long)bad.offset, bad.why),
            "repair the file; without --strict, `ingot data` commands skip and count such records");
    if (w->raw.damage && r->in->o.strict)
        return err_hint(
            ERR("%s is damaged: %s", path, w->raw.damage),
            "get the file again; without --strict, `ingot data` commands use what can be read");
    char lost[32];
    if (w->raw.damage && !r->in->segments[r->segment].warned)
        log_warn("%s is damaged: %s; the rest of it, at least %s, is lost", path, w->raw.damage,
                 str_bytes(lost, sizeof lost, (double)w->raw.lost_bytes));
    bad_records_merge(&r->bad, &bad);
    w->parser.counts.unreadable += bad.n + (w->raw.damage != NULL);
    if (w->raw.damage) w->parser.counts.lost_bytes += w->raw.lost_bytes;
    return OK;
}

static void merge_in_order(pipeline_run *r, pipeline_worker *w, err e) {
    take_turn(r, &r->merged, w->ticket);
    bool mine = !r->first && !e;
    if (mine) e = handle_bad_records(r, w);
    mine = mine && !e;
    if (mine && w->block.n > 0) e = r->f->merge(r->f->ctx, &w->block, w->result);
    if (mine && !e) text_counts_add(r->counts, &w->parser.counts);
    if (!mine && r->f->drop) r->f->drop(w->result);
    if (e) atomic_store(&r->failed, true);
    if (r->first)
        err_free(e);
    else
        r->first = e;
    pass_turn(r, &r->merged);
}

static void run_worker(void *ctx, int64_t unused, int index) {
    pipeline_run *r = ctx;
    pipeline_worker w = { 0 };
    err e = OK;
    parser_init(&w.parser, r->in, r->segment, r->from.format);
    w.result = mem_alloc(r->f->result_size);
    while (read_next_block(r, &w, &e)) {
        memset(w.result, 0, r->f->result_size);
        w.parser.n = 0;
        if (!e) parser_parse(&w.parser, &w.raw);
        number_block(r, &w);
        if (!e && w.block.n > 0) e = r->f->work(r->f->ctx, index, &w.block, w.result);
        merge_in_order(r, &w, e);
        e = OK;
    }
    free(w.result);
    raw_block_free(&w.raw);
    parser_free(&w.parser);
}

int text_thread_count(int threads) { return threads > 0 ? threads : thread_cores(); }

/* A pipe can be read only once; a second read would silently find nothing. */
static err check_single_read(text_inputs *in, int segment) {
    input_file *file = &in->files[in->segments[segment].file];
    if (file->pipe && file->used)
        return err_hint(ERR("%s can be read only once, and is needed twice here", file->path),
                        "write it to a file first, and pass that");
    file->used = true;
    return OK;
}

err text_pipeline_run(text_inputs *in, int segment, const text_pipeline *f, int threads,
                      text_counts *counts) {
    BUG_IF(segment < 0 || segment >= in->n_segments);
    TRY(check_single_read(in, segment));
    pipeline_run r = { .in = in, .segment = segment, .f = f, .counts = counts };
    err e = block_reader_open(&r.from, in, segment);
    if (!e) {
        pthread_mutex_init(&r.read_lock, NULL);
        pthread_mutex_init(&r.turn_lock, NULL);
        pthread_cond_init(&r.turn_moved, NULL);
        pool *p = text_thread_count(threads) == 1 ? NULL : pool_new(threads);
        pool_run(p, pool_size(p), run_worker, &r);
        pool_free(p);
        pthread_cond_destroy(&r.turn_moved);
        pthread_mutex_destroy(&r.turn_lock);
        pthread_mutex_destroy(&r.read_lock);
        e = r.first;
        if (!e && !in->segments[segment].warned && r.bad.n)
            log_warn("%s: %lld record%s could not be read; the first, at byte %lld: %s",
                     input_name(&r), (long long)r.bad.n, r.bad.n == 1 ? "" : "s",
                     (long long)r.bad.offset, r.bad.why);
        if (!e) in->segments[segment].warned = true;
    }
    block_reader_close(&r.from);
    return e;
}
