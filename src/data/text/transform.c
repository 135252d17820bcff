/* The transform runner: reads documents, lets a transform judge each, and writes what is kept and, on
 * request, what is dropped with the reason.
 *
 *     text_transform_run
 *       per part               on one of the ranks (transform_tasks.c); skipped if it is complete (output_parts.c). Mostly a part is a
 *                              segment; it may be several, and some transforms fill their parts themselves
 *         text_pipeline_run    workers parse and judge blocks in parallel (pipeline.c)
 *           judge_block        judge each document; format and compress the output of the block
 *           write_transform_block        in input order: append to the sinks (sink.c), add up the report
 *         parts_add            the report of the part, which marks it as complete
 *       parts_close            state.json: "complete"
 *
 * A transform only judges; everything else (parallelism, resuming, atomic output, counting) is the
 * same for all of them and lives here. Output is deterministic: a block is compressed as a frame
 * of its own, and blocks are split by bytes, so neither threads, ranks nor interruptions change a byte. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "io/io.h"
#include "text/transform.h"

/* The output of one block. */
typedef struct transform_result {
    str kept[TEXT_OUTPUTS_MAX], dropped;
    text_transform_report report;
} transform_result;

static void drop_result(void *result) {
    transform_result *r = result;
    for (int i = 0; i < TEXT_OUTPUTS_MAX; i++) str_free(&r->kept[i]);
    str_free(&r->dropped);
    text_transform_report_free(&r->report);
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

static err judge_document(transform_run *run, int worker, int segment, const text_doc *d,
                          transform_result *r) {
    const text_transform *s = run->transform;
    transform_worker *w = &run->workers[worker];
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
    BUG_IF(v.output < 0 || v.output >= run->n_out);
    r->report.kept++;
    r->report.kept_bytes += (int64_t)v.text.len;
    report_count_values(&r->report, d, (int64_t)v.text.len);
    r->report.edited +=
        v.text.len != d->text.len || memcmp(v.text.at, d->text.at, d->text.len) != 0;
    text_doc annotated = doc_annotate(d, v.members, w->annotated);
    if (w->kept_rows)
        doc_add_row(run->in, &annotated, v.text, NULL, 0, &w->scratch, w->kept_rows[v.output]);
    else
        text_doc_write(&annotated, v.text, &r->kept[v.output]);
    return OK;
}

static err judge_block(void *ctx, int worker, const text_block *b, void *result) {
    transform_run *run = ctx;
    transform_result *r = result;
    transform_worker *w = &run->workers[worker];
    report_init(&r->report, run->transform);
    for (int i = 0; i < b->n; i++) TRY(judge_document(run, worker, b->segment, &b->docs[i], r));
    for (int i = 0; i < run->n_out; i++) {
        if (w->kept_rows) TRY(parquet_rows_pack(w->kept_rows[i], &r->kept[i]));
        if (r->kept[i].len) compressor_run(w->kept, &r->kept[i]);
    }
    if (w->dropped_rows) TRY(parquet_rows_pack(w->dropped_rows, &r->dropped));
    if (r->dropped.len) compressor_run(w->dropped, &r->dropped);
    return OK;
}

static err write_transform_block(void *ctx, const text_block *b, void *result) {
    transform_run *run = ctx;
    transform_result *r = result;
    report_add(&run->part, &r->report, run->transform);
    err e = OK;
    for (int i = 0; i < run->n_out && !e; i++)
        e = sink_write(&run->out[i], r->kept[i].text, r->kept[i].len);
    if (!e) e = sink_write(&run->dropped, r->dropped.text, r->dropped.len);
    drop_result(r);
    return e ? e : text_progress_add(run->progress, b->raw_bytes);
}

/* ---- parts ----------------------------------------------------------------------------------- */
/* Fills a part with the documents of its segments, judged, or with what the transform itself puts there. */
static err fill_part(transform_run *run, int part) {
    const text_pipeline pipeline = { run, sizeof(transform_result), judge_block,
                                     write_transform_block, drop_result };
    text_part to = { run, &run->part };
    if (run->transform->fill)
        return run->transform->fill(run->transform->ctx, part, &to, run->progress);
    for (int s = run->first_segment[part]; s < run->first_segment[part + 1]; s++)
        TRY(text_pipeline_run(run->in, s, &pipeline, run->threads, &run->part.read));
    return OK;
}

static err write_part(transform_run *run, int part) {
    for (int i = 0; i < run->n_out; i++) TRY(sink_begin_part(&run->out[i], part));
    TRY(sink_begin_part(&run->dropped, part));
    TRY(fill_part(run, part));
    TRY(sink_end_part(&run->dropped));
    for (int i = 0; i < run->n_out; i++) TRY(sink_end_part(&run->out[i]));
    return OK;
}

static err run_part_task(void *ctx, int part, text_progress *p) {
    transform_run *run = ctx;
    run->progress = p;
    report_init(&run->part, run->transform);
    err e = write_part(run, part);
    if (!e && run->folder) e = parts_add(run->folder, part, &run->part);
    run->report->seen_bytes += run->part.read.bytes;
    report_add(run->report, &run->part, run->transform);
    text_transform_report_free(&run->part);
    return e;
}

/* Finds the parts that an earlier run has completed. */
static err resume_parts(transform_run *run, bool fresh) {
    parts_found found;
    TRY(parts_open(run->folder, fresh));
    TRY(parts_look(run->folder, &found));
    err e = OK;
    for (int i = 0; i < run->n_parts && !e; i++) {
        report_init(&run->part, run->transform);
        e = parts_find(run->folder, &found, i, &run->whole[i], &run->part);
        if (!e && run->whole[i]) {
            run->report->resumed_parts++;
            report_add(run->report, &run->part, run->transform);
        }
        text_transform_report_free(&run->part);
    }
    parts_found_free(&found);
    return e;
}

static err run_transform_parts(transform_run *run, const char *name) {
    text_tasks tasks = { .comm = run->comm,
                         .name = name,
                         .n = run->n_parts,
                         .bytes = run->bytes,
                         .done = run->whole,
                         .ctx = run,
                         .run = run_part_task };
    return text_tasks_run(&tasks);
}

/* Decides which segments make up each part. */
static void plan_parts(transform_run *run, int64_t merge_bytes) {
    int n = text_segments(run->in);
    if (run->transform->fill) {
        run->n_parts = run->transform->n_parts;
        run->bytes = mem_alloc((size_t)run->n_parts * sizeof *run->bytes + 1);
        for (int i = 0; i < run->n_parts; i++) run->bytes[i] = run->transform->part_bytes[i];
        return;
    }
    run->first_segment = mem_alloc(((size_t)n + 1) * sizeof *run->first_segment);
    run->bytes = mem_alloc((size_t)n * sizeof *run->bytes + 1);
    for (int i = 0; i < n; i++) {
        int64_t more = text_segment_bytes(run->in, i);
        int last = run->n_parts - 1;
        if (last < 0 || !merge_bytes || run->bytes[last] + more > merge_bytes) {
            run->first_segment[++last] = i;
            run->n_parts++;
        }
        run->bytes[last] += more;
    }
    run->first_segment[run->n_parts] = n;
}

/* With several ranks rank 0 alone looks at what is in the folder, and writes its state. */
static err run_into_folder(transform_run *run, const text_transform_options *o) {
    bool first = comm_rank(run->comm) == 0;
    TRY(comm_agree(run->comm, first ? resume_parts(run, o->fresh) : OK));
    TRY(comm_merge(run->comm, run->whole, (size_t)run->n_parts * sizeof *run->whole));
    TRY(run_transform_parts(run, o->quiet ? NULL : run->transform->name));
    TRY(report_total(run->report, run->transform, run->comm));
    TRY(text_counts_check(&run->report->read, run->transform->name));
    return comm_agree(run->comm, first ? parts_close(run->folder) : OK);
}

static parts parts_of(const transform_run *run, const text_inputs *in,
                      const text_transform_options *o) {
    return (parts){ .transform = run->transform,
                    .in = in,
                    .folder = o->out,
                    .out = run->out,
                    .n_out = run->n_out,
                    .dropped = &run->dropped,
                    .n = run->n_parts,
                    .files = run->files,
                    .given = o->given };
}

static err run_all(transform_run *run, const text_transform_options *o) {
    text_lock *lock = NULL;
    if (run->out->kind != SINK_FOLDER) {
        TRY(run_transform_parts(run, o->quiet ? NULL : run->transform->name));
        TRY(text_counts_check(&run->report->read, run->transform->name));
        TRY(sink_finish(&run->dropped));
        return sink_finish(run->out);
    }
    parts p = parts_of(run, run->in, o);
    run->folder = &p;
    run->whole = mem_alloc((size_t)run->n_parts * sizeof *run->whole + 1);
    err e = text_lock_folder(run->comm, o->out, &lock);
    if (!e) e = run_into_folder(run, o);
    text_unlock_folder(lock);
    free(run->whole);
    return e;
}

/* ---- before ---------------------------------------------------------------------------------- */
static err refuse_ranks(const transform_run *run, const char *out) {
    int ranks = comm_world(run->comm);
    if (ranks == 1 || run->out->kind == SINK_FOLDER) return OK;
    return err_hint(
        ERR_USAGE("--out: %d ranks need a folder, where each writes parts; %s is not one", ranks,
                  out && strcmp(out, "-") != 0 ? out : "standard output"),
        "give a folder");
}

/* Several outputs are folders in the one that the user has named. */
static err open_outputs(transform_run *run, const text_transform_options *o) {
    const text_transform *s = run->transform;
    run->n_out = MAX(s->n_outputs, 1);
    BUG_IF(run->n_out > TEXT_OUTPUTS_MAX);
    if (s->n_outputs == 0) return OK;
    if (run->out->kind != SINK_FOLDER)
        return err_hint(
            ERR_USAGE("--out: %s has %d outputs and needs a folder", s->name, s->n_outputs),
            "give a folder; each output becomes a folder in it");
    for (int i = 0; i < s->n_outputs; i++) {
        run->out_paths[i] = io_join(o->out, s->outputs[i]);
        TRY(sink_init(&run->out[i], run->out_paths[i], o->compress));
    }
    return OK;
}

static err open_sinks(transform_run *run, const text_inputs *in, const text_transform_options *o) {
    run->files = vfs_new();
    TRY(sink_init(run->out, o->out ? o->out : "-", o->compress));
    TRY(sink_init(&run->dropped, o->dropped, o->compress));
    run->dropped.target.n_columns = DOC_COLUMNS_DROPPED;
    TRY(open_outputs(run, o));
    if (run->dropped.kind == SINK_STDOUT)
        return err_hint(ERR("dropped documents cannot go to standard output"), "name a file");
    bool folder = run->out->kind == SINK_FOLDER;
    if (o->dropped && folder != (run->dropped.kind == SINK_FOLDER))
        return err_hint(ERR("%s is %s, so %s must be too: a rerun resumes both",
                            o->out ? o->out : "-", folder ? "a folder" : "one file", o->dropped),
                        folder ? "give a folder for the dropped documents"
                               : "give a file such as dropped.jsonl.zst");
    TRY(refuse_ranks(run, o->out));
    if (o->out && o->dropped && strcmp(o->out, o->dropped) == 0)
        return ERR("%s: kept and dropped documents need different paths", o->out);
    if (run->out->kind != SINK_STDOUT) TRY(text_inputs_check_output(in, o->out));
    return text_inputs_check_output(in, o->dropped);
}

static void close_sinks(transform_run *run) {
    for (int i = 0; i < run->n_out; i++) {
        sink_abort(&run->out[i]);
        free(run->out_paths[i]);
    }
    sink_abort(&run->dropped);
    vfs_free(run->files);
    free(run->first_segment);
    free(run->bytes);
}

err text_transform_check(const text_transform *s, const text_inputs *in,
                         const text_transform_options *o) {
    transform_run run = { .transform = s, .in = (text_inputs *)(uintptr_t)in, .comm = o->comm };
    err e = OK;
    TRY_CLEAN(open_sinks(&run, in, o));
    plan_parts(&run, o->merge_bytes);
    parts p = parts_of(&run, in, o);
    if (run.out->kind == SINK_FOLDER) {
        if (s->fill) p.n = -1; /* how many it will have is not known before its first pass */
        e = parts_check(&p, o->fresh);
    } else {
        e = sink_begin_part(run.out, 0);
        if (!e) e = sink_begin_part(&run.dropped, 0);
    }
cleanup:
    close_sinks(&run);
    return e;
}

static void open_worker(transform_run *run, transform_worker *w) {
    w->kept = compressor_new(run->out->compression);
    w->dropped = compressor_new(run->dropped.compression);
    if (run->out->compression == COMPRESSION_PARQUET) {
        w->kept_rows = mem_alloc((size_t)run->n_out * sizeof *w->kept_rows);
        for (int i = 0; i < run->n_out; i++) w->kept_rows[i] = parquet_rows_new(DOC_COLUMNS);
    }
    if (run->dropped.compression == COMPRESSION_PARQUET)
        w->dropped_rows = parquet_rows_new(DOC_COLUMNS_DROPPED);
}

static void close_worker(const transform_run *run, transform_worker *w) {
    compressor_free(w->kept);
    compressor_free(w->dropped);
    for (int i = 0; i < run->n_out && w->kept_rows; i++) parquet_rows_free(w->kept_rows[i]);
    free(w->kept_rows);
    parquet_rows_free(w->dropped_rows);
    str_free(&w->scratch);
    for (int k = 0; k < 2; k++) str_free(&w->annotated[k]);
}

static err run_transform(transform_run *run, const text_transform_options *o) {
    TRY(open_sinks(run, run->in, o));
    run->in->all_members = true;
    if (run->in->left_out && (!run->comm || comm_rank(run->comm) == 0))
        log_info("%s: columns that are left out of what is written: %s", run->in->left_out_from,
                 run->in->left_out);
    plan_parts(run, o->merge_bytes);
    run->workers = mem_alloc((size_t)run->threads * sizeof *run->workers);
    for (int i = 0; i < run->threads; i++) open_worker(run, &run->workers[i]);
    err e = run_all(run, o);
    for (int i = 0; i < run->threads; i++) close_worker(run, &run->workers[i]);
    free(run->workers);
    return e;
}

err text_transform_run(const text_transform *s, text_inputs *in, const text_transform_options *o,
                       text_transform_report *out) {
    transform_run run = { .transform = s,
                          .in = in,
                          .comm = o->comm,
                          .threads = text_thread_count(o->threads),
                          .report = out };
    double began = time_now();
    report_init(out, s);
    err e = run_transform(&run, o);
    close_sinks(&run);
    out->ranks = comm_world(o->comm);
    out->peak_memory = (int64_t)mem_peak();
    if (!e) e = comm_largest(o->comm, &out->peak_memory);
    out->seconds = time_now() - began;
    if (!e && out->read.documents == 0)
        log_warn("%s: the input contains no documents; check the path and --format", s->name);
    if (e) text_transform_report_free(out);
    return e;
}
