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

static char *state_path(const parts *p) { return io_join(p->out->path, "state.json"); }

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

static err write_state(const parts *p, bool complete) {
    char *path = state_path(p);
    json_t *state = make_state(p, complete);
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

static err open_existing(const parts *p, const char *state) {
    bool found = false;
    TRY(compare_state(p, state));
    TRY(remove_parts(p->out->path, true, false, &found));
    return p->dropped->path ? remove_parts(p->dropped->path, true, false, &found) : OK;
}

/* Refuses a folder with other texts in it, which the next command would read as parts. */
static err refuse_texts(const char *folder) {
    char **names = NULL;
    int n = 0;
    text_compression compression;
    TRY(io_list(folder, &names, &n));
    err e = OK;
    for (int i = 0; i < n && !e; i++)
        if (!is_part(names[i]) && names[i][0] != '.' && format_of_path(names[i], &compression))
            e = err_hint(ERR("%s contains other texts, such as %s", folder, names[i]),
                         "choose a folder that is empty or does not exist yet");
    io_list_free(names, n);
    return e;
}

static err open_new(const parts *p) {
    bool found = false;
    TRY(refuse_texts(p->out->path));
    if (p->dropped->path) TRY(refuse_texts(p->dropped->path));
    TRY(remove_parts(p->out->path, false, true, &found));
    if (p->dropped->path) TRY(remove_parts(p->dropped->path, false, true, &found));
    if (found) return refuse_folder(p, "parts without state.json");
    return write_state(p, false);
}

err parts_open(const parts *p, bool fresh) {
    TRY(io_make_dirs(p->out->path));
    if (p->dropped->path) TRY(io_make_dirs(p->dropped->path));
    if (fresh) TRY(start_over(p));
    char *state = state_path(p);
    err e = io_exists(state) ? open_existing(p, state) : open_new(p);
    free(state);
    return e;
}

/* ---- one part -------------------------------------------------------------------------------- */
static bool has_part(const sink *s, int segment) {
    if (!s->path) return true;
    char *path = sink_part_path(s, segment);
    bool there = io_exists(path);
    free(path);
    return there;
}

err parts_find(const parts *p, int segment, bool *whole, text_stage_report *r) {
    char *path = report_path(p, segment);
    *whole = io_exists(path) && has_part(p->out, segment) && has_part(p->dropped, segment);
    err e = *whole ? report_load(path, p->stage, r) : OK;
    free(path);
    return e;
}

err parts_add(const parts *p, int segment, const text_stage_report *r) {
    char *path = report_path(p, segment);
    err e = report_save(r, p->stage, path);
    free(path);
    return e;
}

err parts_close(const parts *p) { return write_state(p, true); }
