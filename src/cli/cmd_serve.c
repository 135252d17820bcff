/* ingot serve: the live page of runs, and the page that plans runs. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/serve_generate.h"
#include "eval/eval.h"
#include "io/io.h"
#include "planning/planning.h"

typedef struct serve_args {
    const char *address, *token, *catalogue, *law, *device;
    int64_t index, context, batch;
    bool generate;
} serve_args;

#define AT(member) offsetof(serve_args, member)
static const cli_arg args[] = {
    { "address", ARG_TEXT, AT(address), "ADDRESS:PORT",
      "where to listen (default 127.0.0.1:8080); 0.0.0.0:8080 for other machines too" },
    { "token", ARG_TEXT, AT(token), "SECRET",
      "token that every request must carry, as ?token=...: env:NAME, file:PATH or itself" },
    { "catalogue", ARG_TEXT, AT(catalogue), "FILE",
      "YAML file read over the built-in catalogue of accelerators and prices" },
    { "law", ARG_TEXT, AT(law), "FILE",
      "scaling law that \"ingot plan fit --write\" wrote, offered before the published ones" },
    { "generate", ARG_FLAG, AT(generate), "",
      "instead of the page, serve the model of RUN: OpenAI's /v1/completions and /v1/chat/completions" },
    { "context", ARG_COUNT, AT(context), "N",
      "with --generate: context length in tokens; 0: the model's maximum" },
    { "batch", ARG_COUNT, AT(batch), "N",
      "with --generate: answers that are generated together (default 8, at most 64)" },
    { "device", ARG_TEXT, AT(device), "NAME",
      "with --generate: auto, cpu or cuda (default auto: the GPU if there is one)" },
    { "device.index", ARG_COUNT, AT(index), "N", "with --generate: index of the GPU, from 0" },
};
const cli_spec cmd_serve_spec = { "serve", "[RUN...] [CONFIG.yaml...] [options]", CLI_ARGS(args), 0,
                                  true };

/* Runs are folders; a file is a config to plan. Moves the runs to the front. @return how many there are. */
static int sort_out_runs(char **words, int n) {
    int runs = 0;
    for (int i = 0; i < n; i++) {
        char *word = words[i];
        if (!io_is_dir(word)) continue;
        memmove(words + runs + 1, words + runs, (size_t)(i - runs) * sizeof *words);
        words[runs++] = word;
    }
    return runs;
}

/* Configs, and those of the runs as far as they can be read. @param n words; the first `runs` are runs */
static err offer_configs(planning_page *p, char **words, int runs, int n) {
    for (int i = runs; i < n; i++) {
        if (access(words[i], R_OK) != 0)
            return err_hint(ERR("%s is neither a folder nor a file", words[i]),
                            "give the folder of a run, such as runs/tiny, or a config to plan");
        TRY(planning_page_add(p, words[i], words[i]));
    }
    for (int i = 0; i < runs; i++) {
        const char *path = PATH_IN(words[i], "config.yaml");
        err_free(access(path, R_OK) == 0 ? planning_page_add(p, words[i], path) : OK);
    }
    return OK;
}

/* Serves until a signal ends it. */
static err serve_until_signal(serve_options *o) {
    int got;
    serve *s = NULL;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &wanted, NULL); /* before the server's thread begins */
    TRY(serve_start(o, &s));
    const char *query = o->token ? "?token=..." : "";
    if (o->n_runs) printf("http://%s/%s\n", serve_address(s), query);
    printf("http://%s%s%s plans runs\n", serve_address(s), o->plan_path, query);
    printf("Ctrl-C ends it.\n");
    fflush(stdout);
    sigwait(&wanted, &got);
    serve_stop(s);
    return got == SIGINT ? err_exit(ERR("stopped by Ctrl-C"), EXIT_INTERRUPTED) : OK;
}

static err generate_instead(const serve_args *a, char **words, int n, const char *token) {
    if (!a->generate)
        return ERR_USAGE("--%s: needs --generate", a->device    ? "device"
                                                   : a->context ? "context"
                                                   : a->batch   ? "batch"
                                                                : "device.index");
    if (n != 1 || a->catalogue)
        return err_hint(ERR_USAGE("--generate: expected one run and no catalogue; got %d runs", n),
                        "ingot serve RUN --generate");
    if (a->batch > GENERATOR_SLOTS)
        return ERR_USAGE("--batch: expected 1 to %d; got %lld", GENERATOR_SLOTS,
                         (long long)a->batch);
    return serve_generate(&(serve_generate_options){ .model = words[0],
                                                     .address = a->address,
                                                     .token = token,
                                                     .device = a->device,
                                                     .index = a->index,
                                                     .context = a->context,
                                                     .batch = a->batch ? a->batch : 8 });
}

err cmd_serve(int argc, char **argv) {
    serve_args a = { .address = "127.0.0.1:8080" };
    int n;
    planning_page *p = NULL;
    char *token = NULL;
    TRY(cli_parse_many(&cmd_serve_spec, argc - 1, argv + 1, &a, &n));
    if (a.token && !*a.token)
        return err_hint(ERR_USAGE("--token: expected a secret; got nothing"),
                        "--token env:NAME or file:PATH");
    if (a.token) TRY(config_secret("token", a.token, &token));
    if (a.generate || a.device || a.index || a.context || a.batch) {
        err e = generate_instead(&a, argv + 1, n, token);
        free(token);
        return e;
    }
    TRY(planning_page_open(a.catalogue, &p));
    int runs = sort_out_runs(argv + 1, n);
    serve_options o = { .address = a.address,
                        .token = token,
                        .runs = (const char *const *)(argv + 1),
                        .n_runs = runs };
    planning_page_serve(p, &o);
    err e = a.law ? planning_page_add_law(p, a.law) : OK;
    if (!e) e = offer_configs(p, argv + 1, runs, n);
    if (!e) e = serve_until_signal(&o);
    planning_page_free(p);
    free(token);
    return e;
}
