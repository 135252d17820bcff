/* ingot launch, inside: hosts, what their output shows of a failure, and the supervisor.
 *
 *     cmd_launch.c         the command line, and the command that starts the ranks
 *     launch_emit.c        --emit: the file that lets a cluster start them
 *     launch_hosts.c       --hosts and --spares
 *     launch_faults.c      which rank failed, where and why, from what ranks and mpirun or srun print
 *     launch_attempt.c     one attempt: the starter's process, its output, signals, and whether the ranks are alive
 *     launch_supervise.c   attempts, until the job is done: restarts, spares, tests
 *     launch_beat.c        the sign of life of rank 0
 */
#ifndef INGOT_LAUNCH_H
#define INGOT_LAUNCH_H

#include "cli/doctor.h"
#include "util/util.h"

/* ---- the command line -------------------------------------------------------------------------- */
typedef struct launch_args {
    int64_t ranks, per_host, restarts, spare_hosts;
    double restart_delay, doctor_seconds, grace;
    const char *hosts, *spares, *emit, *image, *name;
    bool dry_run, doctor;
    bool supervised; /* rank 0 gives signs of life */
} launch_args;
#define LAUNCH_ARGS                                                                                \
    {                                                                                              \
        .name = "ingot", .restarts = 10, .restart_delay = 1, .doctor_seconds = DOCTOR_SECONDS,     \
        .grace = 60                                                                                \
    }
/* Prints the file. @param argv the ranks' command. */
err launch_emit(const launch_args *a, int argc, char **argv) MUST_USE;
/* Appends the words, quoted for the shell. */
void launch_quote_command(char *const *word, int n, str *out);

/* ---- hosts ----------------------------------------------------------------------------------- */
enum { LAUNCH_MAX_HOSTS = 256, LAUNCH_HOST = 64 };
typedef struct launch_host {
    char name[LAUNCH_HOST];
    int slots;
} launch_host;
typedef struct launch_hosts {
    launch_host at[LAUNCH_MAX_HOSTS];
    int n;
} launch_hosts;
/* Reads "a:8,b:8". @param option for messages: "--hosts". @param text NULL: none. */
err launch_hosts_read(const char *option, const char *text, launch_hosts *out) MUST_USE;
int launch_hosts_slots(const launch_hosts *h); /* of all of them */
int launch_hosts_most(const launch_hosts *h);  /* the most that one has */
/* "a:8,b:8", or with slots == false "a,b": appended. */
void launch_hosts_print(const launch_hosts *h, bool slots, str *out);
/* Hosts take consecutive ranks. @return the index of the one that has this rank; -1: none. */
int launch_hosts_find_rank(const launch_hosts *h, int rank);
int launch_hosts_find_name(const launch_hosts *h, const char *name); /* -1: none */
/* Puts the first spare with enough slots in place of a host, and takes it off the spares.
 * @return false when there is none. */
bool launch_hosts_replace(launch_hosts *h, int index, launch_hosts *spares);

/* ---- one failure ------------------------------------------------------------------------------- */
typedef struct launch_fault {
    int rank;               /* -1: not known */
    char host[LAUNCH_HOST]; /* "": not known */
    char cause[400];        /* "": not known */
    bool unreachable;       /* no rank: a host on which nothing could be started */
    int certainty;          /* of what was read: a better line replaces a worse one */
} launch_fault;
#define LAUNCH_FAULT_NONE ((launch_fault){ .rank = -1 })
/* Looks at one line that a rank, mpirun or srun printed. */
void launch_fault_read(launch_fault *f, const char *line);

/* ---- when to start again -------------------------------------------------------------------------- */
typedef struct launch_limits {
    int64_t restarts; /* in a row, without a new checkpoint between them */
    double delay_s;   /* before the first of them; doubles with each */
} launch_limits;
/* How an attempt ended. */
typedef struct launch_outcome {
    int status;    /* exit code, or 128 + the signal that ended it */
    bool progress; /* it left a new checkpoint */
    launch_fault fault;
} launch_outcome;
typedef struct launch_history {
    int64_t failures; /* in a row, without a new checkpoint between them */
    int last_status;
    char last_cause[400];
} launch_history;
/* Decides whether to restart after a failure. @param why set when the answer is no: a clause such as "the same error came
 * twice". @param delay_s set when it is yes. */
bool launch_may_restart(const launch_limits *l, launch_history *h, const launch_outcome *o,
                        const char **why, double *delay_s);

/* ---- signs of life -------------------------------------------------------------------------------- */
#define LAUNCH_SUPERVISED "INGOT_SUPERVISED" /* in the environment of ranks: rank 0 gives them */
enum { LAUNCH_BEAT = 6 };                    /* ACK */
void launch_beat_start(void);                /* where the environment asks for it */

/* ---- one attempt -------------------------------------------------------------------------------------- */
typedef struct attempt {
    pid_t pid;
    int input;   /* the writing end of its standard input; -1: it has none */
    int errors;  /* the reading end of its standard error */
    str line;    /* begun, not ended */
    bool beaten; /* the last byte was a sign of life */
    int sent;    /* signals passed on */
    double began, heard,
        failed; /* time_now() of the start, the last sign of life, the first error of a rank; 0: none */
    double asked,
        ended; /* ... of the first signal, and of the request that the starter ends; 0: not yet */
    const char *run_dir; /* borrowed; NULL: not a run */
    launch_fault fault;
} attempt;
enum { LAUNCH_CAUGHT = 4 };
extern const int launch_caught[LAUNCH_CAUGHT]; /* signals that the supervisor catches */
/* Starts a command. @param saves the ranks train, and can be asked to save; others have nothing on their standard input. */
err launch_attempt_start(char **argv, int number, bool saves, attempt *a) MUST_USE;
/* Passes on output and signals until the command has ended. Where the ranks give no sign of life for `grace` seconds, or one
 * has failed and the starter does not end within them, the starter is ended. @param grace 0: however long it takes.
 * @return its exit code, or 128 + the signal that ended it; EXIT_HUNG where it was ended for that. */
int launch_attempt_await(attempt *a, double grace);
/* Whether a command ends well within half a minute, and before a signal. */
bool launch_command_succeeds(char **argv);

/* ---- the supervisor ---------------------------------------------------------------------------------- */
typedef struct launch_job {
    /* Appends the words of the command for these hosts to argv, which execvp takes. */
    err (*command)(void *ctx, const launch_hosts *h, bool fresh, char ***argv);
    /* ... of one that only shows whether something can be started on a host; NULL: there is none. */
    err (*probe)(void *ctx, const launch_host *h, char ***argv);
    /* ... of one that tests all ranks, before the first attempt and after repeated failures; NULL: they are not. */
    err (*test)(void *ctx, const launch_hosts *h, char ***argv);
    void (*command_free)(char **argv);
    void *ctx;
    launch_hosts *hosts, *spares;
    const char *run_dir; /* NULL: not a run, and so without checkpoints */
    bool fresh;          /* the first attempt starts over */
    launch_limits limits;
    bool
        only_lost; /* restarts follow a rank that was lost, not an error that the program reports */
    double grace_s; /* of launch_attempt_await */
} launch_job;
/* Runs the job to its end. @return an error with the exit code and the diagnosis when it fails. */
err launch_supervise(const launch_job *j) MUST_USE;

#endif
