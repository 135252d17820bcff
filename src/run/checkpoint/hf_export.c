/* A Hugging Face folder, written under another name and renamed when it is complete: a failure leaves an
 * earlier FOLDER as it was, a success nothing of it. tokenizer_config.json names the class that reads
 * tokenizer.json as it is: without it some versions of transformers split text in the family's own
 * way, which gives other ids. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/hf_internal.h"
#include "io/io.h"

/* ---- tokens ------------------------------------------------------------------------------- */
/* Members of an imported tokenizer_config.json that are kept. */
static const char *const kept[] = { "bos_token",     "eos_token",    "unk_token",      "pad_token",
                                    "chat_template", "padding_side", "truncation_side" };

/* Reads the end token of generation_config.json: one id, or the first of a list. */
static int64_t listed_id(const hf_export *x, const json_t *generation, const char *key) {
    const json_t *v = json_object_get(generation, key);
    if (json_is_array(v)) v = json_array_get(v, 0);
    int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    return id < model_conf(x->m)->vocab ? id : -1;
}

/* The contents of a run's imported files; empty objects where there are none. */
typedef struct imported_files {
    json_t *settings, *generation, *config;
    char *chat_template; /* its path; NULL: none */
} imported_files;

static err read_imported(const char *from, const char *name, json_t **out) {
    char *path = from ? ckpt_file(from, name) : NULL;
    err e = hf_read_if_there(path, out);
    free(path);
    if (!e && !*out) *out = json_object();
    return e;
}

static err open_imported(const char *from, imported_files *f) {
    json_t *map = NULL;
    TRY(read_imported(from, HF_TOKENIZER_CONFIG, &f->settings));
    TRY(read_imported(from, HF_GENERATION_CONFIG, &f->generation));
    TRY(read_imported(from, HF_IMPORTED_CONFIG, &f->config));
    TRY(read_imported(from, HF_TOKENS_MAP, &map));
    json_object_update_missing(f->settings, map); /* older folders name tokens there alone */
    json_decref(map);
    f->chat_template = from ? ckpt_file(from, HF_CHAT_TEMPLATE) : NULL;
    return OK;
}

static void close_imported(imported_files *f) {
    json_decref(f->settings);
    json_decref(f->generation);
    json_decref(f->config);
    free(f->chat_template);
}

/* The tokens that begin and end a document: what the imported files name, which training keeps current, else the
 * tokenizer's prefix and its end of document. Without a prefix the end separates the documents of a run, and therefore
 * also begins them. */
static hf_tokens find_tokens(const hf_export *x, const imported_files *f) {
    hf_tokens t = { .bos = hf_token_id(x->tok, f->settings, "bos_token"),
                    .eos = hf_token_id(x->tok, f->settings, "eos_token") };
    if (t.bos < 0) t.bos = listed_id(x, f->generation, "bos_token_id");
    if (t.eos < 0) t.eos = listed_id(x, f->generation, "eos_token_id");
    if (t.bos < 0) t.bos = listed_id(x, f->config, "bos_token_id");
    if (t.eos < 0) t.eos = listed_id(x, f->config, "eos_token_id");
    if (t.eos < 0 && x->tok) t.eos = tokenizer_eos(x->tok);
    const token_affixes *a = x->tok ? tokenizer_affixes(x->tok) : NULL;
    if (t.bos < 0 && a && a->n_prefix) t.bos = a->prefix[a->n_prefix - 1];
    if (t.bos < 0) t.bos = t.eos;
    return t;
}

err hf_find_tokens(const hf_export *x, hf_tokens *out, str *chat_template) {
    enum { MOST_BYTES = 1 << 20 };
    imported_files f = { 0 };
    char *text = NULL;
    err e = open_imported(x->from, &f);
    if (!e) *out = find_tokens(x, &f);
    const char *chat = json_string_value(json_object_get(f.settings, "chat_template"));
    if (!e && !chat && f.chat_template) {
        e = io_read(f.chat_template, MOST_BYTES, &text, NULL);
        chat = text;
    }
    if (!e && chat) str_add(chat_template, "%s", chat);
    free(text);
    close_imported(&f);
    return e;
}

/* Members of config.json that name tokens: several ends, and padding. @return owned */
static json_t *other_tokens(const hf_export *x, const imported_files *f, int64_t eos) {
    json_t *out = json_object(), *ends = json_object_get(f->config, "eos_token_id");
    if (json_is_array(ends) && hf_lists_id(ends, eos)) json_object_set(out, "eos_token_id", ends);
    int64_t pad = listed_id(x, f->config, "pad_token_id");
    if (pad < 0) pad = listed_id(x, f->generation, "pad_token_id");
    if (pad < 0) pad = hf_token_id(x->tok, f->settings, "pad_token");
    if (pad >= 0) json_object_set_new(out, "pad_token_id", json_integer(pad));
    return out;
}

/* @return what tokenizer_config.json holds. */
static json_t *tokenizer_settings(const hf_export *x, const json_t *from, hf_tokens tokens) {
    json_t *doc = json_pack("{s:s, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
                            "clean_up_tokenization_spaces", 0, "model_max_length",
                            (json_int_t)model_conf(x->m)->max_seq);
    for (size_t i = 0; i < COUNT_OF(kept); i++)
        if (json_object_get(from, kept[i]))
            json_object_set(doc, kept[i], json_object_get(from, kept[i]));
    hf_set_token(x->tok, doc, "bos_token", tokens.bos);
    hf_set_token(x->tok, doc, "eos_token", tokens.eos);
    return doc;
}

/* ---- files -------------------------------------------------------------------------------- */
static err write_json(const char *folder, const char *name, const json_t *doc) {
    return io_json_write(PATH_IN(folder, name), doc);
}

/* Copies the imported generation config, and adds the tokens where it has none. */
static err write_generation(const char *folder, const json_t *from, hf_tokens tokens) {
    json_t *doc = json_deep_copy(from);
    if (tokens.bos >= 0 && !json_object_get(doc, "bos_token_id"))
        json_object_set_new(doc, "bos_token_id", json_integer(tokens.bos));
    if (tokens.eos >= 0 && !json_object_get(doc, "eos_token_id"))
        json_object_set_new(doc, "eos_token_id", json_integer(tokens.eos));
    err e = write_json(folder, HF_GENERATION_CONFIG, doc);
    json_decref(doc);
    return e;
}

static err write_tokenizer(const char *folder, const hf_export *x, const json_t *from,
                           hf_tokens tokens) {
    if (!x->tok) return OK;
    TRY(tokenizer_save(x->tok, PATH_IN(folder, "tokenizer.json")));
    json_t *doc = tokenizer_settings(x, from, tokens);
    err e = write_json(folder, HF_TOKENIZER_CONFIG, doc);
    json_decref(doc);
    return e;
}

static err write_hf_files(const char *folder, const hf_export *x) {
    err e = OK;
    imported_files f = { 0 };
    json_t *others = NULL;
    const char *chat = PATH_IN(folder, HF_CHAT_TEMPLATE);
    TRY_CLEAN(open_imported(x->from, &f));
    hf_tokens tokens = find_tokens(x, &f);
    tokens.others = others = other_tokens(x, &f, tokens.eos);
    TRY_CLEAN(hf_export_config(folder, x->family, model_conf(x->m), x->dt, tokens));
    TRY_CLEAN(write_generation(folder, f.generation, tokens));
    TRY_CLEAN(write_tokenizer(folder, x, f.settings, tokens));
    if (f.chat_template) TRY_CLEAN(io_copy(f.chat_template, chat));
    TRY_CLEAN(hf_export_params(x->family, folder, x->m, x->dt, x->max_file_bytes, x->get, x->ctx));
cleanup:
    close_imported(&f);
    json_decref(others);
    return e;
}

/* ---- the folder --------------------------------------------------------------------------- */
static bool is_of_a_model(const char *name) {
    static const char *const names[] = { "config.json",    HF_GENERATION_CONFIG,
                                         "tokenizer.json", HF_TOKENIZER_CONFIG,
                                         HF_CHAT_TEMPLATE, ST_INDEX_FILE };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(names[i], name)) return true;
    return str_starts(name, "model") && str_ends(name, ".safetensors");
}

/* Existing files are replaced only where an export wrote them. */
static err check_replaceable(const char *folder) {
    const char *slash = strrchr(folder, '/'), *last = slash ? slash + 1 : folder;
    char **names;
    int n;
    err e = OK;
    if (!*last || !strcmp(last, ".") || !strcmp(last, ".."))
        return err_hint(ERR("cannot export to %s: a folder is replaced as a whole", folder),
                        "give the name of a folder inside it");
    if (!io_exists(folder)) return OK;
    if (!io_is_dir(folder))
        return err_hint(ERR("%s is a file", folder), "choose a folder to export to");
    TRY(io_list(folder, &names, &n));
    for (int i = 0; i < n && !e; i++)
        if (!is_of_a_model(names[i]))
            e = err_hint(ERR("%s holds %s, which no export writes", folder, names[i]),
                         "export to a new folder, or move that file away");
    io_list_free(names, n);
    return e;
}

/* Hidden names beside the folder, which no other program uses. */
typedef struct export_paths {
    str folder, parent, temp, old;
} export_paths;

static void make_paths(const char *folder, export_paths *p) {
    *p = (export_paths){ 0 };
    str_add(&p->folder, "%s", folder);
    while (p->folder.len > 1 && p->folder.text[p->folder.len - 1] == '/')
        p->folder.text[--p->folder.len] = 0;
    const char *slash = strrchr(p->folder.text, '/'), *name = slash ? slash + 1 : p->folder.text;
    str_add(&p->parent, "%.*s", slash ? (int)(name - p->folder.text) : 2,
            slash ? p->folder.text : "./");
    str_add(&p->temp, "%s.%s.ingot-export", p->parent.text, name);
    str_add(&p->old, "%s.%s.ingot-replaced", p->parent.text, name);
}

err hf_export_folder(const char *folder, const hf_export *x) {
    err e = OK;
    export_paths p;
    make_paths(folder, &p);
    TRY_CLEAN(check_replaceable(p.folder.text));
    TRY_CLEAN(io_make_dirs(p.parent.text));
    TRY_CLEAN(io_remove_tree(p.parent.text, p.temp.text)); /* of an export that was killed */
    TRY_CLEAN(io_make_dirs(p.temp.text));
    TRY_CLEAN(write_hf_files(p.temp.text, x));
    TRY_CLEAN(io_replace_tree(p.parent.text, p.temp.text, p.folder.text, p.old.text));
cleanup:
    if (e && p.temp.len) err_free(io_remove_tree(p.parent.text, p.temp.text));
    str *all[] = { &p.folder, &p.parent, &p.temp, &p.old };
    for (size_t i = 0; i < COUNT_OF(all); i++) str_free(all[i]);
    return e;
}
