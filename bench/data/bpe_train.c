/* Times the training of a BPE tokenizer, as bench/peers/bpe_train_tokenizers.py times Hugging Face's.
 *
 *     bench_data_bpe_train FILE VOCAB [THREADS]
 *
 * Prints seconds, seconds of all cores, and the peak of memory in bytes. */
#include <stdlib.h>

#include "text/text.h"
#include "tokenizer/tokenizer.h"

static void die(err e) {
    if (!e) return;
    err_print(stderr, e, true);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 3) die(ERR("usage: bench_data_bpe_train FILE VOCAB [THREADS]"));
    static const char *const special[] = { TEXT_SEPARATOR };
    const char *path = argv[1];
    bpe_options o = { .vocab = atoll(argv[2]),
                      .min_frequency = 2,
                      .special = special,
                      .n_special = 1,
                      .threads = argc > 3 ? atoi(argv[3]) : 1,
                      .quiet = true };
    text_inputs *in = NULL;
    tokenizer *t = NULL;
    double begin = time_now();
    die(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    die(bpe_train(in, &o, &t));
    printf("%.3f %.3f %zu\n", time_now() - begin, time_cpu(), mem_peak());
    tokenizer_free(t);
    text_inputs_close(in);
    return 0;
}
