/* Keeps the chosen algorithms from one run to the next, so that a later start needs no trials.
 *
 * There is one text file for each kind of GPU and version of cuBLASLt, in the user's cache folder:
 *
 *     ~/.cache/ingot/products-NVIDIA-H200-130100.txt        ($XDG_CACHE_HOME instead of ~/.cache)
 *
 * Its first line is HEADER; every other one is a plan: the numbers of its key (PLAN_KEY), then those
 * of its algorithm (settings). Whatever does not read so is passed over. A line never becomes an
 * algorithm: it only says which of those that cuBLASLt offers now was the fastest, so that no file
 * can make it run what it would not. (Its own check divides by zero on some settings.) Where the file
 * cannot be read or written nothing is kept and nothing is said: all that is lost is a few seconds
 * of trials. */
#include "products_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

#define HEADER "ingot products 1"
enum { MOST_BYTES = 1 << 20, MOST_LINES = 4096 };

/* What tells an algorithm from others, with the size in bytes that cuBLASLt has it in. */
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
enum { SETTINGS = COUNT_OF(settings) };

typedef struct line {
    plan_key key;
    int32_t setting[SETTINGS];
} line;

struct plan_file {
    char *path;
    line *line;
    int n, cap;
};

static bool settings_of(const cublasLtMatmulAlgo_t *algo, int32_t out[SETTINGS]) {
    for (int i = 0; i < SETTINGS; i++) {
        size_t written = 0;
        out[i] = 0; /* little-endian: two bytes fill the lower half */
        if (cublasLtMatmulAlgoConfigGetAttribute(algo, settings[i].name, &out[i], settings[i].bytes,
                                                 &written))
            return false;
    }
    return true;
}

/* ---- lines ------------------------------------------------------------------------------------- */

static line *find(const struct plan_file *f, const plan_key *key) {
    for (int i = 0; i < f->n; i++)
        if (memcmp(&f->line[i].key, key, sizeof *key) == 0) return &f->line[i];
    return NULL;
}

static void put(struct plan_file *f, const line *l) {
    line *old = find(f, &l->key);
    if (old) {
        *old = *l;
    } else if (f->n < MOST_LINES) {
        mem_reserve((void **)&f->line, &f->cap, f->n, sizeof *f->line);
        f->line[f->n++] = *l;
    }
}

/* @return false when the text is not exactly the numbers of a line. */
static bool parse(const char *text, line *out) {
    int64_t number[PLAN_KEY_FIELDS + SETTINGS];
    char *end;
    for (size_t i = 0; i < COUNT_OF(number); i++, text = end) {
        number[i] = strtoll(text, &end, 10);
        if (end == text || number[i] < 0) return false;
        if (i >= PLAN_KEY_FIELDS && number[i] > INT32_MAX) return false;
    }
    if (*text) return false;
    memcpy(&out->key, number, sizeof out->key);
    for (int i = 0; i < SETTINGS; i++) out->setting[i] = (int32_t)number[PLAN_KEY_FIELDS + i];
    return true;
}

static void parse_all(struct plan_file *f, char *text) {
    char *rest = NULL, *word = strtok_r(text, "\n", &rest);
    if (!word || strcmp(word, HEADER)) return;
    while ((word = strtok_r(NULL, "\n", &rest))) {
        line l;
        if (parse(word, &l)) put(f, &l);
    }
}

static void print(const struct plan_file *f, str *out) {
    str_add(out, "%s\n", HEADER);
    for (int i = 0; i < f->n; i++) {
        int64_t number[PLAN_KEY_FIELDS];
        memcpy(number, &f->line[i].key, sizeof number);
        for (int k = 0; k < PLAN_KEY_FIELDS; k++) str_add(out, "%lld ", (long long)number[k]);
        for (int k = 0; k < SETTINGS; k++)
            str_add(out, "%d%c", f->line[i].setting[k], k + 1 < SETTINGS ? ' ' : '\n');
    }
}

/* ---- the file ---------------------------------------------------------------------------------- */

/* @return the folder, made if missing and owned; NULL: none to be had. */
static char *cache_folder(void) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    str path = { 0 };
    if (cache && cache[0] == '/')
        str_add(&path, "%s/ingot", cache);
    else if (home && home[0] == '/')
        str_add(&path, "%s/.cache/ingot", home);
    else
        return NULL;
    err e = io_make_dirs(path.text);
    if (!e) return path.text;
    err_free(e);
    str_free(&path);
    return NULL;
}

struct plan_file *plan_file_open(int device) {
    struct cudaDeviceProp p;
    char *folder = cudaGetDeviceProperties(&p, device) == cudaSuccess ? cache_folder() : NULL;
    if (!folder) return NULL;
    for (char *c = p.name; *c; c++)
        if (!isalnum((unsigned char)*c)) *c = '-';
    struct plan_file *f = mem_alloc(sizeof *f);
    str path = { 0 };
    str_add(&path, "%s/products-%s-%zu.txt", folder, p.name, cublasLtGetVersion());
    f->path = path.text;
    free(folder);
    char *text = NULL;
    err e = io_read(f->path, MOST_BYTES, &text, NULL);
    if (!e) parse_all(f, text);
    err_free(e);
    free(text);
    return f;
}

void plan_file_close(struct plan_file *f) {
    if (!f) return;
    free(f->line);
    free(f->path);
    free(f);
}

int plan_file_pick(const struct plan_file *f, const plan_key *key,
                   const cublasLtMatmulHeuristicResult_t *offer, int n) {
    const line *l = f ? find(f, key) : NULL;
    int32_t setting[SETTINGS];
    for (int i = 0; l && i < n; i++)
        if (settings_of(&offer[i].algo, setting) && !memcmp(setting, l->setting, sizeof setting))
            return i;
    return -1;
}

void plan_file_keep(struct plan_file *f, const plan_key *key, const cublasLtMatmulAlgo_t *algo) {
    line l = { .key = *key };
    if (!f || !settings_of(algo, l.setting)) return;
    put(f, &l);
    str text = { 0 };
    print(f, &text);
    err_free(io_write(f->path, text.text, text.len));
    str_free(&text);
}
