/* The executor (execute.c, exec_queues.c) and those that note what it runs (task_times.c, trace.c). */
#ifndef INGOT_PROG_EXEC_INTERNAL_H
#define INGOT_PROG_EXEC_INTERNAL_H

#include "prog/execute.h"
#include "prog/trace.h"
#include "prog/chain_internal.h"

/* Whether an instruction of this kind runs an op of its list, or what the simulator has in its place. */
typedef struct list_item {
    op_when when;
    bool starts, saves; /* starts a communication; backward reads something that follows from it */
} list_item;
bool item_runs(list_item o, instr_kind kind, bool last);
bool op_runs(const prog_op *o, instr_kind kind, int micro, int micros);
/* The step block as kernels read it, as exec_step left it. */
step_block *exec_step_at(exec *x);
/* task_times.c: called before and after every list that is part of a task. */
void task_times_note(exec *x, const instr *i, bool ends);
int trace_call_begin(exec_trace *t, const op_call *c);
/* @param c, n the calls, which ran together; in, o what the first is a part of */
void trace_call_end(exec_trace *t, int at, const op_call *c, int n, const instance *in,
                    const prog_op *o, int micro);
int trace_instr_begin(exec_trace *t);
void trace_instr_end(exec_trace *t, int at, const instr *i, const instance *in, int micro);
/* The call of an op in an instance; addr NULL gives shapes without data. */
op_call call_of(const prog *p, const prog_op *o, void *const *addr);

#endif
