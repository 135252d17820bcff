/* ingot doctor --cluster: every rank of a job tests its memory, its arithmetic, its GPU, its disk and its links with
 * computations whose results are known, and rank 0 prints what each found.
 *
 *     memory    a pattern written over a part of it and read back, twice; the speed of a copy
 *     GEMM      results that are exact, over and over for some seconds; each batch is compared
 *     GPU       the same two of the GPU that the rank would train on
 *     disk      a file written, synced and read back
 *     store     an object put, read back and deleted, where a URL is given
 *     links     every pair of ranks exchanges messages both ways, all pairs of a round at a time: from host memory, and
 *               where each rank has a GPU of its own, from GPU to GPU through NCCL
 *     all       an all-reduce, a reduce-scatter and an all-gather over all ranks, of known values; between GPUs too
 *
 * With --seconds below its default, proportionally less memory and disk are tested: the whole test is as short.
 *
 * Wrong values are an error that names the rank; of links, the rank that most wrong ones have in common. What
 * is slower than half the median is marked. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/doctor.h"
#include "config/config.h"
#include "comm/comm.h"
#include "io/io.h"
#include "ops/op_table.h"
#include "ops/ops.h"
#include "store/store.h"
#include "util/fault.h"

enum { MEMORY_BYTES = 256 << 20, DISK_BYTES = 64 << 20, STORE_BYTES = 16 << 20 };
enum { LINK_ELEMENTS = 1 << 20, LINK_ROUNDS = 3 };
enum { LINK_BYTES = LINK_ELEMENTS * sizeof(float) };

/* The findings of a rank; exchanged as bytes. */
typedef struct findings {
    char host[64];
    double copy, gemm, disk_write, disk_read, store_write, store_read,
        all_reduce;                                             /* per second; 0: not measured */
    double by_algorithm[nccl_algorithm_count];                  /* all-reduces between GPUs */
    int64_t bad_memory, bad_gemm, bad_disk, bad_store, bad_all; /* wrong words and elements */
    doctor_gpu gpu;
    bool over_gpus; /* links and collectives: also from GPU to GPU */
    double slowest_link;
    int32_t slowest_peer;
    bool bad_links, bad_gpu_links; /* the cause of links with wrong values */
} findings;

enum { HOST_LINK = 1, GPU_LINK = 2 };
typedef struct examination {
    comm *c;
    int rank, n;
    pool *p;
    const op_backend *cpu, *gpu; /* gpu: NULL where there is none */
    const op_backend *at;        /* whose memory the links are tested from */
    const cluster_options *o;
    findings f;
    uint8_t *bad_link; /* [n]: what came from each rank was wrong: HOST_LINK, GPU_LINK */
} examination;

/* ---- memory and arithmetic ----------------------------------------------------------------------- */
/* @return how many of `most` bytes a test of --seconds covers; whole MiB. */
static size_t bytes_to_test(const examination *x, size_t most) {
    const size_t unit = 1 << 20;
    double share = MIN(MAX(x->o->seconds, 0) / DOCTOR_SECONDS, 1);
    return MAX((size_t)(share * (double)most) / unit, 1) * unit;
}

static err test_cpu(examination *x) {
    doctor_burn j = { .b = x->cpu, .p = x->p, .rank = x->rank, .seconds = x->o->seconds };
    size_t sharers = (size_t)MAX(comm_core_sharers(x->c), 1);
    size_t bytes = MAX(bytes_to_test(x, MEMORY_BYTES), (size_t)DOCTOR_PIECE_BYTES);
    err e = doctor_burn_memory(&j, MIN(bytes, mem_free() / 4 / sharers), &x->f.bad_memory);
    err_free(e); /* no memory to spare is not a fault of it */
    x->f.copy = ops_copy_rate(x->cpu, x->p, bytes_to_test(x, OPS_COPY_BYTES));
    return doctor_burn_gemm(&j, DT_F32, &x->f.gemm, &x->f.bad_gemm);
}

/* The GPU that this rank would train on; -1: there is none. */
static int gpu_of_rank(const examination *x) {
    int gpus = ops_cuda_count();
    return gpus ? MAX(0, comm_local_rank(x->c)) % gpus : -1;
}

static err test_gpu(examination *x) {
    int number = gpu_of_rank(x);
    if (number < 0) return OK;
    TRY(ops_open(&(ops_choice){ .kind = OPS_CUDA, .index = number }, &x->gpu));
    doctor_burn j = { .b = x->gpu, .p = x->p, .rank = x->rank, .seconds = x->o->seconds };
    return doctor_burn_gpu(&j, number, &x->f.gpu);
}

/* ---- disk --------------------------------------------------------------------------------------- */
static void fill_words(const examination *x, uint64_t *words, size_t n) {
    for (size_t i = 0; i < n; i++) words[i] = doctor_word((uint64_t)x->rank + 3, i);
}

/* @return how many words are wrong; one, at least, of another length. */
static int64_t count_wrong_words(const examination *x, const char *got, size_t bytes,
                                 size_t expected) {
    int64_t wrong = bytes != expected;
    for (size_t i = 0; i < expected / 8 && bytes == expected; i++) {
        uint64_t word;
        memcpy(&word, got + i * 8, 8);
        wrong += word != doctor_word((uint64_t)x->rank + 3, i);
    }
    return wrong;
}

static err write_and_read(examination *x, const char *path, uint64_t *buffer, size_t bytes) {
    fill_words(x, buffer, bytes / 8);
    double from = time_now();
    TRY(io_write(path, buffer, bytes)); /* syncs */
    x->f.disk_write = (double)bytes / (time_now() - from);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* from the disk, not from memory */
    if (fd >= 0) close(fd);
    char *text = NULL;
    size_t len = 0;
    from = time_now();
    TRY(io_read(path, bytes, &text, &len));
    x->f.disk_read = (double)bytes / (time_now() - from);
    x->f.bad_disk = count_wrong_words(x, text, len, bytes);
    free(text);
    return OK;
}

/* @return ".ingot-doctor-HOST-RANK", owned (free). */
static char *test_name(const examination *x) {
    str s = { 0 };
    str_add(&s, ".ingot-doctor-%s-%d", x->f.host, x->rank);
    return s.text;
}

static err test_disk(examination *x) {
    char *name = test_name(x), *path = io_join(x->o->dir, name);
    size_t bytes = bytes_to_test(x, DISK_BYTES);
    uint64_t *buffer = mem_alloc(bytes);
    err e = write_and_read(x, path, buffer, bytes);
    unlink(path);
    free(buffer);
    free(path);
    free(name);
    return e;
}

/* ---- store --------------------------------------------------------------------------------------- */
static err put_and_read(examination *x, store *s, const char *url, uint64_t *buffer) {
    char *text = NULL;
    size_t len = 0;
    fill_words(x, buffer, STORE_BYTES / 8);
    double from = time_now();
    TRY(store_put(s, url, buffer, STORE_BYTES));
    x->f.store_write = STORE_BYTES / (time_now() - from);
    from = time_now();
    err e = store_read(s, url, STORE_BYTES, &text, &len);
    x->f.store_read = STORE_BYTES / (time_now() - from);
    if (!e) x->f.bad_store = count_wrong_words(x, text, len, STORE_BYTES);
    free(text);
    err deleted = store_delete(s, url);
    if (e) err_free(deleted); /* the first counts */
    return e ? e : deleted;
}

static err test_store(examination *x) {
    store *s = NULL;
    if (!x->o->store) return OK;
    TRY(store_open(&s));
    char *name = test_name(x);
    uint64_t *buffer = mem_alloc(STORE_BYTES);
    err e = put_and_read(x, s, URL_IN(x->o->store, name), buffer);
    free(buffer);
    free(name);
    store_close(s);
    return e;
}

/* ---- links --------------------------------------------------------------------------------------- */
/* Whom a rank meets in a round, so that all meet all in n - 1 rounds (n even); the circle method. */
static int partner_of(int rank, int round, int n) {
    int last = n - 1;
    if (rank == last) return round;
    if (rank == round) return last;
    return ((2 * round - rank) % last + last) % last;
}

static float link_value(int from, int to, int64_t i) {
    return (float)((from * 1009 + to * 31 + i) % 4096);
}

static err exchange_with_peer(examination *x, int peer, bool sends, void *buffer) {
    int64_t count = LINK_ELEMENTS;
    tensor t = tensor_of(buffer, DT_F32, 1, &count);
    comm_move m = { .axes = AXIS(AX_DP_SHARD),
                    .kind = sends ? MOVE_SEND : MOVE_RECV,
                    .peer = peer,
                    .name = "link" };
    comm_ticket ticket;
    TRY(comm_start(x->c, &m, sends ? &t : NULL, sends ? NULL : &t, &ticket));
    return comm_wait(x->c, &ticket);
}

/* Buffers of the memory that links are tested from, and one to fill and compare them in. */
typedef struct link_buffers {
    void *out, *in;
    float *host;
} link_buffers;

static err buffers_open(const examination *x, link_buffers *b) {
    *b = (link_buffers){ .host = mem_alloc(LINK_BYTES) };
    TRY(doctor_map(x->at, LINK_BYTES, &b->out));
    return doctor_map(x->at, LINK_BYTES, &b->in);
}

static void buffers_free(const examination *x, link_buffers *b) {
    doctor_unmap(x->at, b->in, LINK_BYTES);
    doctor_unmap(x->at, b->out, LINK_BYTES);
    free(b->host);
}

static err test_link(examination *x, int peer, link_buffers *b) {
    for (int64_t i = 0; i < LINK_ELEMENTS; i++) b->host[i] = link_value(x->rank, peer, i);
    if (fault_flips(FAULT_DOCTOR_LINK, x->rank)) b->host[5] += 1;
    doctor_put(x->at, b->out, b->host, LINK_BYTES);
    double best = 0;
    for (int k = 0; k < LINK_ROUNDS; k++) {
        bool first = x->rank < peer;
        TRY(doctor_sync(x->at));
        double from = time_now();
        TRY(exchange_with_peer(x, peer, first, first ? b->out : b->in));
        TRY(exchange_with_peer(x, peer, !first, first ? b->in : b->out));
        TRY(doctor_sync(x->at));
        best = MAX(best, 2.0 * LINK_BYTES / (time_now() - from));
        TRY(doctor_get(x->at, b->host, b->in, LINK_BYTES));
        for (int64_t i = 0; i < LINK_ELEMENTS; i++)
            if (b->host[i] != link_value(peer, x->rank, i))
                x->bad_link[peer] |= x->at == x->cpu ? HOST_LINK : GPU_LINK;
    }
    if (x->f.slowest_peer < 0 || best < x->f.slowest_link) {
        x->f.slowest_link = best;
        x->f.slowest_peer = peer;
    }
    return OK;
}

static err test_links(examination *x) {
    int even = x->n + x->n % 2;
    link_buffers b;
    err e = comm_agree(x->c, buffers_open(x, &b));
    x->f.slowest_peer = -1;
    for (int round = 0; round + 1 < even && !e; round++) {
        int peer = partner_of(x->rank, round, even);
        if (peer < x->n) e = test_link(x, peer, &b);
        e = comm_agree(x->c, e); /* rounds do not overlap */
    }
    buffers_free(x, &b);
    return e;
}

/* Changes a tensor's placement on all ranks. */
static err move_all(examination *x, place from, place to, const tensor *in, const tensor *out) {
    comm_move m = { .axes = AXIS(AX_DP_SHARD), .from = from, .to = to, .name = "all" };
    comm_ticket ticket;
    TRY(comm_start(x->c, &m, in, out, &ticket));
    TRY(comm_wait(x->c, &ticket));
    return doctor_sync(x->at);
}

/* Sums what b->host has over all ranks, `count` elements of it, by an all-reduce, which is timed, and by a
 * reduce-scatter and an all-gather. @param which 0, 1: the way. The sums are in b->out. */
static err sum_known_values(examination *x, link_buffers *b, int64_t count, int which) {
    int64_t share = count / x->n;
    tensor all = tensor_of(b->out, DT_F32, 1, &count), part = tensor_of(b->in, DT_F32, 1, &share);
    doctor_put(x->at, b->out, b->host, LINK_BYTES);
    TRY(doctor_sync(x->at));
    double from = time_now();
    if (which == 0) {
        TRY(move_all(x, PLACE_P, PLACE_R, &all, &all));
        double rate = (double)count * sizeof(float) / (time_now() - from);
        if (x->n > 1) x->f.all_reduce = MAX(x->f.all_reduce, rate);
        return OK;
    }
    TRY(move_all(x, PLACE_P, PLACE_S(0), &all, &part));
    return move_all(x, PLACE_S(0), PLACE_R, &part, &all);
}

static err test_all(examination *x) {
    float sum = (float)(x->n * (x->n + 1) / 2);
    int64_t count = LINK_ELEMENTS / x->n * x->n; /* whole shares of all */
    link_buffers b;
    err e = comm_agree(x->c, buffers_open(x, &b));
    float *got = mem_alloc(LINK_BYTES);
    for (int64_t i = 0; i < LINK_ELEMENTS; i++) b.host[i] = (float)((x->rank + 1) * (i % 16 + 1));
    for (int k = 0; k < 2 * LINK_ROUNDS && !e; k++) {
        e = sum_known_values(x, &b, count, k % 2);
        if (!e) e = doctor_get(x->at, got, b.out, LINK_BYTES);
        for (int64_t i = 0; i < count && !e; i++)
            x->f.bad_all += got[i] != sum * (float)(i % 16 + 1);
    }
    int32_t *ranks = mem_alloc((size_t)x->n * sizeof *ranks), mine = x->rank;
    if (!e) e = comm_collect(x->c, &mine, sizeof mine, ranks);
    for (int r = 0; r < x->n && !e; r++) x->f.bad_all += ranks[r] != r;
    free(ranks);
    free(got);
    buffers_free(x, &b);
    return e;
}

/* All-reduces by each algorithm that can be chosen, also checked. */
static err time_algorithms(examination *x) {
    double before = x->f.all_reduce;
    err e = OK;
    x->f.by_algorithm[NCCL_BY_SIZE] = before;
    for (int a = 0; a < nccl_algorithm_count && !e; a++) {
        if (a == NCCL_BY_SIZE) continue;
        comm_set_algorithm(x->c, (nccl_algorithm)a);
        x->f.all_reduce = 0;
        e = test_all(x);
        x->f.by_algorithm[a] = x->f.all_reduce;
    }
    x->f.all_reduce = before;
    return e;
}

/* Once more between GPUs, where every rank has one to itself. */
static err test_gpu_links(examination *x) {
    int local = comm_local_rank(x->c);
    /* NCCL takes no two ranks of a host on one GPU, unless NCCL_HOSTID makes them hosts of their own, as tests do. */
    double own = x->gpu && local >= 0 && (local < ops_cuda_count() || getenv("NCCL_HOSTID"));
    comm *between = NULL;
    TRY(comm_total(x->c, &own, 1));
    if (x->n == 1 || own < x->n) return OK;
    const device_table *d = x->gpu->device;
    comm_gpu at = { gpu_of_rank(x), d->native_queue(x->gpu->context, QUEUE_COMPUTE), d->add,
                    x->gpu->context, NCCL_BY_SIZE };
    err e = comm_nccl(x->c, &at, &between);
    if (e && !between) { /* a build without NCCL: the same on all ranks */
        err_free(e);
        return OK;
    }
    x->c = between; /* owns the other */
    TRY(e);
    x->at = x->gpu;
    x->f.over_gpus = true;
    x->f.all_reduce = 0; /* as links: the figures are those of GPUs */
    TRY(test_links(x));
    TRY(test_all(x));
    return time_algorithms(x);
}

/* ---- the verdict ------------------------------------------------------------------------------------ */
static double median_at(const findings *all, int n, size_t offset) {
    double *v = mem_alloc((size_t)n * sizeof *v);
    for (int r = 0; r < n; r++) memcpy(&v[r], (const char *)&all[r] + offset, sizeof *v);
    sort_array(v, (size_t)n, sizeof *v, compare_doubles);
    double median = v[n / 2];
    free(v);
    return median;
}

static bool is_bad(const uint8_t *links, int n, int a, int b, int kind) {
    return ((links[a * n + b] | links[b * n + a]) & kind) != 0;
}

/* Which ranks are the cause of the bad links of a kind. A link has two ends: as long as a rank has several
 * bad ones, the rank with the most is the cause of all of them; where single links remain, both ends are
 * named. @param links [to][from] */
static void find_causes(const uint8_t *links, int n, int kind, bool *cause) {
    int *bad = mem_alloc((size_t)n * sizeof *bad);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < n; i++) bad[r] += is_bad(links, n, r, i, kind);
    for (;;) {
        int worst = 0;
        for (int r = 1; r < n; r++)
            if (bad[r] > bad[worst]) worst = r;
        if (bad[worst] < 2) break;
        cause[worst] = true;
        bad[worst] = 0;
        for (int i = 0; i < n; i++)
            if (!cause[i]) bad[i] -= is_bad(links, n, worst, i, kind);
    }
    for (int r = 0; r < n; r++) cause[r] |= bad[r] > 0;
    free(bad);
}

/* @param links [to][from] */
static void judge_links(findings *all, const uint8_t *links, int n) {
    bool *cause = mem_alloc((size_t)n * sizeof *cause), *gpu = mem_alloc((size_t)n * sizeof *gpu);
    find_causes(links, n, HOST_LINK, cause);
    find_causes(links, n, GPU_LINK, gpu);
    for (int r = 0; r < n; r++) {
        all[r].bad_links = cause[r];
        all[r].bad_gpu_links = gpu[r];
    }
    free(gpu);
    free(cause);
}

/* Appends what is wrong with a rank, and what is slow. @return whether something is wrong. */
static bool judge_rank(const findings *all, int n, int r, str *out) {
    const findings *f = &all[r];
    const struct {
        const char *text;
        bool wrong;
    } faults[] = { { "memory is wrong", f->bad_memory > 0 },
                   { "GEMM is wrong", f->bad_gemm > 0 },
                   { "GPU memory is wrong", f->gpu.wrong_words > 0 },
                   { "GPU GEMM is wrong", f->gpu.wrong_results > 0 },
                   { "disk is wrong", f->bad_disk > 0 },
                   { "store is wrong", f->bad_store > 0 },
                   { "links are wrong", f->bad_links },
                   { "GPU links are wrong", f->bad_gpu_links },
                   { "collectives are wrong", f->bad_all > 0 } };
    static const struct {
        const char *text;
        size_t offset;
    } speeds[] = { { "slow memory", offsetof(findings, copy) },
                   { "slow GEMM", offsetof(findings, gemm) },
                   { "slow GPU", offsetof(findings, gpu.bf16) },
                   { "slow disk", offsetof(findings, disk_write) },
                   { "slow store", offsetof(findings, store_write) },
                   { "slow link", offsetof(findings, slowest_link) } };
    bool wrong = false;
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        if (!faults[i].wrong) continue;
        str_add(out, "%s%s", out->len ? ", " : "", faults[i].text);
        wrong = true;
    }
    for (size_t i = 0; i < COUNT_OF(speeds); i++) {
        double v;
        memcpy(&v, (const char *)f + speeds[i].offset, sizeof v);
        if (v < 0.5 * median_at(all, n, speeds[i].offset))
            str_add(out, "%s%s", out->len ? ", " : "", speeds[i].text);
    }
    if (!out->len) str_add(out, "good");
    return wrong;
}

/* Columns of the table that depend on what the ranks have. */
static void format_cells(const findings *f, char gpu[32], char store_speed[48], char link[40]) {
    snprintf(gpu, 32, "-");
    snprintf(link, 40, "-");
    store_speed[0] = '\0';
    if (f->gpu.bf16 > 0) snprintf(gpu, 32, "%.1f TFLOP/s", f->gpu.bf16 / 1e12);
    if (f->store_write > 0)
        snprintf(store_speed, 48, "%7.0f MB/s %7.0f MB/s ", f->store_write / 1e6,
                 f->store_read / 1e6);
    if (f->slowest_peer >= 0)
        snprintf(link, 40, "%.2f GB/s (to %d)", f->slowest_link / 1e9, f->slowest_peer);
}

/* Of the slowest rank, which the others wait for. */
static void print_algorithms(const findings *all, int n) {
    printf("all-reduce of %d MiB between GPUs, by comm.nccl_algorithm:", LINK_BYTES >> 20);
    for (int a = 0; a < nccl_algorithm_count; a++) {
        double least = all[0].by_algorithm[a];
        for (int r = 1; r < n; r++) least = MIN(least, all[r].by_algorithm[a]);
        printf("%s %s %.2f GB/s", a ? "," : "", config_choice("comm.nccl_algorithm", a),
               least / 1e9);
    }
    printf("\n");
}

static err print_table(const findings *all, int n) {
    str bad = { 0 };
    int wrong = 0;
    bool gpus = all[0].over_gpus, stored = all[0].store_write > 0;
    printf("%4s  %-20s %12s %14s %14s %12s %12s %s%20s %12s  %s\n", "rank", "host", "copy", "GEMM",
           "GPU GEMM", "disk write", "disk read", stored ? " store write   store read " : "",
           gpus ? "slowest GPU link" : "slowest link", "all-reduce", "");
    for (int r = 0; r < n; r++) {
        const findings *f = &all[r];
        str verdict = { 0 };
        char link[40], gpu[32], speed[48];
        format_cells(f, gpu, speed, link);
        if (judge_rank(all, n, r, &verdict))
            str_add(&bad, "%srank %d (%s): %s", wrong++ ? "; " : "", r, f->host, verdict.text);
        printf(
            "%4d  %-20s %7.1f GB/s %7.1f GFLOP/s %14s %7.0f MB/s %7.0f MB/s %s%20s %7.2f GB/s  %s\n",
            r, f->host, f->copy / 1e9, f->gemm / 1e9, gpu, f->disk_write / 1e6, f->disk_read / 1e6,
            speed, link, f->all_reduce / 1e9, verdict.text);
        str_free(&verdict);
    }
    if (gpus) print_algorithms(all, n);
    err e = OK;
    if (wrong)
        e = err_hint(
            ERR("%d of %d ranks computed, stored or sent wrong values: %s", wrong, n, bad.text),
            "leave these hosts out: ingot launch --hosts ... --spares ...");
    str_free(&bad);
    return e;
}

/* ---- the command -------------------------------------------------------------------------------------- */
static err examine_rank(examination *x) {
    x->bad_link = mem_alloc((size_t)x->n);
    x->p = pool_new(MAX(1, thread_cores() / MAX(comm_core_sharers(x->c), 1)));
    gethostname(x->f.host, sizeof x->f.host - 1);
    x->f.slowest_peer = -1;
    x->cpu = x->at = ops_cpu(OPS_ISA_BEST);
    err e = OK;
    TRY_CLEAN(comm_agree(x->c, OK)); /* all begin together */
    TRY_CLEAN(comm_agree(x->c, test_cpu(x)));
    TRY_CLEAN(comm_agree(x->c, test_gpu(x)));
    TRY_CLEAN(comm_agree(x->c, test_disk(x)));
    TRY_CLEAN(comm_agree(x->c, test_store(x)));
    TRY_CLEAN(test_links(x));
    TRY_CLEAN(test_all(x));
    TRY_CLEAN(test_gpu_links(x));
    findings *all = mem_alloc((size_t)x->n * sizeof *all);
    uint8_t *links = mem_alloc((size_t)x->n * (size_t)x->n);
    e = comm_collect(x->c, &x->f, sizeof x->f, all);
    if (!e) e = comm_collect(x->c, x->bad_link, (size_t)x->n, links);
    judge_links(all, links, x->n);
    if (!e && x->rank == 0) e = print_table(all, x->n);
    free(links);
    free(all);
cleanup:
    pool_free(x->p);
    free(x->bad_link);
    return e;
}

err doctor_cluster(const cluster_options *o) {
    enum { TIMEOUT_S = 60 };
    comm_job *job = NULL;
    examination x = { .o = o, .n = 1 };
    TRY(comm_job_open(TIMEOUT_S, cli_exit_stalled, &job));
    if (job) {
        mesh m = { .size = { [AX_DP_SHARD] = comm_job_ranks(job) } };
        x.rank = comm_job_rank(job);
        x.n = comm_job_ranks(job);
        TRY(comm_processes(job, &m, TIMEOUT_S, true, &x.c));
    } else {
        x.c = comm_self();
    }
    err e = examine_rank(&x);
    comm_free(x.c);
    ops_close(x.gpu);
    comm_job_close(job, false);
    return e;
}
