/* Work over the blocks of a segment on several threads, with the result of one.
 *
 *     worker:  cut -> parse -> number -> work -> merge
 *              '-'             '----'            '---'
 *              one at a time, in input order: a ticket says whose turn it is
 *
 * A worker that must wait for its turn holds one block, so `threads` blocks are all there are. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "text/text_internal.h"

typedef struct flow_run {
    text_inputs *in;
    int segment;
    const text_flow *f;
    text_counts *counts;
    reader from;
    pthread_mutex_t read_lock; /* guards `from` and `cut` */
    int64_t cut;               /* tickets given out */
    pthread_mutex_t turn_lock; /* guards whose turn it is: tickets that have passed these steps */
    pthread_cond_t turn_moved;
    int64_t numbered, merged;
    int64_t documents; /* so far: belongs to who may number */
    bad_records bad;   /* belongs to who may merge, as does `first` */
    err first;         /* in input order; later blocks are dropped */
    atomic_bool failed;
} flow_run;

typedef struct flow_worker {
    int64_t ticket;
    raw_block raw;
    parser parser;
    text_block block;
    void *result;
} flow_worker;

/* Takes the next block and its ticket. @return false when there is none. */
static bool cut_block(flow_run *r, flow_worker *w, err *e) {
    pthread_mutex_lock(&r->read_lock);
    bool more = false;
    if (!atomic_load(&r->failed)) {
        *e = reader_cut(&r->from, &w->raw, &more);
        if (*e) r->from.done = true;
    }
    w->ticket = r->cut;
    r->cut += more;
    pthread_mutex_unlock(&r->read_lock);
    return more;
}

/* Waits until all earlier tickets have passed `step`, which is then this one's alone. */
static void take_turn(flow_run *r, const int64_t *step, int64_t ticket) {
    pthread_mutex_lock(&r->turn_lock);
    while (*step != ticket) pthread_cond_wait(&r->turn_moved, &r->turn_lock);
    pthread_mutex_unlock(&r->turn_lock);
}

static void pass_turn(flow_run *r, int64_t *step) {
    pthread_mutex_lock(&r->turn_lock);
    ++*step;
    pthread_cond_broadcast(&r->turn_moved);
    pthread_mutex_unlock(&r->turn_lock);
}

/* Numbers the documents of a block, which takes the count of all before. */
static void number_block(flow_run *r, flow_worker *w) {
    take_turn(r, &r->numbered, w->ticket);
    int64_t first = r->documents;
    r->documents += w->parser.n;
    pass_turn(r, &r->numbered);
    for (int i = 0; i < w->parser.n; i++) w->parser.docs[i].number = first + i;
    w->block = (text_block){ w->parser.docs, w->parser.n, r->segment, w->raw.raw_bytes };
}

static const char *name_of(const flow_run *r) {
    const char *path = text_segment_path(r->in, r->segment);
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

/* What could not be read: an error when the options say so, else counted for the end's warning. */
static err judge_bad(flow_run *r, flow_worker *w) {
    const char *path = name_of(r);
    bad_records bad = w->raw.bad;
    bad_merge(&bad, &w->parser.bad);
    if (bad.n && r->in->o.strict)
        return err_hint(
            ERR("%s: the record at byte %lld: %s", path, (long long)bad.offset, bad.why),
            "repair the file, or leave out --strict to skip and count such records");
    if (w->raw.damage && r->in->o.strict)
        return err_hint(ERR("%s is damaged: %s", path, w->raw.damage),
                        "get the file again, or leave out --strict to use what can be read");
    if (w->raw.damage)
        log_warn("%s is damaged: %s; the rest of it is not read", path, w->raw.damage);
    bad_merge(&r->bad, &bad);
    w->parser.counts.unreadable += bad.n + (w->raw.damage != NULL);
    return OK;
}

static void merge_block(flow_run *r, flow_worker *w, err e) {
    take_turn(r, &r->merged, w->ticket);
    bool mine = !r->first && !e;
    if (mine) e = judge_bad(r, w);
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
    flow_run *r = ctx;
    flow_worker w = { 0 };
    err e = OK;
    parser_open(&w.parser, r->in, r->segment, r->from.format);
    w.result = mem_alloc(r->f->result_size);
    while (cut_block(r, &w, &e)) {
        memset(w.result, 0, r->f->result_size);
        w.parser.n = 0;
        if (!e) parser_run(&w.parser, &w.raw);
        number_block(r, &w);
        if (!e && w.block.n > 0) e = r->f->work(r->f->ctx, index, &w.block, w.result);
        merge_block(r, &w, e);
        e = OK;
    }
    free(w.result);
    free(w.raw.damage);
    str_free(&w.raw.bytes);
    parser_free(&w.parser);
}

static void warn_bad(const flow_run *r) {
    if (!r->bad.n) return;
    log_warn("%s: %lld record%s could not be read; the first, at byte %lld: %s", name_of(r),
             (long long)r->bad.n, r->bad.n == 1 ? "" : "s", (long long)r->bad.offset, r->bad.why);
}

int text_threads(int threads) { return threads > 0 ? threads : thread_cores(); }

/* What was read from a pipe is gone, and a second reading would find nothing without a word. */
static err read_once(text_inputs *in, int segment) {
    input_file *file = &in->files[in->segments[segment].file];
    if (file->pipe && file->used)
        return err_hint(ERR("%s can be read once only, and is needed twice here", file->path),
                        "write it to a file first, and name that");
    file->used = true;
    return OK;
}

err text_flow_run(text_inputs *in, int segment, const text_flow *f, int threads,
                  text_counts *counts) {
    BUG_IF(segment < 0 || segment >= in->n_segments);
    TRY(read_once(in, segment));
    flow_run r = { .in = in, .segment = segment, .f = f, .counts = counts };
    err e = reader_open(&r.from, in, segment);
    if (!e) {
        pthread_mutex_init(&r.read_lock, NULL);
        pthread_mutex_init(&r.turn_lock, NULL);
        pthread_cond_init(&r.turn_moved, NULL);
        pool *p = text_threads(threads) == 1 ? NULL : pool_new(threads);
        pool_run(p, pool_size(p), run_worker, &r);
        pool_free(p);
        pthread_cond_destroy(&r.turn_moved);
        pthread_mutex_destroy(&r.turn_lock);
        pthread_mutex_destroy(&r.read_lock);
        e = r.first;
        if (!e) warn_bad(&r);
    }
    reader_close(&r.from);
    return e;
}
