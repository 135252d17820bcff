/* Reading any part of any tensor of a checkpoint, while verifying only the chunks that it touches, and verifying
 * all of them. */
#include "checkpoint/checkpoint_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- chunks ---------------------------------------------------------------------------------- */
static err damaged_chunk_error(const ckpt_file_info *f, int64_t from, int64_t bytes, uint64_t got,
                               uint64_t want) {
    return err_hint(ERR("%s is damaged: bytes %lld to %lld have checksum %016llx; the manifest "
                        "lists %016llx",
                        f->path, (long long)from, (long long)(from + bytes),
                        (unsigned long long)got, (unsigned long long)want),
                    "restore it from a copy, or use another checkpoint");
}

static err open_shard_file(ckpt_file_info *f) {
    int64_t bytes;
    if (f->fd >= 0) return OK;
    TRY(io_size(f->path, &bytes));
    if (bytes != f->bytes)
        return err_hint(ERR("%s is damaged: it has %lld bytes; the manifest lists %lld", f->path,
                            (long long)bytes, (long long)f->bytes),
                        "restore it from a copy, or use another checkpoint");
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) return ERR("cannot read %s: %s", f->path, strerror(errno));
    return OK;
}

static err read_file_bytes(const ckpt_file_info *f, int64_t from, int64_t n, uint8_t *to) {
    while (n > 0) {
        ssize_t got = pread(f->fd, to, (size_t)n, (off_t)from);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ERR("cannot read %s: %s", f->path, strerror(errno));
        if (got == 0) return ERR("%s ends at byte %lld", f->path, (long long)from);
        from += got;
        to += got;
        n -= got;
    }
    return OK;
}

static int64_t size_of_chunk(const ckpt_index *x, int slice, int64_t chunk) {
    return MIN(x->chunk, slice_bytes(x, &x->slice[slice]) - chunk * x->chunk);
}

/* Reads and verifies a chunk of a slice whose file is open. */
static err load_chunk(const ckpt_index *x, int slice, int64_t chunk, uint8_t *to) {
    const ckpt_slice *s = &x->slice[slice];
    const ckpt_file_info *f = &x->file[s->file];
    int64_t from = chunk * x->chunk, n = size_of_chunk(x, slice, chunk);
    TRY(read_file_bytes(f, s->offset + from, n, to));
    uint64_t got = hash_bytes(to, (size_t)n, 0);
    return got == s->hash[chunk] ? OK
                                 : damaged_chunk_error(f, s->offset + from, n, got, s->hash[chunk]);
}

static err begin_chunk(ckpt_index *x, int slice, int64_t chunk) {
    TRY(open_shard_file(&x->file[x->slice[slice].file]));
    x->bytes_read += size_of_chunk(x, slice, chunk);
    return OK;
}

/* Reads a chunk of a slice into the buffer and verifies it, unless it is there already. */
static err read_chunk_verified(ckpt_index *x, int slice, int64_t chunk) {
    if (x->held_slice == slice && x->held_chunk == chunk) return OK;
    x->held_slice = -1;
    TRY(begin_chunk(x, slice, chunk));
    if (!x->buffer) x->buffer = mem_grow(NULL, (size_t)x->chunk);
    TRY(load_chunk(x, slice, chunk, x->buffer));
    x->held_slice = slice;
    x->held_chunk = chunk;
    return OK;
}

/* Reads through a buffer, since mapped tensors may be unaligned. */
static void convert_to_f32(dtype dt, const uint8_t *from, float *to, int64_t n) {
    float aligned[1024];
    size_t size = dt_size(dt);
    int64_t most = (int64_t)(sizeof aligned / size);
    if (dt == DT_F32) {
        memcpy(to, from, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i += most) {
        int64_t m = MIN(most, n - i);
        memcpy(aligned, from + (size_t)i * size, (size_t)m * size);
        dt_to_f32(dt, aligned, to + i, m);
    }
}

/* ---- chunks that are queued -------------------------------------------------------------------
 * They are collected over many tensors and read in the order of the files, so that the system reads ahead. More threads
 * than there may be cores share the work: while some wait for the disk, others verify what they have, which costs
 * about as much as copying it from the page cache. A chunk that is wanted whole and as it is goes straight to where
 * it belongs. Of any other one (a range of ZeRO, a rectangle of tensor parallelism, another element type), the runs
 * that are wanted are copied out of a buffer of the thread once the chunk is verified. */
enum { READERS = 4, MAX_RUNS = 1 << 20 };

typedef struct chunk_run {
    int64_t at, n; /* elements, from the first of the chunk */
    float *to;
} chunk_run;

typedef struct queued_chunk {
    int slice, file;
    int64_t chunk, offset; /* offset: in the file */
    float *to;             /* all of it, as it is; NULL: its runs, or nothing but verification */
    int first_run, n_runs;
    err error;
} queued_chunk;

static err queue_chunk(ckpt_index *x, int slice, int64_t chunk, float *to) {
    TRY(begin_chunk(x, slice, chunk));
    LIST_ADD(x->queued, x->n_queued, x->queued_cap) = (queued_chunk){
        .slice = slice,
        .chunk = chunk,
        .file = x->slice[slice].file,
        .offset = x->slice[slice].offset + chunk * x->chunk,
        .to = to,
        .first_run = x->n_runs,
    };
    return OK;
}

/* Runs of a slice are queued in ascending order: those of one chunk follow each other. */
static err queue_run(ckpt_index *x, int slice, int64_t chunk, chunk_run run) {
    const queued_chunk *last = x->n_queued ? &x->queued[x->n_queued - 1] : NULL;
    if (!last || last->slice != slice || last->chunk != chunk || last->to)
        TRY(queue_chunk(x, slice, chunk, NULL));
    LIST_ADD(x->runs, x->n_runs, x->runs_cap) = run;
    x->queued[x->n_queued - 1].n_runs++;
    return OK;
}

SORT_ORDER(compare_queued_chunks, queued_chunk, RISING(file) RISING(offset));

static void read_queued_chunk(void *ctx, int64_t i, int worker) {
    ckpt_index *x = ctx;
    queued_chunk *q = &x->queued[i];
    dtype dt = x->tensor[x->slice[q->slice].tensor].dt;
    if (i > atomic_load(&x->first_failed)) return;
    uint8_t *bytes = q->to ? (uint8_t *)q->to : x->staging + (int64_t)worker * x->chunk;
    q->error = load_chunk(x, q->slice, q->chunk, bytes);
    for (int64_t first = atomic_load(&x->first_failed); q->error && i < first;)
        if (atomic_compare_exchange_weak(&x->first_failed, &first, i)) break;
    for (int k = 0; k < q->n_runs && !q->error; k++) {
        const chunk_run *r = &x->runs[q->first_run + k];
        convert_to_f32(dt, bytes + r->at * (int64_t)dt_size(dt), r->to, r->n);
    }
}

/* Threads are worth it from two full chunks on. */
static void prepare_readers(ckpt_index *x) {
    int64_t bytes = 0;
    for (int i = 0; i < x->n_queued; i++) {
        bytes += size_of_chunk(x, x->queued[i].slice, x->queued[i].chunk);
        if (!x->queued[i].to && !x->staging)
            x->staging = mem_grow(NULL, READERS * (size_t)x->chunk);
    }
    if (bytes >= 2 * x->chunk && !x->readers) x->readers = pool_new(READERS);
}

err index_read_queued(ckpt_index *x) {
    err e = OK;
    sort_array(x->queued, (size_t)x->n_queued, sizeof *x->queued, compare_queued_chunks);
    prepare_readers(x);
    atomic_store(&x->first_failed, INT64_MAX);
    pool_run(x->readers, x->n_queued, read_queued_chunk, x);
    for (int i = 0; i < x->n_queued; i++) { /* the first in the order of the files is reported */
        if (!e)
            e = x->queued[i].error;
        else
            err_free(x->queued[i].error);
    }
    x->n_queued = 0;
    x->n_runs = 0;
    return e;
}

/* ---- parts of tensors ---------------------------------------------------------------------------- */
typedef struct slice_copy {
    ckpt_index *x;
    int slice;
    dtype dt;
    float *to;
    int64_t copied;
    bool queued; /* parts of chunks too */
} slice_copy;

/* Copies n elements, from `at` of the slice to `to` of the result. */
static err copy_slice_run(void *ctx, int64_t at, int64_t to, int64_t n) {
    slice_copy *j = ctx;
    const ckpt_slice *s = &j->x->slice[j->slice];
    int64_t size = (int64_t)dt_size(j->dt), chunk = j->x->chunk / size;
    j->copied += n;
    if (s->bytes) {
        convert_to_f32(j->dt, s->bytes + at * size, j->to + to, n);
        return OK;
    }
    while (n > 0) {
        int64_t which = at / chunk, m = MIN(n, (which + 1) * chunk - at);
        int64_t whole = MIN(chunk, extent_count(&s->extent) - which * chunk);
        if (m == whole && j->dt == DT_F32) {
            TRY(queue_chunk(j->x, j->slice, which, j->to + to));
        } else if (j->queued) {
            chunk_run run = { .at = at - which * chunk, .n = m, .to = j->to + to };
            TRY(queue_run(j->x, j->slice, which, run));
        } else {
            TRY(read_chunk_verified(j->x, j->slice, which));
            convert_to_f32(j->dt, j->x->buffer + (at - which * chunk) * size, j->to + to, m);
        }
        at += m;
        to += m;
        n -= m;
    }
    return OK;
}

static err copy_from_slices(slice_copy *j, const ckpt_tensor *t, int ndim, const int64_t *dim,
                            const ckpt_extent *want) {
    for (int i = 0; i < t->n_slices; i++) {
        j->slice = t->first_slice + i;
        ckpt_extent have = j->x->slice[j->slice].extent;
        if (j->x->format < CKPT_FORMAT) have = extent_whole(ndim, dim); /* of whatever shape */
        TRY(extents_intersect(ndim, dim, &have, want, copy_slice_run, j));
    }
    if (j->copied != extent_count(want))
        return ERR("\"%s\": the checkpoint has %lld of the %lld elements that are read", t->name,
                   (long long)j->copied, (long long)extent_count(want));
    return OK;
}

err index_queue(ckpt_index *x, const ckpt_tensor *t, int ndim, const int64_t *dim,
                const ckpt_extent *want, float *to) {
    slice_copy j = { .x = x, .dt = t->dt, .to = to, .queued = true };
    if (x->n_runs > MAX_RUNS) TRY(index_read_queued(x));
    return copy_from_slices(&j, t, ndim, dim, want);
}

/* A caller that reads a tensor piece by piece returns to the same chunk, so parts of chunks are copied from the one
 * that is kept. */
err index_read(ckpt_index *x, const ckpt_tensor *t, int ndim, const int64_t *dim,
               const ckpt_extent *want, float *to) {
    slice_copy j = { .x = x, .dt = t->dt, .to = to };
    BUG_IF(x->n_queued); /* what was queued belongs to others */
    err e = copy_from_slices(&j, t, ndim, dim, want);
    if (!e) return index_read_queued(x);
    x->n_queued = 0;
    return e;
}

/* ---- verifying ------------------------------------------------------------------------------- */
static err verify_header(ckpt_index *x, ckpt_file_info *f) {
    uint8_t *bytes = mem_alloc((size_t)f->header_bytes + 1);
    err e = open_shard_file(f);
    if (!e) e = read_file_bytes(f, 0, f->header_bytes, bytes);
    x->bytes_read += f->header_bytes;
    uint64_t got = e ? 0 : hash_bytes(bytes, (size_t)f->header_bytes, 0);
    if (!e && got != f->header_hash)
        e = damaged_chunk_error(f, 0, f->header_bytes, got, f->header_hash);
    free(bytes);
    return e;
}

err index_verify(ckpt_index *x, int share, int shares) {
    int64_t number = 0;
    BUG_IF(x->format != CKPT_FORMAT);
    for (int i = 0; i < x->files; i++)
        if (number++ % shares == share) TRY(verify_header(x, &x->file[i]));
    for (int i = 0; i < x->slices; i++)
        for (int64_t k = 0, n = slice_chunks(x, &x->slice[i]); k < n; k++)
            if (number++ % shares == share) TRY(queue_chunk(x, i, k, NULL));
    return index_read_queued(x);
}
