/* Times the training of a tokenizer. bench/peers/bpe_train_tokenizers.py times Hugging Face's BPE,
 * bench/peers/unigram_train_sentencepiece.py SentencePiece's Unigram.
 *
 *     bench_data_train_tokenizer bpe|unigram FILE VOCAB [THREADS]
 *
 * Prints a line of JSON: seconds by the clock, CPU seconds of all threads, peak memory in bytes. */
#include "bench.h"

#include <string.h>

#include "text/text.h"
#include "tokenizer/tokenizer.h"

static const char *const bpe_special[] = { TEXT_SEPARATOR };
static const char *const unigram_special[] = { "<unk>", "<s>", "</s>" };
static const struct {
    const char *name;
    tokenizer_options options;
} models[] = {
    { "bpe", { .min_frequency = 2, .special = bpe_special, .n_special = COUNT_OF(bpe_special) } },
    { "unigram",
      { .model = TRAIN_UNIGRAM,
        .metaspace = METASPACE_ALWAYS,
        .special = unigram_special,
        .n_special = COUNT_OF(unigram_special) } },
};

int main(int argc, char **argv) {
    size_t k = 0;
    while (argc > 3 && k < COUNT_OF(models) && strcmp(argv[1], models[k].name) != 0) k++;
    if (argc < 4 || k == COUNT_OF(models))
        bench_check(ERR("usage: bench_data_train_tokenizer bpe|unigram FILE VOCAB [THREADS]"));
    const char *path = argv[2];
    tokenizer_options o = models[k].options;
    o.vocab = atoll(argv[3]);
    o.threads = argc > 4 ? atoi(argv[4]) : 1;
    o.quiet = true;
    text_inputs *in = NULL;
    tokenizer *t = NULL;
    double begin = time_now();
    bench_check(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    bench_check(tokenizer_learn(in, &o, &t));
    printf("{\"seconds\": %.3f, \"cpu_seconds\": %.3f, \"peak_bytes\": %zu}\n", time_now() - begin,
           time_cpu(), mem_peak());
    tokenizer_free(t);
    text_inputs_close(in);
    return 0;
}
