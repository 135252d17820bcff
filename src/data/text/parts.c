/* An output folder of parts, which a killed stage can resume.
 *
 *     OUT/state.json            the stage, its options and its inputs; "complete" at the end
 *     OUT/part-000000.jsonl.zst the documents of segment 0
 *     OUT/part-000000.report    written after the part, so it marks the part as complete
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"
#include "text/text_internal.h"

#define STATE_NAME "state.json"

static char *state_path(const parts *p) { return io_join(p->out->path, STATE_NAME); }

static char *report_path(const parts *p, int segment) {
    str name = { 0 };
    str_add(&name, "%s/part-%06d.report", p->out->path, segment);
    return name.text;
}

/* ---- state ----------------------------------------------------------------------------------- */
static json_t *make_state(const parts *p, bool complete) {
    char stage[20], inputs[20];
    snprintf(stage, sizeof stage, "%016llx", (unsigned long long)p->stage->hash);
    snprintf(inputs, sizeof inputs, "%016llx", (unsigned long long)text_inputs_hash(p->in));
    return json_pack("{sssssssisiss*sb}", "stage", p->stage->name, "stage_hash", stage,
                     "inputs_hash", inputs, "parts", text_segments(p->in), "compression",
                     (int)p->out->compression, "dropped", p->dropped->path, "complete", complete);
}

/* The parts and their sizes, for whoever reads the folder next. */
static void list_written_parts(const parts *p, const int64_t *bytes, json_t *state) {
    json_t *files = json_array();
    for (int i = 0; i < text_segments(p->in); i++) {
        char *path = sink_part_path(p->out, i);
        json_array_append_new(files, json_pack("{sssI}", "name", strrchr(path, '/') + 1, "bytes",
                                               (json_int_t)bytes[i]));
        free(path);
    }
    json_object_set_new(state, "files", files);
}

/* @param bytes of each part; NULL: they are not complete. */
static err write_state(const parts *p, const int64_t *bytes) {
    char *path = state_path(p);
    json_t *state = make_state(p, bytes != NULL);
    if (bytes) list_written_parts(p, bytes, state);
    err e = io_json_write(path, state);
    json_decref(state);
    free(path);
    return e;
}

static err refuse_folder(const parts *p, const char *why) {
    return err_hint(ERR("%s contains %s", p->out->path, why),
                    "choose another folder, or start over with --fresh");
}

/* Checks that the content of the folder comes from this stage on these inputs. */
static err compare_state(const parts *p, const char *path) {
    static const struct {
        const char *key, *why;
    } facts[] = {
        { "stage", "the output of another stage" },
        { "stage_hash", "output made with other options" },
        { "inputs_hash", "output made from other inputs, or with a different --longest" },
        { "parts", "output made from other inputs" },
        { "compression", "parts with another compression" },
        { "dropped", "output with another --dropped" },
    };
    json_t *there = NULL, *here = make_state(p, false);
    err e = io_json_read(path, &there);
    for (size_t i = 0; i < COUNT_OF(facts) && !e; i++) {
        const json_t *a = json_object_get(there, facts[i].key);
        const json_t *b = json_object_get(here, facts[i].key);
        if (!(a == b || json_equal(a, b))) e = refuse_folder(p, facts[i].why);
    }
    const char *newer = e ? NULL : text_inputs_newer(p->in, path);
    if (newer)
        e = err_hint(ERR("%s contains output made before %s was changed", p->out->path, newer),
                     "choose another folder, or start over with --fresh");
    if (!e && p->in->pipes)
        e = refuse_folder(p, "output, and a pipe cannot be checked to be the same input");
    json_decref(there);
    json_decref(here);
    return e;
}

/* ---- files of parts -------------------------------------------------------------------------- */
static bool is_part(const char *name) {
    if (!str_starts(name, "part-")) return false;
    size_t digits = strspn(name + 5, "0123456789");
    return digits >= 6 && name[5 + digits] == '.';
}

/* Removes parts, reports and temporary files of killed runs. @param temporary only the latter.
 * @param dry removes nothing. *found: whether there were any. */
static err remove_parts(const char *folder, bool temporary, bool dry, bool *found) {
    char **names = NULL;
    int n = 0;
    TRY(io_list(folder, &names, &n));
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        if (!is_part(names[i]) || (temporary && !str_ends(names[i], ".tmp"))) continue;
        *found = true;
        if (dry) continue;
        char *path = io_join(folder, names[i]);
        if (unlink(path) != 0) e = ERR("cannot remove %s: %s", path, strerror(errno));
        free(path);
    }
    io_list_free(names, n);
    return e;
}

static err clear_temporaries(const parts *p) {
    bool found = false;
    TRY(remove_parts(p->out->path, true, false, &found));
    return p->dropped->path ? remove_parts(p->dropped->path, true, false, &found) : OK;
}

static err start_over(const parts *p) {
    char *state = state_path(p);
    bool found = false;
    err e = OK;
    if (unlink(state) != 0 && errno != ENOENT)
        e = ERR("cannot remove %s: %s", state, strerror(errno));
    free(state);
    TRY(e);
    TRY(remove_parts(p->out->path, false, false, &found));
    return p->dropped->path ? remove_parts(p->dropped->path, false, false, &found) : OK;
}

/* Refuses a folder with other texts in it, which the next command would read as parts. */
static err refuse_texts(const char *folder) {
    char **names = NULL;
    int n = 0;
    text_compression compression;
    TRY(io_list(folder, &names, &n));
    err e = OK;
    for (int i = 0; i < n && !e; i++)
        if (!is_part(names[i]) && names[i][0] != '.' && strcmp(names[i], STATE_NAME) != 0 &&
            format_of_path(names[i], &compression))
            e = err_hint(ERR("%s contains other texts, such as %s", folder, names[i]),
                         "choose a folder that is empty or does not exist yet");
    io_list_free(names, n);
    return e;
}

static err check_new(const parts *p, bool fresh) {
    bool found = false;
    TRY(refuse_texts(p->out->path));
    if (p->dropped->path) TRY(refuse_texts(p->dropped->path));
    if (fresh) return OK;
    TRY(remove_parts(p->out->path, false, true, &found));
    if (p->dropped->path) TRY(remove_parts(p->dropped->path, false, true, &found));
    return found ? refuse_folder(p, "parts without state.json") : OK;
}

err parts_check(const parts *p, bool fresh) {
    TRY(io_make_dirs(p->out->path));
    if (p->dropped->path) TRY(io_make_dirs(p->dropped->path));
    char *state = state_path(p);
    err e = !fresh && io_exists(state) ? compare_state(p, state) : check_new(p, fresh);
    free(state);
    return e;
}

err parts_open(const parts *p, bool fresh) {
    TRY(parts_check(p, fresh));
    if (fresh) TRY(start_over(p));
    TRY(clear_temporaries(p));
    char *state = state_path(p);
    err e = io_exists(state) ? OK : write_state(p, NULL);
    free(state);
    return e;
}

/* ---- one part -------------------------------------------------------------------------------- */
int64_t parts_size(const sink *s, int segment) {
    if (!s->path) return 0;
    char *path = sink_part_path(s, segment);
    int64_t bytes = -1;
    if (io_exists(path)) err_free(io_size(path, &bytes));
    free(path);
    return bytes;
}

err parts_find(const parts *p, int segment, bool *whole, text_stage_report *r) {
    char *path = report_path(p, segment);
    int64_t bytes = parts_size(p->out, segment), written = -1;
    *whole = io_exists(path) && bytes >= 0 && parts_size(p->dropped, segment) >= 0;
    err e = *whole ? report_load(path, p->stage, r, &written) : OK;
    if (!e && *whole && bytes != written) { /* damaged since: written again */
        *whole = false;
        text_stage_report_free(r);
        report_init(r, p->stage);
    }
    free(path);
    return e;
}

err parts_add(const parts *p, int segment, const text_stage_report *r) {
    char *path = report_path(p, segment);
    err e = report_save(r, p->stage, parts_size(p->out, segment), path);
    free(path);
    return e;
}

err parts_close(const parts *p, const int64_t *bytes) { return write_state(p, bytes); }

/* ---- a folder as input ----------------------------------------------------------------------- */
static err verify_part(const char *folder, const char *state, const json_t *file) {
    const char *name = json_string_value(json_object_get(file, "name"));
    int64_t want = 0, bytes = 0;
    if (!name || strchr(name, '/'))
        return ERR("%s: \"files\": expected names of parts and their sizes", state);
    TRY(io_json_int(file, state, "bytes", &want));
    char *path = io_join(folder, name);
    err e = OK;
    if (!io_exists(path)) {
        e = ERR("%s is missing: %s lists it", path, state);
    } else {
        e = io_size(path, &bytes);
        if (!e && bytes != want)
            e = ERR("%s has %lld bytes: %s lists it with %lld", path, (long long)bytes, state,
                    (long long)want);
    }
    free(path);
    return e;
}

static err count_parts(const char *folder, size_t *n) {
    char **names = NULL;
    int all = 0;
    TRY(io_list(folder, &names, &all));
    for (int i = 0; i < all; i++)
        *n += is_part(names[i]) && !str_ends(names[i], ".report") && !str_ends(names[i], ".tmp");
    io_list_free(names, all);
    return OK;
}

static err verify_parts(const char *folder, const char *state, const json_t *doc) {
    const json_t *files = json_object_get(doc, "files");
    int64_t listed = 0;
    size_t n = 0;
    TRY(io_json_int(doc, state, "parts", &listed));
    for (size_t i = 0; i < json_array_size(files); i++)
        TRY(verify_part(folder, state, json_array_get(files, i)));
    TRY(count_parts(folder, &n));
    if ((int64_t)n == listed) return OK;
    return ERR("%s has %zu parts: %s lists %lld", folder, n, state, (long long)listed);
}

err parts_verify(const char *folder, const char *state) {
    json_t *doc = NULL;
    TRY(io_json_read(state, &doc));
    const char *stage = json_string_value(json_object_get(doc, "stage"));
    err e = OK;
    if (json_is_false(json_object_get(doc, "complete")))
        e = err_hint(ERR("%s: the stage \"%s\" that writes this folder has not finished", state,
                         stage ? stage : "?"),
                     "run that command again; it resumes where it stopped");
    else if (stage && json_is_true(json_object_get(doc, "complete"))) {
        e = verify_parts(folder, state, doc);
        if (e)
            e = err_hint(e,
                         "run the command that wrote the folder again, with --fresh if needed, or "
                         "copy it again");
    }
    json_decref(doc);
    return e;
}
