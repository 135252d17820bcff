/* Splits of the input, their spill files and the work folder; also how reports name documents.
 * See dedup_internal.h. */
#include "curate/dedup_internal.h"
#include "comm/comm.h"
#include "store/store.h"
#include "util/wait.h"

#include <stdlib.h>

/* ---- splits ---------------------------------------------------------------------------------- */
static const char *spill_name(const split_job *j) {
    return j->files ? j->files : j->transform.name;
}

split_job split_job_new(const pass_options *o, text_inputs *in) {
    split_job j = { .o = *o, .in = in };
    size_t n = (size_t)text_segments(in) + 1;
    j.splits.first = mem_alloc(n * sizeof *j.splits.first);
    j.splits.bytes = mem_alloc(n * sizeof *j.splits.bytes);
    j.splits.n = text_segments_divide(in, j.splits.first, j.splits.bytes);
    j.spills = mem_alloc((size_t)j.splits.n * sizeof *j.spills + 1);
    return j;
}

/* @return whether this rank removes the spill files in its folder. */
static bool clears_work(const split_job *j) { return j->o.own_work || comm_rank(j->o.comm) == 0; }

err split_job_finish(split_job *j) {
    text_unlock_folder(j->lock); /* its file is in the folder */
    j->lock = NULL;
    bool clear = clears_work(j) && !j->o.keep_work;
    return comm_agree(j->o.comm, clear ? spill_clear(j->o.work, spill_name(j)) : OK);
}

void split_job_free(split_job *j) {
    text_unlock_folder(j->lock);
    for (int i = 0; i < j->splits.n; i++) spill_close(j->spills[i]);
    free(j->spills);
    free(j->splits.first);
    free(j->splits.bytes);
    *j = (split_job){ 0 };
}

/* ---- spill files ----------------------------------------------------------------------------- */
static err check_inputs_reread(const split_job *j) {
    for (int i = 0; i < text_segments(j->in); i++)
        if (strcmp(text_segment_path(j->in, i), "-") == 0)
            return err_hint(ERR("%s reads its input twice; standard input can be read only once",
                                j->transform.name),
                            "write it to a file first, and pass that");
    return OK;
}

static err check_outputs(const split_job *j) {
    io_writer *probe = NULL;
    if (j->o.to)
        TRY(text_transform_check(&j->transform, j->o.transform_in ? j->o.transform_in : j->in,
                                 j->o.to));
    if (j->o.to && j->o.to->out && strcmp(j->o.to->out, "-") != 0)
        TRY(text_inputs_check_output(j->in, j->o.to->out));
    if (!j->o.report) return OK;
    TRY(text_inputs_check_output(j->in, j->o.report));
    TRY(io_writer_open(j->o.report, &probe));
    io_writer_abort(probe);
    return OK;
}

static err make_split(const split_job *j, int split, const char *path, text_progress *p) {
    spill_writer *out = NULL;
    TRY(spill_create(path, j->sections, j->settings, &out));
    err e = j->make(j->ctx, split, out, p);
    if (!e) return spill_commit(out);
    spill_abort(out);
    return e;
}

static err open_split(const split_job *j, int split, const char *path, text_progress *p) {
    spill **out = &j->spills[split];
    const char *newer = NULL;
    TRY(spill_open(path, j->sections, j->settings, out));
    TRY(text_inputs_newer(j->in, path, &newer));
    if (*out && !newer) return OK;
    spill_close(*out);
    *out = NULL;
    TRY(make_split(j, split, path, p));
    TRY(spill_open(path, j->sections, j->settings, out));
    BUG_IF(!*out);
    return OK;
}

static err run_split(void *ctx, int split, text_progress *p) {
    const split_job *j = ctx;
    return open_split(j, split, SPILL_IN(j->o.work, spill_name(j), split), p);
}

err split_job_run(split_job *j) {
    bool first = comm_rank(j->o.comm) == 0;
    err wrong = first ? check_inputs_reread(j) : OK; /* by rank 0 before any rank reads */
    TRY(comm_agree(j->o.comm, first && !wrong ? check_outputs(j) : wrong));
    if (j->o.own_work && j->shares_spills)
        return err_hint(ERR_USAGE("--work: of %s every rank reads the spill files of all %d ranks",
                                  j->transform.name, comm_world(j->o.comm)),
                        "name a folder that all hosts see, or run on one rank");
    if (!j->locked && j->o.own_work)
        TRY(comm_agree(j->o.comm, text_lock_folder(NULL, j->o.work, &j->lock)));
    else if (!j->locked)
        TRY(text_lock_folder(j->o.comm, j->o.work, &j->lock));
    bool clear = clears_work(j) && j->o.fresh;
    TRY(comm_agree(j->o.comm, clear ? spill_clear(j->o.work, spill_name(j)) : OK));
    text_tasks tasks = { .comm = j->o.comm,
                         .name = j->o.quiet ? NULL : j->reading,
                         .n = j->splits.n,
                         .bytes = j->splits.bytes,
                         .ctx = j,
                         .run = run_split };
    return text_tasks_run(&tasks);
}

/* ---- reports --------------------------------------------------------------------------------- */
typedef struct first_rank_work {
    err (*run)(void *ctx);
    void *ctx;
} first_rank_work;

static err run_first(void *ctx, int task, text_progress *p) {
    const first_rank_work *w = ctx;
    return w->run(w->ctx);
}

err run_on_first_rank(struct comm *c, err (*run)(void *ctx), void *ctx) {
    first_rank_work w = { run, ctx };
    int64_t bytes = 0;
    text_tasks one = { .comm = c, .n = 1, .bytes = &bytes, .ctx = &w, .run = run_first };
    return text_tasks_run(&one);
}

/* A network file system shows what other hosts write with a delay. */
static err read_split_counts(const split_job *j, int split, int section, uint64_t *first,
                             uint64_t *second) {
    spill_reader r;
    err e = spill_reader_open(j->spills[split], section, &r);
    for (int s = j->splits.first[split]; !e && s < j->splits.first[split + 1]; s++) {
        uint64_t both[2] = { 0, 0 };
        e = spill_read(&r, both, sizeof both);
        first[s + 1] = both[0];
        if (second) second[s + 1] = both[1];
    }
    spill_reader_close(&r);
    return e;
}

err split_job_read(const split_job *j, int split, const text_pipeline *flow, segment_counts *counts,
                   int section, spill_writer *out) {
    for (int s = j->splits.first[split]; s < j->splits.first[split + 1]; s++) {
        text_counts read = { 0 };
        *counts = (segment_counts){ 0 };
        TRY(text_pipeline_run(j->in, s, flow, j->o.threads, &read));
        TRY(spill_write(out, section, counts, sizeof *counts));
    }
    return OK;
}

err split_job_number(const split_job *j, int section, uint64_t *first, uint64_t *second) {
    uint64_t *const each[] = { first, second };
    int segments = text_segments(j->in);
    for (int i = 0; i < j->splits.n; i++)
        if (j->spills[i])
            TRY(read_split_counts(j, i, section, first, second)); /* else another rank's */
    for (size_t k = 0; k < COUNT_OF(each) && each[k]; k++) {
        TRY(comm_merge(j->o.comm, each[k], ((size_t)segments + 1) * sizeof *each[k]));
        for (int s = 0; s < segments; s++) each[k][s + 1] += each[k][s];
    }
    return OK;
}

err split_job_open_others(const split_job *j) {
    enum { PATIENCE_S = 30 }; /* a network file system shows new files with a delay */
    for (int i = 0; i < j->splits.n; i++) {
        const char *path = SPILL_IN(j->o.work, spill_name(j), i);
        wait_state w;
        wait_begin(&w, PATIENCE_S, "%s, which another rank has written", path);
        err e = j->spills[i] ? OK : spill_open(path, j->sections, j->settings, &j->spills[i]);
        while (!j->spills[i] && !e && wait_nap(&w))
            e = spill_open(path, j->sections, j->settings, &j->spills[i]);
        if (!e && !j->spills[i])
            e = err_hint(ERR("%s, which another rank has written, cannot be seen here", path),
                         "the folder must be on a file system that all hosts share");
        TRY(e);
    }
    return OK;
}

char *curate_work_folder(const char *work, const char *out, int rank) {
    str path = { 0 };
    if (work) {
        str_add(&path, "%s", work);
        return path.text;
    }
    if (store_is_url(out)) out = strrchr(out, '/') + 1;
    str_add(&path, "%s", out && strcmp(out, "-") != 0 ? out : "ingot-data");
    while (path.len > 1 && path.text[path.len - 1] == '/') path.len--;
    str_add(&path, ".work");
    if (rank >= 0) str_add(&path, ".%d", rank);
    return path.text;
}

static void add_document_name(const char *name, text_span value, str *out) {
    if (value.len == 0) return;
    str_add(out, "%s\"%s\":", out->len ? "," : "", name);
    text_json_string(value.at, value.len, out);
}

void add_document_names(const text_doc *d, str *out) {
    str names = { 0 };
    add_document_name("id", d->id, &names);
    add_document_name("url", d->url, &names);
    add_document_name("source", d->source, &names);
    if (names.len) str_add_bytes(out, names.text, names.len);
    str_free(&names);
}

err input_has_changed(const text_inputs *in, int segment) {
    return err_hint(ERR("%s has changed since it was first read", text_segment_path(in, segment)),
                    "run again with --fresh once nothing writes to it");
}
