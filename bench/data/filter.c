/* How fast documents are judged, in megabytes of text per second of CPU time on one thread, for
 * each rule set and for all of them.
 *
 *     bench_data_filter FILE... [--bad-words LIST] [--language-model MODEL]
 *     bench/peers/filter_datatrove.py FILE...                    the same documents through datatrove
 *
 * "in use" stops at the first rule that drops a document. "at worst" has limits that drop nothing,
 * so that every rule measures every document. Reading the files is not part of it.
 */
#include "curate/curate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5 };

typedef struct corpus {
    text_doc *docs; /* their texts are owned */
    int n, room;
    int64_t bytes;
} corpus;

static err copy_block(void *ctx, int worker, const text_block *b, void *result) {
    corpus *c = ctx;
    for (int i = 0; i < b->n; i++) {
        mem_reserve((void **)&c->docs, &c->room, c->n, sizeof *c->docs);
        text_span from = b->docs[i].text;
        char *text = mem_alloc(from.len + 1);
        memcpy(text, from.at, from.len);
        c->docs[c->n++] = (text_doc){ .text = { text, from.len } };
        c->bytes += (int64_t)from.len;
    }
    return OK;
}

static err keep_nothing(void *ctx, const text_block *b, void *result) { return OK; }

static err read_corpus(const char *const *paths, int n, corpus *c) {
    text_inputs *in = NULL;
    TRY(text_inputs_open(paths, n, &(text_input_options){ 0 }, &in));
    text_flow flow = { .ctx = c, .work = copy_block, .merge = keep_nothing };
    err e = OK;
    text_counts counts = { 0 };
    for (int i = 0; i < text_segments(in) && !e; i++) e = text_flow_run(in, i, &flow, 1, &counts);
    text_inputs_close(in);
    return e;
}

/* The best of a few passes, in MB/s. @param kept how many documents pass. */
static err measure(const corpus *c, const filter_options *o, double *rate, int *kept) {
    filter *f = NULL;
    TRY(filter_new(o, 1, &f));
    double best = INFINITY;
    for (int r = 0; r < REPEATS; r++) {
        double start = time_cpu();
        *kept = 0;
        for (int i = 0; i < c->n; i++) {
            int64_t count[FILTER_COUNTER_COUNT] = { 0 };
            text_verdict v = { .rule = TEXT_KEEP, .text = c->docs[i].text, .count = count };
            err_free(filter_judge(f, 0, 0, &c->docs[i], &v));
            *kept += v.rule == TEXT_KEEP;
        }
        best = MIN(best, time_cpu() - start);
    }
    filter_free(f);
    *rate = (double)c->bytes / best / 1e6;
    return OK;
}

static err bench_row(const corpus *c, const char *name, filter_options o) {
    double in_use, at_worst;
    int kept, all;
    TRY(measure(c, &o, &in_use, &kept));
    for (int i = 0; i < FILTER_RULE_COUNT; i++)
        o.limit[i] = filter_rules[i].direction == FILTER_LEAST ? 0 : INFINITY;
    TRY(measure(c, &o, &at_worst, &all));
    printf("%-34s %9.1f %9.1f %9d\n", name, in_use, at_worst, kept);
    fflush(stdout);
    return OK;
}

static err bench(const corpus *c, const char *bad_words, const char *model) {
    static const char *const sets[] = { "gopher-repetition", "gopher-quality", "c4", "fineweb",
                                        "basic" };
    printf("%d documents, %.1f MB; MB/s of one thread\n\n", c->n, (double)c->bytes / 1e6);
    printf("%-34s %9s %9s %9s\n", "", "in use", "at worst", "kept");
    filter_options o = filter_defaults();
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        o.sets = sets[i];
        TRY(bench_row(c, sets[i], o));
    }
    o.sets = NULL;
    TRY(bench_row(c, "FineWeb's sets (the default)", o));
    o.sets = "gopher-repetition,gopher-quality,c4,fineweb,basic";
    TRY(bench_row(c, "all sets", o));
    o.pii = "email,ip,phone";
    TRY(bench_row(c, "all sets, PII", o));
    o.bad_words = bad_words;
    if (bad_words) TRY(bench_row(c, "all sets, PII, bad words", o));
    o.language_model = model;
    if (model) TRY(bench_row(c, "... and language", o));
    return OK;
}

int main(int argc, char **argv) {
    const char *bad_words = NULL, *model = NULL;
    int n = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bad-words") == 0 && i + 1 < argc)
            bad_words = argv[++i];
        else if (strcmp(argv[i], "--language-model") == 0 && i + 1 < argc)
            model = argv[++i];
        else
            argv[n++] = argv[i];
    }
    corpus c = { 0 };
    err e =
        n ? read_corpus((const char *const *)argv, n, &c) : ERR("usage: bench_data_filter FILE...");
    if (!e) e = bench(&c, bad_words, model);
    if (e) err_print(stderr, e, false);
    int status = e != OK;
    err_free(e);
    for (int i = 0; i < c.n; i++) free((char *)c.docs[i].text.at);
    free(c.docs);
    return status;
}
