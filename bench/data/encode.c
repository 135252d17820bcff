/* Encoding speed on one thread, in CPU time.
 *
 *     bench_data_encode [--pattern=NAME|REGEX] TOKENIZER FILE...
 *
 * Each text is encoded as documents of about 10 kB, as the peers do. Prints a line of JSON for each file: its speed with
 * an empty cache and a warm one, splitting alone where the pattern is a known one, and decoding. The files take turns,
 * and figures are medians over the rounds; ratios are medians of each round's speed over that of the first file.
 * `ids_crc32` is that of all ids, to be compared with a peer's. `same` is whether decoding gives the text: a
 * tokenizer that normalizes, as SentencePiece's do with line ends and spaces, does not. */
#include <zlib.h>

#include "bench.h"

#include "io/io.h"
#include "tokenizer/tokenizer.h"

enum { ROUNDS = 7, DOCUMENT = 10000, MAX_FILES = 16 };

typedef struct text_bench {
    const char *path;
    char *text;
    size_t n, pieces;
    token_ids ids;
    str back;
    bool same;
    double first[ROUNDS], warm[ROUNDS], split[ROUNDS], decode[ROUNDS];
} text_bench;

/* @return where the document that begins at `from` ends: after a line end, if there is one. */
static size_t document_end(const text_bench *b, size_t from) {
    if (b->n - from <= DOCUMENT) return b->n;
    const char *line = memchr(b->text + from + DOCUMENT, '\n', b->n - from - DOCUMENT);
    return line ? (size_t)(line - b->text) + 1 : b->n;
}

/* Each function below makes one pass over the text. @return MB/s. */
static double encode_text(text_bench *b, encoder *e) {
    double begin = time_cpu();
    b->ids.n = 0;
    for (size_t from = 0, end; from < b->n; from = end) {
        end = document_end(b, from);
        encoder_add(e, b->text + from, end - from, false, &b->ids);
    }
    return (double)b->n / MAX(time_cpu() - begin, 1e-9) / 1e6;
}

static double split_text(text_bench *b, splitter *s) {
    double begin = time_cpu();
    b->pieces = 0;
    for (size_t i = 0; i < b->n; b->pieces++) i = splitter_next(s, b->text, b->n, i);
    return (double)b->n / MAX(time_cpu() - begin, 1e-9) / 1e6;
}

static double decode_text(text_bench *b, const tokenizer *t) {
    double begin = time_cpu();
    b->back.len = 0;
    tokenizer_decode(t, b->ids.at, b->ids.n, true, &b->back);
    return (double)b->n / MAX(time_cpu() - begin, 1e-9) / 1e6;
}

static void run_round(text_bench *b, int round, const tokenizer *t, splitter *s) {
    encoder *e = encoder_new(t);
    if (round == 0) { /* touches the memory that the ids go to */
        encode_text(b, e);
        encoder_free(e);
        e = encoder_new(t);
    }
    b->first[round] = encode_text(b, e);
    b->warm[round] = encode_text(b, e);
    b->split[round] = split_text(b, s);
    b->decode[round] = decode_text(b, t);
    b->same = b->back.len == b->n && memcmp(b->back.text, b->text, b->n) == 0;
    encoder_free(e);
}

static double median_ratio(const double *a, const double *b) {
    double ratio[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) ratio[i] = a[i] / b[i];
    return bench_median(ratio, ROUNDS);
}

static void print_bench(text_bench *b, const text_bench *beside, double open) {
    double first = median_ratio(b->first, beside->first),
           warm = median_ratio(b->warm, beside->warm);
    printf(
        "{\"file\": \"%s\", \"bytes\": %zu, \"tokens\": %zu, \"pieces\": %zu, \"open_s\": %.3f, "
        "\"first_mb_s\": %.1f, \"warm_mb_s\": %.1f, \"split_mb_s\": %.1f, \"decode_mb_s\": %.1f, "
        "\"first_ratio\": %.2f, \"warm_ratio\": %.2f, \"ids_crc32\": %lu, \"same\": %s}\n",
        b->path, b->n, b->ids.n, b->pieces, open, bench_median(b->first, ROUNDS),
        bench_median(b->warm, ROUNDS), bench_median(b->split, ROUNDS),
        bench_median(b->decode, ROUNDS), first, warm,
        crc32_z(0, (const uint8_t *)b->ids.at, b->ids.n * sizeof *b->ids.at),
        b->same ? "true" : "false");
}

static err run(const char *pattern, const char *path, char **files, int n) {
    text_bench all[MAX_FILES] = { 0 };
    tokenizer *t = NULL;
    splitter *s = NULL;
    for (int i = 0; i < n; i++) {
        all[i].path = files[i];
        TRY(io_read(files[i], (size_t)4 << 30, &all[i].text, &all[i].n));
    }
    double begin = time_cpu();
    TRY(tokenizer_open(path, pattern, &t));
    double open = time_cpu() - begin;
    TRY(splitter_new(pattern ? pattern : "gpt2", &s));
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < n; i++) run_round(&all[i], round, t, s);
    for (int i = n - 1; i >= 0; i--) print_bench(&all[i], &all[0], open); /* medians sort */
    for (int i = 0; i < n; i++) {
        str_free(&all[i].back);
        token_ids_free(&all[i].ids);
        free(all[i].text);
    }
    splitter_free(s);
    tokenizer_free(t);
    return OK;
}

int main(int argc, char **argv) {
    const char *pattern = NULL;
    int at = 1;
    if (at < argc && str_starts(argv[at], "--pattern=")) pattern = strchr(argv[at++], '=') + 1;
    if (argc - at < 2 || argc - at - 1 > MAX_FILES)
        bench_check(ERR("usage: bench_data_encode [--pattern=NAME|REGEX] TOKENIZER FILE..., at "
                        "most %d of them",
                        MAX_FILES));
    bench_check(run(pattern, argv[at], argv + at + 1, argc - at - 1));
    return 0;
}
