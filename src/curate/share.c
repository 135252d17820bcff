/* How the input is shared out, and what a report says of a document: see dedup_internal.h. */
#include "curate/dedup_internal.h"
#include "io/io.h"

#include <stdlib.h>

static const int64_t SHARE_BYTES = (int64_t)256 << 20;

int share_count(const text_inputs *in) {
    int64_t n = text_inputs_bytes(in) / SHARE_BYTES + 1;
    return (int)MIN(n, (int64_t)text_segments(in));
}

int share_first(const text_inputs *in, int i) {
    int shares = share_count(in);
    return shares ? (int)((int64_t)text_segments(in) * i / shares) : 0;
}

static err check_inputs(const share_job *j) {
    for (int i = 0; i < text_segments(j->in); i++)
        if (strcmp(text_segment_path(j->in, i), "-") == 0)
            return err_hint(
                ERR("%s reads its input twice; standard input can be read once", j->stage.name),
                "write it to a file first, and name that");
    return OK;
}

static err check_outputs(const share_job *j) {
    io_writer *probe = NULL;
    if (j->to) TRY(text_stage_check(&j->stage, j->in, j->to));
    if (!j->report) return OK;
    TRY(io_writer_open(j->report, &probe));
    io_writer_abort(probe);
    return OK;
}

static err make_share(const share_job *j, int share, const char *path) {
    spill_writer *out = NULL;
    TRY(spill_create(path, j->streams, j->settings, &out));
    err e = j->make(j->ctx, share, out);
    if (!e) return spill_commit(out);
    spill_abort(out);
    return e;
}

static err open_share(const share_job *j, int share, const char *path, spill **out) {
    TRY(spill_open(path, j->streams, j->settings, out));
    if (*out) return OK;
    TRY(make_share(j, share, path));
    TRY(spill_open(path, j->streams, j->settings, out));
    BUG_IF(!*out);
    return OK;
}

err share_run(const share_job *j, spill **spills) {
    int n = share_count(j->in);
    TRY(check_inputs(j));
    TRY(check_outputs(j));
    if (j->fresh) TRY(spill_clear(j->folder, j->stage.name));
    TRY(io_make_dirs(j->folder));
    for (int i = 0; i < n; i++) {
        char *path = spill_path(j->folder, j->stage.name, i);
        err e = open_share(j, i, path, &spills[i]);
        free(path);
        TRY(e);
        if (!j->quiet && n > 1)
            log_info("%s: read %d of %d shares of the input", j->stage.name, i + 1, n);
    }
    return OK;
}

char *dedup_work_folder(const char *work, const char *out) {
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

static void add_name(const char *name, text_span value, str *out) {
    if (value.len == 0) return;
    str_add(out, "%s\"%s\":", out->len ? "," : "", name);
    text_json_string(value.at, value.len, out);
}

void doc_names(const text_doc *d, str *out) {
    str names = { 0 };
    add_name("id", d->id, &names);
    add_name("url", d->url, &names);
    add_name("source", d->source, &names);
    if (names.len) str_add_bytes(out, names.text, names.len);
    str_free(&names);
}

void path_json(const char *path, str *out) {
    json_t *text = io_json_string(path, strlen(path));
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    BUG_IF(!quoted);
    str_add(out, "%s", quoted);
    free(quoted);
    json_decref(text);
}
