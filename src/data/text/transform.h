/* A transform while it runs: shared by the runner (transform.c) and what writes packed documents (packer.c). From bytes on disk
 * to documents that are kept:
 *
 *     byte_reader    decompressed bytes of one input            byte_reader.c, decompress.h
 *     block_reader   splits them into blocks of whole records   block_reader.c
 *     text_format    where records end; records to documents    parser.c, format_*.c, json_scan.c
 *                    (Parquet: rows instead of bytes            format_parquet.c)
 *     pipeline       workers: read, parse, work, merge in order pipeline.c
 *     transform      a pipeline that writes what is kept        transform.c, sink.c, output_parts.c, transform_report.c
 *     tasks          segments shared among the ranks of a job   transform_tasks.c, output_lock.c, transform_progress.c
 */
#ifndef INGOT_TEXT_TRANSFORM_H
#define INGOT_TEXT_TRANSFORM_H

#include "text/inputs_internal.h"
#include "text/output_internal.h"
#include "text/transform_report_internal.h"

typedef struct transform_worker {
    compressor *kept, *dropped;
    parquet_rows **kept_rows;   /* [outputs] instead, where Parquet is written; else NULL */
    parquet_rows *dropped_rows; /* likewise */
    str scratch, annotated[2];
} transform_worker;

struct transform_run {
    const text_transform *transform;
    text_inputs *in;
    struct comm *comm; /* NULL: alone */
    sink out[TEXT_OUTPUTS_MAX], dropped;
    char *out_paths[TEXT_OUTPUTS_MAX]; /* owned; NULL: the output's own */
    int n_out;
    transform_worker *workers; /* [threads] */
    int threads;
    text_progress *progress;
    int n_parts;
    int *first_segment;            /* [n_parts + 1] of each part; NULL: the transform fills them */
    int64_t *bytes;                /* [n_parts] of input, about */
    text_transform_report part;    /* of the current part */
    text_transform_report *report; /* of all that this rank has read or found complete */
    /* Of a folder; NULL: one file. */
    const parts *folder;
    struct vfs *files; /* that of the folder, or of the files that are written */
    bool *whole;       /* [n_parts] complete before this run */
};
typedef struct transform_run transform_run;

#endif
