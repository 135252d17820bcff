/* wait: waits for a rank, a host, a service, a thread or a file. Each one has a name, which the log shows after
 * three seconds and then ever more rarely; a deadline; a back-off between looks; and ends with the first signal that
 * asks the process to end. Depends on util.h.
 *
 * Given `bool is_there(void)`:
 *
 *     wait_state w;
 *     wait_begin(&w, 20, "rank %d to connect", 3);      // at most 20 seconds
 *     while (!is_there()) TRY(wait_next(&w));           // sleeps, longer each time
 */
#ifndef INGOT_WAIT_H
#define INGOT_WAIT_H

#include <pthread.h>

#include "util/util.h"

/* ---- signals that ask the process to end ----------------------------------------------------------
 * A signal is sent to the process, so this is a state of the process. Whoever catches one notes it here; a process
 * that catches none is ended by it, in whatever wait it is. */
void wait_note_signal(int number); /* for signal handlers */
int wait_first_signal(void);       /* 0: none */
int wait_signal_count(void);
void wait_forget_signals(void); /* for tests */

/* ---- one wait ---------------------------------------------------------------------------------------- */
enum { WAIT_NAME = 200 };
typedef struct wait_state {
    char name[WAIT_NAME]; /* what is awaited: "rank 0 at host-a port 29500" */
    char detail
        [WAIT_NAME]; /* why it is not there yet, which the caller may set at any time; "": not known */
    double began, deadline;  /* time_now() */
    double delay, most;      /* seconds of the next nap, which doubles, and of the longest */
    double report_at;        /* when the log shows it next */
    int ignored;             /* signals that came before, and do not end it */
    const _Atomic bool *cut; /* ends it as a signal does, instead of one; NULL: signals do */
    rng_key jitter;
    uint64_t naps;
} wait_state;

/* Any signal so far ends it too: set `ignored` to wait_signal_count() where one has been acted upon.
 * @param seconds to the deadline. */
void wait_begin(wait_state *w, double seconds, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Naps from `first` on, doubled up to `most` seconds, each times a random 0.5 to 1: 20 ms and 0.5 s unless set. */
void wait_set_back_off(wait_state *w, double first, double most);
/* Whether it was interrupted or its time is up; reports it to the log when that is due. */
bool wait_is_over(wait_state *w);
bool wait_is_interrupted(const wait_state *w);
/* Sleeps until the next look. @return false when the wait is over. */
bool wait_nap(wait_state *w);
/* Waits for a condition variable for at most a tenth of a second, so that a signal is noticed. @param lock held.
 * @return false when the wait is over. */
bool wait_for_change(wait_state *w, pthread_cond_t *changed, pthread_mutex_t *lock);
/* Why it is over, with the name, the seconds and the detail. Its exit code is EXIT_INTERRUPTED after Ctrl-C, EXIT_PREEMPTED
 * after another signal. */
err wait_failed(const wait_state *w) MUST_USE;
/* wait_nap, and wait_failed where that is over. */
err wait_next(wait_state *w) MUST_USE;

/* Sleeps, up to the first signal after the call. */
void wait_seconds(double seconds);

/* ---- calls that cannot look ----------------------------------------------------------------------------
 * A call of a library that waits inside, such as MPI_Init, is watched by a thread, which reports it to the log, and at
 * its deadline prints the error and calls `expired`. Signals that the process catches end it at once meanwhile. */
typedef struct wait_guard wait_guard;
/* @param expired ends the process. @param reports to the log: one rank does, of many that wait for the same. */
wait_guard *wait_guard_begin(double seconds, void (*expired)(void), bool reports, const char *what);
void wait_guard_end(wait_guard *g); /* takes NULL */

#endif
