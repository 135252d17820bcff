/* An output folder of parts, which a killed transform can resume.
 *
 *     OUT/state.json            the transform, its options and its inputs; "complete" at the end
 *     OUT/part-000000.jsonl.zst the documents of segment 0
 *     OUT/part-000000.report    written after the part, so it marks the part as complete
 *     OUT/card.yaml             the same for people, with the sums of all reports (card.c)
 *
 * The folder may be below a URL (vfs.h): a part appears there with its upload, and a rerun finds by a listing what is
 * complete.
 *
 * A transform with several outputs has its parts in OUT/NAME/ instead, each folder with a state.json of its own that lists
 * them; OUT/state.json and the reports record how far the transform is. */
#include <stdlib.h>
#include <string.h>

#include "text/output_internal.h"
#include "text/transform_report_internal.h"
#include "text/inputs_internal.h"

#define STATE_NAME "state.json"

char *parts_report_path(char to[IO_PATH_BYTES], const parts *p, int segment) {
    snprintf(to, IO_PATH_BYTES, "%s/part-%06d.report", p->folder, segment);
    return to;
}

/* ---- state ----------------------------------------------------------------------------------- */
static json_t *make_state(const parts *p, bool complete) {
    char transform[20], inputs[20];
    snprintf(transform, sizeof transform, "%016llx", (unsigned long long)p->transform->hash);
    snprintf(inputs, sizeof inputs, "%016llx", (unsigned long long)text_inputs_hash(p->in));
    json_t *state =
        json_pack("{sssssssisiss*sb}", "stage", p->transform->name, "stage_hash", transform,
                  "inputs_hash", inputs, "parts", p->n, "compression", (int)p->out->compression,
                  "dropped", p->dropped->path, "complete", complete);
    json_object_set_new(state, "version", json_string(INGOT_VERSION));
    if (p->given) json_object_set_new(state, "options", json_deep_copy(p->given));
    json_object_set_new(state, "inputs", text_inputs_json(p->in));
    json_object_set_new(state, "skipped_files", text_inputs_skipped_json(p->in));
    return state;
}

/* Lists the parts of an output and their sizes, for the next reader of the folder. */
static err list_written_parts(const parts *p, const sink *out, json_t *state) {
    json_t *files = json_array();
    vfs_listing there;
    TRY(vfs_list(p->files, out->path, &there));
    err e = OK;
    for (int i = 0; i < p->n && !e; i++) {
        const char *path = PART_IN(out, i);
        const vfs_entry *part = vfs_find(&there, strrchr(path, '/') + 1);
        if (part)
            json_array_append_new(
                files, json_pack("{sssI}", "name", part->name, "bytes", (json_int_t)part->bytes));
        else
            e = err_hint(ERR("%s is missing, although a rank has written it", path),
                         "check that nothing else changes the folder, and run again");
    }
    vfs_listing_free(&there);
    json_object_set_new(state, "files", files);
    return e;
}

static err write_card(const parts *p, const char *folder, const str *text) {
    return vfs_write(p->files, PATH_IN(folder, CARD_NAME), text->text, text->len);
}

/* Writes the state of the transform and, when it is complete, lists the parts there, or in each of several outputs. */
static err write_state(const parts *p, bool complete) {
    bool several = p->transform->n_outputs > 0;
    str card = { 0 };
    err e = complete ? card_text(p, &card) : OK;
    for (int i = 0; i < p->n_out && complete && several && !e; i++) {
        json_t *state = make_state(p, true);
        e = list_written_parts(p, &p->out[i], state);
        if (!e) e = write_card(p, p->out[i].path, &card);
        if (!e) e = vfs_json_write(p->files, PATH_IN(p->out[i].path, STATE_NAME), state);
        json_decref(state);
    }
    json_t *state = make_state(p, complete);
    if (!e && complete && !several) e = list_written_parts(p, p->out, state);
    if (several) json_object_set_new(state, "parts", json_integer(0));
    if (several) json_object_set_new(state, "parts_each", json_integer(p->n));
    if (!e && complete) e = write_card(p, p->folder, &card);
    if (!e) e = vfs_json_write(p->files, PATH_IN(p->folder, STATE_NAME), state);
    str_free(&card);
    json_decref(state);
    return e;
}

static err refuse_folder(const parts *p, const char *why) {
    return err_hint(ERR("%s contains %s", p->folder, why),
                    "choose another folder, or start over with --fresh");
}

/* Checks that the content of the folder comes from this transform on these inputs. */
static err compare_state(const parts *p, const char *path) {
    static const struct {
        const char *key, *why;
    } facts[] = {
        { "stage", "the output of another transform" },
        { "stage_hash", "output made with other options" },
        { "inputs_hash", "output made from other inputs, or with a different --longest" },
        { "parts", "output made from other inputs" },
        { "parts_each", "output made from other inputs" },
        { "compression", "parts with another compression" },
        { "dropped", "output with another --dropped" },
    };
    json_t *there = NULL, *here = make_state(p, false);
    if (p->transform->n_outputs > 0) {
        json_object_set_new(here, "parts", json_integer(0));
        json_object_set_new(here, "parts_each", json_integer(p->n));
    }
    err e = vfs_json_read(p->files, path, &there);
    for (size_t i = 0; i < COUNT_OF(facts) && !e; i++) {
        if (p->n < 0 && str_starts(facts[i].key, "parts")) continue; /* not known yet */
        const json_t *a = json_object_get(there, facts[i].key);
        const json_t *b = json_object_get(here, facts[i].key);
        if (!(a == b || json_equal(a, b))) e = refuse_folder(p, facts[i].why);
    }
    const char *newer = NULL;
    if (!e) e = text_inputs_newer(p->in, path, &newer);
    if (newer)
        e = err_hint(ERR("%s contains output made before %s was changed", p->folder, newer),
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

bool text_output_has_name(const char *name) {
    return is_part(name) || strcmp(name, CARD_NAME) == 0 || strcmp(name, STATE_NAME) == 0;
}

/* A killed run leaves such a file of the card or the state. */
static bool is_left_over(const char *name) {
    return str_ends(name, ".tmp") &&
           (str_starts(name, CARD_NAME ".") || str_starts(name, STATE_NAME "."));
}

/* Removes parts, reports and temporary files of killed runs. @param temporary only the latter.
 * @param dry removes nothing. *found: whether there were any. */
static err remove_parts(const parts *p, const char *folder, bool temporary, bool dry, bool *found) {
    vfs_listing l;
    TRY(vfs_list(p->files, folder, &l));
    err e = OK;
    for (int i = 0; i < l.n && !e; i++) {
        const char *name = l.at[i].name;
        bool part = is_part(name);
        if (!part && !is_left_over(name)) continue;
        if (temporary && !str_ends(name, ".tmp")) continue;
        *found = *found || part;
        if (dry) continue;
        e = vfs_remove(p->files, PATH_IN(folder, name));
    }
    vfs_listing_free(&l);
    return e;
}

/* Does something with every folder that has parts or reports. */
static err for_each_folder(const parts *p, err (*fn)(const parts *p, const char *folder, void *arg),
                           void *arg) {
    if (p->transform->n_outputs > 0) TRY(fn(p, p->folder, arg));
    for (int i = 0; i < p->n_out; i++) TRY(fn(p, p->out[i].path, arg));
    return p->dropped->path ? fn(p, p->dropped->path, arg) : OK;
}

static err clear_temporaries(const parts *p, const char *folder, void *unused) {
    bool found = false;
    return remove_parts(p, folder, true, false, &found);
}

static err clear_folder(const parts *p, const char *folder, void *unused) {
    static const char *const files[] = { CARD_NAME, STATE_NAME };
    bool found = false;
    err e = OK;
    for (size_t i = 0; i < COUNT_OF(files) && !e; i++)
        e = vfs_remove(p->files, PATH_IN(folder, files[i]));
    return e ? e : remove_parts(p, folder, false, false, &found);
}

/* Refuses a folder with other texts in it, which the next command would read as parts. */
static err refuse_texts(const parts *p, const char *folder, void *unused) {
    vfs_listing l;
    text_compression compression;
    TRY(vfs_list(p->files, folder, &l));
    err e = OK;
    for (int i = 0; i < l.n && !e; i++) {
        const char *name = l.at[i].name;
        if (!is_part(name) && name[0] != '.' && strcmp(name, STATE_NAME) != 0 &&
            format_of_path(name, &compression))
            e = err_hint(ERR("%s contains other texts, such as %s", folder, name),
                         "choose a folder that is empty or does not exist yet");
    }
    vfs_listing_free(&l);
    return e;
}

static err find_parts(const parts *p, const char *folder, void *found) {
    return remove_parts(p, folder, false, true, found);
}

static err check_new(const parts *p, bool fresh) {
    bool found = false;
    TRY(for_each_folder(p, refuse_texts, NULL));
    if (fresh) return OK;
    TRY(for_each_folder(p, find_parts, &found));
    return found ? refuse_folder(p, "parts without state.json") : OK;
}

static err make_part_folder(const parts *p, const char *folder, void *unused) {
    return vfs_make_folder(folder);
}

err parts_check(const parts *p, bool fresh) {
    vfs_info there = { 0 };
    TRY(for_each_folder(p, make_part_folder, NULL));
    const char *state = PATH_IN(p->folder, STATE_NAME);
    if (!fresh) TRY(vfs_stat(p->files, state, &there));
    return there.found ? compare_state(p, state) : check_new(p, fresh);
}

err parts_open(const parts *p, bool fresh) {
    TRY(parts_check(p, fresh));
    if (fresh) TRY(for_each_folder(p, clear_folder, NULL));
    TRY(for_each_folder(p, clear_temporaries, NULL));
    vfs_info there;
    TRY(vfs_stat(p->files, PATH_IN(p->folder, STATE_NAME), &there));
    return there.found ? OK : write_state(p, false);
}

/* ---- one part -------------------------------------------------------------------------------- */
err parts_look(const parts *p, parts_found *out) {
    *out = (parts_found){ 0 };
    err e = vfs_list(p->files, p->folder, &out->reports);
    for (int i = 0; i < p->n_out && !e; i++) e = vfs_list(p->files, p->out[i].path, &out->out[i]);
    if (!e && p->dropped->path) e = vfs_list(p->files, p->dropped->path, &out->dropped);
    if (e) parts_found_free(out);
    return e;
}

void parts_found_free(parts_found *f) {
    vfs_listing_free(&f->reports);
    vfs_listing_free(&f->dropped);
    for (int i = 0; i < TEXT_OUTPUTS_MAX; i++) vfs_listing_free(&f->out[i]);
}

/* @return bytes of a part, or -1 if it is missing. */
static int64_t find_part_size(const vfs_listing *l, const sink *s, int part) {
    const vfs_entry *entry = vfs_find(l, strrchr(PART_IN(s, part), '/') + 1);
    return entry ? entry->bytes : -1;
}

err parts_find(const parts *p, const parts_found *f, int segment, bool *whole,
               text_transform_report *r) {
    const char *path = REPORT_IN(p, segment);
    int64_t bytes = 0, written = -1;
    *whole = vfs_find(&f->reports, strrchr(path, '/') + 1) != NULL;
    for (int i = 0; i < p->n_out && *whole; i++) {
        int64_t here = find_part_size(&f->out[i], &p->out[i], segment);
        *whole = here >= 0;
        bytes += here;
    }
    if (*whole && p->dropped->path) *whole = find_part_size(&f->dropped, p->dropped, segment) >= 0;
    err e = *whole ? report_load(p->files, path, p->transform, r, &written) : OK;
    if (!e && *whole && bytes != written) { /* damaged since: written again */
        *whole = false;
        text_transform_report_free(r);
        report_init(r, p->transform);
    }
    return e;
}

/* *bytes: those of a part in all outputs. */
static err sum_part_sizes(const parts *p, int part, int64_t *bytes) {
    *bytes = 0;
    for (int i = 0; i < p->n_out; i++) {
        vfs_info there;
        const char *path = PART_IN(&p->out[i], part);
        TRY(vfs_stat(p->files, path, &there));
        if (!there.found) return ERR("%s is missing right after it was written", path);
        *bytes += there.bytes;
    }
    return OK;
}

err parts_add(const parts *p, int segment, const text_transform_report *r) {
    int64_t bytes = 0;
    TRY(sum_part_sizes(p, segment, &bytes));
    return report_save(r, p->transform, bytes, p->files, REPORT_IN(p, segment));
}

err parts_close(const parts *p) { return write_state(p, true); }

/* ---- a folder as input ----------------------------------------------------------------------- */
static err verify_part(const vfs_listing *l, const char *folder, const char *state,
                       const json_t *file) {
    const char *name = json_string_value(json_object_get(file, "name"));
    int64_t want = 0;
    if (!name || strchr(name, '/'))
        return ERR("%s: \"files\": expected names of parts and their sizes", state);
    TRY(io_json_int(file, state, "bytes", &want));
    const vfs_entry *there = vfs_find(l, name);
    if (!there) return ERR("%s/%s is missing: %s lists it", folder, name, state);
    if (there->bytes == want) return OK;
    return ERR("%s/%s has %lld bytes: %s lists it with %lld", folder, name, (long long)there->bytes,
               state, (long long)want);
}

static err verify_parts(const vfs_listing *l, const char *folder, const char *state,
                        const json_t *doc) {
    const json_t *files = json_object_get(doc, "files");
    int64_t listed = 0, n = 0;
    TRY(io_json_int(doc, state, "parts", &listed));
    for (size_t i = 0; i < json_array_size(files); i++)
        TRY(verify_part(l, folder, state, json_array_get(files, i)));
    for (int i = 0; i < l->n; i++) {
        const char *name = l->at[i].name;
        n += is_part(name) && !str_ends(name, ".report") && !str_ends(name, ".tmp");
    }
    if (n == listed) return OK;
    return ERR("%s has %lld parts: %s lists %lld", folder, (long long)n, state, (long long)listed);
}

static err list_and_verify(vfs *v, const char *folder, const char *state, const json_t *doc) {
    vfs_listing l;
    TRY(vfs_list(v, folder, &l));
    err e = verify_parts(&l, folder, state, doc);
    vfs_listing_free(&l);
    if (!e) return OK;
    return err_hint(e, "run the command that wrote the folder again, with --fresh if needed, or "
                       "copy it again");
}

err parts_verify(vfs *v, const char *folder, const char *state) {
    json_t *doc = NULL;
    TRY(vfs_json_read(v, state, &doc));
    const char *transform = json_string_value(json_object_get(doc, "stage"));
    err e = OK;
    if (json_is_false(json_object_get(doc, "complete")))
        e = err_hint(ERR("%s: the transform \"%s\" that writes this folder has not finished", state,
                         transform ? transform : "?"),
                     "run that command again; it resumes where it stopped");
    else if (transform && json_is_true(json_object_get(doc, "complete")))
        e = list_and_verify(v, folder, state, doc);
    json_decref(doc);
    return e;
}
