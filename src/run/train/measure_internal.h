/* Metrics of a step that cost something: the peak of the device (peak.c), a pass over the parameters (detail.c), and
 * the load of experts (expert_load.c). */
#ifndef INGOT_TRAIN_MEASURE_INTERNAL_H
#define INGOT_TRAIN_MEASURE_INTERNAL_H

#include "train/train.h"
#include "train/step_internal.h"

typedef struct trainer trainer;

/* The peak that MFU is relative to, in floating point operations per second. */
typedef struct run_peak {
    bool is_known;      /* it was measured when the machine was idle */
    double flops;       /* the most this device can do in the run's type, as measured */
    double measured_at; /* by time_now; it is measured again with validations */
    double published;   /* the vendor's figure for it; NaN: not known, and MFU is of flops */
} run_peak;
typedef struct run_detail {
    observe_detail last; /* arrays owned, NULL until the first */
    float *values;       /* owned: of last.sample */
} run_detail;
/* Measures it, if that is due, and keeps the best: whatever else runs on the machine
 * only ever slows it down. */
void trainer_measure_peak(trainer *t);
/* @return whether the peak is to be measured again at `now`. */
bool peak_is_due(double measured_at, double now);
/* @return the peak of this key, from the file that has a line for each; NaN: none. */
double peak_read(const char *path, const char *key);
void peak_write(const char *path, const char *key, double flops);
/* @param loadavg the content of /proc/loadavg */
bool peak_machine_is_idle(const char *loadavg);
/* @return the peak once a step has reached `achieved`: where that is more, the measurement was taken
 * while the device was busy. It is taken again, and is at least what was achieved. */
double peak_after(double peak, double achieved, double (*measure)(void *ctx), void *ctx);
/* Raises the peak to what a step shows. @param achieved floating point operations per second. */
void trainer_raise_peak(trainer *t, double achieved);
/* @return what 100% of MFU is. */
double trainer_mfu_peak(const trainer *t);
/* Between the last microbatch and the update of a step that is to be measured. */
err detail_before_update(trainer *t) MUST_USE;
/* After that step, before the next begins. */
err detail_measure(trainer *t, observe_step *s) MUST_USE;
void detail_free(trainer *t);
void expert_load_fetch(trainer *t, queued_step *q);
err expert_load_measure(trainer *t, observe_step *s) MUST_USE;
void expert_load_free(trainer *t);

#endif
