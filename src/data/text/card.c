/* The card of an output folder, card.yaml: how it was made, for people, with the counts of all its parts. Everything in it
 * follows from state.json and the reports, so that it depends neither on ranks nor on interruptions. Strings are written
 * as JSON, which YAML includes. */
#include <stdlib.h>
#include <string.h>

#include "text/inputs_internal.h"
#include "text/output_internal.h"
#include "text/transform_report_internal.h"

/* Sums over the reports of all parts. */
typedef struct card_sums {
    json_t *read, *kept, *dropped,
        *counters;              /* objects of numbers; dropped: of [documents, bytes] */
    json_t *sources, *licenses; /* NULL: none */
    json_t *unreadable;         /* numbers of parts with records that could not be read */
} card_sums;

static void add_numbers(json_t *to, const json_t *from) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)from, name, value) {
        json_int_t sum = json_integer_value(json_object_get(to, name));
        json_object_set_new(to, name, json_integer(sum + json_integer_value(value)));
    }
}

/* Adds a list of objects, each with a name, as numbers under these names. */
static void add_named(json_t *to, const json_t *list, const char *key, bool both) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(o, key));
        json_int_t n = json_integer_value(json_object_get(o, both ? "documents" : "n"));
        json_t *entry = name ? json_object_get(to, name) : NULL;
        if (!name) continue;
        if (!both) {
            json_object_set_new(to, name, json_integer(json_integer_value(entry) + n));
            continue;
        }
        if (!entry)
            json_object_set_new(to, name, entry = json_pack("[II]", (json_int_t)0, (json_int_t)0));
        json_t *count = json_array_get(entry, 0), *size = json_array_get(entry, 1);
        json_integer_set(count, json_integer_value(count) + n);
        json_integer_set(size, json_integer_value(size) +
                                   json_integer_value(json_object_get(o, "bytes")));
    }
}

static err sum_reports(const parts *p, card_sums *s) {
    *s = (card_sums){ .read = json_object(),
                      .kept = json_object(),
                      .dropped = json_object(),
                      .counters = json_object(),
                      .unreadable = json_array() };
    for (int i = 0; i < p->n; i++) {
        json_t *r = NULL;
        TRY(vfs_json_read(p->files, REPORT_IN(p, i), &r));
        const json_t *read = json_object_get(r, "read");
        if (json_integer_value(json_object_get(read, "unreadable")) > 0)
            json_array_append_new(
                s->unreadable, json_pack("{sisI}", "part", i, "records",
                                         json_integer_value(json_object_get(read, "unreadable"))));
        add_numbers(s->read, read);
        add_numbers(s->kept, json_object_get(r, "kept"));
        add_named(s->dropped, json_object_get(r, "dropped"), "rule", true);
        add_named(s->counters, json_object_get(r, "counters"), "counter", false);
        report_add_values(&s->sources, json_object_get(r, "sources"));
        report_add_values(&s->licenses, json_object_get(r, "licenses"));
        json_decref(r);
    }
    return OK;
}

/* ---- inputs ---------------------------------------------------------------------------------- */
json_t *text_inputs_json(const text_inputs *in) {
    json_t *list = json_array();
    for (int i = 0; i < in->n_files; i++) {
        const input_file *f = &in->files[i];
        char hash[20];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)f->content);
        json_t *entry = json_pack("{sosIss}", "path", io_json_string(f->path, strlen(f->path)),
                                  "bytes", (json_int_t)f->size, "hash", hash);
        if (f->sampled) json_object_set_new(entry, "sampled", json_true());
        if (f->damage)
            json_object_set_new(entry, "unreadable", io_json_string(f->damage, strlen(f->damage)));
        json_array_append_new(list, entry);
    }
    return list;
}

json_t *text_inputs_skipped_json(const text_inputs *in) {
    json_t *list = json_array();
    for (int i = 0; i < in->skipped_files; i++)
        json_array_append_new(list, io_json_string(in->skipped[i], strlen(in->skipped[i])));
    return list;
}

/* ---- writing --------------------------------------------------------------------------------- */
static void add_value_text(str *out, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_SORT_KEYS);
    str_add(out, "%s", text ? text : "null");
    free(text);
}

/* A section of `name: value` lines, in the order of the object; a pair is documents and bytes. */
static void add_card_section(str *out, const char *title, const json_t *object) {
    const char *name;
    json_t *value;
    size_t before = out->len;
    str_add(out, "%s:\n", title);
    size_t empty = out->len;
    json_object_foreach((json_t *)(uintptr_t)object, name, value) {
        const json_t *n = json_is_array(value) ? json_array_get(value, 0) : value;
        if (json_is_integer(n) && json_integer_value(n) == 0) continue;
        bool plain = strspn(name, "abcdefghijklmnopqrstuvwxyz_-") == strlen(name);
        json_t *key = json_string(name);
        str_add(out, "  ");
        if (plain)
            str_add(out, "%s", name);
        else
            add_value_text(out, key);
        json_decref(key);
        str_add(out, ": ");
        if (json_is_array(value))
            str_add(out, "{documents: %lld, bytes: %lld}",
                    (long long)json_integer_value(json_array_get(value, 0)),
                    (long long)json_integer_value(json_array_get(value, 1)));
        else
            add_value_text(out, value);
        str_add(out, "\n");
    }
    if (out->len == empty) out->len = before; /* nothing but zeros */
}

static void add_card_list(str *out, const char *title, const json_t *list) {
    if (json_array_size(list) == 0) return;
    str_add(out, "%s:\n", title);
    for (size_t i = 0; i < json_array_size(list); i++) {
        str_add(out, "  - ");
        add_value_text(out, json_array_get(list, i));
        str_add(out, "\n");
    }
}

/* The cards of the folders that the transform has read, each once. */
static err list_input_cards(vfs *v, const text_inputs *in, json_t *list) {
    str last = { 0 };
    err e = OK;
    for (int i = 0; i < in->n_files && !e; i++) {
        const char *path = in->files[i].path, *slash = strrchr(path, '/');
        size_t n = slash ? (size_t)(slash - path) + 1 : 0;
        if (last.text && last.len == n && memcmp(last.text, path, n) == 0) continue;
        last.len = 0;
        str_add_bytes(&last, path, n);
        str card = { 0 };
        str_add(&card, "%.*s%s", (int)n, path, CARD_NAME);
        vfs_info there;
        e = vfs_stat(v, card.text, &there);
        if (there.found) json_array_append_new(list, io_json_string(card.text, card.len));
        str_free(&card);
    }
    str_free(&last);
    return e;
}

/* Adds the lines that every card begins with. */
static err add_card_head(vfs *v, const char *transform, const json_t *options,
                         const text_inputs *in, str *out) {
    json_t *cards = json_array(), *inputs = text_inputs_json(in);
    json_t *skipped = text_inputs_skipped_json(in);
    err e = list_input_cards(v, in, cards);
    str_add(out,
            "# How this folder was made. Hashes are xxHash64; of long files, of three samples.\n"
            "stage: %s\nversion: \"%s\"\n",
            transform, INGOT_VERSION);
    add_card_section(out, "options", options);
    add_card_list(out, "inputs", inputs);
    add_card_list(out, "cards_of_inputs", cards);
    add_card_list(out, "skipped_files", skipped);
    json_decref(cards);
    json_decref(inputs);
    json_decref(skipped);
    return e;
}

static void add_sums(const card_sums *s, str *out) {
    add_card_list(out, "parts_with_unreadable_records", s->unreadable);
    add_card_section(out, "read", s->read);
    add_card_section(out, "dropped", s->dropped);
    add_card_section(out, "changed", s->counters);
    add_card_section(out, "kept", s->kept);
    add_card_section(out, "sources", s->sources);
    add_card_section(out, "licenses", s->licenses);
}

err text_card_write(const char *folder, const char *transform, const json_t *options,
                    const text_inputs *in, const json_t *sections) {
    str text = { 0 };
    const char *path = PATH_IN(folder, CARD_NAME);
    const char *title;
    json_t *section;
    vfs *v = vfs_new();
    err e = add_card_head(v, transform, options, in, &text);
    json_object_foreach((json_t *)(uintptr_t)sections, title, section)
        add_card_section(&text, title, section);
    if (!e) e = vfs_write(v, path, text.text, text.len);
    vfs_free(v);
    str_free(&text);
    return e;
}

err card_text(const parts *p, str *out) {
    card_sums s = { 0 };
    err e = sum_reports(p, &s);
    if (!e) e = add_card_head(p->files, p->transform->name, p->given, p->in, out);
    if (!e) add_sums(&s, out);
    json_t *all[] = { s.read, s.kept, s.dropped, s.counters, s.sources, s.licenses, s.unreadable };
    for (size_t i = 0; i < COUNT_OF(all); i++) json_decref(all[i]);
    return e;
}
