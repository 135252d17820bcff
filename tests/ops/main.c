/* Tests ops, each on the backend chosen: the CPU with every instruction set it has, or a GPU.
 *
 *     test_ops [--device cpu|cuda] [--seed N] [--most ELEMENTS] [--threads N] [--deterministic] [--own-gemms]
 *              [--part K/N] [NAME ...]
 *
 * NAME: these ops, with their backward ops; without, all. --seed: of the wide cases. --most: without wide cases of more elements. --threads: of the CPU that a device is compared with. --deterministic: the device's
 * deterministic mode, in which every call is made twice and must be bit-exact. --own-gemms: GEMMs by our own kernel wherever it
 * fits, not by the fastest. --part: the K-th of N parts of the
 * ops, which together are all of them.
 *
 * One line per op; the last line is 'N passed, N failed'. */
#include "harness.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct harness harness;

static const op_spec *const families[] = { elementwise_specs, norm_specs,   heads_specs,
                                           latent_specs,      delta_specs,  linear_specs,
                                           fp8_specs,         update_specs, expert_specs };

/* Ops that are not kernels of a backend, and what tests them. */
static const struct {
    op_code op;
    const char *where;
} elsewhere[] = {
    { OP_COMM, "tests/parity/test_layouts.c" }, /* the executor runs it */
};

void spec_error(const op_spec *s, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "test_ops: spec %s: ", spec_name(s));
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(2);
}

/* ---- the ops ----------------------------------------------------------------------------------------- */
static bool spec_covers(const op_spec *s, op_code op) {
    op_code ops[MAX_CALLS];
    int n = spec_ops(s, ops);
    for (int i = 0; i < n; i++)
        if (ops[i] == op) return true;
    return false;
}

/* Runs every spec of this op that has not run yet. */
static void check_op(op_code op) {
    static const op_spec *ran[256];
    static int count;
    for (size_t f = 0; f < COUNT_OF(families); f++)
        for (const op_spec *s = families[f]; s->op; s++) {
            bool before = false;
            if (!spec_covers(s, op)) continue;
            harness.record[op].covered = true;
            if (!s->reference && !s->checked_in)
                spec_error(s, "it has no reference, and no test that has one");
            if (!s->reference) harness.record[op].checked_in = s->checked_in;
            for (int i = 0; i < count; i++) before |= ran[i] == s;
            if (before) continue;
            BUG_IF(count == COUNT_OF(ran));
            ran[count++] = s;
            check_spec(s);
        }
}

/* @return the number of the first spec of this op, which it shares with its backward op; 0 when it has none */
static int first_spec(op_code op) {
    int n = 0;
    for (size_t f = 0; f < COUNT_OF(families); f++)
        for (const op_spec *s = families[f]; s->op; s++, n++)
            if (spec_covers(s, op)) return n;
    return 0;
}

static const char *tested_elsewhere(op_code op) {
    for (size_t i = 0; i < COUNT_OF(elsewhere); i++)
        if (elsewhere[i].op == op) return elsewhere[i].where;
    return NULL;
}

/* @return whether it passed */
static bool report_op(op_code op) {
    const char *where = tested_elsewhere(op);
    op_record *r = &harness.record[op];
    if (!where) check_op(op);
    if (where)
        printf("ok   %-20s tested by %s\n", op_name(op), where);
    else if (!r->covered)
        printf("FAIL %-20s %s has no test spec; add one to tests/ops/spec_*.c\n", op_name(op),
               op_name(op));
    else if (r->failure[0])
        printf("FAIL %-20s %s\n", op_name(op), r->failure);
    else if (!r->where[0])
        printf("ok   %-20s bit-exact on any number of threads; values: %s\n", op_name(op),
               r->checked_in);
    else
        printf("ok   %-20s worst: %s\n", op_name(op), r->where);
    fflush(stdout);
    return where || (r->covered && !r->failure[0]);
}

/* ---- the command line -------------------------------------------------------------------------------- */
static op_code op_named(const char *name) {
    const char *nearest = NULL;
    for (op_code op = 1; op < OP_COUNT; op++) {
        if (!strcmp(op_name(op), name)) return op;
        nearest = str_nearer(name, op_name(op), nearest);
    }
    fprintf(stderr, "test_ops: no op is called '%s'; near it:", name);
    int shown = 0;
    for (op_code op = 1; op < OP_COUNT; op++) {
        bool part = strstr(op_name(op), name) || str_starts(name, op_name(op));
        if (part || (nearest && op_name(op) == nearest))
            fprintf(stderr, "%s %s", shown++ ? "," : "", op_name(op));
    }
    fprintf(stderr, "%s\n", shown ? "" : " none; src/engine/ops/ops.def lists them");
    exit(2);
}

static void usage(const char *what, const char *argument) {
    fprintf(stderr,
            "test_ops: %s '%s'; usage: test_ops [--device cpu|cuda] [--seed N] [--most ELEMENTS] "
            "[--threads N] [--few] [--deterministic] [--own-gemms] [--part K/N] [NAME ...]\n",
            what, argument);
    exit(2);
}

static int64_t number_of(const char *option, const char *text) {
    char *end;
    long long n = text ? strtoll(text, &end, 10) : -1;
    if (n < 0 || *end) usage("a number is missing after", option);
    return n;
}

typedef struct settings {
    const char *device;
    int64_t threads;
    int part, parts; /* part: from 0 */
    bool chosen[OP_COUNT], any;
} settings;

/* The op, and those that its specs test with it: its backward ops. */
static void choose(settings *s, op_code op) {
    op_code ops[MAX_CALLS];
    s->any = s->chosen[op] = true;
    for (size_t f = 0; f < COUNT_OF(families); f++)
        for (const op_spec *k = families[f]; k->op; k++)
            for (int n = k->op == op ? spec_ops(k, ops) : 0; n; n--) s->chosen[ops[n - 1]] = true;
}

static void parse_part(settings *s, const char *text) {
    int end = 0;
    if (sscanf(text, "%d/%d%n", &s->part, &s->parts, &end) < 2 || text[end] || s->part < 1 ||
        s->part > s->parts)
        usage("not a part such as 1/2:", text);
    s->part--;
}

static void parse(settings *s, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(a, "--device") && next)
            s->device = argv[++i];
        else if (!strcmp(a, "--seed"))
            harness.seed = (uint64_t)number_of(a, next), i++;
        else if (!strcmp(a, "--most"))
            harness.most = number_of(a, next), i++;
        else if (!strcmp(a, "--threads"))
            s->threads = number_of(a, next), i++;
        else if (!strcmp(a, "--part") && next)
            parse_part(s, argv[++i]);
        else if (!strcmp(a, "--few"))
            harness.few = true;
        else if (!strcmp(a, "--deterministic"))
            harness.deterministic = true;
        else if (!strcmp(a, "--own-gemms"))
            harness.own_gemms = true;
        else if (a[0] == '-')
            usage("unknown option", a);
        else
            choose(s, op_named(a));
    }
    if (strcmp(s->device, "cpu") && strcmp(s->device, "cuda")) usage("no device", s->device);
}

static void open_backends(const settings *s) {
    for (int i = 0; ops_cpu_isa(i); i++) {
        BUG_IF(harness.cpus == COUNT_OF(harness.cpu));
        harness.cpu[harness.cpus++] = ops_cpu(ops_cpu_isa(i));
    }
    harness.pools[1] = pool_new(2);
    harness.pools[2] = pool_new(3);
    if (!strcmp(s->device, "cpu")) return;
    op_backend *gpu = NULL;
    harness.pool = pool_new((int)s->threads);
    int flags =
        (harness.deterministic ? OPS_DETERMINISTIC : 0) | (harness.own_gemms ? OPS_OWN_GEMMS : 0);
    err e = ops_cuda_open(0, flags, &gpu);
    if (e) {
        err_print(stderr, e, true);
        exit(2);
    }
    harness.device = gpu;
}

int main(int argc, char **argv) {
    settings s = { .device = "cpu", .parts = 1 };
    int passed = 0, bad = 0;
    parse(&s, argc, argv);
    open_backends(&s);
    printf("seed %llu, %s\n", (unsigned long long)harness.seed,
           harness.device ? harness.device->name : "CPU");
    for (op_code op = 1; op < OP_COUNT; op++) {
        if ((s.any && !s.chosen[op]) || first_spec(op) % s.parts != s.part) continue;
        if (report_op(op))
            passed++;
        else
            bad++;
    }
    printf("%d passed, %d failed\n", passed, bad);
    if (harness.device) ops_cuda_close((op_backend *)harness.device);
    for (int i = 0; i < 3; i++) pool_free(harness.pools[i]);
    pool_free(harness.pool);
    return bad > 0;
}
