/* Reports of transforms: summing them up, storing them beside a part as JSON, printing the table. */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "io/io.h"
#include "store/vfs.h"
#include "text/transform_report_internal.h"

void report_init(text_transform_report *r, const text_transform *s) {
    size_t rules = (size_t)s->n_rules, counters = (size_t)s->n_counters;
    *r = (text_transform_report){ .dropped =
                                      mem_alloc((2 * rules + counters) * sizeof *r->dropped) };
    r->dropped_bytes = r->dropped + rules;
    r->count = r->dropped_bytes + rules;
}

void text_transform_report_free(text_transform_report *r) {
    free(r->dropped);
    json_decref(r->sources);
    json_decref(r->licenses);
    *r = (text_transform_report){ 0 };
}

enum {
    VALUES_MOST = 1000
}; /* sources that are counted by name; what more there are is counted together */

/* Adds to the entry of a name, [documents, bytes]. */
static void count_value(json_t **map, const char *name, size_t n, int64_t documents,
                        int64_t bytes) {
    static const char others[] = "(others)";
    if (!*map) *map = json_object();
    json_t *entry = json_object_getn(*map, name, n);
    if (!entry && json_object_size(*map) >= VALUES_MOST) {
        name = others;
        n = sizeof others - 1;
        entry = json_object_getn(*map, name, n);
    }
    if (!entry) {
        entry = json_pack("[II]", (json_int_t)0, (json_int_t)0);
        if (json_object_setn_new(*map, name, n, entry)) return; /* not UTF-8 */
    }
    json_t *count = json_array_get(entry, 0), *size = json_array_get(entry, 1);
    json_integer_set(count, json_integer_value(count) + documents);
    json_integer_set(size, json_integer_value(size) + bytes);
}

void report_count_values(text_transform_report *r, const text_doc *d, int64_t bytes) {
    if (d->source.len) count_value(&r->sources, d->source.at, d->source.len, 1, bytes);
    if (d->license.len) count_value(&r->licenses, d->license.at, d->license.len, 1, bytes);
}

void report_add_values(json_t **to, const json_t *from) {
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)from, name, entry)
        count_value(to, name, strlen(name), json_integer_value(json_array_get(entry, 0)),
                    json_integer_value(json_array_get(entry, 1)));
}

void report_add(text_transform_report *to, const text_transform_report *from,
                const text_transform *s) {
    text_counts_add(&to->read, &from->read);
    to->kept += from->kept;
    to->kept_bytes += from->kept_bytes;
    to->edited += from->edited;
    for (int i = 0; i < s->n_rules; i++) {
        to->dropped[i] += from->dropped[i];
        to->dropped_bytes[i] += from->dropped_bytes[i];
    }
    for (int i = 0; i < s->n_counters; i++) to->count[i] += from->count[i];
    report_add_values(&to->sources, from->sources);
    report_add_values(&to->licenses, from->licenses);
}

/* ---- JSON ------------------------------------------------------------------------------------ */
/* The counts that every report has, by name. */
typedef struct report_number {
    const char *name;
    size_t offset;
} report_number;
#define NUMBER(name, member)                                                                       \
    { name, offsetof(text_transform_report, member) }
#define SKIP_NUMBER(id, name) NUMBER("skipped_" #id, read.skipped[TEXT_SKIP_##id]),
static const report_number read_numbers[] = { NUMBER("documents", read.documents),
                                              NUMBER("bytes", read.bytes),
                                              NUMBER("repaired", read.repaired),
                                              NUMBER("invalid", read.invalid),
                                              NUMBER("unreadable", read.unreadable),
                                              NUMBER("empty", read.empty),
                                              NUMBER("excluded", read.excluded),
                                              NUMBER("lost_bytes", read.lost_bytes),
                                              TEXT_SKIPS(SKIP_NUMBER) };
static const report_number kept_numbers[] = {
    NUMBER("documents", kept),
    NUMBER("bytes", kept_bytes),
    NUMBER("edited", edited),
};

static const report_number run_numbers[] = { NUMBER("seen_bytes", seen_bytes) };

static int64_t *number_in(text_transform_report *r, const report_number *n) {
    return (int64_t *)((char *)r + n->offset);
}

/* The numbers of a report as an array, or back. Counts below 2^53 are exact as doubles. */
static int each_number(text_transform_report *r, const text_transform *s, double *values,
                       bool back) {
    const struct {
        const report_number *numbers;
        size_t n;
    } tables[] = { { read_numbers, COUNT_OF(read_numbers) },
                   { kept_numbers, COUNT_OF(kept_numbers) },
                   { run_numbers, COUNT_OF(run_numbers) } };
    int at = 0, arrays = 2 * s->n_rules + s->n_counters;
    for (size_t t = 0; t < COUNT_OF(tables); t++)
        for (size_t i = 0; i < tables[t].n; i++, at++) {
            int64_t *number = number_in(r, &tables[t].numbers[i]);
            if (back)
                *number = (int64_t)values[at];
            else
                values[at] = (double)*number;
        }
    for (int i = 0; i < arrays; i++, at++) { /* the arrays follow one another: report_init */
        if (back)
            r->dropped[i] = (int64_t)values[at];
        else
            values[at] = (double)r->dropped[i];
    }
    return at;
}

err report_total(text_transform_report *r, const text_transform *s, comm *c) {
    size_t most = COUNT_OF(read_numbers) + COUNT_OF(kept_numbers) + COUNT_OF(run_numbers) +
                  2 * (size_t)s->n_rules + (size_t)s->n_counters;
    double *values = mem_alloc(most * sizeof *values);
    err e = comm_total(c, values, each_number(r, s, values, false));
    if (!e) each_number(r, s, values, true);
    free(values);
    return e;
}

static json_t *numbers_to_json(const text_transform_report *r, const report_number *numbers,
                               size_t n) {
    json_t *object = json_object();
    text_transform_report copy = *r;
    for (size_t i = 0; i < n; i++)
        json_object_set_new(object, numbers[i].name, json_integer(*number_in(&copy, &numbers[i])));
    return object;
}

static json_t *report_to_json(const text_transform_report *r, const text_transform *s) {
    json_t *dropped = json_array(), *counters = json_array();
    for (int i = 0; i < s->n_rules; i++)
        json_array_append_new(dropped, json_pack("{sssIsI}", "rule", s->rules[i], "documents",
                                                 (json_int_t)r->dropped[i], "bytes",
                                                 (json_int_t)r->dropped_bytes[i]));
    for (int i = 0; i < s->n_counters; i++)
        json_array_append_new(
            counters, json_pack("{sssI}", "counter", s->counters[i], "n", (json_int_t)r->count[i]));
    return json_pack("{sssosososo}", "stage", s->name, "read",
                     numbers_to_json(r, read_numbers, COUNT_OF(read_numbers)), "kept",
                     numbers_to_json(r, kept_numbers, COUNT_OF(kept_numbers)), "dropped", dropped,
                     "counters", counters);
}

err report_save(const text_transform_report *r, const text_transform *s, int64_t part_bytes, vfs *v,
                const char *path) {
    json_t *doc = report_to_json(r, s);
    json_object_set_new(doc, "part_bytes", json_integer((json_int_t)part_bytes));
    if (r->sources) json_object_set(doc, "sources", r->sources);
    if (r->licenses) json_object_set(doc, "licenses", r->licenses);
    err e = vfs_json_write(v, path, doc);
    json_decref(doc);
    return e;
}

static err numbers_from_json(const json_t *doc, const char *path, const char *key,
                             const report_number *numbers, size_t n, text_transform_report *r) {
    json_t *object;
    TRY(io_json_object(doc, path, key, &object));
    for (size_t i = 0; i < n; i++)
        TRY(io_json_int(object, path, numbers[i].name, number_in(r, &numbers[i])));
    return OK;
}

/* Reads the number `key` of each of the n objects in a list. */
static err list_from_json(const json_t *doc, const char *path, const char *list, const char *key,
                          int n, int64_t *out) {
    json_t *array;
    TRY(io_json_array(doc, path, list, &array));
    if ((int)json_array_size(array) != n)
        return ERR("%s: \"%s\": expected %d entries; got %zu", path, list, n,
                   json_array_size(array));
    for (int i = 0; i < n; i++)
        TRY(io_json_int(json_array_get(array, (size_t)i), path, key, &out[i]));
    return OK;
}

static err report_from_json(const json_t *doc, const char *path, const text_transform *s,
                            text_transform_report *r) {
    TRY(numbers_from_json(doc, path, "read", read_numbers, COUNT_OF(read_numbers), r));
    TRY(numbers_from_json(doc, path, "kept", kept_numbers, COUNT_OF(kept_numbers), r));
    TRY(list_from_json(doc, path, "dropped", "documents", s->n_rules, r->dropped));
    TRY(list_from_json(doc, path, "dropped", "bytes", s->n_rules, r->dropped_bytes));
    return list_from_json(doc, path, "counters", "n", s->n_counters, r->count);
}

err report_load(vfs *v, const char *path, const text_transform *s, text_transform_report *r,
                int64_t *part_bytes) {
    json_t *doc = NULL;
    TRY(vfs_json_read(v, path, &doc));
    err e = report_from_json(doc, path, s, r);
    if (!e) e = io_json_int(doc, path, "part_bytes", part_bytes);
    json_decref(doc);
    return e;
}

json_t *text_transform_json(const text_transform *s, const text_transform_report *r) {
    json_t *doc = report_to_json(r, s);
    json_object_set_new(doc, "seconds", json_real(r->seconds));
    json_object_set_new(doc, "resumed_parts", json_integer(r->resumed_parts));
    json_object_set_new(doc, "peak_memory_bytes", json_integer((json_int_t)r->peak_memory));
    return doc;
}

/* ---- the table ------------------------------------------------------------------------------- */
typedef struct report_table {
    FILE *to;
    int width;  /* of the name column */
    double all; /* documents read, the base of the percentages */
} report_table;

static void print_report_row(const report_table *t, const char *name, int64_t documents,
                             int64_t bytes) {
    char size[32];
    fprintf(t->to, "  %-*s %12lld", t->width, name, (long long)documents);
    fprintf(t->to, " %8.2f%%", t->all > 0 ? 100 * (double)documents / t->all : 0);
    if (bytes >= 0) fprintf(t->to, " %12s", str_bytes(size, sizeof size, (double)bytes));
    fputc('\n', t->to);
}

#define SKIP_ROW(id, what) { what, c->skipped[TEXT_SKIP_##id] },
static void print_reading(const report_table *t, const text_counts *c) {
    const struct {
        const char *name;
        int64_t n;
    } rows[] = { { "unreadable records", c->unreadable },
                 { "dropped for invalid UTF-8", c->invalid },
                 { "with invalid UTF-8 repaired", c->repaired },
                 { "empty", c->empty },
                 { "excluded by source or license", c->excluded },
                 { "bytes lost to damage, at least", c->lost_bytes },
                 TEXT_SKIPS(SKIP_ROW) };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (rows[i].n)
            fprintf(t->to, "  %-*s %12lld\n", t->width, rows[i].name, (long long)rows[i].n);
}

static void print_dropped(const report_table *t, const text_transform *s,
                          const text_transform_report *r) {
    int64_t documents = 0, bytes = 0;
    int idle = 0;
    for (int i = 0; i < s->n_rules; i++)
        documents += r->dropped[i], bytes += r->dropped_bytes[i], idle += !r->dropped[i];
    if (s->n_rules == 0) return;
    print_report_row(t, "dropped", documents, bytes);
    for (int i = 0; i < s->n_rules; i++) {
        char name[128];
        snprintf(name, sizeof name, "  %s", s->rules[i]);
        if (r->dropped[i]) print_report_row(t, name, r->dropped[i], r->dropped_bytes[i]);
    }
    if (idle) fprintf(t->to, "    %d rule%s dropped nothing\n", idle, idle == 1 ? "" : "s");
}

static void print_run(const text_transform_report *r, FILE *to) {
    char text[32];
    fprintf(to, "  %s", str_duration(text, sizeof text, r->seconds));
    if (r->seen_bytes && r->seconds > 0)
        fprintf(to, ", %s/s", str_bytes(text, sizeof text, (double)r->seen_bytes / r->seconds));
    fprintf(to, ", peak memory %s", str_bytes(text, sizeof text, (double)r->peak_memory));
    if (r->ranks > 1) fprintf(to, " on each of %d ranks", r->ranks);
    if (r->resumed_parts)
        fprintf(to, "; %d part%s resumed", r->resumed_parts, r->resumed_parts == 1 ? "" : "s");
    fputc('\n', to);
}

void text_transform_print(const text_transform *s, const text_transform_report *r, FILE *to) {
    report_table t = { to, 30, (double)r->read.documents };
    for (int i = 0; i < s->n_rules; i++) t.width = MAX(t.width, (int)strlen(s->rules[i]) + 2);
    for (int i = 0; i < s->n_counters; i++) t.width = MAX(t.width, (int)strlen(s->counters[i]));
    fprintf(to, "%s\n  %-*s %12s %9s %12s\n", s->name, t.width, "", "documents", "share", "text");
    print_report_row(&t, "read", r->read.documents, r->read.bytes);
    print_reading(&t, &r->read);
    print_dropped(&t, s, r);
    print_report_row(&t, "kept", r->kept, r->kept_bytes);
    if (r->edited) print_report_row(&t, "  edited", r->edited, -1);
    for (int i = 0; i < s->n_counters; i++)
        if (r->count[i])
            fprintf(to, "  %-*s %12lld\n", t.width, s->counters[i], (long long)r->count[i]);
    print_run(r, to);
}
