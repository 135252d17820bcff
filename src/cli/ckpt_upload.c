/* ingot ckpt upload: copies what a run could not upload itself. */
#include <stdlib.h>
#include <string.h>

#include "cli/ckpt_common.h"
#include "config/config.h"
#include "store/store.h"

/* Reads the URL that the run itself uploads to. @param out owned (free). */
static err read_url(const char *run, char **out) {
    config c;
    const char *path = PATH_IN(run, "config.yaml");
    config_init(&c);
    err e = io_exists(path) ? config_load(&c, path) : OK;
    if (!e && !*c.checkpoint.upload)
        e = err_hint(ERR_USAGE("%s does not say where to: it has no checkpoint.upload", path),
                     "name it: ingot ckpt upload %s s3://bucket/runs/a", run);
    if (!e) *out = strdup(c.checkpoint.upload);
    config_free(&c);
    return e;
}

static void print_upload(const ckpt_upload *u, const char *url) {
    char bytes[32], seconds[32];
    const char *kind = u->kind == CKPT_FULL ? "step" : "weights of step";
    if (u->bytes)
        printf("%s %lld: %s in %s, to %s\n", kind, (long long)u->step,
               str_bytes(bytes, sizeof bytes, (double)u->bytes),
               str_duration(seconds, sizeof seconds, u->seconds), url);
    else
        printf("%s %lld: %s has it already\n", kind, (long long)u->step, url);
}

static err upload_run(const char *run, const char *url) {
    bool any = false;
    if (!store_is_url(url))
        return err_hint(ERR_USAGE("\"%s\" is not the URL of a store", url),
                        "ingot ckpt upload %s s3://bucket/runs/a", run);
    for (int kind = 0; kind < CKPT_KINDS; kind++) {
        ckpt_upload done;
        TRY(ckpt_upload_newest(run, url, (ckpt_kind)kind, &done));
        if (done.step < 0) continue;
        print_upload(&done, url);
        any = true;
    }
    return any ? OK : ckpt_missing(run, "give a run folder: runs/tiny");
}

static err run_upload(const cli_subcommand *self, int argc, char **argv) {
    int n = 0;
    char *own = NULL;
    TRY(cli_parse_many(&self->spec, argc, argv, NULL, &n));
    if (n > 2)
        return err_hint(ERR_USAGE("expected RUN and URL; got %d words", n),
                        "ingot ckpt upload RUN URL");
    err e = n == 1 ? read_url(argv[0], &own) : OK;
    if (!e) e = upload_run(argv[0], n == 1 ? own : argv[1]);
    free(own);
    return e;
}

const cli_subcommand ckpt_upload_one = {
    .summary = "copy a run's newest checkpoint to an object store",
    .run = run_upload,
    .spec = { "ckpt upload", "RUN [s3://BUCKET/PREFIX]", NULL, 0, 1, true },
    .help =
        "Uploads the newest checkpoint of RUN, full and weights alone, with its config and tokenizer, as\n"
        "checkpoint.upload does while a run trains: for what a run could not upload before it ended.\n"
        "The URL is that of the run's config.yaml unless one is given. What the store has already is not\n"
        "sent again.\n"
        "\n"
        "Examples\n"
        "  ingot ckpt upload runs/tiny\n"
        "  ingot ckpt upload runs/tiny s3://bucket/runs/tiny\n",
};
