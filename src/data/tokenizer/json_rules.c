/* The rules of a tokenizer.json: normalizers and pre-tokenizers. What is not known is refused. */
#include <string.h>

#include "io/io.h"
#include "tokenizer/chars_internal.h"
#include "tokenizer/open_internal.h"

/* ---- members ----------------------------------------------------------------------------------------- */

static bool is_among(const char *key, const char *words) {
    size_t n = strlen(key);
    if (!n || strchr(key, ' ')) return false; /* would match between words, or several of them */
    for (const char *p = words; (p = strstr(p, key)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == 0)) return true;
    return false;
}

err json_only(const json_t *o, const char *where, const char *allowed) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)o, key, value) {
        (void)value;
        if (!is_among(key, allowed))
            return err_hint(ERR("%s has \"%s\", which is not known", where, key), "known there: %s",
                            allowed);
    }
    return OK;
}

/* A switch that may be missing. */
static err read_flag(const json_t *o, const char *where, const char *key, bool missing, bool *out) {
    *out = missing;
    return json_object_get(o, key) ? io_json_bool(o, where, key, out) : OK;
}

static char *copy_string(const char *s) {
    char *made = strdup(s);
    BUG_IF(!made);
    return made;
}

err json_finder(const json_t *step, const char *where, finder *out) {
    json_t *pattern = NULL;
    const char *text = NULL;
    TRY(io_json_object(step, where, "pattern", &pattern));
    TRY(json_only(pattern, where, "String Regex"));
    if (json_object_get(pattern, "Regex")) {
        TRY(io_json_text(pattern, where, "Regex", &text));
        return finder_of(text, REGEX_ONIGURUMA, out);
    }
    TRY(io_json_text(pattern, where, "String", &text));
    *out = (finder){ .literal = copy_string(text) };
    return OK;
}

err json_read_steps(const json_t *o, const char *where, const step_kind *kinds, int n,
                    const char *list, void *into) {
    const char *type = NULL;
    if (!o || json_is_null(o)) return OK;
    TRY(io_json_text(o, where, "type", &type));
    if (strcmp(type, "Sequence") == 0) {
        json_t *steps = NULL, *step;
        size_t i;
        TRY(io_json_array(o, where, list, &steps));
        json_array_foreach(steps, i, step) {
            const char *inner = json_string_value(json_object_get(step, "type"));
            if (inner && strcmp(inner, "Sequence") == 0)
                return ERR("%s: a Sequence in a Sequence is not supported", where);
            TRY(json_read_steps(step, where, kinds, n, list, into));
        }
        return OK;
    }
    str names = { 0 };
    for (int i = 0; i < n; i++) {
        if (strcmp(kinds[i].type, type) == 0) {
            str_free(&names);
            TRY(json_only(o, type, kinds[i].members));
            return kinds[i].read(o, &kinds[i], into);
        }
        str_add(&names, "%s%s", i ? ", " : "", kinds[i].type);
    }
    err e = err_hint(ERR("%s has the type \"%s\", which is not supported", where, type),
                     "known: %s", names.text);
    str_free(&names);
    return e;
}

/* ---- normalizers -------------------------------------------------------------------------------------- */

static err new_norm(tokenizer *t, normalizer_kind kind, norm_step **out) {
    if (t->n_norms == MAX_STEPS) return ERR("more than %d normalizers", MAX_STEPS);
    *out = &t->norms[t->n_norms++];
    (*out)->kind = kind;
    return OK;
}

static err read_plain_step(const json_t *o, const step_kind *k, void *into) {
    norm_step *s = NULL;
    return new_norm(into, (normalizer_kind)k->what, &s);
}

static err read_replace_step(const json_t *o, const step_kind *k, void *into) {
    norm_step *s = NULL;
    const char *with = NULL;
    bool from_model = false;
    TRY(io_json_text(o, k->type, "content", &with));
    TRY(new_norm(into, NORM_REPLACE, &s));
    s->with = copy_string(with);
    /* Ours: in what was saved from a .model file. Hugging Face's library ignores it. */
    TRY(read_flag(o, k->type, "sentencepiece", false, &from_model));
    ((tokenizer *)into)->sentencepiece |= from_model;
    return json_finder(o, k->type, &s->find);
}

static err read_prepend(const json_t *o, const step_kind *k, void *into) {
    norm_step *s = NULL;
    const char *with = NULL;
    TRY(io_json_text(o, k->type, "prepend", &with));
    TRY(new_norm(into, NORM_PREPEND, &s));
    s->with = copy_string(with);
    return OK;
}

static err read_charsmap(const json_t *o, const step_kind *k, void *into) {
    norm_step *s = NULL;
    const char *text = NULL;
    str bytes = { 0 };
    TRY(io_json_text(o, k->type, "precompiled_charsmap", &text));
    TRY(new_norm(into, NORM_CHARSMAP, &s));
    err e = base64_to_bytes(text, strlen(text), &bytes)
                ? charsmap_new(bytes.text ? bytes.text : "", bytes.len, &s->map)
                : ERR("%s: precompiled_charsmap is not base64", k->type);
    str_free(&bytes);
    return e;
}

static err read_strip_step(const json_t *o, const step_kind *k, void *into) {
    norm_step *s = NULL;
    TRY(new_norm(into, NORM_STRIP, &s));
    TRY(read_flag(o, k->type, "strip_left", true, &s->strip_left));
    return read_flag(o, k->type, "strip_right", true, &s->strip_right);
}

static const step_kind normalizers[] = {
    { "NFC", "type", read_plain_step, NORM_NFC },
    { "NFD", "type", read_plain_step, NORM_NFD },
    { "NFKC", "type", read_plain_step, NORM_NFKC },
    { "NFKD", "type", read_plain_step, NORM_NFKD },
    { "Lowercase", "type", read_plain_step, NORM_LOWERCASE },
    { "StripAccents", "type", read_plain_step, NORM_STRIP_ACCENTS },
    { "Nmt", "type", read_plain_step, NORM_NMT },
    { "Replace", "type pattern content sentencepiece", read_replace_step, 0 },
    { "Prepend", "type prepend", read_prepend, 0 },
    { "Precompiled", "type precompiled_charsmap", read_charsmap, 0 },
    { "Strip", "type strip_left strip_right", read_strip_step, 0 },
};

err json_normalizer(const json_t *o, tokenizer *t) {
    TRY(json_read_steps(o, "the normalizer", normalizers, (int)COUNT_OF(normalizers), "normalizers",
                        t));
    for (int i = 0; i < t->n_norms; i++) t->norms[i].longest = t->sentencepiece;
    norms_find_squeeze(t->norms, t->n_norms);
    return OK;
}

/* ---- pre-tokenizers ------------------------------------------------------------------------------------- */

typedef struct pre_tokenizers {
    tokenizer *t;
    bool byte_level;
} pre_tokenizers;

static err new_split(pre_tokenizers *p, const char *type, split_step **out) {
    /* Text is in GPT-2's alphabet from ByteLevel on, where a later split would match other things. */
    if (p->byte_level)
        return ERR("the pre-tokenizer has %s after ByteLevel, which is not supported", type);
    if (p->t->n_splits == MAX_STEPS - 1) return ERR("more than %d pre-tokenizers", MAX_STEPS - 1);
    *out = &p->t->splits[p->t->n_splits++];
    return OK;
}

static const struct {
    const char *name;
    split_behavior behavior;
} behaviors[] = {
    { "Isolated", SPLIT_ISOLATED },
    { "Removed", SPLIT_REMOVED },
    { "MergedWithPrevious", SPLIT_WITH_PREVIOUS },
    { "MergedWithNext", SPLIT_WITH_NEXT },
    { "Contiguous", SPLIT_CONTIGUOUS },
};

static err read_split_step(const json_t *o, const step_kind *k, void *into) {
    split_step *s = NULL;
    const char *name = NULL;
    TRY(io_json_text(o, k->type, "behavior", &name));
    TRY(new_split(into, k->type, &s));
    TRY(read_flag(o, k->type, "invert", false, &s->invert));
    TRY(json_finder(o, k->type, &s->find));
    for (size_t i = 0; i < COUNT_OF(behaviors); i++) {
        if (strcmp(behaviors[i].name, name) != 0) continue;
        s->behavior = behaviors[i].behavior;
        return OK;
    }
    return ERR("Split has the behavior \"%s\", which is not known", name);
}

static err read_digits(const json_t *o, const step_kind *k, void *into) {
    split_step *s = NULL;
    bool each = false;
    TRY(read_flag(o, k->type, "individual_digits", false, &each));
    TRY(new_split(into, k->type, &s));
    s->behavior = each ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
    return finder_of("\\p{N}", REGEX_ONIGURUMA, &s->find);
}

static err read_white_space(const json_t *o, const step_kind *k, void *into) {
    split_step *s = NULL;
    TRY(new_split(into, k->type, &s));
    s->behavior = SPLIT_REMOVED;
    return finder_of("\\s", REGEX_ONIGURUMA, &s->find);
}

static err read_byte_level_step(const json_t *o, const step_kind *k, void *into) {
    pre_tokenizers *p = into;
    split_step *s = NULL;
    bool prefix = false, use_regex = true;
    TRY(read_flag(o, k->type, "add_prefix_space", true, &prefix));
    TRY(read_flag(o, k->type, "use_regex", true, &use_regex));
    if (prefix || use_regex) TRY(new_split(p, k->type, &s));
    p->byte_level = true;
    if (prefix) {
        s->prepend = copy_string(" ");
        s->scheme = PREPEND_ALWAYS;
    }
    return use_regex ? finder_of("gpt2", REGEX_ONIGURUMA, &s->find) : OK;
}

static err read_scheme(const json_t *o, const char *where, prepend_scheme *out) {
    static const char *const names[] = {
        [PREPEND_NEVER] = "never", [PREPEND_FIRST] = "first", [PREPEND_ALWAYS] = "always"
    };
    bool prefix = true;
    TRY(read_flag(o, where, "add_prefix_space", true, &prefix));
    *out = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    const char *name = json_string_value(json_object_get(o, "prepend_scheme"));
    if (!name) return OK;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = (prepend_scheme)i;
        return OK;
    }
    return ERR("%s has the prepend_scheme \"%s\", which is not known", where, name);
}

static err read_metaspace_step(const json_t *o, const step_kind *k, void *into) {
    split_step *s = NULL;
    const char *mark = NULL;
    bool split = true;
    TRY(io_json_text(o, k->type, "replacement", &mark));
    TRY(read_flag(o, k->type, "split", true, &split));
    TRY(new_split(into, k->type, &s));
    TRY(read_scheme(o, k->type, &s->scheme));
    s->space = copy_string(mark);
    s->prepend = copy_string(mark);
    s->behavior = SPLIT_WITH_NEXT;
    if (split) s->find.literal = copy_string(mark);
    return OK;
}

static const step_kind split_kinds[] = {
    { "ByteLevel", "type add_prefix_space trim_offsets use_regex", read_byte_level_step, 0 },
    { "Split", "type pattern behavior invert", read_split_step, 0 },
    { "Digits", "type individual_digits", read_digits, 0 },
    { "WhitespaceSplit", "type", read_white_space, 0 },
    { "Metaspace", "type replacement str_rep add_prefix_space prepend_scheme split",
      read_metaspace_step, 0 },
};

err json_pre_tokenizer(const json_t *o, tokenizer *t, bool *byte_level) {
    pre_tokenizers p = { t, false };
    TRY(json_read_steps(o, "the pre_tokenizer", split_kinds, (int)COUNT_OF(split_kinds),
                        "pretokenizers", &p));
    *byte_level = p.byte_level;
    return OK;
}
