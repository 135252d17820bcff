/* A tokenizer as llama.cpp reads it, from tokenizer.json: byte-level BPE ("gpt2", with a name for how text is
 * split) or merges of characters with bytes as a fallback ("llama", with a score for each token). */
#include "checkpoint/gguf_internal.h"

#include <stdio.h>
#include <string.h>

/* Our patterns by name (splitter_pattern), as llama.cpp calls what splits text the same. */
static const char *const splits[][2] = {
    { "gpt2", "gpt-2" }, { "cl100k", "llama-bpe" }, { "qwen2", "qwen2" }, { "o200k", "gpt-4o" }
};

enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

typedef struct token_table {
    arena *mem;
    const char **text;
    int32_t *kind;
    float *score;
    int64_t n;
} token_table;

static err no_counterpart(const char *what) {
    return err_hint(ERR("llama.cpp has no tokenizer with %s", what),
                    "export to a Hugging Face folder, which keeps the tokenizer as it is");
}

/* ---- how text is split --------------------------------------------------------------------- */
/* @return the expression of a pre-tokenizer of one Split, or the pattern that a plain ByteLevel stands for; NULL: other */
static const char *split_expression(const json_t *pre) {
    const char *type = json_string_value(json_object_get(pre, "type"));
    if (!type) return NULL;
    if (!strcmp(type, "ByteLevel")) {
        const json_t *regex = json_object_get(pre, "use_regex"); /* absent: true */
        bool prefixed = json_is_true(json_object_get(pre, "add_prefix_space"));
        return !json_is_false(regex) && !prefixed ? splitter_pattern("gpt2") : NULL;
    }
    if (strcmp(type, "Sequence")) return NULL;
    const json_t *all = json_object_get(pre, "pretokenizers"), *first = json_array_get(all, 0);
    if (json_array_size(all) != 2 || json_is_true(json_object_get(first, "invert"))) return NULL;
    return json_string_value(json_object_get(json_object_get(first, "pattern"), "Regex"));
}

/* Without merges every byte is a token, however text is split. */
static const char *split_name(const json_t *doc) {
    if (!json_array_size(json_object_get(json_object_get(doc, "model"), "merges")))
        return splits[0][1];
    const char *expression = split_expression(json_object_get(doc, "pre_tokenizer"));
    for (size_t i = 0; expression && i < COUNT_OF(splits); i++)
        if (!strcmp(splitter_pattern(splits[i][0]), expression)) return splits[i][1];
    return NULL;
}

/* ---- tokens -------------------------------------------------------------------------------- */
static void set_token(token_table *t, int64_t id, const char *text, int kind) {
    if (id < 0 || id >= t->n) return;
    t->text[id] = arena_strdup(t->mem, text);
    t->kind[id] = kind;
}

/* "<0x0A>": a byte that no token covers. */
static bool is_byte_token(const char *text) {
    unsigned byte;
    int end = 0;
    return strlen(text) == 6 && sscanf(text, "<0x%2X>%n", &byte, &end) == 1 && end == 6;
}

static void list_vocabulary(token_table *t, const json_t *doc, bool bytes) {
    const char *text;
    json_t *id, *added;
    size_t i;
    const json_t *bpe = json_object_get(doc, "model");
    for (int64_t k = 0; k < t->n; k++)
        set_token(t, k, arena_printf(t->mem, "[unused %lld]", (long long)k), TOKEN_UNUSED);
    json_object_foreach(json_object_get(bpe, "vocab"), text, id) set_token(
        t, json_integer_value(id), text, bytes && is_byte_token(text) ? TOKEN_BYTE : TOKEN_NORMAL);
    json_array_foreach(json_object_get(doc, "added_tokens"), i, added) {
        bool special = json_is_true(json_object_get(added, "special"));
        set_token(t, json_integer_value(json_object_get(added, "id")),
                  json_string_value(json_object_get(added, "content")),
                  special ? TOKEN_CONTROL : TOKEN_USER);
    }
}

/* Both halves of a merge, however the file writes it. @return false where it is neither */
static bool merge_halves(arena *mem, const json_t *merge, const char **a, const char **b) {
    if (json_is_array(merge)) {
        *a = json_string_value(json_array_get(merge, 0));
        *b = json_string_value(json_array_get(merge, 1));
        return *a && *b;
    }
    char *text = json_is_string(merge) ? arena_strdup(mem, json_string_value(merge)) : NULL;
    char *space = text ? strchr(text, ' ') : NULL;
    if (!space) return false;
    *space = 0;
    *a = text;
    *b = space + 1;
    return true;
}

/* Merges as lines, and, of each token, minus the rank of the merge that first makes it. */
static err list_merges(token_table *t, const json_t *bpe, const char ***lines, size_t *n) {
    const json_t *merges = json_object_get(bpe, "merges"), *vocab = json_object_get(bpe, "vocab");
    *n = json_array_size(merges);
    *lines = arena_alloc(t->mem, (*n + 1) * sizeof **lines);
    for (size_t i = *n; i-- > 0;) {
        const char *a, *b;
        if (!merge_halves(t->mem, json_array_get(merges, i), &a, &b))
            return ERR("merge %zu of the tokenizer is neither a pair nor a line", i);
        (*lines)[i] = arena_printf(t->mem, "%s %s", a, b);
        const json_t *id = json_object_get(vocab, arena_printf(t->mem, "%s%s", a, b));
        int64_t at = id ? json_integer_value(id) : -1;
        if (at >= 0 && at < t->n) t->score[at] = -(float)i;
    }
    return OK;
}

static void add_ids(gguf_meta *m, const tokenizer *t, hf_tokens tokens) {
    const token_affixes *a = tokenizer_affixes(t);
    if (tokens.bos >= 0) gguf_add_integer(m, "tokenizer.ggml.bos_token_id", tokens.bos);
    if (tokens.eos >= 0) gguf_add_integer(m, "tokenizer.ggml.eos_token_id", tokens.eos);
    gguf_add_bool(m, "tokenizer.ggml.add_bos_token",
                  tokens.bos >= 0 && a->n_prefix && a->prefix[0] == tokens.bos);
    gguf_add_bool(m, "tokenizer.ggml.add_eos_token", a->n_suffix > 0);
}

static err add_bpe(gguf_meta *m, const json_t *doc, token_table *t) {
    const json_t *bpe = json_object_get(doc, "model");
    const char *type = json_string_value(json_object_get(bpe, "type")), *split = split_name(doc);
    bool fallback = json_is_true(json_object_get(bpe, "byte_fallback"));
    const char **lines;
    size_t n;
    if (!type || strcmp(type, "BPE")) return no_counterpart(type ? type : "no type");
    if (!fallback && !split) return no_counterpart("this expression for splitting text");
    if (!fallback && !json_is_null(json_object_get(doc, "normalizer")))
        return no_counterpart("a normalizer before byte-level BPE");
    list_vocabulary(t, doc, fallback);
    TRY(list_merges(t, bpe, &lines, &n));
    gguf_add_text(m, "tokenizer.ggml.model", fallback ? "llama" : "gpt2");
    gguf_add_text(m, "tokenizer.ggml.pre", fallback ? "default" : split);
    gguf_add_texts(m, "tokenizer.ggml.tokens", t->text, (size_t)t->n);
    gguf_add_integers(m, "tokenizer.ggml.token_type", t->kind, (size_t)t->n);
    if (fallback)
        gguf_add_reals(m, "tokenizer.ggml.scores", t->score, (size_t)t->n);
    else
        gguf_add_texts(m, "tokenizer.ggml.merges", lines, n);
    return OK;
}

err gguf_add_tokenizer(gguf_meta *m, const tokenizer *t, hf_tokens tokens, int64_t vocab) {
    json_t *doc = NULL;
    TRY(tokenizer_json(t, &doc));
    arena *mem = arena_new();
    token_table table = { .mem = mem, .n = vocab };
    table.text = arena_alloc(mem, (size_t)vocab * sizeof *table.text);
    table.kind = arena_alloc(mem, (size_t)vocab * sizeof *table.kind);
    table.score = arena_alloc(mem, (size_t)vocab * sizeof *table.score);
    err e = add_bpe(m, doc, &table);
    if (!e) add_ids(m, t, tokens);
    arena_free(mem);
    json_decref(doc);
    return e;
}
