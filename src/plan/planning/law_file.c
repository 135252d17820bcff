/* Scaling laws in files: what `ingot plan fit --write` writes and --law reads.
 *
 *     name: sweep
 *     E: 1.82
 *     A: 482
 *     alpha: 0.348
 *     B: 2085
 *     beta: 0.366
 *
 * L = E + A / N^alpha + B / D^beta. `title` and `source` are texts for tables. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "planning_internal.h"

typedef struct law_constant {
    const char *key;
    size_t at; /* in scaling_law */
} law_constant;
static const law_constant law_constants[] = {
    { "E", offsetof(scaling_law, e) },         { "A", offsetof(scaling_law, a) },
    { "alpha", offsetof(scaling_law, alpha) }, { "B", offsetof(scaling_law, b) },
    { "beta", offsetof(scaling_law, beta) },
};

static char *text_copy(const char *text) {
    char *out = mem_alloc(strlen(text) + 1);
    strcpy(out, text);
    return out;
}

static err read_constant(const json_t *doc, const char *path, const law_constant *k,
                         scaling_law *law) {
    const json_t *v = json_object_get(doc, k->key);
    double value = json_is_number(v) ? json_number_value(v) : NAN;
    if (!(value >= 0) || !isfinite(value) || (value == 0 && strcmp(k->key, "E") != 0))
        return err_hint(ERR("%s: %s: expected a number above 0", path, k->key),
                        "\"ingot plan fit RUN... --write FILE\" writes such a file");
    *(double *)((char *)law + k->at) = value;
    return OK;
}

/* Names the law in the table after its file, without folder and ending. */
static void name_of_path(const char *path, char out[64]) {
    const char *slash = strrchr(path, '/');
    snprintf(out, 64, "%s", slash ? slash + 1 : path);
    out[strcspn(out, ".")] = '\0';
}

static err check_law_keys(const json_t *doc, const char *path) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)doc, key, v) {
        bool known = !strcmp(key, "name") || !strcmp(key, "title") || !strcmp(key, "source");
        for (size_t i = 0; i < COUNT_OF(law_constants); i++)
            known |= !strcmp(key, law_constants[i].key);
        if (!known)
            return err_hint(ERR("%s: \"%.40s\" is not a key of a scaling law", path, key),
                            "name, title, source, E, A, alpha, B and beta are");
    }
    return OK;
}

static err read_law(const json_t *doc, const char *path, scaling_law *out) {
    scaling_law law = { .surface = SURFACE_SUM };
    char name[64];
    if (!json_is_object(doc)) return ERR("%s: not a scaling law", path);
    TRY(check_law_keys(doc, path));
    for (size_t i = 0; i < COUNT_OF(law_constants); i++)
        TRY(read_constant(doc, path, &law_constants[i], &law));
    const char *stated = json_string_value(json_object_get(doc, "name")),
               *title = json_string_value(json_object_get(doc, "title")),
               *source = json_string_value(json_object_get(doc, "source"));
    name_of_path(path, name);
    law.name = text_copy(stated ? stated : name);
    law.title = text_copy(title ? title : law.name);
    law.source = text_copy(source ? source : path);
    *out = law;
    return OK;
}

err law_read(const char *path, scaling_law *out) {
    enum { MOST_BYTES = 1 << 16 };
    char *text = NULL;
    size_t len;
    json_t *doc = NULL;
    TRY(io_read(path, MOST_BYTES, &text, &len));
    err e = yaml_to_json(text, len, path, &doc);
    if (!e) e = read_law(doc, path, out);
    json_decref(doc);
    free(text);
    return e;
}

void law_free(scaling_law *law) {
    free((char *)law->name);
    free((char *)law->title);
    free((char *)law->source);
    *law = (scaling_law){ 0 };
}

err law_choose(const char *name_or_path, scaling_law *own, const scaling_law **out) {
    *own = (scaling_law){ 0 };
    if (!strpbrk(name_or_path, "./")) return law_find(name_or_path, out);
    TRY(law_read(name_or_path, own));
    *out = own;
    return OK;
}

err law_write(const law_fit *f, int runs, const char *path) {
    char name[64];
    str text = { 0 };
    name_of_path(path, name);
    str_add(&text,
            "# L = E + A / N^alpha + B / D^beta: N parameters, D tokens, L nats per token.\n"
            "name: %s\ntitle: \"%s, fitted\"\n"
            "source: \"ingot plan fit, %d runs, residuals %.2f %%\"\n",
            name, name, runs, 100 * f->error);
    for (size_t i = 0; i < COUNT_OF(law_constants); i++)
        str_add(&text, "%s: %.17g\n", law_constants[i].key,
                *(const double *)((const char *)&f->law + law_constants[i].at));
    err e = io_write(path, text.text, text.len);
    str_free(&text);
    return e;
}
