/* The stage runner: reads documents, lets a stage judge each, and writes what is kept and, on
 * request, what is dropped with the reason.
 *
 *     text_stage_run
 *       per segment            on one of the ranks (tasks.c); skipped if its part is complete (parts.c)
 *         text_pipeline_run    workers parse and judge blocks in parallel (pipeline.c)
 *           judge_block        judge each document; format and compress the output of the block
 *           write_stage_block        in input order: append to the sinks (sink.c), add up the report
 *         parts_add            the report of the segment, which marks its part as complete
 *       parts_close            state.json: "complete"
 *
 * A stage only judges; everything else (parallelism, resuming, atomic output, counting) is the
 * same for all of them and lives here. Output is deterministic: a block is compressed as a frame
 * of its own, and blocks are split by bytes, so neither threads, ranks nor interruptions change a byte. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "io/io.h"
#include "text/text_internal.h"

typedef struct stage_worker {
    compressor *kept, *dropped;
    parquet_rows *kept_rows, *dropped_rows; /* instead, where Parquet is written; else NULL */
    str scratch, annotated[2];
} stage_worker;

typedef struct stage_run {
    const text_stage *stage;
    text_inputs *in;
    comm *comm; /* NULL: alone */
    sink out, dropped;
    stage_worker *workers; /* [threads] */
    int threads;
    text_progress *progress;
    text_stage_report part;    /* of the current segment */
    text_stage_report *report; /* of all that this rank has read or found complete */
    /* Of a folder; NULL: one file. */
    const parts *folder;
    bool *whole;         /* [segments] complete before this run */
    int64_t *part_bytes; /* [segments] */
} stage_run;

/* The output of one block. */
typedef struct stage_result {
    str kept, dropped;
    text_stage_report report;
} stage_result;

static void drop_result(void *result) {
    stage_result *r = result;
    str_free(&r->kept);
    str_free(&r->dropped);
    text_stage_report_free(&r->report);
}

/* ---- work ------------------------------------------------------------------------------------ */
/* Writes the original document with the rule and its value as last members. */
static void write_dropped(const text_doc *d, const char *rule, double value, str *out) {
    text_doc_write(d, d->text, out);
    while (out->text[out->len - 1] != '}') out->len--;
    out->len--;
    str_add(out, ", \"dropped_by\": ");
    text_json_string(rule, strlen(rule), out);
    str_add(out, isfinite(value) ? ", \"value\": %.9g}\n" : ", \"value\": null}\n", value);
}

static err judge_document(stage_run *run, int worker, int segment, const text_doc *d,
                          stage_result *r) {
    const text_stage *s = run->stage;
    stage_worker *w = &run->workers[worker];
    text_verdict v = { .rule = TEXT_KEEP, .text = d->text, .count = r->report.count };
    TRY(s->judge(s->ctx, worker, segment, d, &v));
    BUG_IF(v.rule != TEXT_KEEP && (v.rule < 0 || v.rule >= s->n_rules));
    if (v.rule != TEXT_KEEP) {
        r->report.dropped[v.rule]++;
        r->report.dropped_bytes[v.rule] += (int64_t)d->text.len;
        if (w->dropped_rows)
            doc_add_row(run->in, d, d->text, s->rules[v.rule], v.value, &w->scratch,
                        w->dropped_rows);
        else if (run->dropped.path)
            write_dropped(d, s->rules[v.rule], v.value, &r->dropped);
        return OK;
    }
    r->report.kept++;
    r->report.kept_bytes += (int64_t)v.text.len;
    r->report.edited +=
        v.text.len != d->text.len || memcmp(v.text.at, d->text.at, d->text.len) != 0;
    text_doc annotated = doc_annotate(d, v.members, w->annotated);
    if (w->kept_rows)
        doc_add_row(run->in, &annotated, v.text, NULL, 0, &w->scratch, w->kept_rows);
    else
        text_doc_write(&annotated, v.text, &r->kept);
    return OK;
}

static err judge_block(void *ctx, int worker, const text_block *b, void *result) {
    stage_run *run = ctx;
    stage_result *r = result;
    stage_worker *w = &run->workers[worker];
    report_init(&r->report, run->stage);
    for (int i = 0; i < b->n; i++) TRY(judge_document(run, worker, b->segment, &b->docs[i], r));
    if (w->kept_rows) TRY(parquet_rows_pack(w->kept_rows, &r->kept));
    if (w->dropped_rows) TRY(parquet_rows_pack(w->dropped_rows, &r->dropped));
    if (r->kept.len) compressor_run(w->kept, &r->kept);
    if (r->dropped.len) compressor_run(w->dropped, &r->dropped);
    return OK;
}

static err write_stage_block(void *ctx, const text_block *b, void *result) {
    stage_run *run = ctx;
    stage_result *r = result;
    report_add(&run->part, &r->report, run->stage);
    err e = sink_write(&run->out, r->kept.text, r->kept.len);
    if (!e) e = sink_write(&run->dropped, r->dropped.text, r->dropped.len);
    drop_result(r);
    return e ? e : text_progress_add(run->progress, b->raw_bytes);
}

/* ---- segments -------------------------------------------------------------------------------- */
static err run_stage_segment(stage_run *run, int segment) {
    const text_pipeline pipeline = { run, sizeof(stage_result), judge_block, write_stage_block,
                                     drop_result };
    TRY(sink_begin_part(&run->out, segment));
    TRY(sink_begin_part(&run->dropped, segment));
    TRY(text_pipeline_run(run->in, segment, &pipeline, run->threads, &run->part.read));
    TRY(sink_end_part(&run->dropped));
    return sink_end_part(&run->out);
}

static err run_segment_task(void *ctx, int segment, text_progress *p) {
    stage_run *run = ctx;
    run->progress = p;
    report_init(&run->part, run->stage);
    err e = run_stage_segment(run, segment);
    if (!e && run->folder) e = parts_add(run->folder, segment, &run->part);
    if (!e && run->folder) run->part_bytes[segment] = parts_size(&run->out, segment);
    run->report->seen_bytes += run->part.read.bytes;
    report_add(run->report, &run->part, run->stage);
    text_stage_report_free(&run->part);
    return e;
}

/* Finds the parts that an earlier run has completed. */
static err resume_parts(stage_run *run, bool fresh) {
    TRY(parts_open(run->folder, fresh));
    for (int i = 0; i < text_segments(run->in); i++) {
        report_init(&run->part, run->stage);
        err e = parts_find(run->folder, i, &run->whole[i], &run->part);
        if (!e && run->whole[i]) {
            run->report->resumed_parts++;
            run->part_bytes[i] = parts_size(&run->out, i);
            report_add(run->report, &run->part, run->stage);
        }
        text_stage_report_free(&run->part);
        TRY(e);
    }
    return OK;
}

static err run_stage_segments(stage_run *run, const char *name) {
    text_tasks tasks = { run->comm, name, .done = run->whole, .ctx = run, .run = run_segment_task };
    return text_tasks_run_segments(tasks, run->in);
}

/* With several ranks rank 0 alone looks at what is in the folder, and writes its state. */
static err run_into_folder(stage_run *run, const text_stage_options *o) {
    bool first = comm_rank(run->comm) == 0;
    size_t n = (size_t)text_segments(run->in);
    TRY(comm_agree(run->comm, first ? resume_parts(run, o->fresh) : OK));
    TRY(comm_merge(run->comm, run->whole, n * sizeof *run->whole));
    TRY(run_stage_segments(run, o->quiet ? NULL : run->stage->name));
    TRY(comm_merge(run->comm, run->part_bytes, n * sizeof *run->part_bytes));
    TRY(report_total(run->report, run->stage, run->comm));
    TRY(text_counts_check(&run->report->read, run->stage->name));
    return comm_agree(run->comm, first ? parts_close(run->folder, run->part_bytes) : OK);
}

static err run_into_one_file(stage_run *run, const text_stage_options *o) {
    TRY(run_stage_segments(run, o->quiet ? NULL : run->stage->name));
    TRY(text_counts_check(&run->report->read, run->stage->name));
    TRY(sink_finish(&run->dropped));
    return sink_finish(&run->out);
}

static err run_all(stage_run *run, const text_stage_options *o) {
    size_t n = (size_t)text_segments(run->in);
    parts p = { run->stage, run->in, &run->out, &run->dropped };
    text_lock *lock = NULL;
    if (run->out.kind != SINK_FOLDER) return run_into_one_file(run, o);
    run->folder = &p;
    run->whole = mem_alloc(n * sizeof *run->whole + 1);
    run->part_bytes = mem_alloc(n * sizeof *run->part_bytes + 1);
    err e = text_lock_folder(run->comm, o->out, &lock);
    if (!e) e = run_into_folder(run, o);
    text_unlock_folder(lock);
    free(run->whole);
    free(run->part_bytes);
    return e;
}

/* ---- before ---------------------------------------------------------------------------------- */
static err refuse_ranks(const stage_run *run, const char *out) {
    int ranks = comm_world(run->comm);
    if (ranks == 1 || run->out.kind == SINK_FOLDER) return OK;
    return err_hint(
        ERR_USAGE("--out: %d ranks need a folder, where each writes parts; %s is not one", ranks,
                  out && strcmp(out, "-") != 0 ? out : "standard output"),
        "give a folder");
}

static err open_sinks(stage_run *run, const text_inputs *in, const text_stage_options *o) {
    TRY(sink_init(&run->out, o->out ? o->out : "-", o->compress));
    TRY(sink_init(&run->dropped, o->dropped, o->compress));
    run->dropped.target.n_columns = DOC_COLUMNS_DROPPED;
    if (run->dropped.kind == SINK_STDOUT)
        return err_hint(ERR("dropped documents cannot go to standard output"), "name a file");
    bool folder = run->out.kind == SINK_FOLDER;
    if (o->dropped && folder != (run->dropped.kind == SINK_FOLDER))
        return err_hint(ERR("%s is %s, so %s must be too: a rerun resumes both",
                            o->out ? o->out : "-", folder ? "a folder" : "one file", o->dropped),
                        folder ? "give a folder for the dropped documents"
                               : "give a file such as dropped.jsonl.zst");
    TRY(refuse_ranks(run, o->out));
    if (o->out && o->dropped && strcmp(o->out, o->dropped) == 0)
        return ERR("%s: kept and dropped documents need different paths", o->out);
    if (run->out.kind != SINK_STDOUT) TRY(text_inputs_check_output(in, o->out));
    return text_inputs_check_output(in, o->dropped);
}

err text_stage_check(const text_stage *s, const text_inputs *in, const text_stage_options *o) {
    stage_run run = { .stage = s, .comm = o->comm };
    TRY(open_sinks(&run, in, o));
    parts p = { s, in, &run.out, &run.dropped };
    if (run.out.kind == SINK_FOLDER) return parts_check(&p, o->fresh);
    err e = sink_begin_part(&run.out, 0);
    if (!e) e = sink_begin_part(&run.dropped, 0);
    sink_abort(&run.out);
    sink_abort(&run.dropped);
    return e;
}

static err run_stage(stage_run *run, const text_stage_options *o) {
    TRY(open_sinks(run, run->in, o));
    run->in->all_members = true;
    if (run->in->left_out && (!run->comm || comm_rank(run->comm) == 0))
        log_info("%s: columns that are left out of what is written: %s", run->in->left_out_from,
                 run->in->left_out);
    run->workers = mem_alloc((size_t)run->threads * sizeof *run->workers);
    for (int i = 0; i < run->threads; i++) {
        run->workers[i].kept = compressor_new(run->out.compression);
        run->workers[i].dropped = compressor_new(run->dropped.compression);
        if (run->out.compression == COMPRESSION_PARQUET)
            run->workers[i].kept_rows = parquet_rows_new(DOC_COLUMNS);
        if (run->dropped.compression == COMPRESSION_PARQUET)
            run->workers[i].dropped_rows = parquet_rows_new(DOC_COLUMNS_DROPPED);
    }
    err e = run_all(run, o);
    sink_abort(&run->out);
    sink_abort(&run->dropped);
    for (int i = 0; i < run->threads; i++) {
        compressor_free(run->workers[i].kept);
        compressor_free(run->workers[i].dropped);
        parquet_rows_free(run->workers[i].kept_rows);
        parquet_rows_free(run->workers[i].dropped_rows);
        str_free(&run->workers[i].scratch);
        for (int k = 0; k < 2; k++) str_free(&run->workers[i].annotated[k]);
    }
    free(run->workers);
    return e;
}

err text_stage_run(const text_stage *s, text_inputs *in, const text_stage_options *o,
                   text_stage_report *out) {
    stage_run run = { .stage = s,
                      .in = in,
                      .comm = o->comm,
                      .threads = text_thread_count(o->threads),
                      .report = out };
    double began = time_now();
    report_init(out, s);
    err e = run_stage(&run, o);
    out->ranks = comm_world(o->comm);
    out->peak_memory = (int64_t)mem_peak();
    if (!e) e = comm_largest(o->comm, &out->peak_memory);
    out->seconds = time_now() - began;
    if (!e && out->read.documents == 0)
        log_warn("%s: the input contains no documents; check the path and --format", s->name);
    if (e) text_stage_report_free(out);
    return e;
}
