/* observe: what a run reports. metrics.jsonl with one object per step, events.jsonl, and the progress
 * line. Depends on util and io.
 *
 *     observe *o = NULL;
 *     TRY(observe_open("runs/a", 0, &o));
 *     progress *p = progress_new(stdout);
 *     observe_step s = OBSERVE_STEP_NONE;           // every figure "not measured"
 *     s.step = 1;
 *     s.loss = 5.5;
 *     TRY(observe_log(o, &s));
 *     progress_show(p, &s);
 */
#ifndef INGOT_OBSERVE_H
#define INGOT_OBSERVE_H

#include <jansson.h>
#include <math.h>

#include "util/util.h"

/* ---- one step ----------------------------------------------------------------------------
 * COUNT is an int64_t, FIGURE a double. NaN in an EXTRA figure means "not measured" and leaves the
 * field out; a figure that is ALWAYS there is written as null when it is not finite. */
/* clang-format off */
#define OBSERVE_FIELDS(COUNT, FIGURE)                                                             \
    COUNT(step)                  /* of the run, from 1 */                                         \
    COUNT(tokens)                /* seen so far, this step included */                            \
    FIGURE(loss, ALWAYS)         /* mean over the step's targets, nats */                         \
    FIGURE(grad_norm, ALWAYS)    /* before clipping */                                            \
    FIGURE(lr, ALWAYS)                                                                            \
    FIGURE(tok_s, EXTRA)         /* tokens per second */                                            \
    FIGURE(mfu, EXTRA)           /* of 1; attention counted full */                               \
    FIGURE(mfu_causal, EXTRA)    /* of 1; attention counted causal */                             \
    FIGURE(step_s, EXTRA)        /* seconds: the whole step */                                    \
    FIGURE(data_s, EXTRA)        /* seconds: waiting for data */                                  \
    FIGURE(comm_s, EXTRA)        /* seconds: waiting for other ranks */                           \
    FIGURE(epoch, EXTRA)         /* passes over the data so far */                                \
    FIGURE(batch, EXTRA)         /* sequences in the step */                                      \
    FIGURE(seq_len, EXTRA)       /* longest document of the step, under a curriculum */           \
    FIGURE(loss_scale, EXTRA)                                                                     \
    FIGURE(skipped, EXTRA)       /* 1: the update was skipped for an overflow */                  \
    FIGURE(clipped, EXTRA)       /* factor the gradient was scaled by */                          \
    FIGURE(noise_scale, EXTRA)   /* gradient noise scale, tokens */                               \
    FIGURE(rejected, EXTRA)      /* sequences that the data guard gave weight 0 */                \
    FIGURE(val_loss, EXTRA)      /* when this step validated */
/* clang-format on */

/* One source of a mixture, or one set to validate on. */
typedef struct observe_part {
    const char *name; /* borrowed */
    int64_t tokens;   /* seen so far */
    double loss;      /* mean over its targets; NaN: none in this step */
} observe_part;

#define OBSERVE_COUNT(name)        int64_t name;
#define OBSERVE_FIGURE(name, when) double name;
typedef struct observe_step {
    OBSERVE_FIELDS(OBSERVE_COUNT, OBSERVE_FIGURE)
    /* Where there are several, "sources": { NAME: { "tokens": N, "loss": L }, ... } and
     * "validation": { NAME: L, ... }. Borrowed. */
    const observe_part *sources, *validation;
    int n_sources, n_validation;
    /* For the progress line alone. */
    int64_t total_steps; /* 0: not known */
    double eta_s;        /* seconds left; NaN: not known */
} observe_step;
#undef OBSERVE_COUNT
#undef OBSERVE_FIGURE

/* Counts zero, every figure not measured. */
observe_step observe_step_none(void);
#define OBSERVE_STEP_NONE observe_step_none()

/* ---- the run's logs ------------------------------------------------------------------------ */
typedef struct observe observe;
/* Opens DIR/metrics.jsonl and DIR/events.jsonl for appending; the folder must exist. Metrics of
 * steps >= first_step, left by a run that went further than the checkpoint it resumes from, are
 * removed first, and so is a line truncated by a crash. 0 starts metrics.jsonl from scratch. Events are
 * history and stay. */
err observe_open(const char *dir, int64_t first_step, observe **out) MUST_USE;
/* Appends one line to metrics.jsonl, whole or not at all as far as readers can see. */
err observe_log(observe *o, const observe_step *s) MUST_USE;
/* Appends {"event": kind, "step": step, "time": unix seconds, ...details} to events.jsonl.
 * @param details an object, consumed; may be NULL. */
err observe_event(observe *o, const char *kind, int64_t step, json_t *details) MUST_USE;
void observe_close(observe *o); /* takes NULL */

/* ---- the progress line ---------------------------------------------------------------------
 * On a terminal one line rewritten in place, as wide as fits; elsewhere plain lines. Color only
 * on a terminal, and not under NO_COLOR. */
typedef struct progress progress;
progress *progress_new(FILE *to); /* `to` is borrowed */
bool progress_is_live(const progress *p);
void progress_show(progress *p, const observe_step *s);
/* Prints a line of its own, above the live line. */
void progress_note(progress *p, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Ends the live line, so that what comes next starts on a fresh one. */
void progress_end(progress *p);
void progress_free(progress *p); /* ends first; takes NULL */

/* The line itself: fields are left out, the least needed first, until it fits `width` columns
 * (0: no limit). */
void progress_format(str *out, const observe_step *s, int width, bool color);

#endif
