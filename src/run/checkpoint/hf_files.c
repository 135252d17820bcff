/* The files of an imported Hugging Face folder that a run keeps beside its checkpoints, so that import, training and
 * export lose nothing: how text is generated, the chat template, the names of tokens. Training notes in them which token
 * ends its documents; an export reads them (hf_export.c). */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/hf_internal.h"
#include "io/io.h"

static const hf_kept_file kept_files[] = {
    { HF_TOKENIZER_CONFIG, HF_TOKENIZER_CONFIG },
    { HF_GENERATION_CONFIG, HF_GENERATION_CONFIG },
    { HF_TOKENS_MAP, HF_TOKENS_MAP },
    { HF_CHAT_TEMPLATE, HF_CHAT_TEMPLATE },
    { "config.json", HF_IMPORTED_CONFIG },
};

const hf_kept_file *hf_kept_file_at(int i) {
    return i < (int)COUNT_OF(kept_files) ? &kept_files[i] : NULL;
}

err hf_keep_files(const char *from, const char *run_dir) {
    err e = OK;
    bool is_theirs = io_has(from, "config.json");
    for (size_t i = 0; i < COUNT_OF(kept_files) && !e; i++) {
        const hf_kept_file *k = &kept_files[i];
        char *source = is_theirs ? io_join(from, k->theirs) : ckpt_file(from, k->ours);
        if (source && io_exists(source)) e = io_copy(source, PATH_IN(run_dir, k->ours));
        free(source);
    }
    return e;
}

err hf_read_if_there(const char *path, json_t **out) {
    *out = NULL;
    return path && io_exists(path) ? io_json_read(path, out) : OK;
}

/* A token is a string, or an object that holds it. @return -1: none, or not one of the tokenizer's. */
int64_t hf_token_id(const tokenizer *tok, const json_t *doc, const char *key) {
    const json_t *v = json_object_get(doc, key);
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    return text && tok ? tokenizer_find(tok, text, strlen(text)) : -1;
}

bool hf_lists_id(const json_t *v, int64_t id) {
    if (json_is_integer(v)) return json_integer_value(v) == id;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (hf_lists_id(json_array_get(v, i), id)) return true;
    return false;
}

void hf_set_token(const tokenizer *tok, json_t *doc, const char *key, int64_t id) {
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

/* ---- the end of a document --------------------------------------------------------------------- */
/* Puts the id before those that end a text already. */
static err add_end_id(const char *path, json_t *doc, int64_t id) {
    json_t *ids = json_pack("[I]", (json_int_t)id), *v = json_object_get(doc, "eos_token_id"), *one;
    size_t i;
    if (json_is_integer(v)) json_array_append(ids, v);
    json_array_foreach(v, i, one) json_array_append(ids, one);
    json_object_set_new(doc, "eos_token_id",
                        json_array_size(ids) > 1 ? json_incref(ids) : json_integer(id));
    json_decref(ids);
    return io_json_write(path, doc);
}

err hf_name_end(const char *run_dir, const tokenizer *tok, int64_t id) {
    char *paths[] = { io_join(run_dir, HF_TOKENIZER_CONFIG), io_join(run_dir, HF_GENERATION_CONFIG),
                      io_join(run_dir, HF_IMPORTED_CONFIG) };
    json_t *doc[COUNT_OF(paths)] = { NULL };
    err e = OK;
    for (size_t i = 0; i < COUNT_OF(paths); i++) TRY_CLEAN(hf_read_if_there(paths[i], &doc[i]));
    bool named = hf_token_id(tok, doc[0], "eos_token") == id;
    for (size_t i = 1; i < COUNT_OF(paths); i++)
        named |= hf_lists_id(json_object_get(doc[i], "eos_token_id"), id);
    if (id < 0 || named) goto cleanup;
    if (tok) {
        if (!doc[0]) doc[0] = json_object();
        hf_set_token(tok, doc[0], "eos_token", id);
        TRY_CLEAN(io_json_write(paths[0], doc[0]));
    }
    if (!tok || doc[1]) {
        if (!doc[1]) doc[1] = json_object();
        TRY_CLEAN(add_end_id(paths[1], doc[1], id));
    }
cleanup:
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        json_decref(doc[i]);
        free(paths[i]);
    }
    return e;
}
