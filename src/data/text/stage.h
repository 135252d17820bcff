/* A stage while it runs: shared by the runner (stage.c) and what writes packed documents (packer.c). */
#ifndef INGOT_TEXT_STAGE_H
#define INGOT_TEXT_STAGE_H

#include "text/text_internal.h"

typedef struct stage_worker {
    compressor *kept, *dropped;
    parquet_rows **kept_rows;   /* [outputs] instead, where Parquet is written; else NULL */
    parquet_rows *dropped_rows; /* likewise */
    str scratch, annotated[2];
} stage_worker;

struct stage_run {
    const text_stage *stage;
    text_inputs *in;
    struct comm *comm; /* NULL: alone */
    sink out[TEXT_OUTPUTS_MAX], dropped;
    char *out_paths[TEXT_OUTPUTS_MAX]; /* owned; NULL: the output's own */
    int n_out;
    stage_worker *workers; /* [threads] */
    int threads;
    text_progress *progress;
    int n_parts;
    int *first_segment;        /* [n_parts + 1] of each part; NULL: the stage fills them */
    int64_t *bytes;            /* [n_parts] of input, about */
    text_stage_report part;    /* of the current part */
    text_stage_report *report; /* of all that this rank has read or found complete */
    /* Of a folder; NULL: one file. */
    const parts *folder;
    bool *whole; /* [n_parts] complete before this run */
};
typedef struct stage_run stage_run;

#endif
