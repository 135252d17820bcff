/* A stage while it runs: shared by the runner (stage.c) and what writes packed documents (packer.c). From bytes on disk
 * to documents that are kept:
 *
 *     byte_reader    decompressed bytes of one input            byte_reader.c, decompress.h
 *     block_reader   splits them into blocks of whole records   block_reader.c
 *     text_format    where records end; records to documents    parser.c, format_*.c, json_scan.c
 *                    (Parquet: rows instead of bytes            format_parquet.c)
 *     pipeline       workers: read, parse, work, merge in order pipeline.c
 *     stage          a pipeline that writes what is kept        stage.c, sink.c, output_parts.c, stage_report.c
 *     tasks          segments shared among the ranks of a job   stage_tasks.c, output_lock.c, stage_progress.c
 */
#ifndef INGOT_TEXT_STAGE_H
#define INGOT_TEXT_STAGE_H

#include "text/inputs_internal.h"
#include "text/output_internal.h"
#include "text/stage_report_internal.h"

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
