/* The loader: which windows come when, and the thread that makes batches ahead of their use.
 *
 * Batches live in a ring of prefetch + 1 slots. The thread fills slot (head + ready), the caller
 * holds slot head until its next call:
 *
 *        head                 head + ready
 *     [ held ][ ready ][ ready ][ being filled ][ free ]
 *
 * What is put in a slot depends on the number of windows consumed alone, so batches are the same
 * with and without the thread. A seek counts up `generation`; a batch begun before it is dropped.
 */
#include "data/data_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* A step of training: the windows between two updates. */
typedef struct step {
    int64_t begin, size; /* windows [begin, begin + size) */
    int64_t valid;       /* targets in them */
} step;

typedef struct slot {
    data_batch batch;
    err error; /* owned until handed to the caller */
} slot;

struct loader {
    const data_source *source;
    loader_options o; /* defaults resolved */
    int64_t windows;  /* in an epoch */
    int slots;
    slot *ring;       /* [slots] */
    void *memory;     /* of the slots' arrays */
    int32_t *scratch; /* [seq_len + 1], of whoever makes batches */

    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    pthread_t thread;
    bool threaded, stop, held;
    int head, ready;
    int64_t next; /* windows consumed before the next batch to make */
    step step;    /* of the last batch made */
    uint64_t generation;
};

/* ---- which windows ------------------------------------------------------------------------ */

static int64_t batch_windows(const loader *l) { return l->o.rows * l->o.ranks; }

int64_t loader_windows(const loader *l) { return l->windows; }

int64_t loader_batches(const loader *l) {
    return (l->windows + batch_windows(l) - 1) / batch_windows(l);
}

/* @return the window that is consumed as number `place`; past the range for padding. */
static int64_t window_at(const loader *l, int64_t place) {
    if (l->o.evaluation) return place % (loader_batches(l) * batch_windows(l));
    if (l->o.in_order) return place % l->windows;
    return data_permute(l->o.seed, place / l->windows, l->windows, place % l->windows);
}

/* @return the longest piece of a document in a step that begins at `place`. */
static int64_t curriculum_limit(const loader_options *o, int64_t place) {
    if (o->curriculum_start <= 0 || o->curriculum_start >= o->seq_len) return o->seq_len;
    if (o->curriculum_windows <= 0) return o->curriculum_start;
    if (place >= o->curriculum_windows) return o->seq_len;
    double done = (double)place / (double)o->curriculum_windows;
    return o->curriculum_start + (int64_t)(done * (double)(o->seq_len - o->curriculum_start));
}

/* @return windows in a step that begins at `place`. */
static int64_t step_size(const loader_options *o, int64_t place) {
    if (o->ramp_start <= 0 || place >= o->ramp_windows) return o->step_windows;
    int64_t unit = o->rows * o->ranks;
    double done = (double)place / (double)o->ramp_windows;
    int64_t size = o->ramp_start + (int64_t)(done * (double)(o->step_windows - o->ramp_start));
    return MAX(unit, MIN(size, o->step_windows) / unit * unit);
}

static int64_t count_valid(const loader *l, step s) {
    if (!l->o.evaluation && (!l->o.mask_documents || l->source->info.eos < 0))
        return s.size * l->o.seq_len;
    int64_t valid = 0;
    for (int64_t i = 0; i < s.size; i++)
        valid += window_valid(l->source, &l->o, window_at(l, s.begin + i));
    return valid;
}

/* Makes the microbatch that begins after `place` windows, in step `s`. */
static err make_batch(const loader *l, int64_t place, step s, data_batch *b) {
    int64_t unit = batch_windows(l), first = place + l->o.rank * l->o.rows;
    b->valid_here = 0;
    b->valid = s.valid;
    b->microbatch = (place - s.begin) / unit;
    b->microbatches = s.size / unit;
    b->epoch = l->o.evaluation ? place / unit / loader_batches(l) : first / l->windows;
    b->consumed = place + unit;
    int64_t limit = curriculum_limit(&l->o, s.begin);
    for (int64_t row = 0; row < l->o.rows; row++)
        TRY(window_fill(l->source, &l->o, window_at(l, first + row), limit, l->scratch, row, b));
    return OK;
}

/* ---- the ring -------------------------------------------------------------------------------- */

/* Makes one batch at the ring's end; the lock is held on entry and exit, not while working. */
static void produce(loader *l) {
    slot *to = &l->ring[(l->head + l->ready) % l->slots];
    step s = l->step;
    int64_t place = l->next;
    uint64_t generation = l->generation;
    pthread_mutex_unlock(&l->lock);
    if (place == s.begin + s.size) {
        s = (step){ .begin = place, .size = step_size(&l->o, place) };
        s.valid = count_valid(l, s);
    }
    err e = make_batch(l, place, s, &to->batch);
    pthread_mutex_lock(&l->lock);
    if (generation != l->generation) {
        err_free(e);
        return;
    }
    to->error = e;
    l->step = s;
    l->next = place + batch_windows(l);
    l->ready++;
    pthread_cond_broadcast(&l->changed);
}

static void *prefetch_main(void *arg) {
    loader *l = arg;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (l->ready == l->slots)
            pthread_cond_wait(&l->changed, &l->lock);
        else
            produce(l);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static err start_thread(loader *l) {
    sigset_t all, before;
    sigfillset(&all); /* signals are the main thread's business */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&l->thread, NULL, prefetch_main, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return err_hint(ERR("the prefetch thread does not start: %s", strerror(failed)),
                        "set the loader's prefetch to 0, or raise the limit of threads");
    l->threaded = true;
    return OK;
}

err loader_next(loader *l, data_batch *out) {
    pthread_mutex_lock(&l->lock);
    if (l->held) {
        l->head = (l->head + 1) % l->slots;
        l->ready--;
        l->held = false;
        pthread_cond_broadcast(&l->changed);
    }
    while (l->ready == 0) {
        if (l->threaded)
            pthread_cond_wait(&l->changed, &l->lock);
        else
            produce(l);
    }
    slot *s = &l->ring[l->head];
    l->held = true;
    err e = s->error;
    s->error = OK;
    *out = s->batch;
    pthread_mutex_unlock(&l->lock);
    TRY(e);
    return OK;
}

static void drop_ready(loader *l) {
    for (int i = 0; i < l->slots; i++) {
        err_free(l->ring[i].error);
        l->ring[i].error = OK;
    }
    l->ready = 0;
    l->held = false;
}

void loader_seek(loader *l, int64_t consumed) {
    BUG_IF(consumed < 0);
    pthread_mutex_lock(&l->lock);
    drop_ready(l);
    l->generation++;
    l->next = consumed;
    l->step = (step){ .begin = consumed }; /* empty: the next batch begins a step */
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

/* ---- life -------------------------------------------------------------------------------------- */

/* Fills in defaults and refuses what cannot work with this source. */
static err resolve_options(const data_source *s, loader_options *o) {
    if (o->ranks == 0) o->ranks = 1;
    if (o->step_windows == 0) o->step_windows = o->rows * o->ranks;
    if (o->range.to == 0) o->range.to = s->info.tokens;
    BUG_IF(o->seq_len < 1 || o->rows < 1 || o->rank < 0 || o->rank >= o->ranks);
    BUG_IF(o->rows * o->seq_len > INT32_MAX || o->prefetch < 0);
    BUG_IF(o->range.from < 0 || o->range.to < o->range.from || o->range.to > s->info.tokens);
    if (o->step_windows % (o->rows * o->ranks))
        return err_hint(ERR("a global batch of %lld windows is not a multiple of %d ranks x %lld "
                            "windows",
                            (long long)o->step_windows, o->ranks, (long long)o->rows),
                        "change the global batch size or the local one");
    int64_t tokens = o->range.to - o->range.from, least = o->evaluation ? 2 : o->seq_len + 1;
    if (tokens < least)
        return err_hint(ERR("%s has %lld tokens here, a window of sequence length %lld needs %lld",
                            s->info.path, (long long)tokens, (long long)o->seq_len,
                            (long long)least),
                        "use a longer file or a shorter sequence");
    return OK;
}

/* Lays the arrays of every slot out in one block: the 8-byte ones first, for alignment. */
static void carve_slots(loader *l) {
    size_t n = (size_t)(l->o.rows * l->o.seq_len), rows = (size_t)l->o.rows;
    size_t bytes = (n + rows) * sizeof(int64_t) + 4 * n * sizeof(int32_t);
    bytes = align_up(bytes, 64);
    l->memory = mem_alloc(bytes * (size_t)l->slots);
    l->ring = mem_alloc((size_t)l->slots * sizeof *l->ring);
    for (int i = 0; i < l->slots; i++) {
        data_batch *b = &l->ring[i].batch;
        b->id = (int64_t *)(void *)((char *)l->memory + bytes * (size_t)i);
        b->window = b->id + n;
        b->tokens = (int32_t *)(void *)(b->window + rows);
        b->targets = b->tokens + n;
        b->pos = b->targets + n;
        b->start = b->pos + n;
    }
}

err loader_new(const data_source *s, const loader_options *o, loader **out) {
    loader_options resolved = *o;
    TRY(resolve_options(s, &resolved));
    loader *l = mem_alloc(sizeof *l);
    l->source = s;
    l->o = resolved;
    int64_t inputs = l->o.range.to - l->o.range.from - 1;
    l->windows = (inputs + (l->o.evaluation ? l->o.seq_len - 1 : 0)) / l->o.seq_len;
    l->slots = l->o.prefetch + 1;
    l->scratch = mem_alloc((size_t)(l->o.seq_len + 1) * sizeof(int32_t));
    carve_slots(l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    err e = l->o.prefetch > 0 ? start_thread(l) : OK;
    if (e) {
        loader_free(l);
        return err_trail(e, __FILE__, __LINE__);
    }
    *out = l;
    return OK;
}

void loader_free(loader *l) {
    if (!l) return;
    if (l->threaded) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_cond_broadcast(&l->changed);
        pthread_mutex_unlock(&l->lock);
        pthread_join(l->thread, NULL);
    }
    drop_ready(l);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l->ring);
    free(l->memory);
    free(l->scratch);
    free(l);
}
