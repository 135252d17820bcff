/* Speed of MinHash signatures on one thread, in CPU time: words alone, then signatures.
 *
 *     bench_data_minhash [FILE]      the first 32 MiB of FILE's documents; without it, synthetic text
 *
 * bench/peers/minhash_datasketch.py FILE.jsonl measures datasketch on the same documents. */
#include "corpus.h"

#include "curate/dedup_internal.h"
#include "shards/data.h"

enum { NGRAM = 5, BANDS = 14, ROWS = 8, BYTES = 32 << 20, DOCUMENT = 4000 };

/* Synthetic stories are short: a document is several of them. */
static void make_documents(corpus *c) {
    synth_options o = { 0 };
    str text = { 0 };
    for (int64_t i = 0; c->bytes < BYTES; i++) {
        data_synth_document(0, i, &o, &text);
        if (text.len < DOCUMENT) continue;
        corpus_add(c, (text_span){ text.text, text.len });
        text.len = 0;
    }
    str_free(&text);
}

static void print_speed(const char *what, const corpus *c, double seconds, uint64_t sum) {
    printf("%-12s %8.1f MB/s   (%.1f MB, %d documents, checksum %016llx)\n", what,
           (double)c->bytes / seconds / 1e6, (double)c->bytes / 1e6, c->n, (unsigned long long)sum);
}

int main(int argc, char **argv) {
    corpus c = { .limit = BYTES };
    if (argc > 1)
        bench_check(corpus_read(&c, (const char *const *)argv + 1, 1));
    else
        make_documents(&c);
    minhash *m = minhash_new(NGRAM, BANDS, ROWS, (normalization){ 0 });
    minhash_scratch *s = mem_alloc(sizeof *s);
    double begin = time_cpu();
    uint64_t sum = 0;
    for (int i = 0; i < c.n; i++) {
        size_t at = 0, got;
        while ((got = normalizer_next_words(m->words, c.doc[i], &at, s->words, MINHASH_CHUNK)) > 0)
            sum += s->words[got - 1].hash + got;
    }
    print_speed("words", &c, time_cpu() - begin, sum);
    begin = time_cpu();
    sum = 0;
    for (int i = 0; i < c.n; i++) {
        uint64_t keys[BANDS];
        minhash_sign(m, c.doc[i], s);
        minhash_keys(m, s, keys);
        sum += keys[0];
    }
    print_speed("signatures", &c, time_cpu() - begin, sum);
    minhash_free(m);
    free(s);
    corpus_free(&c);
    return 0;
}
