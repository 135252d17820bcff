/* Saving beside the training. The phases of a save, the same on every rank:
 *
 *                 begin              snapshot          files of this       every rank       manifest,
 *                 folder, copies     is complete       rank are written    is done          rename
 *                 are queued         (poll)            (thread)            (poll)           (thread of rank 0)
 *     IDLE ---------------> COPYING ----------> WRITING ------------> COMMITTING ------------------> IDLE
 *       ^                      |                   |                      |
 *       +----------------------+-------------------+----------------------+
 *                   an error on any rank: the temporary folder is removed
 *
 * COPYING takes no time on the CPU, where copies are complete when they are queued. A GPU that has memory to spare
 * copies into that, in milliseconds, and the thread brings it to the host piece by piece as it writes; otherwise
 * copies go to pinned memory of the host, and the next update waits for them. Phases change in
 * ckpt_saver_begin and ckpt_saver_poll alone, which all ranks call together and which agree on the outcome of
 * each phase through one exchange, so threads of ranks never talk to one another and no collective is made
 * outside of the training's order. Memory is bounded by one copy: the next save waits for this one.
 *
 * In a run of several ranks each leaves rank-R.json beside its files, with what they hold. Rank 0 merges
 * them into the manifest and removes them; the manifest comes last, then the folder gets its name. */
#include "checkpoint/checkpoint_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util/fault.h"
#include "util/wait.h"

typedef enum { IDLE, COPYING, WRITING, COMMITTING, PHASES } save_phase;

/* A tensor's copy. */
typedef struct snapshot {
    device_ticket ticket;
    const void *bytes; /* the ticket's, once it is complete, or spare memory; NULL: no copy */
    dtype dt;
    float *values; /* states that are quantized in memory: read as fp32; owned */
} snapshot;

struct ckpt_saver {
    char *run_dir;
    const model *m;
    exec *x;
    const optimizer *o;
    holding *hold;
    snapshot *copy; /* [n] */
    int n;
    bool has_root[CKPT_KINDS]; /* the folder of this kind has been made, or existed */
    save_phase phase;

    /* the save in flight */
    ckpt_kind kind;
    ckpt_state state;
    ckpt_keep keep;
    json_t *run, *tensors, *files;        /* owned; may be NULL */
    char *root, *temp, *final, *replaced; /* owned */
    bool copied; /* else tensors are read from the plan as they are written */
    char *spare; /* on the device, for copies; kept from save to save; NULL: none */
    size_t spare_bytes;
    bool on_spare;        /* the copies of this save are there */
    device_ticket bridge; /* from there to the host */
    double began;
    int64_t bytes;

    err (*job)(ckpt_saver *v);
    pthread_t thread;
    bool threaded; /* the thread is to be joined */
    _Atomic bool done;
    err error; /* of the job */
};

static bool is_first(const ckpt_saver *v) { return comm_rank(v->x->comm) == 0; }
static int rank_count(const ckpt_saver *v) { return mesh_world(comm_mesh(v->x->comm)); }
static bool on_device(const ckpt_saver *v) { return plan_has_device(v->x->plan); }

/* Changes the phase, along the arrows of the drawing above alone. */
static void set_phase(ckpt_saver *v, save_phase next) {
    static const bool may[PHASES][PHASES] = {
        [IDLE] = { [COPYING] = true },
        [COPYING] = { [WRITING] = true, [IDLE] = true },
        [WRITING] = { [COMMITTING] = true, [IDLE] = true },
        [COMMITTING] = { [IDLE] = true },
    };
    BUG_IF(!may[v->phase][next]);
    BUG_IF(v->threaded); /* no phase ends while its thread runs */
    v->phase = next;
}

/* ---- the thread ------------------------------------------------------------------------------ */
static void *run_job(void *arg) {
    ckpt_saver *v = arg;
    v->error = v->job(v);
    atomic_store(&v->done, true);
    return NULL;
}

/* Runs the job here if no thread can be started. */
static void start_job(ckpt_saver *v, err (*job)(ckpt_saver *v), bool inline_) {
    sigset_t before;
    v->job = job;
    atomic_store(&v->done, false);
    if (!inline_) {
        thread_block_signals(&before);
        v->threaded = pthread_create(&v->thread, NULL, run_job, v) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (!v->threaded) run_job(v);
}

static void join_job(ckpt_saver *v) {
    if (v->threaded) pthread_join(v->thread, NULL);
    v->threaded = false;
}

/* ---- the copy -------------------------------------------------------------------------------- */
static bool is_saved(const ckpt_saver *v, const holding *h) {
    bool wanted = v->kind == CKPT_FULL || (h->param >= 0 && h->state < 0);
    return wanted && extent_count(&h->write) > 0;
}

/* @return the address in the plan of this rank's part of a tensor; NULL for states that are quantized. */
static const void *data_of(const ckpt_saver *v, const holding *h, dtype *dt) {
    const void *at = holding_data(v->m, v->x->plan, v->o, h, dt);
    return at ? (const char *)at + (size_t)(h->write.from - h->extent.from) * dt_size(*dt) : NULL;
}

/* Reads all values of a quantized state that this rank holds. @param out owned (free). */
static err copy_quantized_state(const ckpt_saver *v, const holding *h, float **out) {
    *out = mem_alloc((size_t)(extent_count(&h->extent) + 1) * sizeof **out);
    return optim_state_get(v->o, h->param, h->state, *out);
}

static err copy_tensor(ckpt_saver *v, int i, device_queue q) {
    const holding *h = &v->hold[i];
    snapshot *s = &v->copy[i];
    const void *from = data_of(v, h, &s->dt);
    if (!from) return copy_quantized_state(v, h, &s->values);
    plan_fetch(v->x->plan, q, &s->ticket, from, (size_t)extent_count(&h->write) * dt_size(s->dt));
    return OK;
}

/* State that the forward pass changes (the scales of fp8) or that must be read at once (quantized states) is
 * copied in the compute queue's order, all else beside what is queued next. */
static bool copies_beside(const ckpt_saver *v, const holding *h) {
    dtype dt;
    return h->param >= 0 && data_of(v, h, &dt);
}

static err copy_all(ckpt_saver *v) {
    exec_join(v->x, QUEUE_COMPUTE, QUEUE_UPDATE);
    exec_join(v->x, QUEUE_COMPUTE, QUEUE_COPY_OUT);
    for (int i = 0; i < v->n; i++)
        if (is_saved(v, &v->hold[i]) && !copies_beside(v, &v->hold[i]))
            TRY(copy_tensor(v, i, QUEUE_COMPUTE));
    exec_join(v->x, QUEUE_COPY_OUT, QUEUE_COMPUTE);
    err e = OK;
    for (int i = 0; i < v->n && !e; i++)
        if (is_saved(v, &v->hold[i]) && copies_beside(v, &v->hold[i]))
            e = copy_tensor(v, i, QUEUE_COPY_OUT);
    exec_signal(v->x, QUEUE_COPY_OUT, EVENT_COPIED);
    return e;
}

/* ---- copies that stay on the device ------------------------------------------------------------- */
enum { SPARE_ALIGN = 256 };

static size_t spare_bytes(const ckpt_saver *v) {
    size_t n = 0;
    dtype dt;
    for (int i = 0; i < v->n; i++)
        if (is_saved(v, &v->hold[i]) && data_of(v, &v->hold[i], &dt))
            n += align_up((size_t)extent_count(&v->hold[i].write) * dt_size(dt), SPARE_ALIGN);
    return n;
}

/* State in host memory gains nothing from a copy on the device. */
static bool take_spare(ckpt_saver *v) {
    if (!on_device(v) || plan_host_bytes(v->x->plan) > 0) return false;
    size_t bytes = spare_bytes(v);
    if (v->spare_bytes >= bytes) return true;
    plan_unmap_spare(v->x->plan, v->spare, v->spare_bytes);
    v->spare = plan_map_spare(v->x->plan, bytes);
    v->spare_bytes = v->spare ? bytes : 0;
    return v->spare;
}

static err copy_to_spare(ckpt_saver *v) {
    char *at = v->spare;
    exec_join(v->x, QUEUE_COMPUTE, QUEUE_UPDATE);
    for (int i = 0; i < v->n; i++) {
        const holding *h = &v->hold[i];
        snapshot *s = &v->copy[i];
        if (!is_saved(v, h)) continue;
        const void *from = data_of(v, h, &s->dt);
        if (!from) {
            TRY(copy_quantized_state(v, h, &s->values));
            continue;
        }
        size_t bytes = (size_t)extent_count(&h->write) * dt_size(s->dt);
        plan_copy(v->x->plan, QUEUE_COMPUTE, at, from, bytes);
        s->bytes = at;
        at += align_up(bytes, SPARE_ALIGN);
    }
    exec_join(v->x, QUEUE_COPY_OUT, QUEUE_COMPUTE); /* which the thread reads through */
    return OK;
}

/* Pinned memory is kept for the next save: pinning takes longer than the copy. */
static void drop_copies(ckpt_saver *v, bool all) {
    for (int i = 0; i < v->n; i++) {
        free(v->copy[i].values);
        v->copy[i].values = NULL;
        v->copy[i].bytes = NULL;
        if (all || !on_device(v)) plan_drop(v->x->plan, &v->copy[i].ticket);
    }
    v->copied = false;
}

/* ---- files, in the thread ---------------------------------------------------------------------- */
typedef struct file_job {
    ckpt_saver *v;
    int *which; /* [pieces] into v->hold */
} file_job;

/* Reads elements that are written, from the copy or, without one, from the plan. */
static err get_saved(void *ctx, int piece, int64_t first, int64_t n, float *to) {
    const file_job *j = ctx;
    const holding *h = &j->v->hold[j->which[piece]];
    snapshot *s = &j->v->copy[j->which[piece]];
    dtype dt = s->dt;
    int64_t skipped = h->write.from - h->extent.from;
    if (s->values) {
        memcpy(to, s->values + skipped + first, (size_t)n * sizeof *to);
        return OK;
    }
    const char *from = j->v->copied ? s->bytes : data_of(j->v, h, &dt);
    if (!from) { /* quantized, and not copied: read once, kept to the end of the file */
        TRY(copy_quantized_state(j->v, h, &s->values));
        return get_saved(ctx, piece, first, n, to);
    }
    from += (size_t)first * dt_size(dt);
    void *raw = dt == DT_F32 ? to : mem_alloc((size_t)n * dt_size(dt));
    err e = OK;
    if (j->v->copied && j->v->on_spare)
        e = plan_pull(j->v->x->plan, QUEUE_COPY_OUT, &j->v->bridge, from, (size_t)n * dt_size(dt),
                      raw);
    else if (j->v->copied)
        memcpy(raw, from, (size_t)n * dt_size(dt));
    else
        e = plan_get(j->v->x->plan, raw, from, (size_t)n * dt_size(dt));
    if (dt != DT_F32) {
        if (!e) dt_to_f32(dt, raw, to, n);
        free(raw);
    }
    return e;
}

static err write_kind(ckpt_saver *v, const char *kind, bool weights) {
    char name[64];
    int n = 0;
    file_job j = { v, mem_alloc((size_t)(v->n + 1) * sizeof *j.which) };
    shard_piece *piece = mem_alloc((size_t)(v->n + 1) * sizeof *piece);
    for (int i = 0; i < v->n; i++) {
        const holding *h = &v->hold[i];
        if ((h->param >= 0 && h->state < 0) != weights || !is_saved(v, h)) continue;
        piece[n] = (shard_piece){ .name = h->name, .ndim = h->ndim, .extent = h->write };
        memcpy(piece[n].dim, h->dim, sizeof h->dim);
        j.which[n++] = i;
    }
    shard_name(name, sizeof name, kind, comm_rank(v->x->comm), rank_count(v));
    err e = n ? shard_write(v->temp, name, piece, n, (shard_source){ get_saved, &j }, CKPT_CHUNK,
                            v->tensors, v->files)
              : OK;
    free(j.which);
    free(piece);
    return e;
}

#define RANK_LIST_IN(v, rank) rank_list_into((char[IO_PATH_BYTES]){ 0 }, v, rank)
static char *rank_list_into(char to[IO_PATH_BYTES], const ckpt_saver *v, int rank) {
    char name[32];
    snprintf(name, sizeof name, "rank-%05d.json", rank);
    return io_join_into(to, v->temp, name);
}

static err write_rank_files(ckpt_saver *v) {
    int rank = comm_rank(v->x->comm);
    TRY(write_kind(v, "model", true));
    fault_point(FAULT_SAVE_FILE, rank);
    if (v->kind == CKPT_FULL) TRY(write_kind(v, "optim", false));
    if (fault_flips(FAULT_SAVE_FILES, rank)) {
        json_t *file = json_object_iter_value(json_object_iter(v->files));
        json_array_remove(json_object_get(file, "slices"), 0);
    }
    if (rank_count(v) == 1) return OK;
    json_t *doc = json_pack("{s:O, s:O}", "tensors", v->tensors, "files", v->files);
    err e = io_json_write(RANK_LIST_IN(v, rank), doc);
    json_decref(doc);
    fault_point(FAULT_SAVE_FILES, rank);
    return e;
}

/* ---- the manifest, in the thread of rank 0 ------------------------------------------------------- */
static err merge_list(ckpt_saver *v, int rank) {
    json_t *doc = NULL, *tensors, *files;
    const char *path = RANK_LIST_IN(v, rank);
    err e = io_json_read(path, &doc);
    if (!e) e = io_json_object(doc, path, "tensors", &tensors);
    if (!e) e = io_json_object(doc, path, "files", &files);
    if (!e) {
        json_object_update(v->tensors, tensors);
        json_object_update(v->files, files);
        e = io_remove_tree(v->temp, path);
    }
    json_decref(doc);
    return e;
}

/* Every tensor must be listed, whichever rank wrote it. */
static err check_tensors_listed(const ckpt_saver *v, const json_t *doc) {
    const json_t *tensors = json_object_get(doc, "tensors");
    for (int i = 0; i < v->n; i++) {
        const holding *h = &v->hold[i];
        bool wanted = v->kind == CKPT_FULL || (h->param >= 0 && h->state < 0);
        if (wanted && !json_object_get(tensors, h->name))
            return err_lasting(ERR("%s: no rank has saved \"%s\"", v->temp, h->name));
    }
    return OK;
}

/* Reads the manifest back: it must list every element of every tensor. If it does not, the ranks disagree on
 * who writes what, and the next save would end the same way. */
static err check_manifest_complete(const ckpt_saver *v) {
    json_t *doc = NULL;
    int64_t format;
    ckpt_index *x = NULL;
    err e = manifest_read(v->temp, &doc, &format);
    if (!e) e = check_tensors_listed(v, doc);
    if (!e) e = index_open(v->temp, doc, format, &x);
    index_close(x);
    json_decref(doc);
    if (!e || !err_is_lasting(e)) return e;
    return err_hint(e,
                    "this is a fault of ingot's, not of the disk: report it with the run's "
                    "config.yaml. Until it is mended, another optimizer.name or layout may save");
}

static err commit_save(ckpt_saver *v) {
    for (int r = 0; r < rank_count(v) && rank_count(v) > 1; r++) TRY(merge_list(v, r));
    TRY(manifest_write(v->temp, model_conf(v->m), &v->state, v->run, v->tensors, v->files,
                       CKPT_CHUNK));
    TRY(check_manifest_complete(v));
    fault_point(FAULT_SAVE_MANIFEST, 0);
    TRY(io_replace_tree(v->root, v->temp, v->final, v->replaced));
    fault_point(FAULT_SAVE_RENAMED, 0);
    err e =
        folders_remove_old(v->root, &v->keep); /* the save is complete whatever becomes of this */
    if (e) log_warn("old checkpoints stay: %s", err_message(e));
    err_free(e);
    return OK;
}

static err commit_on_first(ckpt_saver *v) { return is_first(v) ? commit_save(v) : OK; }

/* ---- phases -------------------------------------------------------------------------------------- */
static void clear_save(ckpt_saver *v) {
    drop_copies(v, false);
    json_decref(v->run);
    json_decref(v->tensors);
    json_decref(v->files);
    free(v->root);
    free(v->temp);
    free(v->final);
    free(v->replaced);
    v->run = v->tensors = v->files = NULL;
    v->root = v->temp = v->final = v->replaced = NULL;
}

/* Gives up the save. @return e. */
static err drop_save(ckpt_saver *v, err e) {
    if (is_first(v)) err_free(io_remove_tree(v->root, v->temp)); /* frees the space; e counts */
    set_phase(v, IDLE);
    clear_save(v);
    return e;
}

static void init_save(ckpt_saver *v, const ckpt_request *r) {
    v->kind = r->kind;
    v->state = *r->state;
    v->keep = r->keep;
    v->run = json_incref((json_t *)(uintptr_t)r->run);
    v->tensors = json_object();
    v->files = json_object();
    v->root = ckpt_root(v->run_dir, r->kind);
    v->temp = step_path(v->root, ".", v->state.step, STEP_TEMPORARY);
    v->final = step_path(v->root, "", v->state.step, "");
    v->replaced = step_path(v->root, ".", v->state.step, STEP_REPLACED);
    v->began = time_now();
    v->bytes = 0;
    for (int i = 0; i < v->n; i++)
        if (is_saved(v, &v->hold[i]))
            v->bytes += extent_count(&v->hold[i].write) * (int64_t)sizeof(float);
}

/* A root that no longer exists is not recreated: its disk has been unmounted, and the path leads to a
 * mount point. */
static err make_folder(ckpt_saver *v) {
    if (!v->has_root[v->kind]) TRY(io_make_dirs(v->root));
    v->has_root[v->kind] = true;
    if (!io_is_dir(v->root))
        return err_hint(ERR("%s is not there any more", v->root),
                        "mount its disk again, or move the folder back");
    TRY(io_remove_tree(v->root, v->temp));
    return io_make_dirs(v->temp);
}

static err begin_writing(ckpt_saver *v, bool inline_) {
    err e = OK;
    for (int i = 0; i < v->n && !inline_ && !v->on_spare && !e; i++)
        if (is_saved(v, &v->hold[i]) && !v->copy[i].values)
            e = plan_wait(v->x->plan, &v->copy[i].ticket, &v->copy[i].bytes);
    v->copied = !inline_ && !e;
    set_phase(v, WRITING);
    if (e) {
        v->error = e;
        atomic_store(&v->done, true);
    } else {
        start_job(v, write_rank_files, inline_);
    }
    return OK;
}

err ckpt_saver_begin(ckpt_saver *v, const ckpt_request *r) {
    BUG_IF(v->phase != IDLE);
    init_save(v, r);
    set_phase(v, COPYING);
    err e = comm_agree(v->x->comm, is_first(v) ? make_folder(v) : OK);
    if (e) return drop_save(v, err_trail(e, __FILE__, __LINE__));
    fault_point(FAULT_SAVE_BEGIN, comm_rank(v->x->comm));
    /* A copy takes as much memory as is written. Where there is not as much the training waits instead. */
    bool inline_ = r->wait || (!on_device(v) && 1.1 * (double)v->bytes >= (double)mem_free());
    v->on_spare = !inline_ && take_spare(v);
    if (!inline_) e = v->on_spare ? copy_to_spare(v) : copy_all(v);
    e = comm_agree(v->x->comm, e);
    if (e) return drop_save(v, err_trail(e, __FILE__, __LINE__));
    return inline_ || !on_device(v) ? begin_writing(v, inline_) : OK;
}

static err saver_advance(ckpt_saver *v, ckpt_report *out) {
    if (v->phase == COPYING) return begin_writing(v, false);
    double done = atomic_load(&v->done);
    TRY(comm_total(v->x->comm, &done, 1));
    if (done < rank_count(v)) return OK;
    err e = v->error;
    join_job(v);
    v->error = OK;
    e = comm_agree(v->x->comm, e); /* all ranks are done with the phase */
    if (e) return drop_save(v, err_trail(e, __FILE__, __LINE__));
    if (v->phase == WRITING) {
        drop_copies(v, false);
        set_phase(v, COMMITTING);
        start_job(v, commit_on_first, !is_first(v));
        return OK;
    }
    *out = (ckpt_report){ true, v->kind, v->state.step, v->bytes, time_now() - v->began };
    set_phase(v, IDLE);
    clear_save(v);
    return OK;
}

err ckpt_saver_poll(ckpt_saver *v, ckpt_report *out) {
    ckpt_report report = { 0 };
    err e = v->phase == IDLE ? OK : saver_advance(v, &report);
    if (out) *out = report;
    return e;
}

err ckpt_saver_wait(ckpt_saver *v, ckpt_report *out) {
    ckpt_report report = { 0 };
    err e = OK;
    while (v->phase != IDLE && !e) {
        join_job(v);
        e = saver_advance(v, &report);
    }
    if (out) *out = report;
    return e;
}

void ckpt_saver_before_update(ckpt_saver *v) {
    if (v->phase == COPYING && !v->on_spare)
        exec_await(v->x, QUEUE_COMPUTE, QUEUE_COPY_OUT, EVENT_COPIED);
}

bool ckpt_saver_is_busy(const ckpt_saver *v) { return v->phase != IDLE; }

/* ---- a saver ------------------------------------------------------------------------------------ */
ckpt_saver *ckpt_saver_new(const char *run_dir, const model *m, exec *x, const optimizer *o) {
    ckpt_saver *v = mem_alloc(sizeof *v);
    v->run_dir = strdup(run_dir);
    v->m = m;
    v->x = x;
    v->o = o;
    v->n = holdings_list(m, x->plan, o, &v->hold);
    v->copy = mem_alloc((size_t)(v->n + 1) * sizeof *v->copy);
    return v;
}

static bool lists_are_there(const ckpt_saver *v) {
    for (int r = 0; r < rank_count(v); r++)
        if (!io_exists(RANK_LIST_IN(v, r))) return false;
    return true;
}

/* The training ended with an error while a save was in flight, and other ranks may be gone. Files that all of
 * them have written, or write in the next seconds, still become a checkpoint. */
static void commit_alone(ckpt_saver *v) {
    enum { PATIENCE_S = 5 };
    wait_state w;
    wait_begin(&w, PATIENCE_S, "the files of other ranks");
    w.ignored = INT_MAX;
    if (!is_first(v) || v->phase != WRITING || v->error) return;
    while (rank_count(v) > 1 && !lists_are_there(v) && wait_nap(&w)) {
    }
    if (rank_count(v) > 1 && !lists_are_there(v)) return;
    err e = commit_save(v);
    if (!e) log_info("step %lld was still saved", (long long)v->state.step);
    err_free(e);
}

void ckpt_saver_free(ckpt_saver *v) {
    if (!v) return;
    if (v->phase == COPYING) err_free(begin_writing(v, false));
    join_job(v);
    commit_alone(v);
    err_free(v->error);
    clear_save(v);
    drop_copies(v, true);
    plan_drop(v->x->plan, &v->bridge);
    plan_unmap_spare(v->x->plan, v->spare, v->spare_bytes);
    free(v->copy);
    free(v->hold);
    free(v->run_dir);
    free(v);
}

err ckpt_save(const char *run_dir, const model *m, exec *x, const optimizer *o, const ckpt_state *s,
              const json_t *run, const ckpt_keep *keep) {
    ckpt_saver *v = ckpt_saver_new(run_dir, m, x, o);
    ckpt_request r = { .kind = CKPT_FULL, .state = s, .run = run, .wait = true };
    if (keep) r.keep = *keep;
    err e = ckpt_saver_begin(v, &r);
    if (!e) e = ckpt_saver_wait(v, NULL);
    ckpt_saver_free(v);
    return e;
}
