/* The data commands on several ranks: see data_common.h. */
#include <stdlib.h>
#include <string.h>

#include "cli/data_common.h"
#include "comm/comm.h"
#include "io/io.h"
#include "util/wait.h"

/* Ranks meet at least twice a second while they work (text_tasks_run), so this covers what they do alone:
 * listing inputs, loading models, grouping keys. */
static const double TIMEOUT_SECONDS = 1800;

static err check_same_command(comm_job *j, int argc, char **argv) {
    str words = { 0 };
    for (int i = 0; i < argc; i++) str_add(&words, "%s\n", argv[i]);
    err e = comm_job_compare_program(j);
    if (!e) e = comm_job_compare(j, "command", words.len ? words.text : "");
    str_free(&words);
    return e;
}

/* ---- the options, for state.json and the card ------------------------------------------------ */
/* Options by which a result does not change. */
static const char *const same_result[] = { "out",       "dropped",    "report", "threads",
                                           "memory",    "quiet",      "json",   "work",
                                           "keep-work", "save-index", "fresh",  "verify" };

typedef struct given_options {
    const cli_spec *spec;
    json_t *options;
} given_options;

static bool find_given_option(void *ctx, const char *name, args_option *out) {
    const cli_spec *s = ((const given_options *)ctx)->spec;
    for (int k = 0; k < s->n_args; k++) {
        const cli_arg *o = &s->args[k];
        if (strcmp(o->name, name) != 0 && !(o->letter && name[0] == o->letter && !name[1]))
            continue;
        *out = (args_option){ o->type == ARG_FLAG ? ARGS_FLAG : ARGS_VALUE, o, o->holder };
        return true;
    }
    return false;
}

static err add_given(void *ctx, const args_option *a, const char *label, const char *value) {
    const cli_arg *o = a->option;
    for (size_t i = 0; i < COUNT_OF(same_result); i++)
        if (strcmp(o->name, same_result[i]) == 0) return OK;
    json_object_set_new(((given_options *)ctx)->options, o->name,
                        o->type == ARG_FLAG ? json_true() : io_json_string(value, strlen(value)));
    return OK;
}

static err pass_word(void *ctx, char *word) { return OK; }
static err pass_error(void *ctx, err e, const char *name) { return e; }

/* Reads the options of a copy of argv; the command itself reports what is wrong with them. */
static json_t *list_given(const cli_subcommand *self, int argc, char **argv) {
    given_options g = { &self->spec, json_object() };
    char **copy = mem_alloc(((size_t)argc + 1) * sizeof *copy);
    memcpy(copy, argv, (size_t)argc * sizeof *copy);
    err_free(args_parse(&(args_grammar){ find_given_option, add_given, pass_word, pass_error, &g },
                        argc, copy));
    free(copy);
    return g.options;
}

/* ---- ranks ------------------------------------------------------------------------------------ */
static err run_as_rank(comm_job *j, const cli_subcommand *self, int argc, char **argv,
                       const json_t *given, comm **c) {
    mesh m = { .size = { [AX_DP_SHARD] = comm_job_ranks(j) } };
    TRY(check_same_command(j, argc, argv));
    TRY(comm_processes(j, &m, TIMEOUT_SECONDS, true, c));
    return self->run_rank(self, argc, argv, &(data_job){ *c, given });
}

static err run_in_job(const cli_subcommand *self, int argc, char **argv, const json_t *given) {
    comm_job *j = NULL;
    comm *c = NULL;
    TRY(comm_job_open(TIMEOUT_SECONDS, cli_exit_stalled, &j));
    if (!j) return self->run_rank(self, argc, argv, &(data_job){ NULL, given });
    log_mute_thread(comm_job_rank(j) > 0); /* all ranks log the same */
    err e = run_as_rank(j, self, argc, argv, given, &c);
    if (!e) {
        comm_free(c);
        comm_job_close(j, false);
        return OK;
    }
    if (c) comm_abort(c, err_message(e));
    double wait = comm_job_wait_seconds(j, c);
    if (err_is_echo(e))
        wait = 10; /* the rank that failed prints its error first, and mpirun ends the job */
    wait_seconds(wait);
    e = comm_job_name_rank(j, e);
    comm_job_close(j, true);
    return e;
}

err data_run_on_ranks(const cli_subcommand *self, int argc, char **argv) {
    json_t *given = list_given(self, argc, argv);
    err e = run_in_job(self, argc, argv, given);
    json_decref(given);
    return e;
}

static err compare_inputs(const text_inputs *in, comm *c) {
    int ranks = comm_world(c), other = 0;
    if (ranks > 1 && text_inputs_have_pipe(in))
        return err_hint(ERR("standard input or another pipe cannot be read by %d ranks", ranks),
                        "write it to a file that all of them see, and pass that");
    uint64_t *hashes = mem_alloc((size_t)ranks * sizeof *hashes);
    hashes[comm_rank(c)] = text_inputs_hash(in);
    err e = comm_merge(c, hashes, (size_t)ranks * sizeof *hashes);
    for (int r = 1; r < ranks && !other; r++)
        if (hashes[r] != hashes[0]) other = r;
    free(hashes);
    TRY(e);
    if (!other) return OK;
    return err_hint(
        ERR("the input files of rank %d, or their content, differ from rank 0", other),
        "the input must be on a file system that all hosts share, and nothing may write to it");
}

err data_common_open(const data_common *c, char **paths, int n, text_inputs **out) {
    text_inputs *in = NULL;
    err e = comm_agree(c->comm, text_inputs_open((const char *const *)paths, n, &c->in, &in));
    if (!e) e = compare_inputs(in, c->comm);
    if (e)
        text_inputs_close(in);
    else
        *out = in;
    return e;
}

bool data_common_prints(const data_common *c) { return comm_rank(c->comm) == 0; }
