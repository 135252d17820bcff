/* Every key of every system is converted, listed or refused: none is silent. A sampler plants keys of the tables, with
 * values, into a small config of the system and looks for what became of each. */
#include "support/test.h"

#include "config/foreign.h"
#include "planning/planning.h"

typedef struct system_base {
    const char *format;
    const foreign_table *table;
    const char *start; /* a config that converts, open for one more key */
} system_base;
static const system_base bases[] = {
    { "megatron", &foreign_megatron,
      "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 "
      "--max-position-embeddings 128 --micro-batch-size 2 --train-iters 10 --lr 1e-3 --swiglu --disable-bias-linear" },
    { "deepspeed", &foreign_deepspeed, "train_micro_batch_size_per_gpu = 2" },
    { "neox", &foreign_neox,
      "num_layers = 4\nhidden_size = 256\nnum_attention_heads = 8\nseq_length = 128\n"
      "max_position_embeddings = 128\ntrain_micro_batch_size_per_gpu = 2\ntrain_iters = 10" },
    { "torchtitan", &foreign_torchtitan, "model.name = llama3\nmodel.flavor = 8B" },
    { "olmo", &foreign_olmo, "model.n_layers = 4\nmax_duration = 10" },
    { "hf", &foreign_hf, "output_dir = o" },
};

/* Whether a text stands for itself in JSON, YAML and TOML. */
static bool is_bare(const char *value) {
    char *end;
    (void)strtod(value, &end);
    return !*end || !strcmp(value, "true") || !strcmp(value, "false");
}

/* Appends "a.b.c = value" to a JSON object with that nesting. */
static void put_path(json_t *doc, const char *key, const char *value) {
    char part[256];
    size_t n = strcspn(key, ".");
    snprintf(part, sizeof part, "%.*s", (int)n, key);
    bool last = !key[n], list = !last && strspn(key + n + 1, "0123456789") == strlen(key + n + 1);
    if (last || list) {
        json_error_t e;
        json_t *v = is_bare(value) ? json_loads(value, JSON_DECODE_ANY, &e) : json_string(value);
        json_t *items = json_object_get(doc, part);
        if (list && !json_is_array(items))
            json_object_set_new(doc, part, items = json_pack("[f, f]", 0.9, 0.95));
        if (list)
            json_array_set_new(items, (size_t)atoi(key + n + 1), v);
        else
            json_object_set_new(doc, part, v);
        return;
    }
    json_t *child = json_object_get(doc, part);
    if (!json_is_object(child)) json_object_set_new(doc, part, child = json_object());
    put_path(child, key + n + 1, value);
}

/* The base with one more key, in the system's syntax: JSON is YAML too, and TOML has dotted keys. */
static char *text_with(const system_base *b, const char *key, const char *value) {
    str out = { 0 };
    bool toml = !strcmp(b->format, "torchtitan");
    if (!strcmp(b->format, "megatron")) {
        str_add(&out, "%s", b->start);
        if (key && !strcmp(value, "true")) str_add(&out, " --%s", key);
        if (key && strcmp(value, "true") && strcmp(value, "false"))
            str_add(&out, " --%s %s", key, value);
        return out.text;
    }
    json_t *doc = json_object();
    char *copy = strdup(b->start), *next = NULL;
    for (char *line = strtok_r(copy, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        char *equals = strstr(line, " = ");
        *equals = '\0';
        if (toml && !(key && !strcmp(key, line))) str_add(&out, "%s = \"%s\"\n", line, equals + 3);
        put_path(doc, line, equals + 3);
    }
    if (key && toml) {
        bool list = strstr(key, "fqns") || strstr(key, "converters");
        str_add(&out, "%s = %s%s%s%s%s\n", key, list ? "[" : "", is_bare(value) ? "" : "\"", value,
                is_bare(value) ? "" : "\"", list ? "]" : "");
    }
    if (key && !toml) put_path(doc, key, value);
    free(copy);
    if (!toml) {
        char *json = json_dumps(doc, JSON_SORT_KEYS);
        str_add(&out, "%s", json);
        free(json);
    }
    json_decref(doc);
    return out.text;
}

typedef struct outcome {
    str out, notes;
    char error[2048];
} outcome;
static void convert_with(const system_base *b, const char *key, const char *value,
                         const char *allow, outcome *r) {
    char *text = text_with(b, key, value);
    *r = (outcome){ 0 };
    convert_options o = { .format = b->format, .allow = allow, .ranks = 8 };
    err e = convert_config(text, strlen(text), "x", &o, &r->out, &r->notes);
    if (e) snprintf(r->error, sizeof r->error, "%s", err_message(e));
    err_free(e);
    free(text);
}

static void free_outcome(outcome *r) {
    str_free(&r->out);
    str_free(&r->notes);
}

/* Whether the base has a key already, which then cannot show. */
static bool is_stated(const system_base *b, const char *key) {
    char dashes[256];
    snprintf(dashes, sizeof dashes, "%s", key);
    for (char *c = dashes; *c; c++)
        if (*c == '_') *c = '-';
    return strstr(b->start, key) || strstr(b->start, dashes);
}

/* A key is listed under its own name; one of a list under its entry's. */
static bool names_key(const char *text, const char *key) { return text && strstr(text, key); }

static bool is_silent(const outcome *base, const outcome *r, const char *key) {
    if (*r->error) return !names_key(r->error, key);
    return !strcmp(base->out.text, r->out.text) && !names_key(r->notes.text, key);
}

/* A value of a key's map, or one that some keys take: each is tried. */
static void draw_value(const foreign_table *t, const char *key, int attempt, rng_key rng,
                       uint64_t *drawn, char *out, size_t size) {
    static const char *const common[] = { "true", "3",    "0.5", "7",    "some",
                                          "0.25", "1536", "2",   "false" };
    const foreign_rule *rule = NULL;
    for (const foreign_rule *r = t->rules; r->key; r++)
        if (!strcmp(r->key, key)) rule = r;
    if (!rule || !rule->map) {
        snprintf(out, size, "%s", common[attempt % (int)COUNT_OF(common)]);
        return;
    }
    int n = 1;
    for (const char *c = rule->map; *c; c++) n += *c == ',';
    const char *item = rule->map;
    for (uint64_t skip = rng_below(rng, (*drawn)++, (uint64_t)n); skip; skip--)
        item += strcspn(item, ",") + 1;
    snprintf(out, size, "%.*s", (int)strcspn(item, "=,"), item);
    if (!strcmp(out, "*")) snprintf(out, size, "12");
}

/* Tries up to TRIES values of each key: one at least must show, and one at least of a key with a rule must convert. */
static void every_key_shows(void **state) {
    enum { TRIES = 12 };
    rng_key rng = rng_key_of(38, 1);
    uint64_t drawn = 0;
    int keys = 0, converted = 0, listed = 0, refused = 0;
    str silent = { 0 };
    for (size_t b = 0; b < COUNT_OF(bases); b++) {
        char key[256], value[256];
        foreign_kind kind;
        outcome base;
        convert_with(&bases[b], NULL, "", NULL, &base);
        if (*base.error) fail_msg("%s: %s", bases[b].format, base.error);
        for (int i = 0; foreign_key(bases[b].table, i, key, sizeof key, &kind); i++) {
            bool shown = is_stated(&bases[b], key);
            if (foreign_is_section(bases[b].table, key)) continue;
            keys++;
            for (int k = 0; k < TRIES && !shown; k++) {
                outcome r;
                draw_value(bases[b].table, key, k, rng, &drawn, value, sizeof value);
                convert_with(&bases[b], key, value, NULL, &r);
                shown = !is_silent(&base, &r, key) && !(kind == FOREIGN_RULE && *r.error);
                if (*r.error && !names_key(r.error, key) && kind != FOREIGN_READ &&
                    kind != FOREIGN_RULE)
                    fail_msg("%s: %s = %s: the error is not about it: %s", bases[b].format, key,
                             value, r.error);
                converted += shown && !*r.error && strcmp(base.out.text, r.out.text) != 0;
                listed += shown && !*r.error && !strcmp(base.out.text, r.out.text);
                refused += shown && *r.error;
                free_outcome(&r);
            }
            if (!shown) str_add(&silent, " %s:%s", bases[b].format, key);
        }
        free_outcome(&base);
    }
    if (silent.len) fail_msg("silent:%s", silent.text);
    print_message("%d keys: %d converted, %d listed, %d refused\n", keys, converted, listed,
                  refused);
    assert_true(keys > 1200 && converted > 150 && listed > 400 && refused > 300);
}

/* A key that changes the result is an error; --allow leaves it out, lists it and changes nothing. */
static void changes_are_refused(void **state) {
    rng_key rng = rng_key_of(38, 2);
    uint64_t drawn = 0;
    int n = 0;
    for (size_t b = 0; b < COUNT_OF(bases); b++) {
        char key[256], value[256];
        foreign_kind kind;
        outcome base, r;
        convert_with(&bases[b], NULL, "", NULL, &base);
        for (int i = 0; foreign_key(bases[b].table, i, key, sizeof key, &kind); i++) {
            if (kind != FOREIGN_CHANGES || rng_below(rng, drawn++, 3) != 0) continue;
            snprintf(value, sizeof value, "%s", rng_below(rng, drawn++, 2) ? "9" : "other");
            if (foreign_is_section(bases[b].table, key)) /* such as deepspeed.*, any of its keys */
                snprintf(key + strlen(key), sizeof key - strlen(key), ".any");
            convert_with(&bases[b], key, value, NULL, &r);
            if (!names_key(r.error, key))
                fail_msg("%s: %s = %s is accepted", bases[b].format, key, value);
            free_outcome(&r);
            convert_with(&bases[b], key, value, key, &r);
            if (*r.error || !names_key(r.notes.text, key) || strcmp(base.out.text, r.out.text))
                fail_msg("%s: --allow %s: %s", bases[b].format, key, r.error);
            free_outcome(&r);
            n++;
        }
        free_outcome(&base);
    }
    assert_true(n > 80);
}

/* A key with one letter wrong is refused, and the right one is named. */
static void misspellings_are_refused(void **state) {
    rng_key rng = rng_key_of(38, 3);
    uint64_t drawn = 0;
    int named = 0, n = 0;
    for (size_t b = 0; b < COUNT_OF(bases); b++) {
        char key[256], wrong[256];
        foreign_kind kind;
        for (int i = 0; foreign_key(bases[b].table, i, key, sizeof key, &kind); i++) {
            size_t len = strlen(key),
                   last = len - strlen(strrchr(key, '.') ? strrchr(key, '.') : key);
            if (rng_below(rng, drawn++, 12) != 0 || len - last < 6) continue;
            snprintf(wrong, sizeof wrong, "%s", key);
            wrong[last + 2 + rng_below(rng, drawn++, len - last - 2)] = 'q';
            if (foreign_find(bases[b].table, wrong, NULL) != FOREIGN_UNKNOWN) continue;
            outcome r;
            convert_with(&bases[b], wrong, "3", NULL, &r);
            if (!names_key(r.error, wrong))
                fail_msg("%s: %s is accepted: %s", bases[b].format, wrong, r.error);
            named += names_key(r.error, key);
            n++;
            free_outcome(&r);
        }
    }
    assert_true(n > 60 && named > n * 9 / 10);
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

/* A key is in one place of a table only; "key" and "key.*" are two. */
static void tables_have_no_key_twice(void **state) {
    enum { MOST = 1200, LENGTH = 128 };
    static char names[MOST][LENGTH];
    for (size_t b = 0; b < COUNT_OF(bases); b++) {
        foreign_kind kind;
        int n = 0;
        while (foreign_key(bases[b].table, n, names[n], LENGTH, &kind)) {
            n++;
            assert_true(n < MOST);
        }
        qsort(names, (size_t)n, LENGTH, by_name);
        for (int i = 1; i < n; i++)
            if (!strcmp(names[i], names[i - 1]) && strcmp(names[i], "deepspeed") != 0)
                fail_msg("%s: %s twice", bases[b].format, names[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_shows),
        cmocka_unit_test(changes_are_refused),
        cmocka_unit_test(misspellings_are_refused),
        cmocka_unit_test(tables_have_no_key_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
