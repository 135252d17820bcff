/* ingot data explain: what each transform did to one document.
 *
 * A folder that a transform has written names in its state.json what the transform has read. From there the folders before it are
 * found, back to the first inputs. The document is then looked up on both sides of each transform:
 *
 *     in what it read    in what it wrote
 *     yes                yes                kept, or edited: which lines are gone
 *     yes                no                 dropped: by which rule, from --dropped, or by judging it again (filter)
 */
#include "cli/data_explain.h"

#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "io/io.h"
#include "text/text.h"

typedef struct explain_args {
    bool json;
} explain_args;

enum { DEPTH_MOST = 64, LINES_SHOWN = 10 };

/* ---- looking up ------------------------------------------------------------------------------ */
typedef struct document_search {
    const char *name; /* an id or a URL */
    found_document *found;
    const json_t *judge; /* options of a filter that judges it; NULL: none does */
} document_search;

static bool span_equals(text_span s, const char *text) {
    return s.len == strlen(text) && memcmp(s.at, text, s.len) == 0;
}

static char *member_copy(const text_doc *d, const char *name) {
    str value = { 0 };
    if (text_doc_member(d, name, &value)) return value.text;
    str_free(&value);
    return NULL;
}

static err look_in_block(void *ctx, int worker, const text_block *b, void *result) {
    const document_search *l = ctx;
    found_document *f = result;
    for (int i = 0; i < b->n && !f->found; i++) {
        const text_doc *d = &b->docs[i];
        if (!span_equals(d->id, l->name) && !span_equals(d->url, l->name)) continue;
        f->found = true;
        str_add_bytes(&f->text, d->text.at, d->text.len);
        str_add_bytes(&f->source, d->source.at, d->source.len);
        str_add_bytes(&f->license, d->license.at, d->license.len);
        f->dropped_by = member_copy(d, "dropped_by");
        f->value = member_copy(d, "value");
        if (l->judge) TRY(data_filter_explain(l->judge, d, &f->judged));
    }
    return OK;
}

static void found_document_free(found_document *f) {
    str_free(&f->text);
    str_free(&f->source);
    str_free(&f->license);
    free(f->dropped_by);
    free(f->value);
    free(f->path);
    json_decref(f->judged);
    *f = (found_document){ 0 };
}

static void drop_found(void *result) { found_document_free(result); }

static err take_found(void *ctx, const text_block *b, void *result) {
    document_search *l = ctx;
    found_document *f = result;
    if (f->found && !l->found->found)
        *l->found = *f;
    else
        found_document_free(f);
    return OK;
}

/* The fields of the input that the transform was given. */
static text_input_options reading_of(const json_t *options) {
    text_input_options o = { 0 };
    const struct {
        const char *name, **to;
    } fields[] = {
        { "format", &o.format },
        { "text-field", &o.text_field },
        { "text-column", &o.text_field },
        { "id-field", &o.id_field },
        { "url-field", &o.url_field },
        { "source-field", &o.source_field },
        { "license-field", &o.license_field },
    };
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const char *value = json_string_value(json_object_get(options, fields[i].name));
        if (value) *fields[i].to = value;
    }
    return o;
}

static err find_document(const char *const *paths, int n, const json_t *options,
                         document_search *l) {
    text_input_options o = reading_of(options);
    text_inputs *in = NULL;
    text_counts counts = { 0 };
    text_pipeline flow = { l, sizeof(found_document), look_in_block, take_found, drop_found };
    TRY(text_inputs_open(paths, n, &o, &in));
    text_inputs_keep_members(in);
    err e = OK;
    for (int s = 0; s < text_segments(in) && !e && !l->found->found; s++) {
        e = text_pipeline_run(in, s, &flow, text_thread_count(0), &counts);
        if (l->found->found && !l->found->path) l->found->path = strdup(text_segment_path(in, s));
    }
    text_inputs_close(in);
    return e;
}

/* ---- a transform --------------------------------------------------------------------------------- */
typedef struct explanation {
    const char *name;
    json_t *steps;
    bool seen; /* the document is somewhere */
} explanation;

/* Returns removed lines; only some are shown. */
static json_t *lines_removed(const str *before, const str *after, int64_t *n) {
    json_t *shown = json_array();
    const char *rest = after->text ? after->text : "";
    *n = 0;
    for (size_t at = 0; at < before->len;) {
        const char *line = before->text + at, *end = memchr(line, '\n', before->len - at);
        size_t len = end ? (size_t)(end - line) : before->len - at;
        const char *found = len ? memmem(rest, strlen(rest), line, len) : rest;
        if (found)
            rest = len ? found + len : found;
        else if (++*n <= LINES_SHOWN)
            json_array_append_new(shown, io_json_string(line, len));
        at += len + 1;
    }
    return shown;
}

static void describe_kept(json_t *step, const found_document *before, const found_document *after) {
    int64_t n = 0;
    bool same = before->text.len == after->text.len &&
                (before->text.len == 0 ||
                 memcmp(before->text.text, after->text.text, before->text.len) == 0);
    json_object_set_new(step, "result", json_string(same ? "kept" : "edited"));
    if (same) return;
    json_object_set_new(step, "bytes_after", json_integer((json_int_t)after->text.len));
    json_t *lines = lines_removed(&before->text, &after->text, &n);
    json_object_set_new(step, "lines_removed", json_integer((json_int_t)n));
    json_object_set_new(step, "removed", lines);
}

/* Finds the rule: in what the transform has written for this, or by judging again. */
static err describe_dropped(json_t *step, const json_t *state, const char *name,
                            const found_document *before) {
    const char *folder = json_string_value(json_object_get(state, "dropped"));
    found_document f = { 0 };
    document_search l = { .name = name, .found = &f };
    err e = OK;
    json_object_set_new(step, "result", json_string("dropped"));
    if (folder && io_exists(folder)) e = find_document(&folder, 1, NULL, &l);
    if (f.dropped_by) {
        json_object_set_new(step, "rule", json_string(f.dropped_by));
        if (f.value) json_object_set_new(step, "value", json_string(f.value));
    } else if (!before->judged) {
        json_object_set_new(step, "remedy",
                            json_string("run the transform again with --dropped FOLDER: it then "
                                        "records the rule"));
    }
    found_document_free(&f);
    return e;
}

static err describe_transform(explanation *x, const char *folder, const json_t *state,
                              const char *const *paths, int n) {
    const char *transform = json_string_value(json_object_get(state, "stage"));
    const json_t *options = json_object_get(state, "options");
    found_document before = { 0 }, after = { 0 };
    document_search from = { .name = x->name,
                             .found = &before,
                             .judge = transform && strcmp(transform, "filter") == 0 && options
                                          ? options
                                          : NULL };
    document_search to = { .name = x->name, .found = &after };
    json_t *step = json_pack("{ssss?}", "folder", folder, "stage", transform);
    err e = find_document(paths, n, options, &from);
    if (!e) e = find_document(&folder, 1, NULL, &to);
    if (!e && before.found) {
        x->seen = true;
        json_object_set_new(step, "input", json_string(before.path));
        json_object_set_new(step, "bytes", json_integer((json_int_t)before.text.len));
        if (before.source.len) json_object_set_new(step, "source", json_string(before.source.text));
        if (before.license.len)
            json_object_set_new(step, "license", json_string(before.license.text));
        if (after.found)
            describe_kept(step, &before, &after);
        else
            e = describe_dropped(step, state, x->name, &before);
        if (before.judged) json_object_update(step, before.judged);
    } else if (!e) {
        json_object_set_new(step, "result", json_string(after.found ? "kept" : "not in its input"));
        x->seen |= after.found;
    }
    json_array_append_new(x->steps, step);
    found_document_free(&before);
    found_document_free(&after);
    return e;
}

/* ---- the chain ------------------------------------------------------------------------------- */
static err explain_folder(explanation *x, const char *folder, int depth);

/* Explains first the folders of transforms that the inputs are in. */
static err explain_before(explanation *x, const char *const *paths, int n, int depth) {
    str last = { 0 };
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        const char *slash = strrchr(paths[i], '/');
        str folder = { 0 }, state = { 0 };
        str_add(&folder, "%.*s", slash ? (int)(slash - paths[i]) : 1, slash ? paths[i] : ".");
        str_add(&state, "%s/state.json", folder.text);
        bool again = last.text && strcmp(last.text, folder.text) == 0;
        if (!again && io_exists(state.text)) e = explain_folder(x, folder.text, depth + 1);
        str_free(&state);
        str_free(&last);
        last = folder;
    }
    str_free(&last);
    return e;
}

static err explain_state(explanation *x, const char *folder, const json_t *state, int depth) {
    const json_t *inputs = json_object_get(state, "inputs");
    int n = (int)json_array_size(inputs);
    if (n == 0)
        return err_hint(ERR("%s/state.json does not name its inputs", folder),
                        "it was written by an earlier version: run that transform again");
    const char **paths = mem_alloc((size_t)n * sizeof *paths);
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        paths[i] = json_string_value(json_object_get(json_array_get(inputs, (size_t)i), "path"));
        if (!paths[i]) e = ERR("%s/state.json: \"inputs\": expected paths", folder);
    }
    if (!e) e = explain_before(x, paths, n, depth);
    if (!e) e = describe_transform(x, folder, state, paths, n);
    free(paths);
    return e;
}

static err explain_folder(explanation *x, const char *folder, int depth) {
    const char *path = PATH_IN(folder, "state.json");
    json_t *state = NULL;
    err e = OK;
    if (depth > DEPTH_MOST) e = ERR("%s: more than %d transforms before it", folder, DEPTH_MOST);
    if (!e && !io_exists(path))
        e = err_hint(ERR("%s has no state.json", folder),
                     "name the folder that the last transform wrote: data filter, dedup, ...");
    if (!e) e = io_json_read(path, &state);
    if (!e) e = explain_state(x, folder, state, depth);
    json_decref(state);
    return e;
}

/* ---- printing -------------------------------------------------------------------------------- */
static const char *text_of(const json_t *step, const char *key) {
    const char *text = json_string_value(json_object_get(step, key));
    return text ? text : "";
}

static void print_step(const json_t *step) {
    const json_t *removed = json_object_get(step, "removed"),
                 *changes = json_object_get(step, "changes");
    const char *name;
    json_t *value;
    printf("%s -> %s\n", text_of(step, "stage"), text_of(step, "folder"));
    if (*text_of(step, "input"))
        printf("  read from %s, %lld bytes of text%s%s%s%s\n", text_of(step, "input"),
               (long long)json_integer_value(json_object_get(step, "bytes")),
               *text_of(step, "source") ? ", source " : "", text_of(step, "source"),
               *text_of(step, "license") ? ", license " : "", text_of(step, "license"));
    printf("  %s", text_of(step, "result"));
    if (*text_of(step, "rule")) printf(" by the rule %s", text_of(step, "rule"));
    if (*text_of(step, "value")) printf(", which measured %s", text_of(step, "value"));
    if (*text_of(step, "limit")) printf(" (%s)", text_of(step, "limit"));
    if (json_object_get(step, "bytes_after"))
        printf(": %lld bytes left, %lld lines changed or removed",
               (long long)json_integer_value(json_object_get(step, "bytes_after")),
               (long long)json_integer_value(json_object_get(step, "lines_removed")));
    printf("\n");
    json_object_foreach((json_t *)(uintptr_t)changes, name, value)
        printf("    %s: %lld\n", name, (long long)json_integer_value(value));
    for (size_t i = 0; i < json_array_size(removed); i++)
        printf("    - %.100s\n", json_string_value(json_array_get(removed, i)));
    if (*text_of(step, "remedy")) printf("  %s\n", text_of(step, "remedy"));
}

static err run_explain(const cli_subcommand *self, int argc, char **argv) {
    explain_args a = { 0 };
    const char *words[2] = { NULL, NULL };
    TRY(cli_parse(&self->spec, argc, argv, &a, words));
    explanation x = { .name = words[0], .steps = json_array() };
    err e = explain_folder(&x, words[1], 0);
    if (!e && !x.seen)
        e = err_hint(
            ERR("no document with the id or URL \"%s\" in %s, nor in what it was made from", x.name,
                words[1]),
            "`ingot data inspect` shows documents with their ids");
    if (!e && a.json) io_json_print(stdout, json_incref(x.steps), JSON_INDENT(2));
    for (size_t i = 0; i < json_array_size(x.steps) && !e && !a.json; i++)
        print_step(json_array_get(x.steps, i));
    json_decref(x.steps);
    return e;
}

#define AT(member) offsetof(explain_args, member)
static const cli_arg args[] = {
    { "json", ARG_FLAG, AT(json), "", "print the steps as JSON" },
};

const cli_subcommand data_explain = {
    .summary = "which rule of which transform dropped or changed a document",
    .run = run_explain,
    .spec = { "data explain", "DOCUMENT FOLDER", CLI_ARGS(args), 2, false },
    .help =
        "DOCUMENT is an id or a URL; FOLDER what the last transform wrote. The transforms before it are found\n"
        "by the state.json of each folder. What a filter dropped is judged again, by the options that\n"
        "state.json has; for other transforms the rule is known if they ran with --dropped.\n"
        "\n"
        "Example\n"
        "  ingot data explain https://example.org/page pretrain/\n",
};
