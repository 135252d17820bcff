/* The loader: which windows come when, and the threads that make batches ahead of their use.
 *
 * Batches live in a ring of prefetch + 1 slots. A worker claims the next slot and makes its batch;
 * the caller holds slot `head` until its next call:
 *
 *        head                      head + claimed
 *     [ held ][ ready ][ making ][ ready ][ free ]
 *
 * The content of a slot depends on the number of windows consumed alone, so batches are the same
 * with any number of workers and with none. A seek waits until no worker makes a batch.
 *
 * A rank's targets of a step are counted before the step's first batch is returned, by the worker that
 * claims that batch; workers that claim later batches of the step wait for the sum.
 */
#include "shards/data_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* A step of training: the windows between two updates. */
typedef struct step {
    int64_t begin, size; /* windows consumed: [begin, begin + size) */
    int64_t valid;       /* targets of this rank in them; -1: not counted yet */
} step;

typedef struct batch_slot {
    data_batch batch;
    err error; /* owned until handed to the caller */
    bool ready;
} batch_slot;

struct loader {
    window_source *sources; /* [n_sources + clean] */
    int n_sources, clean;   /* clean: 1 where there is a source that replaces windows of others */
    bool remote;            /* a source is in an object store */
    mix *mix;
    loader_options o; /* defaults resolved */
    int slots, workers;
    batch_slot *ring;  /* [slots] */
    void *memory;      /* of the slots' arrays */
    row_maker *makers; /* [workers], or one of the caller's if it has no workers */
    pthread_t *threads;
    int started;

    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    bool stop, pause, held;
    int head, claimed, making;
    int64_t next;      /* windows consumed before the next batch to make */
    int64_t requested; /* ... before the first batch that was not requested yet */
    step *steps;       /* [slots + 1] a ring too: at most that many are being made */
    int64_t n_step;    /* begun so far; the last is steps[n_step % (slots + 1)] */
};

/* ---- which windows ------------------------------------------------------------------------ */

static int64_t batch_windows(const loader *l) { return l->o.rows * l->o.ranks; }

int64_t loader_windows(const loader *l) {
    int64_t sum = 0;
    for (int i = 0; i < l->n_sources; i++) sum += l->sources[i].windows;
    return sum;
}

int64_t loader_batches(const loader *l) {
    return (loader_windows(l) + batch_windows(l) - 1) / batch_windows(l);
}

int64_t loader_total(const loader *l) {
    int64_t total = mix_total(l->mix);
    for (int i = 0; i < l->o.skips.n && total < INT64_MAX; i++) {
        data_range r = l->o.skips.at[i];
        total -= MAX(0, MIN(r.to, mix_total(l->mix)) - r.from);
    }
    return total;
}

loader_source loader_source_at(const loader *l, int source) {
    return (loader_source){ .share = mix_share(l->mix, source, 0),
                            .windows = l->sources[source].windows,
                            .most = mix_most(l->mix, source) };
}

double loader_source_share(const loader *l, int source, int64_t consumed) {
    return mix_share(l->mix, source, data_skips_position(&l->o.skips, consumed));
}

int64_t loader_source_consumed(const loader *l, int source, int64_t consumed) {
    int64_t total = mix_total(l->mix);
    int64_t position = MIN(data_skips_position(&l->o.skips, consumed), total);
    int64_t count = mix_count(l->mix, source, position);
    const data_skips *left_out[] = { &l->o.skips, &l->o.replaced };
    for (int k = 0; k < 1 + l->clean; k++)
        for (int i = 0; i < left_out[k]->n && left_out[k]->at[i].from < position; i++)
            count -= mix_count(l->mix, source, MIN(left_out[k]->at[i].to, position)) -
                     mix_count(l->mix, source, left_out[k]->at[i].from);
    return count;
}

int64_t loader_row_token(const loader *l, const data_batch *b, int64_t row) {
    return b->id[row * l->o.seq_len] - l->sources[b->source[row]].first;
}

/* @return the window that is read after `consumed` others, which are fewer than loader_total. */
static window_ref window_at(const loader *l, int64_t consumed) {
    if (l->o.evaluation) {
        int64_t round = loader_batches(l) * batch_windows(l);
        return (window_ref){ 0, consumed % round, consumed / round };
    }
    int64_t position = data_skips_position(&l->o.skips, consumed);
    mix_turn m;
    if (l->clean && data_skips_holds(&l->o.replaced, position))
        m = (mix_turn){ l->n_sources, data_skips_before(&l->o.replaced, position) };
    else
        m = mix_at(l->mix, position);
    const window_source *s = &l->sources[m.source];
    int64_t epoch = m.number / s->windows, i = m.number % s->windows;
    if (!l->o.in_order) i = data_permute(s->seed, epoch, s->windows, i);
    return (window_ref){ m.source, i, epoch };
}

loader_place loader_find(const loader *l, int64_t consumed) {
    window_ref w = window_at(l, consumed);
    return (loader_place){ w.source, w.window, w.epoch,
                           window_first_token(&l->sources[w.source], &l->o, w) };
}

/* @return the longest piece of a document in a step that begins at `consumed`. */
static int64_t curriculum_limit(const loader_options *o, int64_t consumed) {
    if (o->curriculum_start <= 0 || o->curriculum_start >= o->seq_len) return o->seq_len;
    if (o->curriculum_windows <= 0) return o->curriculum_start;
    if (consumed >= o->curriculum_windows) return o->seq_len;
    double done = (double)consumed / (double)o->curriculum_windows;
    return o->curriculum_start + (int64_t)(done * (double)(o->seq_len - o->curriculum_start));
}

/* Whether every window has seq_len targets, whatever it holds. */
static bool always_full(const loader *l) {
    if (l->o.evaluation || l->o.guard.on || l->o.packing != PACK_CONCAT) return false;
    for (int i = 0; i < l->n_sources + l->clean; i++)
        if (l->sources[i].source->info.prompts) return false;
    if (l->o.epoch_offset && !l->o.in_order) return false; /* one crosses the range's end */
    return !l->o.mask_documents || (l->n_sources == 1 && l->sources[0].source->info.eos < 0 &&
                                    !l->sources[0].source->indexed);
}

/* Whether the step is the one batch that is about to be made, whose own count is then the step's. */
static bool batch_is_step(const loader *l, const step *s) { return s->size == batch_windows(l); }

/* Finds a window and prefetches it: it may be anywhere in memory, and is read one window later. */
static window_ref prefetch_window(const loader *l, int64_t consumed) {
    window_ref w = window_at(l, consumed);
    window_prefetch(&l->sources[w.source], &l->o, w);
    return w;
}

/* The i-th window of this rank in a step: of every microbatch it has some rows. */
static int64_t own_window(const loader *l, const step *s, int64_t i) {
    return s->begin + i / l->o.rows * batch_windows(l) + l->o.rank * l->o.rows + i % l->o.rows;
}

static err count_step_targets(const loader *l, const step *s, row_maker *m, int64_t *out) {
    int64_t own = s->size / l->o.ranks, valid = 0;
    *out = own * l->o.seq_len;
    if (always_full(l)) return OK;
    window_ref w, next = window_at(l, own_window(l, s, 0));
    for (int64_t i = 0; i < own; i++) {
        w = next;
        if (i + 1 < own) next = prefetch_window(l, own_window(l, s, i + 1));
        int64_t here;
        TRY(window_valid(&l->sources[w.source], &l->o, w, m, &here));
        valid += here;
    }
    *out = valid;
    return OK;
}

/* ---- asking for what will be read -------------------------------------------------------------
 * Of sources in an object store, the chunks of the next AHEAD batches are requested, as far as they fit into half
 * of the cache, so that they arrive before their turn. */
enum { AHEAD = 64 };

static int64_t batches_ahead(const loader *l) {
    int64_t most = l->remote ? AHEAD : 0;
    for (int i = 0; i < l->n_sources; i++) {
        const chunk_cache *c = l->sources[i].source->cache;
        if (c) most = MIN(most, chunk_cache_limit(c) / 2 / TOKFILE_CHUNK / l->o.rows);
    }
    return l->remote ? MAX(most, 1) : 0;
}

/* Requests this rank's windows of the microbatches from `from` to `to`, in windows consumed. */
static void request_windows(const loader *l, int64_t from, int64_t to) {
    if (!l->o.evaluation) to = MIN(to, loader_total(l));
    for (int64_t at = from; at + batch_windows(l) <= to; at += batch_windows(l))
        for (int64_t row = 0; row < l->o.rows; row++) {
            window_ref w = window_at(l, at + l->o.rank * l->o.rows + row);
            window_request(&l->sources[w.source], &l->o, w);
        }
}

/* Makes the microbatch that begins after `consumed` windows, in step `s`. */
static err make_batch(const loader *l, int64_t consumed, const step *s, row_maker *m,
                      data_batch *b) {
    int64_t unit = batch_windows(l), first = consumed + l->o.rank * l->o.rows;
    b->valid_here = 0;
    b->microbatch = (consumed - s->begin) / unit;
    b->microbatches = s->size / unit;
    b->consumed = consumed + unit;
    int64_t limit = curriculum_limit(&l->o, s->begin);
    window_ref w, next = window_at(l, first);
    b->epoch = next.epoch;
    for (int64_t row = 0; row < l->o.rows; row++) {
        w = next;
        if (row + 1 < l->o.rows) next = prefetch_window(l, first + row + 1);
        TRY(window_fill(&l->sources[w.source], &l->o, w, limit, m, row, b));
    }
    return OK;
}

/* ---- the ring -------------------------------------------------------------------------------- */

static step *step_at(loader *l, int64_t number) { return &l->steps[number % (l->slots + 1)]; }

/* Makes one batch at the ring's end; the lock is held on entry and exit, not while working. */
static void produce_batch(loader *l, row_maker *m) {
    batch_slot *made = &l->ring[(l->head + l->claimed++) % l->slots];
    int64_t consumed = l->next;
    if (l->n_step < 0 || consumed == step_at(l, l->n_step)->begin + step_at(l, l->n_step)->size)
        *step_at(l, ++l->n_step) =
            (step){ .begin = consumed, .size = batch_ramp_size(&l->o.ramp, consumed), .valid = -1 };
    step *shared = step_at(l, l->n_step), s = *shared;
    l->next = consumed + batch_windows(l);
    int64_t to = l->next + batches_ahead(l) * batch_windows(l), from = MAX(l->requested, l->next);
    l->requested = MAX(from, to);
    l->making++;
    err e = OK;
    bool first = consumed == s.begin;
    if (!l->o.evaluation && s.begin + s.size > loader_total(l))
        e = err_hint(ERR("the data ends after %lld windows: every source has been through its "
                         "epochs, and the step after window %lld needs more",
                         (long long)loader_total(l), (long long)s.begin),
                     "train for fewer steps, or raise `epochs` in the mix file");
    pthread_mutex_unlock(&l->lock);
    request_windows(l, from, to);
    if (!e && first && !batch_is_step(l, &s)) e = count_step_targets(l, &s, m, &s.valid);
    if (!e) e = make_batch(l, consumed, &s, m, &made->batch);
    if (!e && first && batch_is_step(l, &s)) s.valid = made->batch.valid_here;
    pthread_mutex_lock(&l->lock);
    if (first) {
        shared->valid = MAX(s.valid, 0);
        pthread_cond_broadcast(&l->changed);
    }
    while (shared->valid < 0) pthread_cond_wait(&l->changed, &l->lock);
    made->batch.valid = shared->valid;
    made->error = e;
    made->ready = true;
    l->making--;
    pthread_cond_broadcast(&l->changed);
}

typedef struct loader_worker {
    loader *l;
    int index;
} loader_worker;

static void *loader_worker_main(void *arg) {
    loader_worker w = *(loader_worker *)arg;
    free(arg);
    loader *l = w.l;
    pthread_mutex_lock(&l->lock);
    while (!l->stop) {
        if (l->pause || l->claimed == l->slots)
            pthread_cond_wait(&l->changed, &l->lock);
        else
            produce_batch(l, &l->makers[w.index]);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static err start_workers(loader *l) {
    sigset_t before;
    thread_block_signals(&before);
    int failed = 0;
    while (l->started < l->workers && !failed) {
        loader_worker *w = mem_alloc(sizeof *w);
        *w = (loader_worker){ l, l->started };
        failed = pthread_create(&l->threads[l->started], NULL, loader_worker_main, w);
        if (failed)
            free(w);
        else
            l->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return err_hint(
            ERR("a prefetch thread does not start: %s", strerror(failed)),
            "set data.prefetch to 0, lower data.workers, or raise the limit of threads");
    return OK;
}

err loader_next(loader *l, data_batch *out) {
    pthread_mutex_lock(&l->lock);
    if (l->held) {
        l->ring[l->head].ready = false;
        l->head = (l->head + 1) % l->slots;
        l->claimed--;
        l->held = false;
        pthread_cond_broadcast(&l->changed);
    }
    if (l->workers == 0) produce_batch(l, &l->makers[0]);
    batch_slot *s = &l->ring[l->head];
    while (!s->ready) pthread_cond_wait(&l->changed, &l->lock);
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
        l->ring[i].ready = false;
    }
    l->claimed = 0;
    l->held = false;
}

/* Stops the workers between two batches; the lock is held on return. */
static void pause_workers(loader *l) {
    pthread_mutex_lock(&l->lock);
    l->pause = true;
    while (l->making > 0) pthread_cond_wait(&l->changed, &l->lock);
    drop_ready(l);
    l->n_step = -1; /* the next batch begins a step */
}

static void resume_workers(loader *l) {
    l->pause = false;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

void loader_seek(loader *l, int64_t consumed) {
    BUG_IF(consumed < 0);
    pause_workers(l);
    l->next = l->requested = consumed;
    resume_workers(l);
}

void loader_set_skips(loader *l, const data_skips *skips) {
    pause_workers(l);
    l->o.skips = *skips;
    resume_workers(l);
}

void loader_set_replaced(loader *l, const data_skips *replaced) {
    BUG_IF(replaced->n && !l->clean);
    pause_workers(l);
    l->o.replaced = *replaced;
    resume_workers(l);
}

/* Packed windows follow the documents, and windows in order the file: neither is shifted. */
static void set_shifts(loader *l) {
    for (int i = 0; i < l->n_sources + l->clean; i++)
        l->sources[i].shifts =
            l->o.epoch_offset && !l->o.in_order && !l->o.evaluation && !l->sources[i].pack;
}

void loader_set_epoch_offset(loader *l, bool on) {
    pause_workers(l);
    l->o.epoch_offset = on;
    set_shifts(l);
    resume_workers(l);
}

/* ---- making and freeing -------------------------------------------------------------------------------------- */

/* Fills in defaults and refuses what cannot work. */
static err resolve_options(loader_options *o) {
    if (o->ranks == 0) o->ranks = 1;
    if (o->workers == 0) o->workers = 1;
    if (o->step_windows == 0) o->step_windows = o->rows * o->ranks;
    if (o->ramp.unit == 0) o->ramp.unit = o->rows * o->ranks;
    if (o->ramp.full == 0) o->ramp.full = o->step_windows;
    BUG_IF(o->ramp.unit % (o->rows * o->ranks) || o->ramp.full != o->step_windows);
    BUG_IF(o->seq_len < 1 || o->rows < 1 || o->rank < 0 || o->rank >= o->ranks);
    BUG_IF(o->rows * o->seq_len > INT32_MAX || o->prefetch < 0 || o->workers < 0);
    if (o->step_windows % (o->rows * o->ranks))
        return err_hint(ERR("a global batch of %lld windows is not a multiple of %d ranks x %lld "
                            "windows",
                            (long long)o->step_windows, o->ranks, (long long)o->rows),
                        "change the global batch size or the local one");
    if (data_packing_traits[o->packing] & PACK_BY_DOCUMENT && !o->mask_documents)
        return err_hint(ERR("packing puts documents side by side that have nothing to do with one "
                            "another, so attention must stay inside each"),
                        "set data.documents=true, or data.packing=concat");
    return OK;
}

/* Fills in the windows of one source. */
static err open_windows(const mix_source *p, int index, const loader_options *o, window_source *s) {
    const data_info *info = data_source_info(p->source);
    data_range r = p->range;
    if (r.to == 0) r.to = info->tokens;
    BUG_IF(r.from < 0 || r.to < r.from || r.to > info->tokens);
    bool packs = data_packing_traits[o->packing] & PACK_BY_DOCUMENT && !o->evaluation;
    int64_t tokens = r.to - r.from, least = o->evaluation || packs ? 2 : o->seq_len + 1;
    if (tokens < least)
        return err_hint(ERR("%s has %lld tokens here, a window of sequence length %lld needs %lld",
                            info->path, (long long)tokens, (long long)o->seq_len, (long long)least),
                        "use a longer file or a shorter sequence");
    *s = (window_source){ .source = p->source, .range = r, .name = p->name };
    /* A source alone keeps the seed; others get orders of their own. */
    s->seed = index == 0 ? o->seed : hash_bytes(&index, sizeof index, o->seed);
    if (o->guard.on && o->guard.malformed > 0 && !o->evaluation)
        s->text = guard_text_new(info, o->guard.tokenizer);
    if (packs) {
        s->pack = packing_new(o->packing, p->source, r, o->seq_len);
        s->windows = packing_windows(s->pack);
    } else {
        s->windows = (tokens - 1 + (o->evaluation ? o->seq_len - 1 : 0)) / o->seq_len;
    }
    return OK;
}

/* Lays the arrays of every slot out in one block: the 8-byte ones first, for alignment. */
static void carve_slots(loader *l) {
    size_t n = (size_t)(l->o.rows * l->o.seq_len), rows = (size_t)l->o.rows;
    size_t bytes = (n + 2 * rows) * sizeof(int64_t) + (4 * n + rows) * sizeof(int32_t) + rows;
    bytes = align_up(bytes, 64);
    l->memory = mem_alloc(bytes * (size_t)l->slots);
    l->ring = mem_alloc((size_t)l->slots * sizeof *l->ring);
    for (int i = 0; i < l->slots; i++) {
        data_batch *b = &l->ring[i].batch;
        b->id = (int64_t *)(void *)((char *)l->memory + bytes * (size_t)i);
        b->window = b->id + n;
        b->row_valid = b->window + rows;
        b->tokens = (int32_t *)(void *)(b->row_valid + rows);
        b->targets = b->tokens + n;
        b->pos = b->targets + n;
        b->start = b->pos + n;
        b->source = b->start + n;
        b->guard = (uint8_t *)(void *)(b->source + rows);
    }
}

static void make_makers(loader *l) {
    size_t n = (size_t)l->o.seq_len + 1;
    int makers = MAX(1, l->workers);
    l->makers = mem_alloc((size_t)makers * sizeof *l->makers);
    for (int i = 0; i < makers; i++) {
        l->makers[i].ids = mem_alloc(n * sizeof(int32_t));
        l->makers[i].ends = mem_alloc(n * sizeof(int32_t));
        l->makers[i].held = mem_alloc((size_t)(l->n_sources + l->clean) * sizeof(packed));
    }
}

static err open_mix_sources(loader *l, const mix_source *sources) {
    int64_t first = 0;
    err e = OK;
    int64_t *windows = mem_alloc((size_t)l->n_sources * sizeof *windows);
    int64_t *begin = mem_alloc((size_t)l->o.n_phases * sizeof *begin + 1);
    for (int i = 0; i < l->n_sources; i++) {
        TRY_CLEAN(open_windows(&sources[i], i, &l->o, &l->sources[i]));
        l->sources[i].first = first;
        windows[i] = l->sources[i].windows;
        first += sources[i].source->info.tokens;
        l->remote = l->remote || sources[i].source->cache;
    }
    if (l->clean) {
        TRY_CLEAN(open_windows(l->o.clean, l->n_sources, &l->o, &l->sources[l->n_sources]));
        l->sources[l->n_sources].first = first;
        l->remote = l->remote || l->o.clean->source->cache;
    }
    for (int i = 0; i < l->o.n_phases; i++)
        begin[i] = (int64_t)(l->o.phases[i] / (double)l->o.seq_len);
    e = mix_new(sources, l->n_sources, windows, l->o.n_phases, begin, &l->mix);
cleanup:
    free(windows);
    free(begin);
    return e;
}

err loader_new_mix(const mix_source *sources, int n, const loader_options *o, loader **out) {
    loader_options resolved = *o;
    BUG_IF(n < 1 || (n > 1 && o->evaluation));
    TRY(resolve_options(&resolved));
    loader *l = mem_alloc(sizeof *l);
    l->o = resolved;
    l->n_sources = n;
    l->clean = o->clean != NULL;
    l->sources = mem_alloc((size_t)(n + l->clean) * sizeof *l->sources);
    l->slots = l->o.prefetch + 1;
    l->steps = mem_alloc((size_t)(l->slots + 1) * sizeof *l->steps);
    l->n_step = -1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    err e = OK;
    TRY_CLEAN(open_mix_sources(l, sources));
    set_shifts(l);
    l->workers = l->o.prefetch > 0 ? MIN(l->o.workers, l->o.prefetch) : 0;
    l->threads = mem_alloc((size_t)(l->workers + 1) * sizeof *l->threads);
    carve_slots(l);
    make_makers(l);
    TRY_CLEAN(start_workers(l));
    *out = l;
    l = NULL;
cleanup:
    loader_free(l);
    return e;
}

err loader_new(const data_source *s, const loader_options *o, loader **out) {
    mix_source source = { .name = s->info.path, .source = s, .range = o->range };
    return loader_new_mix(&source, 1, o, out);
}

void loader_free(loader *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < l->started; i++) pthread_join(l->threads[i], NULL);
    if (l->ring) drop_ready(l);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    for (int i = 0; l->makers && i < MAX(1, l->workers); i++) {
        free(l->makers[i].ids);
        free(l->makers[i].ends);
        for (int k = 0; k < l->n_sources + l->clean; k++) packed_free(&l->makers[i].held[k]);
        free(l->makers[i].held);
        guard_buffer_free(&l->makers[i].guard);
    }
    for (int i = 0; i < l->n_sources + l->clean; i++) {
        packing_free(l->sources[i].pack);
        guard_text_free(l->sources[i].text);
    }
    free(l->makers);
    free(l->sources);
    mix_free(l->mix);
    free(l->threads);
    free(l->steps);
    free(l->ring);
    free(l->memory);
    free(l);
}
