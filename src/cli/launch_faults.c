/* Which rank failed, on which host and why, from what is printed while a job ends; and whether the job is
 * worth starting again.
 *
 *     printed by   line                                                               certainty
 *     a rank       error: rank 3 (host-b): CAUSE                                      NAMED
 *                  ... has waited 600 s in ... for rank 1 (host-a), which ...         CULPRIT: rank 1
 *                  ...; it hangs in rank 3 (host-b), which waits for nobody           CULPRIT: rank 3
 *                  ... ends because another rank failed                                CAUSE
 *                  ... : rank 2 (host-a) has ended, or holds other weights ...        CULPRIT: rank 2
 *     doctor       error: ... sent wrong values: rank 2 (host-a): memory is wrong     CULPRIT: rank 2
 *     mpirun       mpirun noticed that process rank 2 with PID 5 on node H exited on signal 9 (Killed).
 *     srun         srun: error: host-b: task 3: Killed
 *     ssh, mpirun  ssh: connect to host host-b port 22: ...;  Remote node: host-b     NAMED
 *     mpirun       ORTE was unable to reliably start one or more daemons.             CAUSE
 *     the program  error: CAUSE                                                       CAUSE
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/launch.h"

enum { NOTHING, CAUSE, NAMED, CULPRIT };

/* ---- pieces of lines ------------------------------------------------------------------------------ */
/* @return what follows `text` in the line; NULL: it is not there. */
static const char *text_after(const char *line, const char *text) {
    const char *at = line ? strstr(line, text) : NULL;
    return at ? at + strlen(text) : NULL;
}

/* Reads a rank's number at `at`. @return what follows it; NULL: none. */
static const char *take_rank(const char *at, int *rank) {
    char *end = NULL;
    long n = at && *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : -1;
    if (n < 0 || n > 1 << 20) return NULL;
    *rank = (int)n;
    return end;
}

static void copy_until(char *to, size_t size, const char *from, const char *stop) {
    snprintf(to, size, "%.*s", (int)strcspn(from, stop), from);
}

static bool clear_if_less_certain(launch_fault *f, int certainty) {
    if (certainty <= f->certainty) return false;
    *f = LAUNCH_FAULT_NONE;
    f->certainty = certainty;
    return true;
}

/* ---- lines ----------------------------------------------------------------------------------------- */
/* "N (HOST)" or "N", at `at`. @return whether it is there. */
static bool read_rank_and_host(const char *at, launch_fault *f) {
    int rank;
    const char *end = take_rank(at, &rank);
    if (!end) return false;
    f->rank = rank;
    if (str_starts(end, " (")) copy_until(f->host, sizeof f->host, end + 2, ")");
    return true;
}

/* "N (HOST), which", not a list of ranks. */
static bool is_one(const char *at) {
    const char *comma = at ? strchr(at, ',') : NULL;
    const char *more = at ? strstr(at, " and rank ") : NULL;
    return comma && str_starts(comma, ", which") && !(more && more < comma);
}

/* An error that a rank reports of another one: that one is the culprit. */
static bool read_culprit(const char *cause, launch_fault *f) {
    launch_fault other = *f;
    const char *hangs = text_after(cause, "; it hangs in rank ");
    const char *waits = text_after(text_after(cause, " has waited "), " for rank ");
    const char *ended = strstr(cause, " has ended");
    if (!ended) ended = strstr(cause, " holds other weights");
    bool found = is_one(hangs) && read_rank_and_host(hangs, &other);
    if (!found) found = is_one(waits) && read_rank_and_host(waits, &other);
    for (const char *at = cause; !found && ended && (at = strstr(at, "rank ")) && at < ended;
         at++) {
        launch_fault named = other;
        const char *end = take_rank(at + 5, &named.rank);
        if (end && str_starts(end, " (")) end = strchr(end, ')') ? strchr(end, ')') + 1 : end;
        if (end == ended && (found = read_rank_and_host(at + 5, &named))) other = named;
    }
    if (found) *f = other;
    return found;
}

static void read_rank_error(launch_fault *f, const char *line) {
    launch_fault named = LAUNCH_FAULT_NONE;
    if (!read_rank_and_host(text_after(line, "error: rank "), &named)) return;
    const char *cause = text_after(line, "): ");
    if (!cause) return;
    snprintf(named.cause, sizeof named.cause, "%s", cause);
    bool other = read_culprit(cause, &named);
    bool echo = strstr(cause, "because another rank failed") != NULL; /* that one says why */
    if (!clear_if_less_certain(f, other ? CULPRIT : echo ? CAUSE : NAMED)) return;
    named.certainty = f->certainty;
    *f = named;
}

static void read_mpirun(launch_fault *f, const char *line) {
    int rank;
    const char *end = take_rank(text_after(line, "noticed that process rank "), &rank);
    const char *signal_text = text_after(line, "exited on signal ");
    if (!end || !signal_text || !clear_if_less_certain(f, CULPRIT)) return;
    char number[48];
    copy_until(number, sizeof number, signal_text, ".");
    f->rank = rank;
    const char *node = text_after(end, " on node ");
    if (node) copy_until(f->host, sizeof f->host, node, " ");
    snprintf(f->cause, sizeof f->cause, "ended by signal %s", number);
}

static void read_srun(launch_fault *f, const char *line) {
    const char *host = text_after(line, "srun: error: "), *task = text_after(line, ": task ");
    int rank;
    const char *end = take_rank(task, &rank);
    if (!host || !end || !str_starts(end, ": ")) return;
    bool exited = str_starts(end + 2, "Exited with"); /* its own error has the cause */
    if (!clear_if_less_certain(f, exited ? CAUSE : CULPRIT)) return;
    f->rank = rank;
    copy_until(f->host, sizeof f->host, host, ":");
    snprintf(f->cause, sizeof f->cause, "%s", end + 2);
}

static void read_unreachable(launch_fault *f, const char *line) {
    static const char *const marks[] = { "ssh: connect to host ",
                                         "ssh: Could not resolve hostname ", "Remote node:" };
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        const char *host = text_after(line, marks[i]);
        if (!host || !clear_if_less_certain(f, NAMED)) continue;
        copy_until(f->host, sizeof f->host, host + strspn(host, " "), " :\r\n");
        snprintf(f->cause, sizeof f->cause, "the host cannot be reached");
        f->unreachable = true;
    }
    if (!strstr(line, "unable to reliably start one or more daemons") ||
        !clear_if_less_certain(f, CAUSE))
        return;
    snprintf(f->cause, sizeof f->cause, "a host cannot be reached");
    f->unreachable = true;
}

/* Reads the verdict of doctor --cluster: the first of several ranks. */
static void read_doctor(launch_fault *f, const char *line) {
    launch_fault named = LAUNCH_FAULT_NONE;
    const char *rank = text_after(line, " wrong values: rank ");
    if (!read_rank_and_host(rank, &named) || !clear_if_less_certain(f, CULPRIT)) return;
    named.certainty = f->certainty;
    const char *cause = text_after(rank, "): ");
    if (cause) copy_until(named.cause, sizeof named.cause, cause, ";");
    *f = named;
}

static void read_plain_error(launch_fault *f, const char *line) {
    const char *cause = str_starts(line, "error: ") ? line + 7 : NULL;
    if (!cause || str_starts(cause, "rank ") || !clear_if_less_certain(f, CAUSE)) return;
    snprintf(f->cause, sizeof f->cause, "%s", cause);
}

void launch_fault_read(launch_fault *f, const char *line) {
    read_rank_error(f, line);
    read_mpirun(f, line);
    read_srun(f, line);
    read_unreachable(f, line);
    read_doctor(f, line);
    read_plain_error(f, line);
}

/* ---- again? ------------------------------------------------------------------------------------------ */
/* Whether an attempt ended by a fault of the program, which the same state reproduces: an error, or a signal
 * that a process raises by itself. Others come from outside, as SIGKILL does where memory is short. */
static bool is_own_fault(int status) {
    static const int own[] = { SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS };
    for (size_t i = 0; i < COUNT_OF(own); i++)
        if (status == 128 + own[i]) return true;
    return status == EXIT_ERROR;
}

bool launch_may_restart(const launch_limits *l, launch_history *h, const launch_outcome *o,
                        const char **why, double *delay_s) {
    enum { MOST_DELAY_S = 300 };
    const exit_row *code = exit_find(o->status);
    bool known = *o->fault.cause || o->status > 128; /* a signal is a cause by itself */
    bool same = h->failures > 0 && !o->progress && is_own_fault(o->status) && known &&
                !o->fault.unreachable /* it may be starting */ && h->last_status == o->status &&
                strcmp(h->last_cause, o->fault.cause) == 0;
    if (o->progress) h->failures = 0;
    h->failures++;
    h->last_status = o->status;
    snprintf(h->last_cause, sizeof h->last_cause, "%s", o->fault.cause);
    *why = NULL;
    if (code && code->restart == RESTART_NEVER)
        *why = "the same would happen again";
    else if (o->status == EXIT_PREEMPTED)
        *why = "the run was asked to stop";
    else if (same)
        *why = "the same error came twice";
    else if (h->failures > l->restarts)
        *why = l->restarts ? "it failed too often without reaching a new checkpoint"
                           : "no restarts are allowed";
    double delay = l->delay_s;
    for (int64_t i = 1; i < h->failures && delay < MOST_DELAY_S; i++) delay *= 2;
    *delay_s = MIN(delay, MAX(l->delay_s, (double)MOST_DELAY_S));
    return !*why;
}
