/* The autotuning cache: keeps the chosen algorithms from one run to the next, so that a later start
 * needs no trials. There is one text file for each kind of GPU and version of cuBLASLt, in the user's
 * cache folder:
 *
 *     ~/.cache/ingot/gemm-NVIDIA-H200-130100.txt        ($XDG_CACHE_HOME instead of ~/.cache)
 *
 * Its first line is HEADER. Every other line is one GEMM: the numbers of its key (GEMM_KEY), then the
 * settings that identify its algorithm: OWN and zeros are our own kernel. Lines that do not parse are ignored. A line is never turned
 * into an algorithm: it only selects one of those that cuBLASLt offers now, so that a damaged file
 * cannot make it run anything else. (cuBLASLt's own check of an algorithm divides by zero on some
 * settings.) A file that cannot be read or written is not an error: only a few seconds of trials are
 * lost. */
#include "gemm_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

#define HEADER "ingot gemm 3"
enum { MAX_FILE_BYTES = 1 << 20, MAX_ENTRIES = 4096 };

/* Settings that distinguish one algorithm from another, with the size of each in bytes. */
static const struct {
    cublasLtMatmulAlgoConfigAttributes_t name;
    size_t bytes;
} settings[] = {
    { CUBLASLT_ALGO_CONFIG_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_TILE_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4 },
    { CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4 },
    { CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4 },
    { CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4 },
    { CUBLASLT_ALGO_CONFIG_STAGES_ID, 4 },
    { CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2 },
    { CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2 },
};
enum {
    SETTINGS = COUNT_OF(settings),
    OWN = INT32_MAX /* no algorithm of cuBLASLt has this number */
};

typedef struct gemm_cache_entry {
    gemm_key key;
    int32_t setting[SETTINGS];
} gemm_cache_entry;

struct gemm_cache_file {
    char *path;
    gemm_cache_entry *entry;
    int n, cap;
};

static bool read_algo_settings(const gemm_algo *algo, int32_t out[SETTINGS]) {
    memset(out, 0, SETTINGS * sizeof *out); /* little-endian: two bytes fill the lower half */
    if (algo->own) {
        out[0] = OWN;
        return true;
    }
    for (int i = 0; i < SETTINGS; i++) {
        size_t written = 0;
        if (cublasLtMatmulAlgoConfigGetAttribute(&algo->blas, settings[i].name, &out[i],
                                                 settings[i].bytes, &written))
            return false;
    }
    return true;
}

/* ---- entries ----------------------------------------------------------------------------------- */

static gemm_cache_entry *find_entry(const struct gemm_cache_file *f, const gemm_key *key) {
    for (int i = 0; i < f->n; i++)
        if (memcmp(&f->entry[i].key, key, sizeof *key) == 0) return &f->entry[i];
    return NULL;
}

static void set_entry(struct gemm_cache_file *f, const gemm_cache_entry *e) {
    gemm_cache_entry *old = find_entry(f, &e->key);
    if (old) {
        *old = *e;
    } else if (f->n < MAX_ENTRIES) {
        LIST_ADD(f->entry, f->n, f->cap) = *e;
    }
}

/* @return false when the text is not exactly the numbers of an entry. */
static bool parse_entry(const char *text, gemm_cache_entry *out) {
    int64_t number[GEMM_KEY_FIELDS + SETTINGS];
    char *end;
    for (size_t i = 0; i < COUNT_OF(number); i++, text = end) {
        number[i] = strtoll(text, &end, 10);
        if (end == text || number[i] < 0) return false;
        if (i >= GEMM_KEY_FIELDS && number[i] > INT32_MAX) return false;
    }
    if (*text) return false;
    memcpy(&out->key, number, sizeof out->key);
    for (int i = 0; i < SETTINGS; i++) out->setting[i] = (int32_t)number[GEMM_KEY_FIELDS + i];
    return true;
}

static void print_file(const struct gemm_cache_file *f, str *out) {
    str_add(out, "%s\n", HEADER);
    for (int i = 0; i < f->n; i++) {
        int64_t number[GEMM_KEY_FIELDS];
        memcpy(number, &f->entry[i].key, sizeof number);
        for (int k = 0; k < GEMM_KEY_FIELDS; k++) str_add(out, "%lld ", (long long)number[k]);
        for (int k = 0; k < SETTINGS; k++)
            str_add(out, "%d%c", f->entry[i].setting[k], k + 1 < SETTINGS ? ' ' : '\n');
    }
}

/* ---- the file ---------------------------------------------------------------------------------- */

struct gemm_cache_file *gemm_cache_file_open(int device) {
    struct cudaDeviceProp p;
    char *folder = cudaGetDeviceProperties(&p, device) == cudaSuccess ? io_cache_folder() : NULL;
    if (!folder) return NULL;
    for (char *c = p.name; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '-';
    struct gemm_cache_file *f = mem_alloc(sizeof *f);
    str path = { 0 };
    str_add(&path, "%s/gemm-%s-%zu.txt", folder, p.name, cublasLtGetVersion());
    f->path = path.text;
    free(folder);
    char *text = NULL, *rest = NULL;
    gemm_cache_entry entry;
    err e = io_read(f->path, MAX_FILE_BYTES, &text, NULL);
    char *line = e ? NULL : strtok_r(text, "\n", &rest);
    bool known = line && !strcmp(line, HEADER);
    while (known && (line = strtok_r(NULL, "\n", &rest)))
        if (parse_entry(line, &entry)) set_entry(f, &entry);
    err_free(e);
    free(text);
    return f;
}

void gemm_cache_file_close(struct gemm_cache_file *f) {
    if (!f) return;
    free(f->entry);
    free(f->path);
    free(f);
}

int gemm_cache_file_pick(const struct gemm_cache_file *f, const gemm_key *key,
                         const gemm_algo *offer, int n) {
    const gemm_cache_entry *e = f ? find_entry(f, key) : NULL;
    int32_t setting[SETTINGS];
    for (int i = 0; e && i < n; i++)
        if (read_algo_settings(&offer[i], setting) && !memcmp(setting, e->setting, sizeof setting))
            return i;
    return -1;
}

void gemm_cache_file_save(struct gemm_cache_file *f, const gemm_key *key, const gemm_algo *algo) {
    gemm_cache_entry e = { .key = *key };
    if (!f || !read_algo_settings(algo, e.setting)) return;
    set_entry(f, &e);
    str text = { 0 };
    print_file(f, &text);
    err_free(io_write(f->path, text.text, text.len));
    str_free(&text);
}
