/* The stage runner: reads documents, lets a stage judge each, and writes what is kept and, on
 * request, what is dropped with the reason.
 *
 *     text_stage_run
 *       per segment            skipped if its part is complete (parts.c)
 *         text_pipeline_run    workers parse and judge blocks in parallel (pipeline.c)
 *           judge_block        judge each document; format and compress the output of the block
 *           write_block        in input order: append to the sinks (sink.c), add up the report
 *         parts_add            the report of the segment, which marks its part as complete
 *       parts_close            state.json: "complete"
 *
 * A stage only judges; everything else (parallelism, resuming, atomic output, counting) is the
 * same for all of them and lives here. Output is deterministic: a block is compressed as a frame
 * of its own, and blocks are split by bytes, so neither threads nor interruptions change a byte. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "text/text_internal.h"

typedef struct stage_worker {
    compressor *kept, *dropped;
    parquet_rows *kept_rows, *dropped_rows; /* instead, where Parquet is written; else NULL */
    str scratch;
} stage_worker;

typedef struct stage_run {
    const text_stage *stage;
    const text_inputs *in;
    sink out, dropped;
    stage_worker *workers; /* [threads] */
    int threads;
    text_progress progress;
    text_stage_report part; /* of the current segment */
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
    if (w->kept_rows)
        doc_add_row(run->in, d, v.text, NULL, 0, &w->scratch, w->kept_rows);
    else
        text_doc_write(d, v.text, &r->kept);
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

static err write_block(void *ctx, const text_block *b, void *result) {
    stage_run *run = ctx;
    stage_result *r = result;
    report_add(&run->part, &r->report, run->stage);
    err e = sink_write(&run->out, r->kept.text, r->kept.len);
    if (!e) e = sink_write(&run->dropped, r->dropped.text, r->dropped.len);
    drop_result(r);
    text_progress_add(&run->progress, b->raw_bytes);
    return e;
}

/* ---- segments -------------------------------------------------------------------------------- */
static err run_segment(stage_run *run, text_inputs *in, int segment) {
    const text_pipeline pipeline = { run, sizeof(stage_result), judge_block, write_block,
                                     drop_result };
    TRY(sink_begin_part(&run->out, segment));
    TRY(sink_begin_part(&run->dropped, segment));
    TRY(text_pipeline_run(in, segment, &pipeline, run->threads, &run->part.read));
    TRY(sink_end_part(&run->dropped));
    return sink_end_part(&run->out);
}

static err run_or_resume_segment(stage_run *run, text_inputs *in, const parts *folder, int segment,
                                 text_stage_report *out) {
    bool whole = false;
    int64_t bytes = segment_bytes(in, segment), until = run->progress.done + bytes;
    if (folder) TRY(parts_find(folder, segment, &whole, &run->part));
    if (whole) {
        out->resumed_parts++;
        run->progress.skipped += bytes;
    } else {
        TRY(run_segment(run, in, segment));
        if (folder) TRY(parts_add(folder, segment, &run->part));
        out->seen_bytes += run->part.read.bytes;
    }
    report_add(out, &run->part, run->stage);
    if (bytes > 0) text_progress_add(&run->progress, until - run->progress.done);
    return OK;
}

static err run_all(stage_run *run, text_inputs *in, bool fresh, text_stage_report *out) {
    parts p = { run->stage, in, &run->out, &run->dropped };
    const parts *folder = run->out.kind == SINK_FOLDER ? &p : NULL;
    if (folder) TRY(parts_open(folder, fresh));
    for (int i = 0; i < text_segments(in); i++) {
        report_init(&run->part, run->stage);
        err e = run_or_resume_segment(run, in, folder, i, out);
        text_stage_report_free(&run->part);
        TRY(e);
    }
    TRY(text_counts_check(&out->read, run->stage->name));
    TRY(sink_finish(&run->dropped));
    TRY(sink_finish(&run->out));
    return folder ? parts_close(folder) : OK;
}

/* ---- before ---------------------------------------------------------------------------------- */
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
    if (o->out && o->dropped && strcmp(o->out, o->dropped) == 0)
        return ERR("%s: kept and dropped documents need different paths", o->out);
    if (run->out.kind != SINK_STDOUT) TRY(text_inputs_check_output(in, o->out));
    return text_inputs_check_output(in, o->dropped);
}

err text_stage_check(const text_stage *s, const text_inputs *in, const text_stage_options *o) {
    stage_run run = { .stage = s };
    TRY(open_sinks(&run, in, o));
    parts p = { s, in, &run.out, &run.dropped };
    if (run.out.kind == SINK_FOLDER) return parts_check(&p, o->fresh);
    err e = sink_begin_part(&run.out, 0);
    if (!e) e = sink_begin_part(&run.dropped, 0);
    sink_abort(&run.out);
    sink_abort(&run.dropped);
    return e;
}

static err run_stage(stage_run *run, text_inputs *in, const text_stage_options *o,
                     text_stage_report *out) {
    TRY(open_sinks(run, in, o));
    in->all_members = true;
    run->in = in;
    run->workers = mem_alloc((size_t)run->threads * sizeof *run->workers);
    for (int i = 0; i < run->threads; i++) {
        run->workers[i].kept = compressor_new(run->out.compression);
        run->workers[i].dropped = compressor_new(run->dropped.compression);
        if (run->out.compression == COMPRESSION_PARQUET)
            run->workers[i].kept_rows = parquet_rows_new(DOC_COLUMNS);
        if (run->dropped.compression == COMPRESSION_PARQUET)
            run->workers[i].dropped_rows = parquet_rows_new(DOC_COLUMNS_DROPPED);
    }
    err e = run_all(run, in, o->fresh, out);
    sink_abort(&run->out);
    sink_abort(&run->dropped);
    for (int i = 0; i < run->threads; i++) {
        compressor_free(run->workers[i].kept);
        compressor_free(run->workers[i].dropped);
        parquet_rows_free(run->workers[i].kept_rows);
        parquet_rows_free(run->workers[i].dropped_rows);
        str_free(&run->workers[i].scratch);
    }
    free(run->workers);
    return e;
}

err text_stage_run(const text_stage *s, text_inputs *in, const text_stage_options *o,
                   text_stage_report *out) {
    stage_run run = { .stage = s, .threads = text_thread_count(o->threads) };
    report_init(out, s);
    text_progress_init(&run.progress, o->quiet ? NULL : s->name, text_inputs_bytes(in));
    err e = run_stage(&run, in, o, out);
    text_progress_end(&run.progress);
    out->seconds = time_now() - run.progress.began;
    if (!e && out->read.documents == 0)
        log_warn("%s: the input contains no documents; check the path and --format", s->name);
    if (e) text_stage_report_free(out);
    return e;
}
