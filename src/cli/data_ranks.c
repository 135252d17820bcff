/* The data commands on several ranks: see data_common.h. */
#include <stdlib.h>

#include "cli/data_common.h"
#include "comm/comm.h"
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

static err run_rank(comm_job *j, const cli_subcommand *self, int argc, char **argv, data_work *work,
                    comm **c) {
    mesh m = { .size = { [AX_DP_SHARD] = comm_job_ranks(j) } };
    TRY(check_same_command(j, argc, argv));
    TRY(comm_processes(j, &m, TIMEOUT_SECONDS, true, c));
    return work(self, argc, argv, *c);
}

err data_run_on_ranks(const cli_subcommand *self, int argc, char **argv, data_work *work) {
    comm_job *j = NULL;
    comm *c = NULL;
    TRY(comm_job_open(TIMEOUT_SECONDS, cli_exit_stalled, &j));
    if (!j) return work(self, argc, argv, NULL);
    log_mute_thread(comm_job_rank(j) > 0); /* all would say the same */
    err e = run_rank(j, self, argc, argv, work, &c);
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
        ERR("rank %d sees other input files, or another content of them, than rank 0", other),
        "the input must be on a file system that all hosts share, and nothing may write to it");
}

err data_common_open(const data_common *c, char **paths, int n, text_inputs **out) {
    err e = comm_agree(c->comm, text_inputs_open((const char *const *)paths, n, &c->in, out));
    if (!e) e = compare_inputs(*out, c->comm);
    if (!e) return OK;
    text_inputs_close(*out);
    *out = NULL;
    return e;
}

bool data_common_prints(const data_common *c) { return comm_rank(c->comm) == 0; }
