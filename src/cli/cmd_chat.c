/* ingot chat: a conversation with a model that has a chat template, in a terminal. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/weights.h"
#include "eval/chat.h"
#include "io/io.h"

typedef struct chat_args {
    const char *system, *device;
    int64_t tokens, seed, top_k, context, index;
    double temperature, top_p, penalty;
} chat_args;

#define AT(member) offsetof(chat_args, member)
static const cli_arg args[] = {
    { "system", ARG_TEXT, AT(system), "TEXT", "the first message, of the role \"system\"" },
    { "tokens", ARG_COUNT, AT(tokens), "N", "maximum number of tokens per answer (default 512)" },
    { "temperature", ARG_REAL, AT(temperature), "X", "sampling temperature (default 0.7)" },
    { "top-k", ARG_COUNT, AT(top_k), "N",
      "sample from the N most likely tokens; 0: all (default)" },
    { "top-p", ARG_FRACTION, AT(top_p), "X",
      "sample from the most likely tokens with total probability X (default 0.95)" },
    { "repetition-penalty", ARG_REAL, AT(penalty), "X",
      "make tokens of the context less likely: logits are divided by X (default 1)" },
    { "seed", ARG_COUNT, AT(seed), "N", "random seed (default 0)" },
    { "context", ARG_COUNT, AT(context), "N", "context length in tokens; 0: the model's maximum" },
    { "device", ARG_TEXT, AT(device), "NAME",
      "auto, cpu or cuda (default auto: the GPU if there is one)" },
    { "device.index", ARG_COUNT, AT(index), "N", "index of the GPU, from 0" },
};
const cli_spec cmd_chat_spec = { "chat", "MODEL [options]", CLI_ARGS(args), 1 };

typedef struct conversation {
    const generator *g;
    generation *d;
    const tokenizer *tok;
    chat_format format;
    sample_options o;
    json_t *messages;
    str answer;
} conversation;

static bool print_answer(void *ctx, const char *text, size_t n) {
    conversation *c = ctx;
    str_add_bytes(&c->answer, text, n);
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return !ferror(stdout);
}

static void add_message(conversation *c, const char *role, const char *text, size_t n) {
    json_array_append_new(
        c->messages, json_pack("{s:s, s:o}", "role", role, "content", io_json_string(text, n)));
}

static err answer_turn(conversation *c) {
    token_ids ids = { 0 };
    c->answer.len = 0;
    err e = chat_prompt(&c->format, c->tok, c->messages, &ids);
    if (!e) weights_check_prompt(c->g, (int64_t)ids.n);
    if (!e) e = generate_after(c->d, c->tok, ids.at, (int64_t)ids.n, &c->o, print_answer, c, NULL);
    printf("\n");
    if (!e) add_message(c, "assistant", c->answer.text ? c->answer.text : "", c->answer.len);
    c->o.seed++;
    token_ids_free(&ids);
    return e;
}

static void begin_talk(conversation *c, const char *system) {
    json_array_clear(c->messages);
    if (system) add_message(c, "system", system, strlen(system));
}

/* Until the input ends, or /quit. */
static err talk(conversation *c, const char *system) {
    bool live = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t capacity = 0;
    err e = OK;
    begin_talk(c, system);
    if (live) printf("/reset begins anew, /quit or Ctrl-D ends.\n");
    while (!e) {
        if (live) printf("> ");
        fflush(stdout);
        ssize_t n = getline(&line, &capacity, stdin);
        if (n < 0) break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = '\0';
        if (!n) continue;
        if (!strcmp(line, "/quit")) break;
        if (!strcmp(line, "/reset")) {
            begin_talk(c, system);
            continue;
        }
        add_message(c, "user", line, (size_t)n);
        e = answer_turn(c);
    }
    if (live) printf("\n");
    free(line);
    return e;
}

static err run_chat(const chat_args *a, weights *w, const generator *g) {
    tokenizer *tok = NULL;
    conversation c = { .g = g, .d = generation_new(g, &w->x), .messages = json_array() };
    err e = OK;
    TRY_CLEAN(weights_tokenizer(w, &tok));
    if (!tok) {
        e = err_hint(ERR("%s has no tokenizer", w->path),
                     "put the tokenizer.json it was trained with into its folder");
        goto cleanup;
    }
    TRY_CLEAN(chat_open(w->path, tok, &c.format));
    if (!c.format.template) {
        token_ids none = { 0 };
        e = chat_prompt(&c.format, tok, c.messages, &none);
        goto cleanup;
    }
    c.tok = tok;
    c.o = (sample_options){ .tokens = a->tokens,
                            .temperature = a->temperature,
                            .top_k = a->top_k,
                            .top_p = a->top_p,
                            .seed = (uint64_t)a->seed,
                            .repetition_penalty = a->penalty,
                            .stops = c.format.stops,
                            .n_stops = c.format.n_stops };
    e = talk(&c, a->system);
cleanup:
    chat_free(&c.format);
    generation_free(c.d);
    json_decref(c.messages);
    str_free(&c.answer);
    tokenizer_free(tok);
    return e;
}

err cmd_chat(int argc, char **argv) {
    chat_args a = { .tokens = 512, .temperature = 0.7, .top_p = 0.95, .penalty = 1 };
    const char *folder;
    weights w = { 0 };
    generator g;
    ops_choice on;
    TRY(cli_parse(&cmd_chat_spec, argc - 1, argv + 1, &a, &folder));
    if (!(a.penalty > 0 && a.penalty <= 100))
        return ERR_USAGE("--repetition-penalty: expected more than 0 and at most 100; got %g",
                         a.penalty);
    TRY(weights_device(a.device, a.index, &on));
    w.generate.g = &g;
    w.generate.positions = a.context;
    w.generate.slots = 1;
    err e = weights_open(folder, &on, &w);
    if (!e) e = run_chat(&a, &w, &g);
    weights_free(&w);
    return e;
}
