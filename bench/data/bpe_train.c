/* Times the training of a BPE tokenizer; bench/peers/bpe_train_tokenizers.py times Hugging Face's.
 *
 *     bench_data_bpe_train FILE VOCAB [THREADS]
 *
 * Prints a line of JSON: seconds by the clock, CPU seconds of all threads, peak memory in bytes. */
#include "bench.h"

#include "text/text.h"
#include "tokenizer/tokenizer.h"

int main(int argc, char **argv) {
    if (argc < 3) bench_check(ERR("usage: bench_data_bpe_train FILE VOCAB [THREADS]"));
    static const char *const special[] = { TEXT_SEPARATOR };
    const char *path = argv[1];
    tokenizer_options o = { .vocab = atoll(argv[2]),
                            .min_frequency = 2,
                            .special = special,
                            .n_special = 1,
                            .threads = argc > 3 ? atoi(argv[3]) : 1,
                            .quiet = true };
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
