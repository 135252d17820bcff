/* Continues token ids with llama.cpp: llamacpp_greedy.py compiles this against a built llama.cpp and runs it.
 *
 *     llamacpp_greedy MODEL.gguf THREADS NEW ID... [/ ID...]
 *
 * Prints the NEW most likely tokens after the ids, each with how far its logit is above the second, in standard deviations of
 * the logits, then the seconds per token of all but the first of them. With ids behind the /
 * it continues with these, whatever is most likely. The cache is in fp32, as ours. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llama.h"

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void log_errors(enum ggml_log_level level, const char *text, void *ctx) {
    (void)ctx;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static llama_token likeliest(const float *logits, int n, float *ahead) {
    int best = 0;
    float second = -1e30f;
    for (int i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            second = logits[best];
            best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    }
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += logits[i] / n;
    for (int i = 0; i < n; i++) square += (logits[i] - mean) * (logits[i] - mean) / n;
    *ahead = (float)((logits[best] - second) / sqrt(square));
    return best;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: %s MODEL.gguf THREADS NEW ID... [/ ID...]\n", argv[0]);
        return 2;
    }
    int threads = atoi(argv[2]), wanted = atoi(argv[3]), n = 0;
    while (n < argc - 4 && strcmp(argv[4 + n], "/")) n++;
    char **given = argv + 5 + n; /* where 4 + n < argc */
    llama_log_set(log_errors, NULL);
    llama_backend_init();
    struct llama_model_params load = llama_model_default_params();
    load.use_extra_bufts =
        false; /* weights as they are: repacked ones need instructions that a machine may not allow */
    struct llama_model *m = llama_model_load_from_file(argv[1], load);
    if (!m) return 1;
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = (uint32_t)(n + wanted);
    p.n_batch = p.n_ubatch = (uint32_t)n;
    p.n_threads = p.n_threads_batch = threads;
    p.type_k = p.type_v = GGML_TYPE_F32;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *c = llama_init_from_model(m, p);
    if (!c) return 1;
    llama_token *ids = malloc((size_t)n * sizeof *ids), next = 0;
    for (int i = 0; i < n; i++) ids[i] = atoi(argv[4 + i]);
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(m));
    if (llama_decode(c, llama_batch_get_one(ids, n))) return 1;
    double begin = now();
    for (int i = 0; i < wanted; i++) {
        float ahead;
        next = likeliest(llama_get_logits_ith(c, -1), vocab, &ahead);
        printf("%d %g\n", next, ahead);
        if (5 + n + i < argc) next = atoi(given[i]);
        if (i + 1 < wanted && llama_decode(c, llama_batch_get_one(&next, 1))) return 1;
    }
    printf("%g\n", (now() - begin) / (wanted > 1 ? wanted - 1 : 1));
    free(ids);
    llama_free(c);
    llama_model_free(m);
    return 0;
}
