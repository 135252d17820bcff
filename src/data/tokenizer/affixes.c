/* Adds the tokens around every text: BOS, EOS, [CLS], [SEP].
 *
 * A tokenizer.json has it in its post_processor. SentencePiece models and GPT-2's two files do not state it:
 * add_bos_token and add_eos_token of the tokenizer_config.json beside them do. As in transformers (5.22), these are
 * ignored where there is a tokenizer.json. A post-processor that does more than to put tokens around one text is
 * refused. Only texts by themselves are encoded here: templates of pairs are not read.
 *
 * What ends a document is the last token of the suffix; where there is none, the files of a Hugging Face folder name it
 * (eos_token, eos_token_id). */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "tokenizer/open_internal.h"

const token_affixes *tokenizer_affixes(const tokenizer *t) { return &t->affixes; }

void tokenizer_set_affixes(tokenizer *t, const token_affixes *a) {
    const token_affixes *now = &t->affixes;
    bool same = a->n_prefix == now->n_prefix && a->n_suffix == now->n_suffix &&
                memcmp(a->prefix, now->prefix, (size_t)a->n_prefix * sizeof *a->prefix) == 0 &&
                memcmp(a->suffix, now->suffix, (size_t)a->n_suffix * sizeof *a->suffix) == 0;
    if (same) return;
    t->affixes = *a;
    t->affixes_changed = true;
    if (!t->eos_is_named) t->eos = tokenizer_find_eos(t);
}

void tokenizer_set_eos(tokenizer *t, int32_t id) {
    BUG_IF(id < 0 || id >= t->vocab);
    t->eos = id;
    t->eos_is_named = true;
}

/* ---- reading ----------------------------------------------------------------------------------- */

static err check_affix_id(const tokenizer *t, const char *where, int64_t id) {
    if (id >= 0 && id < t->vocab) return OK;
    return ERR("%s adds the id %lld, which is not one of the %lld tokens", where, (long long)id,
               (long long)t->vocab);
}

static err set_affixes_once(tokenizer *t, const char *where, const token_affixes *a) {
    if (t->affixes.n_prefix || t->affixes.n_suffix)
        return ERR("the post_processor has %s after another that adds tokens, which is not "
                   "supported",
                   where);
    for (int i = 0; i < a->n_prefix; i++) TRY(check_affix_id(t, where, a->prefix[i]));
    for (int i = 0; i < a->n_suffix; i++) TRY(check_affix_id(t, where, a->suffix[i]));
    t->affixes = *a;
    return OK;
}

/* Appends what one special token of a template stands for. */
static err read_template_token(const json_t *o, const char *where, const json_t *piece,
                               token_affixes *a, bool after) {
    json_t *defined = NULL, *entry = NULL, *ids = NULL, *id;
    const char *name = NULL;
    size_t i;
    TRY(io_json_text(piece, where, "id", &name));
    TRY(io_json_object(o, where, "special_tokens", &defined));
    TRY(io_json_object(defined, where, name, &entry));
    TRY(io_json_array(entry, where, "ids", &ids));
    json_array_foreach(ids, i, id) {
        int *n = after ? &a->n_suffix : &a->n_prefix;
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value > TOKEN_MAX_ID)
            return ERR("%s: the special token \"%.40s\" has no id that makes sense", where, name);
        if (*n == AFFIX_MAX)
            return ERR("%s adds more than %d tokens to one side of a text, which is not supported",
                       where, AFFIX_MAX);
        (after ? a->suffix : a->prefix)[(*n)++] = (int32_t)value;
    }
    return OK;
}

static err read_template(const json_t *o, const step_kind *k, void *into) {
    json_t *single = NULL, *piece;
    token_affixes a = { 0 };
    bool after = false;
    size_t i;
    TRY(io_json_array(o, k->type, "single", &single));
    json_array_foreach(single, i, piece) {
        const json_t *token = json_object_get(piece, "SpecialToken");
        const char *sequence =
            json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (token) {
            TRY(read_template_token(o, k->type, token, &a, after));
            continue;
        }
        if (!sequence || strcmp(sequence, "A") != 0 || after)
            return ERR("%s: \"single\" does not hold the text, A, exactly once", k->type);
        after = true;
    }
    if (!after) return ERR("%s: \"single\" does not hold the text, A, exactly once", k->type);
    return set_affixes_once(into, k->type, &a);
}

/* One of ["</s>", 2]. */
static err read_named_id(const json_t *o, const char *where, const char *key, int32_t *out) {
    json_t *pair = NULL;
    TRY(io_json_array(o, where, key, &pair));
    const json_t *id = json_array_get(pair, 1);
    json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (json_array_size(pair) != 2 || value < 0 || value > TOKEN_MAX_ID)
        return ERR("%s: \"%s\" is not a token and its id", where, key);
    *out = (int32_t)value;
    return OK;
}

/* [CLS] text [SEP], or <s> text </s>. */
static err read_cls_sep(const json_t *o, const step_kind *k, void *into) {
    token_affixes a = { .n_prefix = 1, .n_suffix = 1 };
    TRY(read_named_id(o, k->type, "cls", &a.prefix[0]));
    TRY(read_named_id(o, k->type, "sep", &a.suffix[0]));
    return set_affixes_once(into, k->type, &a);
}

/* Changes the offsets of tokens in the text, which nothing reads here. */
static err read_offsets_step(const json_t *o, const step_kind *k, void *into) { return OK; }

static const step_kind processors[] = {
    { "ByteLevel", "type add_prefix_space trim_offsets use_regex", read_offsets_step, 0 },
    { "TemplateProcessing", "type single pair special_tokens", read_template, 0 },
    { "BertProcessing", "type sep cls", read_cls_sep, 0 },
    { "RobertaProcessing", "type sep cls trim_offsets add_prefix_space", read_cls_sep, 0 },
};

err json_post_processor(const json_t *o, tokenizer *t) {
    return json_read_steps(o, "the post_processor", processors, (int)COUNT_OF(processors),
                           "processors", t);
}

/* ---- tokenizer_config.json ------------------------------------------------------------------------ */

/* @return owned; NULL: it has none. */
static char *settings_path(const char *path) {
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    bool folder = io_is_dir(path);
    str base = { 0 };
    if (!folder && strcmp(file, "tokenizer.model") != 0) return NULL;
    str_add(&base, "%.*s", (int)(folder ? strlen(path) : (size_t)(file - path)), path);
    const char *in = base.len ? base.text : ".";
    char *whole = io_join(in, "tokenizer.json"), *made = io_join(in, "tokenizer_config.json");
    if (!io_exists(made) || (folder && io_exists(whole))) {
        free(made);
        made = NULL;
    }
    free(whole);
    str_free(&base);
    return made;
}

/* Adds the token that `key` names, if `flag` asks for it; as transformers, not where it names none. */
static err read_setting(const json_t *doc, const char *path, const char *flag, const char *key,
                        const tokenizer *t, int32_t *ids, int *n) {
    const json_t *token = json_object_get(doc, key);
    const char *text =
        json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    if (!json_is_true(json_object_get(doc, flag)) || !text) return OK;
    int32_t id = tokenizer_find(t, text, strlen(text));
    if (id < 0)
        return err_hint(
            ERR("%s: %s is true, and the tokenizer has no token \"%.60s\"", path, flag, text),
            "correct \"%s\" there, or remove the file", key);
    ids[(*n)++] = id;
    return OK;
}

static err read_settings(const json_t *doc, const char *path, tokenizer *t) {
    static const char *const flags[] = { "add_bos_token", "add_eos_token" };
    token_affixes a = { 0 };
    bool stated = false;
    for (size_t i = 0; i < COUNT_OF(flags); i++)
        stated |= json_is_boolean(json_object_get(doc, flags[i]));
    if (!stated) return OK;
    TRY(read_setting(doc, path, flags[0], "bos_token", t, a.prefix, &a.n_prefix));
    TRY(read_setting(doc, path, flags[1], "eos_token", t, a.suffix, &a.n_suffix));
    tokenizer_set_affixes(t, &a);
    return OK;
}

/* ---- the end of a document ------------------------------------------------------------------------ */
/* The id that a member names: by its text, by an object that holds it, by the id, or by a list of ids, of which the first
 * counts. @return -1: none of this tokenizer's. */
static int32_t named_token(const tokenizer *t, const json_t *v) {
    if (json_is_array(v)) v = json_array_get(v, 0);
    if (json_is_object(v)) v = json_object_get(v, "content");
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    if (json_is_string(v)) id = tokenizer_find(t, json_string_value(v), json_string_length(v));
    return id >= 0 && id < t->vocab ? (int32_t)id : -1;
}

/* Files that say nothing of it, or that are not JSON, belong to somebody else. */
static void eos_from_files(const char *folder, tokenizer *t) {
    static const struct {
        const char *file, *key;
    } places[] = {
        { "tokenizer_config.json", "eos_token" },     { "special_tokens_map.json", "eos_token" },
        { "generation_config.json", "eos_token_id" }, { "config.json", "eos_token_id" },
        { "hf_config.json", "eos_token_id" },
    };
    for (size_t i = 0; i < COUNT_OF(places) && !t->eos_is_named; i++) {
        json_t *doc = NULL;
        const char *path = PATH_IN(folder, places[i].file);
        err e = io_exists(path) ? io_json_read(path, &doc) : OK;
        int32_t id = e ? -1 : named_token(t, json_object_get(doc, places[i].key));
        if (id >= 0) tokenizer_set_eos(t, id);
        err_free(e);
        json_decref(doc);
    }
}

err affixes_from_settings(const char *path, tokenizer *t) {
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    char *settings = settings_path(path);
    json_t *doc = NULL;
    err e = OK;
    if (settings) {
        e = io_json_read(settings, &doc);
        if (!e) e = read_settings(doc, settings, t);
    }
    json_decref(doc);
    free(settings);
    bool folder = io_is_dir(path),
         named = !strcmp(file, "tokenizer.json") || !strcmp(file, "tokenizer.model");
    if (e || t->affixes.n_suffix || !(folder || named)) return e;
    char *in = folder ? strdup(path) : slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
    eos_from_files(*in ? in : "/", t);
    free(in);
    return OK;
}

/* ---- writing ----------------------------------------------------------------------------------- */

/* The text of a token, as added or as the vocabulary has it. */
static json_t *affix_name(const tokenizer *t, int32_t id) {
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].id == id) return io_json_string(t->added[i].text, t->added[i].len);
    text_span s = id < t->bpe.n ? t->bpe.tokens[id] : (text_span){ 0 };
    return io_json_string(s.len ? s.at : "", s.len);
}

static void add_affixes(json_t *list, json_t *defined, const tokenizer *t, const int32_t *ids,
                        int n, int type) {
    for (int i = 0; i < n; i++) {
        json_t *name = affix_name(t, ids[i]);
        json_array_append_new(
            list, json_pack("{s:{s:O, s:i}}", "SpecialToken", "id", name, "type_id", type));
        json_object_set_new(
            defined, json_string_value(name),
            json_pack("{s:O, s:[i], s:[O]}", "id", name, "ids", ids[i], "tokens", name));
        json_decref(name);
    }
}

/* As transformers makes it of add_bos_token: in a pair each text gets its own. */
json_t *affixes_json(const tokenizer *t) {
    const token_affixes *a = &t->affixes;
    if (a->n_prefix == 0 && a->n_suffix == 0) return json_null();
    json_t *single = json_array(), *pair = json_array(), *defined = json_object();
    for (int k = 0; k < 3; k++) { /* the single text, and the two of a pair */
        json_t *list = k ? pair : single;
        int type = k == 2;
        add_affixes(list, defined, t, a->prefix, a->n_prefix, type);
        json_array_append_new(
            list, json_pack("{s:{s:s, s:i}}", "Sequence", "id", type ? "B" : "A", "type_id", type));
        add_affixes(list, defined, t, a->suffix, a->n_suffix, type);
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", defined);
}
