/* ingot doctor: what this build and this machine support, and how fast they are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/doctor.h"
#include "io/io.h"
#include "observe/observe.h"
#include "ops/ops.h"
#include "planning/planning.h"
#include "store/store.h"

typedef struct doctor_args {
    bool calibrate, json, cluster;
    const char *dir, *store;
    double seconds;
} doctor_args;
static const cli_arg args[] = {
    { "calibrate", ARG_FLAG, offsetof(doctor_args, calibrate), "",
      "print what was measured as a catalogue for `ingot plan --catalogue`" },
    { "json", ARG_FLAG, offsetof(doctor_args, json), "", "print JSON" },
    { "cluster", ARG_FLAG, offsetof(doctor_args, cluster), "",
      "test the memory, arithmetic, GPUs, disk and links of all ranks" },
    { "dir", ARG_TEXT, offsetof(doctor_args, dir), "FOLDER",
      "with --cluster: where the disk is tested (default .)" },
    { "store", ARG_TEXT, offsetof(doctor_args, store), "URL",
      "with --cluster: test the object store too, below s3://bucket/prefix" },
    { "seconds", ARG_REAL, offsetof(doctor_args, seconds), "S",
      "with --cluster: how long GEMMs run (default 2); less tests less memory and disk too, and "
      "with --calibrate times fewer steps" },
};
const cli_spec cmd_doctor_spec = { "doctor", "[--json | --calibrate | --cluster]", CLI_ARGS(args),
                                   0 };

/* ---- findings ---------------------------------------------------------------------------------- */
typedef struct cpu_findings {
    char name[128], isa[160]; /* name: "" when the system does not report one */
    int threads;
    double memory, copy, fp32, bf16;
} cpu_findings;

/* "model name : ..." of /proc/cpuinfo; arm64 has none. */
static void cpu_name(char *out, size_t size) {
    char row[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    out[0] = 0;
    while (f && !*out && fgets(row, sizeof row, f)) {
        char *value = strchr(row, ':');
        if (!str_starts(row, "model name") || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
    }
    if (f) fclose(f);
}

static cpu_findings examine_cpu(void) {
    cpu_findings f = { .threads = 0 };
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    pool *p = pool_new(0);
    cpu_name(f.name, sizeof f.name);
    for (int i = 0; ops_cpu_isa(i); i++) {
        size_t n = strlen(f.isa);
        snprintf(f.isa + n, sizeof f.isa - n, "%s%s", i ? ", " : "", ops_cpu_isa(i));
    }
    f.threads = pool_size(p);
    f.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    f.copy = ops_copy_rate(b, p, OPS_COPY_BYTES);
    f.fp32 = ops_peak_flops(b, DT_F32, p);
    f.bf16 = b->bf16_gemm ? ops_peak_flops(b, DT_BF16, p) : NAN;
    pool_free(p);
    return f;
}

static err examine_gpu(int number, ops_gpu_info *info, ops_gpu_speed *speed) {
    const op_backend *b = NULL;
    TRY(ops_cuda_describe(number, info));
    TRY(ops_open(&(ops_choice){ .kind = OPS_CUDA, .index = number }, &b));
    err e = ops_cuda_measure(b, speed);
    ops_close(b);
    return e;
}

/* Known answers of a GPU: wrong ones are an error. */
static err check_gpu(int number, double seconds, doctor_gpu *out) {
    const op_backend *b = NULL;
    TRY(ops_open(&(ops_choice){ .kind = OPS_CUDA, .index = number }, &b));
    pool *p = pool_new(1);
    doctor_burn j = { .b = b, .p = p, .seconds = seconds };
    err e = doctor_burn_gpu(&j, number, out);
    pool_free(p);
    ops_close(b);
    if (!e && (out->wrong_words || out->wrong_results))
        e = err_hint(ERR("GPU %d is faulty: %lld words of memory read back wrong, %lld results of "
                         "GEMMs are wrong",
                         number, (long long)out->wrong_words, (long long)out->wrong_results),
                     "do not train on it: have it replaced");
    return e;
}

/* ---- as text ----------------------------------------------------------------------------------- */
static void print_finding(const char *name, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void print_finding(const char *name, const char *fmt, ...) {
    va_list list;
    printf("  %-14s ", name);
    va_start(list, fmt);
    vprintf(fmt, list);
    va_end(list);
    printf("\n");
}

static void print_cpu(const cpu_findings *f) {
    char bytes[32];
    printf("ingot %s, compiler %.60s\n", INGOT_VERSION, __VERSION__);
    if (*build_features(true)) print_finding("with", "%s", build_features(true));
    if (*build_features(false)) print_finding("without", "%s", build_features(false));
    printf("CPU\n");
    if (*f->name) print_finding("name", "%s", f->name);
    print_finding("threads", "%d", f->threads);
    print_finding("memory", "%s", str_bytes(bytes, sizeof bytes, f->memory));
    print_finding("copy", "%.1f GB/s", f->copy / 1e9);
    print_finding("instructions", "%s (the last one is used)", f->isa);
    double links = link_errors(NULL);
    if (!isnan(links))
        print_finding("links", "%.0f errors counted by the network interfaces", links);
    print_finding("GEMM", "built-in kernels, no BLAS library");
    print_finding("fp32", "%.0f GFLOP/s peak, measured in registers", f->fp32 / 1e9);
    if (f->bf16 > 0)
        print_finding("bf16", "%.0f GFLOP/s peak, measured in registers", f->bf16 / 1e9);
    else
        print_finding("bf16", "no instructions for bf16 GEMMs: train in fp32 here");
}

static void print_rate(const char *name, double flops, const char *otherwise) {
    if (flops > 0)
        print_finding(name, "%.*f TFLOP/s", flops < 100e12, flops / 1e12);
    else
        print_finding(name, "%s", otherwise);
}

/* Adds NVML's report of the GPU; nothing where it is not installed. */
static void print_health(int number) {
    observe_step s = OBSERVE_STEP_NONE;
    nvml *n = nvml_open(NULL, number);
    if (!n) return;
    nvml_read(n, &s);
    nvml_close(n);
    print_finding(
        "health", "%.0f uncorrected and %.0f corrected memory errors, %.0f deg C, clocks %s",
        isnan(s.gpu_ecc) ? 0 : s.gpu_ecc, isnan(s.gpu_ecc_corrected) ? 0 : s.gpu_ecc_corrected,
        s.gpu_temp, s.gpu_throttled > 0 ? "held down by heat or hardware" : "free");
}

static err print_gpu(int number) {
    ops_gpu_info g;
    ops_gpu_speed s;
    TRY(examine_gpu(number, &g, &s));
    printf("GPU %d\n", number);
    print_finding("name", "%s, compute capability %d.%d, %d SMs", g.name, g.capability / 10,
                  g.capability % 10, g.sms);
    print_finding("memory", "%.1f GiB, %.1f free", g.memory / 0x1p30, g.free_memory / 0x1p30);
    print_finding("driver", "%s%ssupports CUDA up to %d.%d", g.driver, *g.driver ? ", " : "",
                  g.driver_cuda / 1000, g.driver_cuda % 1000 / 10);
    print_finding("libraries", "CUDA %d.%d, cuBLASLt %s, cuDNN %s", g.runtime / 1000,
                  g.runtime % 1000 / 10, g.blas, g.dnn);
    print_health(number);
    print_finding("copy", "%.0f GB/s on the device, %.1f to it, %.1f from it (pinned memory)",
                  s.copy / 1e9, s.to_device / 1e9, s.to_host / 1e9);
    print_rate("fp32", s.fp32, "could not be measured");
    print_rate("tf32", s.tf32, "could not be measured");
    print_rate("fp16", s.fp16, "could not be measured");
    print_rate("bf16", s.bf16, "could not be measured");
    print_rate("fp8", s.fp8, "not supported by this GPU");
    doctor_gpu known;
    TRY(check_gpu(number, 1, &known));
    print_finding("known answers",
                  "right: %.1f GiB of memory, fp32 and bf16 GEMMs for a second each",
                  known.bytes / 0x1p30);
    return OK;
}

/* The reason why no GPU can be used: a finding, not an error of the command. */
static void print_no_gpu(err why) {
    printf("GPU\n");
    print_finding("none", "%s", err_message(why));
    print_finding("", "try: %s", err_remedy(why));
}

/* ---- as JSON ----------------------------------------------------------------------------------- */
static err gpu_json(int number, json_t *into) {
    ops_gpu_info g;
    ops_gpu_speed s;
    TRY(examine_gpu(number, &g, &s));
    const struct {
        const char *name;
        double value;
    } figures[] = { { "memory", g.memory },           { "free_memory", g.free_memory },
                    { "copy_bytes_s", s.copy },       { "to_device_bytes_s", s.to_device },
                    { "to_host_bytes_s", s.to_host }, { "fp32_flops", s.fp32 },
                    { "tf32_flops", s.tf32 },         { "fp16_flops", s.fp16 },
                    { "bf16_flops", s.bf16 },         { "fp8_flops", s.fp8 } };
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:s, s:i, s:i, s:s, s:s}", "name", g.name, "compute_capability",
                  g.capability, "multiprocessors", g.sms, "driver", g.driver, "driver_cuda",
                  g.driver_cuda, "cuda", g.runtime, "cublaslt", g.blas, "cudnn", g.dnn);
    for (size_t i = 0; i < COUNT_OF(figures); i++)
        json_object_set_new(o, figures[i].name, io_json_number(figures[i].value));
    json_array_append_new(into, o);
    return OK;
}

static err print_findings_json(const cpu_findings *f, int gpus, err why) {
    json_t *list = json_array();
    err e = OK;
    for (int i = 0; i < gpus && !e; i++) e = gpu_json(i, list);
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:i, s:o, s:s, s:o, s:o, s:o, s:o}", "version", INGOT_VERSION,
        "revision", build_revision(), "features", build_features(true), "compiler", __VERSION__,
        "cpu", f->name, "threads", f->threads, "memory", io_json_number(f->memory), "instructions",
        f->isa, "copy_bytes_s", io_json_number(f->copy), "fp32_flops", io_json_number(f->fp32),
        "bf16_flops", io_json_number(f->bf16), "gpus", list);
    if (why) json_object_set_new(o, "no_gpu", json_string(err_message(why)));
    if (!e)
        io_json_print(stdout, o, JSON_INDENT(2));
    else
        json_decref(o);
    return e;
}

/* ---- as a catalogue ------------------------------------------------------------------------------ */
typedef struct measured {
    const char *name, *title;
    double memory, copy, host, link; /* bytes; bytes per second; link 0: not measured */
    int ranks;                       /* that share it; 0: it is not shared */
    struct {
        const char *type;
        double flops;
    } peak[5];
} measured;

static void print_call_costs(const accelerator *a) {
    printf(
        "    # seconds = us + ps_flop x FLOPs + ps_byte x bytes + ps_exp x exponentials, times the ratio of the measured\n"
        "    # calls that are most like it: [dims, MFLOP, KB, thousands of exponentials, us]\n"
        "    calls:\n");
    for (int i = 0; i < a->n_calls; i++) {
        str text = { 0 };
        call_cost_print(&a->calls[i], &text);
        printf("      - %s\n", text.text);
        str_free(&text);
    }
}

/* Times the calls of training steps on all cores. */
static err print_cpu_calls(double seconds) {
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    accelerator *a = mem_alloc(sizeof *a);
    double share = MIN(MAX(seconds, 0) / DOCTOR_SECONDS, 1);
    int rounds = MAX((int)(share * CALIBRATION_ROUNDS), 1);
    err e = calibrate_cpu(b, DT_F32, rounds, a);
    if (!e && b->bf16_gemm) e = calibrate_cpu(b, DT_BF16, rounds, a);
    if (!e) print_call_costs(a);
    call_costs_free(a);
    free(a);
    return e;
}

/* Bandwidths that a single machine cannot measure are the catalogue's usual ones. */
static void print_entry(const measured *m) {
    const char *separator = "";
    printf(
        "  - name: %s\n    title: \"%s\"\n    chip: \"%s\"\n    source: measured by ingot doctor\n",
        m->name, m->title, m->title);
    printf("    memory: %.3f\n    memory_bandwidth: %.1f\n    host: %.1f\n", m->memory / 1e9,
           m->copy / 1e9, m->host / 1e9);
    printf("    link: %.1f # %s\n    network: 25\n    disk: 5\n    per_node: %d\n%s    tflops: {",
           (m->link > 0 ? m->link : m->host) / 1e9,
           m->link > 0 ? "network and disk are assumed" : "assumed, as network and disk",
           MAX(1, m->ranks), m->ranks ? "    shared: true\n" : "");
    for (size_t i = 0; i < COUNT_OF(m->peak); i++) {
        if (!m->peak[i].type || !(m->peak[i].flops > 0)) continue;
        printf("%s%s: %.4g", separator, m->peak[i].type, m->peak[i].flops / 1e12);
        separator = ", ";
    }
    printf("}\n");
}

static err print_catalogue(const cpu_findings *f, int gpus, double seconds) {
    double link;
    TRY(calibrate_link(&link));
    printf(
        "# This machine, as measured. ingot plan --catalogue THIS_FILE --gpu %s ...\naccelerators:\n",
        gpus ? "this-gpu" : "this-cpu");
    print_entry(&(measured){ "this-cpu",
                             *f->name ? f->name : "CPU",
                             f->memory,
                             f->copy,
                             f->copy,
                             link,
                             f->threads,
                             { { "fp32", f->fp32 }, { "bf16", f->bf16 } } });
    TRY(print_cpu_calls(seconds));
    if (!gpus) return OK;
    ops_gpu_info g;
    ops_gpu_speed s;
    TRY(examine_gpu(0, &g, &s));
    print_entry(&(measured){ "this-gpu",
                             g.name,
                             g.memory,
                             s.copy,
                             s.to_device,
                             0,
                             0,
                             { { "fp32", s.fp32 },
                               { "tf32", s.tf32 },
                               { "fp16", s.fp16 },
                               { "bf16", s.bf16 },
                               { "fp8", s.fp8 } } });
    return OK;
}

err cmd_doctor(int argc, char **argv) {
    doctor_args a = { .dir = ".", .seconds = DOCTOR_SECONDS };
    TRY(cli_parse(&cmd_doctor_spec, argc - 1, argv + 1, &a, NULL));
    if (a.json && a.calibrate)
        return err_hint(ERR_USAGE("--calibrate: prints YAML, not JSON"),
                        "leave one of the two out");
    if (a.store && (!a.cluster || !store_is_url(a.store)))
        return err_hint(
            ERR_USAGE("--store: expected s3://bucket/prefix and --cluster, got \"%s\"", a.store),
            "write ingot doctor --cluster --store s3://bucket/runs");
    if (a.cluster)
        return doctor_cluster(
            &(cluster_options){ .dir = a.dir, .store = a.store, .seconds = a.seconds });
    cpu_findings f = examine_cpu();
    int gpus = ops_cuda_count();
    err why = gpus ? OK : ops_cuda_check(0), e = OK;
    if (a.calibrate) {
        e = print_catalogue(&f, gpus, a.seconds);
    } else if (a.json) {
        e = print_findings_json(&f, gpus, why);
    } else {
        print_cpu(&f);
        if (why) print_no_gpu(why);
        for (int i = 0; i < gpus && !e; i++) e = print_gpu(i);
    }
    err_free(why);
    return e;
}
