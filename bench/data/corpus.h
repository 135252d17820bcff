/* Documents in memory, for benchmarks that do not time the reading of files. */
#ifndef INGOT_BENCH_CORPUS_H
#define INGOT_BENCH_CORPUS_H

#include "bench.h"

#include "text/text.h"

typedef struct corpus {
    text_span *doc; /* their texts are owned */
    int n, capacity;
    int64_t bytes,
        limit; /* limit: no document is added once there are that many bytes; 0: no limit */
} corpus;

static inline void corpus_add(corpus *c, text_span from) {
    if (c->limit && c->bytes >= c->limit) return;
    c->doc = mem_reserve(c->doc, &c->capacity, c->n, sizeof *c->doc);
    char *text = mem_alloc(from.len + 1);
    memcpy(text, from.at, from.len);
    c->doc[c->n++] = (text_span){ text, from.len };
    c->bytes += (int64_t)from.len;
}

static inline err corpus_work(void *ctx, int worker, const text_block *b, void *result) {
    return OK;
}

static inline err corpus_merge(void *ctx, const text_block *b, void *result) {
    for (int i = 0; i < b->n; i++) corpus_add(ctx, b->docs[i].text);
    return OK;
}

/* Adds the documents of n inputs. */
static inline err corpus_read(corpus *c, const char *const *paths, int n) {
    text_inputs *in = NULL;
    TRY(text_inputs_open(paths, n, &(text_input_options){ 0 }, &in));
    text_pipeline flow = { .ctx = c, .result_size = 1, .work = corpus_work, .merge = corpus_merge };
    text_counts counts = { 0 };
    err e = OK;
    for (int i = 0; i < text_segments(in) && !e; i++)
        e = text_pipeline_run(in, i, &flow, 1, &counts);
    text_inputs_close(in);
    return e;
}

static inline void corpus_free(corpus *c) {
    for (int i = 0; i < c->n; i++) free((char *)(uintptr_t)c->doc[i].at);
    free(c->doc);
}

#endif
