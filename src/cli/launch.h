/* ingot launch, inside: hosts, what their output shows of a failure, and the supervisor.
 *
 *     cmd_launch.c         the command line, and the command that starts the ranks
 *     launch_hosts.c       --hosts and --spares
 *     launch_faults.c      which rank failed, where and why, from what ranks and mpirun or srun print
 *     launch_supervise.c   starts the command, and again from the last checkpoint after a failure
 */
#ifndef INGOT_LAUNCH_H
#define INGOT_LAUNCH_H

#include "util/util.h"

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
/* What to do after a failure. @param why set when the answer is no: a clause such as "the same error came
 * twice". @param delay_s set when it is yes. */
bool launch_may_restart(const launch_limits *l, launch_history *h, const launch_outcome *o,
                        const char **why, double *delay_s);

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
    const char *run_dir; /* NULL: there is nothing to continue, and one attempt is made */
    bool fresh;          /* the first attempt starts over */
    launch_limits limits;
} launch_job;
/* Runs the job to its end. @return an error with the exit code and the diagnosis when it fails. */
err launch_supervise(const launch_job *j) MUST_USE;

#endif
