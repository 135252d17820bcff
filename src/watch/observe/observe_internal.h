/* observe, inside: the sinks that observe_log writes to. */
#ifndef INGOT_OBSERVE_INTERNAL_H
#define INGOT_OBSERVE_INTERNAL_H

#include "observe/observe.h"

/* CRC-32C (Castagnoli), as event files and iSCSI use it. @param crc of what came before; 0: nothing. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t n);

/* ---- tensorboard.c: DIR/tb/events.out.tfevents.* -------------------------------------------- */
typedef struct tb_writer tb_writer;
/* Removes the events of steps >= first_step, and what a crash left incomplete, from the files that are
 * there, and begins a new file. */
err tb_open(const observe_options *o, tb_writer **out) MUST_USE;
/* Writes the scalars of a step and the histograms of its detail, with one write. */
err tb_step(tb_writer *w, const observe_step *s) MUST_USE;
err tb_text(tb_writer *w, const char *tag, int64_t step, const char *text, size_t n) MUST_USE;
void tb_close(tb_writer *w); /* takes NULL */

#endif
