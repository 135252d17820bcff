/* See chat.h. */
#include "eval/chat.h"

#include <stdlib.h>
#include <string.h>

#include "eval/template.h"
#include "io/io.h"

static err read_beside(const char *folder, const char *name, json_t **out) {
    char *path = ckpt_file(folder, name);
    err e = path ? io_json_read(path, out) : OK;
    free(path);
    return e;
}

/* @return the template: a text, or the one named "default" in a list. */
static const char *find_template(const json_t *settings) {
    const json_t *v = json_object_get(settings, "chat_template"), *one;
    size_t i;
    json_array_foreach(v, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default"))
            return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(v);
}

static void add_stop(chat_format *f, int64_t id, int64_t vocab) {
    if (id < 0 || id >= vocab) return;
    for (int i = 0; i < f->n_stops; i++)
        if (f->stops[i] == id) return;
    f->stops = realloc(f->stops, (size_t)(f->n_stops + 1) * sizeof *f->stops);
    BUG_IF(!f->stops);
    f->stops[f->n_stops++] = (int32_t)id;
}

static void add_stops(chat_format *f, const json_t *ids, int64_t vocab) {
    const json_t *one;
    size_t i;
    if (json_is_integer(ids)) add_stop(f, json_integer_value(ids), vocab);
    json_array_foreach(ids, i, one) if (json_is_integer(one))
        add_stop(f, json_integer_value(one), vocab);
}

/* Texts of special tokens, which templates name. */
static void set_tokens(chat_format *f, const json_t *settings, const tokenizer *tok) {
    static const char *const names[] = { "bos_token", "eos_token", "pad_token", "unk_token" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const json_t *v = json_object_get(settings, names[i]);
        const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
        if (!text) continue;
        json_object_set_new(f->vars, names[i], json_string(text));
        if (i == 1) add_stop(f, tokenizer_find(tok, text, strlen(text)), tokenizer_vocab(tok));
    }
}

err chat_open(const char *folder, const tokenizer *tok, chat_format *out) {
    json_t *settings = NULL, *defaults = NULL;
    err e = OK;
    *out = (chat_format){ .vars = json_object() };
    char *path = ckpt_file(folder, "chat_template.jinja");
    if (path) TRY_CLEAN(io_read(path, 1 << 20, &out->template, NULL));
    TRY_CLEAN(read_beside(folder, HF_TOKENIZER_CONFIG, &settings));
    TRY_CLEAN(read_beside(folder, HF_GENERATION_CONFIG, &defaults));
    const char *template = find_template(settings);
    if (!out->template && template) out->template = strdup(template);
    set_tokens(out, settings, tok);
    add_stops(out, json_object_get(defaults, "eos_token_id"), tokenizer_vocab(tok));
cleanup:
    free(path);
    json_decref(settings);
    json_decref(defaults);
    if (e) chat_free(out);
    return e;
}

err chat_prompt(const chat_format *f, const tokenizer *tok, json_t *messages, token_ids *out) {
    if (!f->template)
        return err_hint(
            ERR("the model has no chat template"),
            "put its chat_template.jinja into the folder, or give it texts to continue: "
            "ingot sample, /v1/completions");
    str text = { 0 };
    json_t *vars = json_copy(f->vars);
    json_object_set(vars, "messages", messages);
    json_object_set_new(vars, "add_generation_prompt", json_true());
    err e = template_render(f->template, vars, &text);
    json_decref(vars);
    if (!e && text.len) {
        encoder *enc = encoder_new(tok);
        encoder_add(enc, text.text, text.len, true, out); /* the template has the prefix itself */
        encoder_free(enc);
    }
    if (!e && !out->n) e = ERR("the chat template makes an empty prompt of these messages");
    str_free(&text);
    return e;
}

void chat_free(chat_format *f) {
    free(f->template);
    free(f->stops);
    json_decref(f->vars);
    *f = (chat_format){ 0 };
}
