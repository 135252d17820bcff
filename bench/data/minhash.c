/* Speed of MinHash signatures on one thread, in CPU time: words alone, then signatures.
 *
 *     bench_data_minhash [FILE]      documents of FILE (32 MiB of them); else made by the generator
 *
 * bench/peers/minhash_datasketch.py FILE.jsonl measures datasketch on the same documents.
 */
#include "curate/dedup_internal.h"
#include "data/data.h"

#include <stdlib.h>

enum { NGRAM = 5, BANDS = 14, ROWS = 8, BYTES = 32 << 20, DOCUMENT = 4000 };

typedef struct corpus {
    str text;
    size_t *end; /* of each document */
    int n, cap;
} corpus;

static void add_end(corpus *c) {
    mem_reserve((void **)&c->end, &c->cap, c->n, sizeof *c->end);
    c->end[c->n++] = c->text.len;
}

static void make_documents(corpus *c) {
    synth_options o = { 0 };
    size_t begin = 0;
    for (int64_t i = 0; c->text.len < BYTES; i++) {
        data_synth_document(0, i, &o, &c->text);
        if (c->text.len - begin < DOCUMENT) continue; /* stories are short: several a document */
        add_end(c);
        begin = c->text.len;
    }
}

static err work(void *ctx, int worker, const text_block *b, void *result) { return OK; }
static err merge(void *ctx, const text_block *b, void *result) {
    corpus *c = ctx;
    for (int i = 0; i < b->n && c->text.len < BYTES; i++) {
        str_add_bytes(&c->text, b->docs[i].text.at, b->docs[i].text.len);
        add_end(c);
    }
    return OK;
}

static err read_documents(corpus *c, const char *path) {
    text_inputs *in = NULL;
    text_counts counts = { 0 };
    text_flow flow = { .ctx = c, .result_size = 1, .work = work, .merge = merge };
    TRY(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    err e = OK;
    for (int s = 0; s < text_segments(in) && !e; s++) e = text_flow_run(in, s, &flow, 1, &counts);
    text_inputs_close(in);
    return e;
}

static text_span document(const corpus *c, int i) {
    size_t begin = i ? c->end[i - 1] : 0;
    return (text_span){ c->text.text + begin, c->end[i] - begin };
}

static void report(const char *what, const corpus *c, double seconds, uint64_t sum) {
    printf("%-12s %8.1f MB/s   (%.1f MB, %d documents, checksum %016llx)\n", what,
           (double)c->text.len / seconds / 1e6, (double)c->text.len / 1e6, c->n,
           (unsigned long long)sum);
}

int main(int argc, char **argv) {
    corpus c = { 0 };
    if (argc > 1) {
        err e = read_documents(&c, argv[1]);
        if (e) return err_print(stderr, e, true), 1;
    } else {
        make_documents(&c);
    }
    minhash *m = minhash_new(NGRAM, BANDS, ROWS);
    minhash_scratch *s = mem_alloc(sizeof *s);
    double begin = time_cpu();
    uint64_t sum = 0;
    for (int i = 0; i < c.n; i++) {
        size_t at = 0, got;
        while ((got = norm_words(m->words, document(&c, i), &at, s->words, MINHASH_CHUNK)) > 0)
            sum += s->words[got - 1].hash + got;
    }
    report("words", &c, time_cpu() - begin, sum);
    begin = time_cpu();
    sum = 0;
    for (int i = 0; i < c.n; i++) {
        uint64_t keys[BANDS];
        minhash_sign(m, document(&c, i), s);
        minhash_keys(m, s, keys);
        sum += keys[0];
    }
    report("signatures", &c, time_cpu() - begin, sum);
    minhash_free(m);
    free(s);
    str_free(&c.text);
    free(c.end);
    return 0;
}
