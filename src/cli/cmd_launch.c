/* ingot launch: one command that starts the ranks of a run, or the file that lets a cluster start them. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/launch.h"
#include "train/train.h"

#define AT(member) offsetof(launch_args, member)
static const cli_arg args[] = {
    { "ranks", ARG_COUNT, AT(ranks), "N", "how many ranks (default: the slots of --hosts)", 'n' },
    { "hosts", ARG_TEXT, AT(hosts), "HOST:SLOTS,...",
      "hosts to start them on, and how many on each" },
    { "spares", ARG_TEXT, AT(spares), "HOST:SLOTS,...", "hosts that replace one that fails" },
    { "restarts", ARG_COUNT, AT(restarts), "N",
      "restarts without a new checkpoint between them (default 10)" },
    { "restart-delay", ARG_REAL, AT(restart_delay), "SECONDS",
      "pause before the first; doubles with each (default 1)" },
    { "grace", ARG_REAL, AT(grace), "SECONDS",
      "silence of the ranks after which they are ended and restarted (default 60; 0: never)" },
    { "doctor", ARG_FLAG, AT(doctor), NULL,
      "test all ranks first, and after every second failure in a row (doctor --cluster)" },
    { "doctor-seconds", ARG_REAL, AT(doctor_seconds), "S",
      "with --doctor: its --seconds (default 2)" },
    { "per-host", ARG_COUNT, AT(per_host), "N", "with --emit: ranks on each host (default: all)" },
    { "emit", ARG_TEXT, AT(emit), "SYSTEM",
      "print a job instead: slurm (sbatch), k8s (its MPI operator) or volcano" },
    { "spare-hosts", ARG_COUNT, AT(spare_hosts), "N",
      "with --emit slurm, volcano: hosts more than needed, that replace one that fails" },
    { "image", ARG_TEXT, AT(image), "IMAGE",
      "with --emit k8s, volcano: a container image with ingot" },
    { "name", ARG_TEXT, AT(name), "NAME", "with --emit: name of the job (default ingot)" },
    { "dry-run", ARG_FLAG, AT(dry_run), NULL, "print the command that would start them" },
};
const cli_spec cmd_launch_spec = { "launch", "-n N [options] -- train|data ...", CLI_ARGS(args), 1,
                                   true };

/* ---- what is asked for ------------------------------------------------------------------------ */
static err settle_counts(launch_args *a, launch_hosts *h) {
    enum { MOST = 1024 };
    TRY(launch_hosts_read("--hosts", a->hosts, h));
    int slots = launch_hosts_slots(h);
    if (!a->ranks) a->ranks = slots;
    if (!a->ranks)
        return err_hint(ERR_USAGE("--ranks: how many ranks?"), "ingot launch -n 4 -- train ...");
    if (a->ranks > MOST) return ERR_USAGE("--ranks: %lld, at most %d", (long long)a->ranks, MOST);
    if (h->n && a->ranks > slots)
        return err_hint(
            ERR_USAGE("--ranks: %lld ranks, but --hosts has %d slots", (long long)a->ranks, slots),
            "use -n %d, or more hosts", slots);
    if (!a->per_host) a->per_host = h->n ? launch_hosts_most(h) : a->ranks;
    if (a->ranks % a->per_host && a->emit)
        return err_hint(ERR_USAGE("--per-host: %lld ranks do not divide into hosts of %lld",
                                  (long long)a->ranks, (long long)a->per_host),
                        "use a multiple");
    return OK;
}

/* Ranks that exchange the most, those of tensor parallelism, are neighbors, and stay inside a host where
 * all hosts have whole groups of them. */
static err check_groups(const config *c, const launch_args *a, const launch_hosts *h) {
    int64_t tp = c->parallelism.tensor_parallel_degree, odd = a->per_host;
    if (*c->parallelism.axis_order) return OK; /* whoever sets it knows the hosts */
    for (int i = 0; i < h->n && odd % tp == 0; i++) odd = h->at[i].slots;
    if (odd % tp == 0 || odd >= a->ranks) return OK;
    return err_hint(ERR("tensor-parallel groups of %lld ranks would span hosts: one has %lld slots",
                        (long long)tp, (long long)odd),
                    "let each host have a multiple of parallelism.tensor_parallel_degree");
}

/* The job that is supervised: of a run its folder, whose checkpoints a restart continues from. */
typedef struct launched {
    char *run_dir; /* owned; NULL: not a run */
    bool fresh;
    bool resumes; /* a data command that goes on where it was */
} launched;

/* Refuses what train would refuse, before anything starts. */
static err check_train(int argc, char **argv, const launch_args *a, const launch_hosts *h,
                       launched *out) {
    config c;
    train_options o = { 0 };
    train_flags flags = { 0 };
    config_init(&c);
    err e = cli_read_train(argc, argv, &c, &o, &flags);
    if (!e && o.ranks)
        e = err_hint(ERR_USAGE("--ranks: belongs to launch, not to train"),
                     "ingot launch -n %d -- train ...", o.ranks);
    if (!e) e = train_check_ranks(&c, (int)a->ranks);
    if (!e) e = check_groups(&c, a, h);
    if (!e) out->run_dir = train_run_dir(&c);
    out->fresh = o.fresh;
    config_free(&c);
    return e;
}

static err check_command(int argc, char **argv, const launch_args *a, const launch_hosts *h,
                         launched *out) {
    if (strcmp(argv[0], "train") == 0) return check_train(argc, argv, a, h, out);
    if (strcmp(argv[0], "doctor") == 0) return OK;
    bool data = strcmp(argv[0], "data") == 0 && argc > 1;
    const cli_subcommand *s = data ? cli_find_subcommand(&data_family, argv[1]) : NULL;
    out->fresh = true; /* passed on as it is */
    out->resumes = true;
    for (int i = 0; i < argc; i++) out->resumes &= strcmp(argv[i], "--fresh") != 0;
    if (s && s->run_rank) return OK;
    return err_hint(
        ERR_USAGE("\"%s%s%s\" does not run on several ranks", argv[0], data ? " " : "",
                  data ? argv[1] : ""),
        "ingot launch -n 4 -- train ..., or data filter, dedup, decontaminate or tokenize");
}

/* ---- the command -------------------------------------------------------------------------------- */
typedef struct words {
    char **at;
    int n, cap;
} words;

static void words_add(words *w, const char *text) {
    w->at = mem_reserve(w->at, &w->cap, w->n + 1, sizeof *w->at); /* a NULL follows the last */
    w->at[w->n++] = strdup(text);
}
static void words_add_number(words *w, int64_t n) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)n);
    words_add(w, text);
}
static bool has_program(const char *name) {
    const char *path = getenv("PATH");
    char file[PATH_MAX];
    for (size_t n; path && *path; path += n + (path[n] == ':')) {
        n = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)n, path, name);
        if (access(file, X_OK) == 0) return true;
    }
    return false;
}

/* @param fresh false: without --fresh. */
static err add_program(words *w, int argc, char **argv, bool fresh) {
    char path[PATH_MAX] = "";
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0)
        return ERR("cannot find the program's own path: %s", strerror(errno));
    words_add(w, path);
    for (int i = 0; i < argc; i++)
        if (fresh || strcmp(argv[i], "--fresh") != 0) words_add(w, argv[i]);
    return OK;
}

static void add_hosts(words *w, const launch_hosts *h, bool slots) {
    str text = { 0 };
    launch_hosts_print(h, slots, &text);
    words_add(w, text.text);
    str_free(&text);
}

/* Threads of a rank share a host's cores with those of others, so ranks are not bound to one core each. */
static void add_mpirun(words *w, const launch_args *a, const launch_hosts *h) {
    words_add(w, "mpirun");
    words_add(w, "-n");
    words_add_number(w, a->ranks);
    words_add(w, "--bind-to");
    words_add(w, "none");
    words_add(w, h->n ? "-H" : "--oversubscribe");
    if (h->n) add_hosts(w, h, true);
    if (h->n) words_add(w, "-x"), words_add(w, "TERM"); /* ranks on this host inherit it */
    if (a->supervised) words_add(w, "-x"), words_add(w, LAUNCH_SUPERVISED);
    if (geteuid() == 0) words_add(w, "--allow-run-as-root");
}

static void add_srun(words *w, const launch_args *a, const launch_hosts *h) {
    words_add(w, "srun");
    words_add(w, "-n");
    words_add_number(w, a->ranks);
    words_add(w, "--kill-on-bad-exit=1");
    if (!h->n) return;
    words_add(w, "-N"); /* not those of the allocation that are spares */
    words_add_number(w, h->n);
    words_add(w, "-w");
    add_hosts(w, h, false);
}

static err add_starter(words *w, const launch_args *a, const launch_hosts *h) {
    if (getenv("SLURM_JOB_ID") && has_program("srun"))
        add_srun(w, a, h);
    else if (has_program("mpirun"))
        add_mpirun(w, a, h);
    else
        return err_hint(ERR("there is neither an mpirun nor a Slurm allocation with srun"),
                        "install openmpi-bin; or use train --ranks %lld, threads of one process",
                        (long long)a->ranks);
    return OK;
}

/* ---- the job -------------------------------------------------------------------------------- */
typedef struct job_words {
    const launch_args *a;
    char **argv;
    int argc;
    bool stop_on_stdin; /* the supervisor asks rank 0 to stop through its standard input */
} job_words;

static void free_command(char **argv) {
    for (int i = 0; argv && argv[i]; i++) free(argv[i]);
    free(argv);
}

static err make_command(void *ctx, const launch_hosts *h, bool fresh, char ***argv) {
    const job_words *j = ctx;
    words w = { 0 };
    err e = add_starter(&w, j->a, h);
    if (!e) e = add_program(&w, j->argc, j->argv, fresh);
    if (!e && j->stop_on_stdin) words_add(&w, "--" TRAIN_STOP_ON_STDIN);
    *argv = w.at;
    return e;
}

/* Tests all ranks, where they are started. */
static err make_test(void *ctx, const launch_hosts *h, char ***argv) {
    const launch_args *a = ((const job_words *)ctx)->a;
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", a->doctor_seconds);
    char *doctor[] = { "doctor", "--cluster", "--seconds", seconds };
    words w = { 0 };
    err e = add_starter(&w, a, h);
    if (!e) e = add_program(&w, (int)COUNT_OF(doctor), doctor, true);
    *argv = w.at;
    return e;
}

/* Starts nothing but "true" there, the way ranks are started. */
static err make_probe(void *ctx, const launch_host *h, char ***argv) {
    launch_args one = *((const job_words *)ctx)->a;
    launch_hosts *alone = mem_alloc(sizeof *alone);
    words w = { 0 };
    one.ranks = 1;
    one.supervised = false;
    alone->at[alone->n++] = *h;
    err e = add_starter(&w, &one, alone);
    words_add(&w, "true");
    *argv = w.at;
    free(alone);
    return e;
}

static err print_command(job_words *j, const launch_hosts *h) {
    char **argv = NULL;
    int n = 0;
    str line = { 0 };
    err e = make_command(j, h, true, &argv);
    while (argv && argv[n]) n++;
    if (!e) {
        launch_quote_command(argv, n, &line);
        str_add(&line, "\n");
        fputs(line.text, stdout);
    }
    free_command(argv);
    str_free(&line);
    return e;
}

err cmd_launch(int argc, char **argv) {
    launch_args a = LAUNCH_ARGS;
    launch_hosts *hosts = mem_alloc(sizeof *hosts), *spares = mem_alloc(sizeof *spares);
    launched what = { 0 };
    job_words command = { .a = &a, .argv = argv + 1 };
    err e = OK;
    TRY_CLEAN(cli_parse_many(&cmd_launch_spec, argc - 1, argv + 1, &a, &command.argc));
    TRY_CLEAN(settle_counts(&a, hosts));
    if (a.spare_hosts && !a.emit)
        TRY_CLEAN(err_hint(ERR_USAGE("--spare-hosts: belongs to --emit"),
                           "name spare hosts with --spares HOST:SLOTS,..."));
    TRY_CLEAN(launch_hosts_read("--spares", a.spares, spares));
    TRY_CLEAN(check_command(command.argc, command.argv, &a, hosts, &what));
    command.stop_on_stdin = what.run_dir && !a.dry_run;
    a.supervised = !a.dry_run && a.grace > 0;
    if (a.emit)
        e = launch_emit(&a, command.argc, command.argv);
    else if (a.dry_run)
        e = print_command(&command, hosts);
    else
        e = launch_supervise(&(launch_job){
            .command = make_command,
            .probe = make_probe,
            .test = a.doctor ? make_test : NULL,
            .command_free = free_command,
            .ctx = &command,
            .hosts = hosts,
            .spares = spares,
            .run_dir = what.run_dir,
            .fresh = what.fresh,
            .limits = { what.run_dir || what.resumes ? a.restarts : 0, a.restart_delay },
            .only_lost = what.resumes,
            .grace_s = a.grace,
        });
cleanup:
    free(what.run_dir);
    free(hosts);
    free(spares);
    return e;
}
