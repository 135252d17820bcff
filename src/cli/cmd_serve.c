/* ingot serve: the live page of runs. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/io.h"
#include "serve/serve.h"

typedef struct serve_args {
    const char *address, *token;
} serve_args;

#define AT(member) offsetof(serve_args, member)
static const cli_arg args[] = {
    { "address", ARG_TEXT, AT(address), "ADDRESS:PORT",
      "where to listen (default 127.0.0.1:8080); 0.0.0.0:8080 for other machines too" },
    { "token", ARG_TEXT, AT(token), "TEXT", "token that every request must carry, as ?token=TEXT" },
};
const cli_spec cmd_serve_spec = { "serve", "RUN... [options]", args, (int)COUNT_OF(args), 1, true };

static err check_run_folders(char **dirs, int n) {
    for (int i = 0; i < n; i++)
        if (!io_is_dir(dirs[i]))
            return err_hint(ERR("%s is not a folder", dirs[i]),
                            "give the folder of a run, such as runs/tiny");
    return OK;
}

err cmd_serve(int argc, char **argv) {
    serve_args a = { .address = "127.0.0.1:8080" };
    int n, got;
    serve *s = NULL;
    TRY(cli_parse_many(&cmd_serve_spec, argc - 1, argv + 1, &a, &n));
    TRY(check_run_folders(argv + 1, n));
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &wanted, NULL); /* before the server's thread begins */
    TRY(serve_start(&(serve_options){ .address = a.address,
                                      .token = a.token,
                                      .runs = (const char *const *)(argv + 1),
                                      .n_runs = n },
                    &s));
    printf("http://%s/%s%s\n", serve_address(s), a.token ? "?token=" : "", a.token ? a.token : "");
    printf("Ctrl-C ends it.\n");
    fflush(stdout);
    sigwait(&wanted, &got);
    serve_stop(s);
    return OK;
}
