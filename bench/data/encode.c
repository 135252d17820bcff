/* Encoding speed on one thread, in CPU time.
 *
 *     bench_data_encode TOKENIZER FILE [PATTERN]
 *
 * Prints a line of JSON: the first pass over the text with an empty cache, the best of several
 * passes after it, splitting alone where the pattern is a known one, and decoding. */
#include "bench.h"

#include "io/io.h"
#include "tokenizer/tokenizer.h"

typedef struct work {
    const tokenizer *t;
    encoder *e;
    splitter *s;
    const char *text;
    size_t n, pieces;
    token_ids ids;
    str back;
} work;

static void encode(work *w) {
    w->ids.n = 0;
    encoder_add(w->e, w->text, w->n, false, &w->ids);
}

static void decode(work *w) {
    w->back.len = 0;
    tokenizer_decode(w->t, w->ids.at, w->ids.n, true, &w->back);
}

static void split(work *w) {
    w->pieces = 0;
    for (size_t i = 0; i < w->n; w->pieces++) i = splitter_next(w->s, w->text, w->n, i);
}

/* MB/s of the fastest of `times` calls. */
static double speed(work *w, void (*fn)(work *), int times) {
    double best = 1e30;
    for (int i = 0; i < times; i++) {
        double begin = time_cpu();
        fn(w);
        best = MIN(best, time_cpu() - begin);
    }
    return (double)w->n / MAX(best, 1e-9) / 1e6;
}

static err run(int argc, char **argv) {
    work w = { 0 };
    tokenizer *t = NULL;
    char *text = NULL;
    const char *pattern = argc > 3 ? argv[3] : NULL;
    TRY(io_read(argv[2], (size_t)4 << 30, &text, &w.n));
    double begin = time_cpu();
    TRY(tokenizer_open(argv[1], pattern, &t));
    double open = time_cpu() - begin;
    TRY(splitter_new(pattern ? pattern : "gpt2", &w.s));
    w.t = t;
    w.text = text;
    w.e = encoder_new(t);
    encode(&w); /* touches the memory that the ids go to */
    encoder_free(w.e);
    w.e = encoder_new(t);
    double first = speed(&w, encode, 1), warm = speed(&w, encode, 7);
    double splitting = speed(&w, split, 3), decoding = speed(&w, decode, 3);
    printf(
        "{\"bytes\": %zu, \"tokens\": %zu, \"pieces\": %zu, \"open_s\": %.3f, \"first_mb_s\": %.1f, "
        "\"warm_mb_s\": %.1f, \"split_mb_s\": %.1f, \"decode_mb_s\": %.1f, \"same\": %s}\n",
        w.n, w.ids.n, w.pieces, open, first, warm, splitting, decoding,
        w.back.len == w.n && memcmp(w.back.text, text, w.n) == 0 ? "true" : "false");
    str_free(&w.back);
    token_ids_free(&w.ids);
    encoder_free(w.e);
    splitter_free(w.s);
    tokenizer_free(t);
    free(text);
    return OK;
}

int main(int argc, char **argv) {
    if (argc < 3) bench_check(ERR("usage: bench_data_encode TOKENIZER FILE [PATTERN]"));
    bench_check(run(argc, argv));
    return 0;
}
