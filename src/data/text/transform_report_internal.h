/* Reports of a transform while it runs (transform_progress.c, transform_tasks.c) and when it has ended (transform_report.c). */
#ifndef INGOT_TEXT_TRANSFORM_REPORT_INTERNAL_H
#define INGOT_TEXT_TRANSFORM_REPORT_INTERNAL_H

#include <stdatomic.h>

#include "text/text.h"

struct vfs;
void report_init(text_transform_report *r, const text_transform *s);
/* Counts a document that is kept under its source and license. */
void report_count_values(text_transform_report *r, const text_doc *d, int64_t bytes);
void report_add_values(struct json_t **to, const struct json_t *from); /* from: NULL is none */
void report_add(text_transform_report *to, const text_transform_report *from,
                const text_transform *s);
/* @param part_bytes size of the part it belongs to. @param v as in store/vfs.h. */
err report_save(const text_transform_report *r, const text_transform *s, int64_t part_bytes,
                struct vfs *v, const char *path) MUST_USE;
err report_load(struct vfs *v, const char *path, const text_transform *s, text_transform_report *r,
                int64_t *part_bytes) MUST_USE;
/* Adds up the reports of all ranks. */
err report_total(text_transform_report *r, const text_transform *s, struct comm *c) MUST_USE;

struct text_progress {
    const char *name; /* NULL: no progress */
    bool live, drawn; /* on a terminal, one line is rewritten */
    double began, shown;
    int64_t total, skipped; /* bytes of input; skipped: completed by an earlier run */
    _Atomic int64_t done;   /* of this rank */
    struct comm *comm;      /* with several ranks the heartbeat shows the sum (transform_tasks.c) */
    atomic_bool stop;       /* another rank has failed */
};
void text_progress_init(text_progress *p, const char *name, int64_t total);
/* Shows that `done` bytes are done, unless that was shown a moment ago. */
void text_progress_show(text_progress *p, int64_t done);
void text_progress_end(text_progress *p);
/* @return an error that another rank failed; err_is_echo. */
err text_other_rank_failed(const struct comm *c) MUST_USE;

#endif
