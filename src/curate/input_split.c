/* Splits of the input, their spill files and the work folder; also how reports name documents.
 * See dedup_internal.h. */
#include "curate/dedup_internal.h"
#include "io/io.h"

#include <stdlib.h>

static const int64_t SPLIT_BYTES = (int64_t)256 << 20;

int input_split_count(const text_inputs *in) {
    int64_t n = text_inputs_bytes(in) / SPLIT_BYTES + 1;
    return (int)MIN(n, (int64_t)text_segments(in));
}

int input_split_first(const text_inputs *in, int i) {
    int splits = input_split_count(in);
    return splits ? (int)((int64_t)text_segments(in) * i / splits) : 0;
}

static err check_inputs_reread(const split_job *j) {
    for (int i = 0; i < text_segments(j->in); i++)
        if (strcmp(text_segment_path(j->in, i), "-") == 0)
            return err_hint(ERR("%s reads its input twice; standard input can be read only once",
                                j->stage.name),
                            "write it to a file first, and pass that");
    return OK;
}

static err check_outputs(const split_job *j) {
    io_writer *probe = NULL;
    if (j->to) TRY(text_stage_check(&j->stage, j->in, j->to));
    if (!j->report) return OK;
    TRY(text_inputs_check_output(j->in, j->report));
    TRY(io_writer_open(j->report, &probe));
    io_writer_abort(probe);
    return OK;
}

static err make_split(const split_job *j, int split, const char *path) {
    spill_writer *out = NULL;
    TRY(spill_create(path, j->sections, j->settings, &out));
    err e = j->make(j->ctx, split, out);
    if (!e) return spill_commit(out);
    spill_abort(out);
    return e;
}

static err open_split(const split_job *j, int split, const char *path, spill **out) {
    TRY(spill_open(path, j->sections, j->settings, out));
    if (*out && !text_inputs_newer(j->in, path)) return OK;
    spill_close(*out);
    TRY(make_split(j, split, path));
    TRY(spill_open(path, j->sections, j->settings, out));
    BUG_IF(!*out);
    return OK;
}

err split_job_run(const split_job *j, spill **spills) {
    int n = input_split_count(j->in);
    TRY(check_inputs_reread(j));
    TRY(check_outputs(j));
    if (j->fresh) TRY(spill_clear(j->folder, j->stage.name));
    TRY(io_make_dirs(j->folder));
    for (int i = 0; i < n; i++) {
        char *path = spill_path(j->folder, j->stage.name, i);
        err e = open_split(j, i, path, &spills[i]);
        free(path);
        TRY(e);
        if (!j->quiet && n > 1)
            log_info("%s: read %d of %d splits of the input", j->stage.name, i + 1, n);
    }
    return OK;
}

char *curate_work_folder(const char *work, const char *out) {
    str path = { 0 };
    if (work) {
        str_add(&path, "%s", work);
        return path.text;
    }
    str_add(&path, "%s", out && strcmp(out, "-") != 0 ? out : "ingot-data");
    while (path.len > 1 && path.text[path.len - 1] == '/') path.len--;
    str_add(&path, ".work");
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

void add_path_json(const char *path, str *out) {
    json_t *text = io_json_string(path, strlen(path));
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    BUG_IF(!quoted);
    str_add(out, "%s", quoted);
    free(quoted);
    json_decref(text);
}
