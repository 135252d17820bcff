/* A Hugging Face folder, written beside its name and renamed when it is complete:
 *
 *     FOLDER.tmp/  config.json  model.safetensors  tokenizer.json ...      write
 *     FOLDER -> FOLDER.old, FOLDER.tmp -> FOLDER                           rename
 *     FOLDER.old                                                           remove
 *
 * A failure before the renames leaves FOLDER as it was. tokenizer_config.json names the class that
 * reads tokenizer.json as it is: without it transformers substitutes the family's own splitting of
 * text, and other ids. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/hf_internal.h"
#include "io/io.h"

/* ---- tokens ------------------------------------------------------------------------------- */
/* Members of an imported tokenizer_config.json that are kept. */
static const char *const kept[] = { "bos_token",     "eos_token",    "unk_token",      "pad_token",
                                    "chat_template", "padding_side", "truncation_side" };

/* A token is a string, or an object that holds it. @return NULL where it is neither. */
static const char *token_text(const json_t *v) {
    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

static int64_t token_id(const tokenizer *tok, const json_t *doc, const char *key) {
    const char *text = token_text(json_object_get(doc, key));
    return text ? tokenizer_find(tok, text, strlen(text)) : -1;
}

static void set_token(const tokenizer *tok, json_t *doc, const char *key, int64_t id) {
    str text = { 0 };
    int32_t one = (int32_t)id;
    if (id < 0) {
        json_object_del(doc, key);
        return;
    }
    tokenizer_decode(tok, &one, 1, true, &text);
    json_object_set_new(doc, key, io_json_string(text.text, text.len));
    str_free(&text);
}

/* What generation_config.json names: one id, or a list of which the first counts. */
static int64_t listed_id(const hf_export *x, const json_t *generation, const char *key) {
    const json_t *v = json_object_get(generation, key);
    if (json_is_array(v)) v = json_array_get(v, 0);
    int64_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    return id < model_conf(x->m)->vocab ? id : -1;
}

static err read_if_there(const char *path, json_t **out) {
    *out = NULL;
    return path && io_exists(path) ? io_json_read(path, out) : OK;
}

/* The tokens that begin and end a document: what the imported files name, else the tokenizer's end of
 * document. That separates the documents of a run, and therefore also begins them. */
static hf_tokens find_tokens(const hf_export *x, const json_t *settings, const json_t *generation) {
    hf_tokens t = { x->tok ? token_id(x->tok, settings, "bos_token") : -1,
                    x->tok ? token_id(x->tok, settings, "eos_token") : -1 };
    if (t.bos < 0) t.bos = listed_id(x, generation, "bos_token_id");
    if (t.eos < 0) t.eos = listed_id(x, generation, "eos_token_id");
    if (t.eos < 0 && x->tok) t.eos = tokenizer_eos(x->tok);
    if (t.bos < 0) t.bos = t.eos;
    return t;
}

/* @return what tokenizer_config.json holds. */
static json_t *tokenizer_settings(const hf_export *x, const json_t *from, hf_tokens tokens) {
    json_t *doc = json_pack("{s:s, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
                            "clean_up_tokenization_spaces", 0, "model_max_length",
                            (json_int_t)model_conf(x->m)->max_seq);
    for (size_t i = 0; i < COUNT_OF(kept); i++)
        if (json_object_get(from, kept[i]))
            json_object_set(doc, kept[i], json_object_get(from, kept[i]));
    set_token(x->tok, doc, "bos_token", tokens.bos);
    set_token(x->tok, doc, "eos_token", tokens.eos);
    return doc;
}

/* ---- files -------------------------------------------------------------------------------- */
static err write_json(const char *folder, const char *name, const json_t *doc) {
    char *path = io_join(folder, name);
    err e = io_json_write(path, doc);
    free(path);
    return e;
}

/* What was imported, with the tokens where it has none. */
static err write_generation(const char *folder, const json_t *from, hf_tokens tokens) {
    json_t *doc = from ? json_deep_copy(from) : json_object();
    if (tokens.bos >= 0 && !json_object_get(doc, "bos_token_id"))
        json_object_set_new(doc, "bos_token_id", json_integer(tokens.bos));
    if (tokens.eos >= 0 && !json_object_get(doc, "eos_token_id"))
        json_object_set_new(doc, "eos_token_id", json_integer(tokens.eos));
    err e = write_json(folder, "generation_config.json", doc);
    json_decref(doc);
    return e;
}

static err write_tokenizer(const char *folder, const hf_export *x, const json_t *from,
                           hf_tokens tokens) {
    if (!x->tok) return OK;
    char *path = io_join(folder, "tokenizer.json");
    err e = tokenizer_save(x->tok, path);
    free(path);
    TRY(e);
    json_t *doc = tokenizer_settings(x, from, tokens);
    e = write_json(folder, "tokenizer_config.json", doc);
    json_decref(doc);
    return e;
}

static err write_files(const char *folder, const hf_export *x) {
    err e = OK;
    json_t *settings = NULL, *generation = NULL;
    TRY_CLEAN(read_if_there(x->tokenizer_config, &settings));
    TRY_CLEAN(read_if_there(x->generation_config, &generation));
    hf_tokens tokens = find_tokens(x, settings, generation);
    TRY_CLEAN(hf_export_config(folder, x->family, model_conf(x->m), x->dt, tokens));
    TRY_CLEAN(write_generation(folder, generation, tokens));
    TRY_CLEAN(write_tokenizer(folder, x, settings, tokens));
    TRY_CLEAN(hf_export_params(x->family, folder, x->m, x->dt, x->max_file_bytes, x->get, x->ctx));
cleanup:
    json_decref(settings);
    json_decref(generation);
    return e;
}

/* ---- the folder --------------------------------------------------------------------------- */
static bool is_of_a_model(const char *name) {
    static const char *const names[] = { "config.json", "generation_config.json", "tokenizer.json",
                                         "tokenizer_config.json", ST_INDEX_FILE };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (!strcmp(names[i], name)) return true;
    return str_starts(name, "model") && str_ends(name, ".safetensors");
}

/* What is there is replaced only where an export wrote it. */
static err check_replaceable(const char *folder) {
    char **names;
    int n;
    err e = OK;
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

static err rename_path(const char *from, const char *to) {
    if (!rename(from, to)) return OK;
    return err_hint(ERR("cannot rename %s to %s: %s", from, to, strerror(errno)),
                    "check that the folder above is writable");
}

static err replace_folder(const char *parent, const char *temp, const char *folder,
                          const char *old) {
    bool there = io_exists(folder);
    if (there) TRY(rename_path(folder, old));
    err e = rename_path(temp, folder);
    if (e && there) err_free(rename_path(old, folder)); /* as it was; the first error counts */
    if (e) return err_trail(e, __FILE__, __LINE__);
    return io_remove_tree(parent, old);
}

err hf_export_folder(const char *folder, const hf_export *x) {
    err e = OK;
    str path = { 0 }, parent = { 0 }, temp = { 0 }, old = { 0 };
    str_add(&path, "%s", folder);
    while (path.len > 1 && path.text[path.len - 1] == '/') path.text[--path.len] = 0;
    const char *slash = strrchr(path.text, '/');
    str_add(&parent, "%.*s", slash ? (int)(slash - path.text + 1) : 1, slash ? path.text : ".");
    str_add(&temp, "%s.tmp", path.text);
    str_add(&old, "%s.old", path.text);
    TRY_CLEAN(check_replaceable(path.text));
    TRY_CLEAN(io_make_dirs(parent.text));
    TRY_CLEAN(io_remove_tree(parent.text, temp.text));
    TRY_CLEAN(io_make_dirs(temp.text));
    e = write_files(temp.text, x);
    if (e) {
        err_free(io_remove_tree(parent.text, temp.text)); /* the first error counts */
        e = err_trail(e, __FILE__, __LINE__);
        goto cleanup;
    }
    TRY_CLEAN(io_remove_tree(parent.text, old.text));
    TRY_CLEAN(replace_folder(parent.text, temp.text, path.text, old.text));
cleanup:
    str_free(&path);
    str_free(&parent);
    str_free(&temp);
    str_free(&old);
    return e;
}
