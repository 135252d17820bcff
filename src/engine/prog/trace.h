/* trace: what an executor ran, and when: one event for each call, communication and instruction, timed by the
 * clock on a CPU and by events in the queue on a device. Depends on execute.h.
 *
 * Given `exec x`:
 *
 *     exec_trace *t = trace_begin(&x);                      // from here on all that x runs is recorded
 *     TRY(exec_chain(&x, 0, 0, 1));
 *     TRY(trace_end(t));                               // nothing more is recorded; times are known
 *     str text = { 0 };
 *     trace_write(t, 0, &text);                        // lines of Chrome's trace format, as process 0
 *     trace_free(t);
 *
 * Nothing waits for a device while it records. An executor without a trace pays one comparison per call.
 */
#ifndef INGOT_TRACE_H
#define INGOT_TRACE_H

#include "prog/execute.h"

/* Starts to record. All ranks of a world call it together where their times are to be compared: `seconds`
 * count from here. */
exec_trace *trace_begin(exec *x);
/* Between them nothing is recorded. Both take NULL. */
void trace_pause(exec_trace *t);
void trace_resume(exec_trace *t);
err trace_end(exec_trace *t) MUST_USE;
void trace_free(exec_trace *t); /* takes NULL; ends it */

/* Marks a span of the caller's own, such as a step, around what it runs: begin returns its number.
 * @param name copied. Both take NULL. */
int trace_span_begin(exec_trace *t, const char *name);
void trace_span_end(exec_trace *t, int span);

/* Appends all events, each as a line that ends in a comma. Processes are ranks; the threads of one are its
 * queues, and one more for what is in flight between ranks. */
void trace_write(const exec_trace *t, int process, str *out);

/* Calls of one op at one place of the model's source, together. */
typedef struct trace_row {
    const char *op, *file, *function; /* file NULL: an op outside programs, as of the update */
    int line;
    int64_t calls;
    double seconds;
    op_work work;
} trace_row;
/* Lists calls by seconds, most first. @param out owned. @return how many. */
int trace_rows(const exec_trace *t, trace_row **out);
/* Returns the seconds in which calls ran, and in which the rank waited for others. */
double trace_busy_seconds(const exec_trace *t);
double trace_wait_seconds(const exec_trace *t);

#endif
