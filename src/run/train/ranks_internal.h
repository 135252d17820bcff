/* How ranks are laid out, and how they agree (ranks.c). All but ranks_mesh, is_first_rank and the counts of rows are
 * called by all ranks together. */
#ifndef INGOT_TRAIN_RANKS_INTERNAL_H
#define INGOT_TRAIN_RANKS_INTERNAL_H

#include "prog/execute.h"
#include "train/train.h"
#include "train/run_folder_internal.h"

typedef struct trainer trainer;

/* Communication of a step: seconds in which bytes moved, and those of them that computation hid. */
typedef enum { OVERLAP_ALL, OVERLAP_DP, OVERLAP_TP, OVERLAPS } overlap_axes;

typedef struct step_overlap {
    double moving[OVERLAPS], hidden[OVERLAPS];
} step_overlap;
/* @param ranks of the job; 0: as many as the config asks for. */
err ranks_mesh(const config *c, int ranks, mesh *out) MUST_USE;
/* Rank 0 prints and writes. */
bool is_first_rank(const trainer *t);
/* @return the number of ranks that read different sequences, and this rank's index among them. */
int ranks_with_rows(const trainer *t);
/* Rows that an evaluation runs at a time, a divisor of `rows`: fewer where experts on other ranks take every token, for
 * which memory is reserved. */
int64_t ranks_eval_rows(const trainer *t, int64_t rows, int64_t seq);
int ranks_rows_index(const trainer *t);
/* Waits until rank 0 has put the folder in order; sets t->began. */
err ranks_begin(trainer *t) MUST_USE;
/* Sets *now to rank 0's. */
err ranks_share_clock(const trainer *t, double *now) MUST_USE;
/* Likewise, where something is due by the clock. */
err ranks_agree_clock(const trainer *t, double *now) MUST_USE;
/* @return whether whoever sent the signal wants the machine back, and will start the run again. */
bool is_preemption(int signal_number);
/* Sets t->stop_signal. @param folder what rank 0 saw, on every rank. */
err ranks_agree(trainer *t, folder_state *folder) MUST_USE;
/* Seconds that this rank has waited for the neighbors of a pipeline so far. */
double ranks_pipeline_wait(const trainer *t);
/* @return the communication of this rank since it began. */
step_overlap ranks_overlap(const trainer *t);
/* Sums the last step's losses and counts over the ranks. */
err ranks_sum_losses(trainer *t) MUST_USE;
err ranks_sum_stages(const trainer *t, double *values, int n) MUST_USE;
/* Sums what only those that have losses know. */
err ranks_sum_rows(trainer *t, double *row, int64_t n) MUST_USE;
/* Shares the finding of the first rank that has one with every rank. */
err ranks_share_finding(trainer *t, exec_finding *f) MUST_USE;
/* Seconds that this rank has waited for communication so far. */
double ranks_comm_wait(const trainer *t);
err ranks_sum_targets(const trainer *t, double *targets) MUST_USE;

#endif
