/* Hugging Face's tokenizer.json: a BPE or Unigram model, its added tokens, its rules. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "tokenizer/chars_internal.h"
#include "tokenizer/open_internal.h"

static const size_t MAX_FILE = (size_t)256 << 20;

/* ---- the vocabulary ---------------------------------------------------------------------------------- */

typedef struct vocabulary {
    json_t *by_text;  /* of the model, owned */
    json_t *added;    /* the same of added tokens, owned */
    int64_t next;     /* the id of one that is new */
    text_span *texts; /* [n] in id order, as the model sees them; into `bytes` or the document */
    bool *indexed;    /* [n] whether BPE can meet it */
    int64_t n;
    str bytes;
} vocabulary;

static void vocabulary_free(vocabulary *v) {
    json_decref(v->by_text);
    json_decref(v->added);
    free(v->texts);
    free(v->indexed);
    str_free(&v->bytes);
}

static err vocabulary_size(vocabulary *v) {
    const char *text;
    json_t *id;
    int64_t most = (int64_t)json_object_size(v->by_text) * 8 + 4096;
    json_object_foreach(v->by_text, text, id) {
        int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value < 0 || value >= MIN(most, TOKEN_MAX_ID))
            return ERR("the token \"%.40s\" has no id that makes sense", text);
        v->n = MAX(v->n, value + 1);
    }
    return OK;
}

/* Byte-level texts are turned to the bytes they stand for; those that stand for none, which BPE
 * never makes, stay as they are. */
static err vocabulary_read(const json_t *model, bool byte_level, vocabulary *v) {
    json_t *by_text = NULL, *id;
    const char *text;
    TRY(io_json_object(model, "the model", "vocab", &by_text));
    v->by_text = json_incref(by_text);
    TRY(vocabulary_size(v));
    v->next = (int64_t)json_object_size(by_text);
    v->texts = mem_alloc(((size_t)v->n + 1) * sizeof *v->texts);
    v->indexed = mem_alloc((size_t)v->n + 1);
    json_object_foreach(by_text, text, id) {
        int64_t i = json_integer_value(id);
        if (v->texts[i].at) return ERR("the id %lld has two tokens", (long long)i);
        v->texts[i] = (text_span){ text, strlen(text) };
        v->indexed[i] = true;
    }
    /* First all bytes, then where they lie: the buffer moves while it grows. */
    size_t *at = mem_alloc(((size_t)v->n + 1) * sizeof *at);
    for (int64_t i = 0; byte_level && i < v->n; i++) {
        at[i] = v->bytes.len;
        v->indexed[i] = alphabet_to_bytes(v->texts[i].at, v->texts[i].len, &v->bytes);
    }
    at[v->n] = v->bytes.len;
    for (int64_t i = 0; byte_level && i < v->n; i++)
        if (v->indexed[i] && v->texts[i].len)
            v->texts[i] = (text_span){ v->bytes.text + at[i], at[i + 1] - at[i] };
    free(at);
    return OK;
}

/* ---- merges ------------------------------------------------------------------------------------------- */

static err text_id(const vocabulary *v, text_span text, size_t rank, int32_t *id) {
    const json_t *found = json_object_getn(v->by_text, text.at, text.len);
    if (!found)
        return ERR("merge %zu needs the token \"%.*s\", which the vocabulary does not have", rank,
                   (int)MIN(text.len, 80), text.at);
    *id = (int32_t)json_integer_value(found);
    return OK;
}

/* "left right" or ["left", "right"]. */
static err merge_texts(const json_t *merge, size_t rank, text_span *left, text_span *right) {
    const json_t *l = json_array_get(merge, 0), *r = json_array_get(merge, 1);
    const char *line = json_string_value(merge), *gap = line ? strchr(line, ' ') : NULL;
    if (gap && !strchr(gap + 1, ' ')) {
        *left = (text_span){ line, (size_t)(gap - line) };
        *right = (text_span){ gap + 1, strlen(gap + 1) };
        return OK;
    }
    *left = (text_span){ json_string_value(l), json_string_length(l) };
    *right = (text_span){ json_string_value(r), json_string_length(r) };
    if (!left->at || !right->at || json_array_size(merge) != 2)
        return ERR("merge %zu is neither \"left right\" nor [left, right]", rank);
    return OK;
}

/* A merge that joins U+2581 to another character before it: text cannot be split into words then. */
static bool crosses_words(const bpe *b, bpe_pair m) {
    static const char mark[] = "\xE2\x96\x81";
    const text_span *l = &b->tokens[m.left], *r = &b->tokens[m.right];
    bool begins = r->len >= 3 && memcmp(r->at, mark, 3) == 0;
    bool ends = l->len >= 3 && memcmp(l->at + l->len - 3, mark, 3) == 0;
    return begins && !ends;
}

static err read_json_merges(const json_t *model, const vocabulary *v, bpe *b, bool *crossing) {
    json_t *merges = NULL, *merge;
    size_t rank;
    str joint = { 0 };
    err e = OK;
    TRY(io_json_array(model, "the model", "merges", &merges));
    if (json_array_size(merges) > TOKEN_MAX_ID) return ERR("more than %d merges", TOKEN_MAX_ID);
    bpe_reserve_pairs(b, (int64_t)json_array_size(merges));
    json_array_foreach(merges, rank, merge) {
        text_span left, right;
        bpe_pair pair;
        int32_t made = -1;
        TRY_CLEAN(merge_texts(merge, rank, &left, &right));
        joint.len = 0;
        str_add_bytes(&joint, left.at, left.len);
        str_add_bytes(&joint, right.at, right.len);
        TRY_CLEAN(text_id(v, left, rank, &pair.left));
        TRY_CLEAN(text_id(v, right, rank, &pair.right));
        TRY_CLEAN(text_id(v, (text_span){ joint.text, joint.len }, rank, &made));
        bpe_add_pair(b, pair, (uint32_t)rank, made);
        *crossing |= crosses_words(b, pair);
    }
cleanup:
    str_free(&joint);
    return e;
}

/* ---- the model ----------------------------------------------------------------------------------------- */

/* Members that change ids in ways we do not do: missing, null, "" and 0 mean that it is disabled. */
static err refuse_if_set(const json_t *model, const char *key) {
    const json_t *v = json_object_get(model, key);
    bool unset = !v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)) ||
                 (json_is_number(v) && json_number_value(v) == 0);
    return unset ? OK : ERR("the model has \"%s\", which is not supported", key);
}

static err check_json_model(const json_t *model) {
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type && strcmp(type, "Unigram") == 0)
        return json_only(model, "the model", "type unk_id vocab byte_fallback");
    if (type && strcmp(type, "BPE") != 0)
        return err_hint(
            ERR("the model is a %s: only BPE and Unigram are supported", type),
            "models of the GPT, Llama, Qwen, Mistral and OLMo families use BPE, those of "
            "T5 and XLM-R Unigram");
    TRY(json_only(model, "the model",
                  "type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk "
                  "byte_fallback ignore_merges vocab merges"));
    TRY(refuse_if_set(model, "dropout"));
    TRY(refuse_if_set(model, "continuing_subword_prefix"));
    return refuse_if_set(model, "end_of_word_suffix");
}

static err read_unknown(const json_t *model, const vocabulary *v, bpe *b) {
    const char *text = json_string_value(json_object_get(model, "unk_token"));
    b->unknown = -1;
    if (!text) return OK;
    const json_t *id = json_object_get(v->by_text, text);
    if (!id) return ERR("the model's unk_token \"%s\" is not in its vocabulary", text);
    b->unknown = (int32_t)json_integer_value(id);
    return OK;
}

static void set_byte_ids(bpe *b, bool fallback) {
    for (int i = 0; i < 256; i++) {
        char name[8], byte = (char)i;
        int n = snprintf(name, sizeof name, "<0x%02X>", i);
        if (!b->chars)
            b->byte_id[i] = bpe_find(b, &byte, 1);
        else
            b->byte_id[i] = fallback ? bpe_find(b, name, (size_t)n) : -1;
    }
}

static err read_json_model(const json_t *model, bool byte_level, vocabulary *v, tokenizer *t) {
    bpe *b = &t->bpe;
    bool crossing = false;
    TRY(check_json_model(model));
    TRY(vocabulary_read(model, byte_level, v));
    bool fallback = json_is_true(json_object_get(model, "byte_fallback"));
    b->chars = !byte_level;
    b->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    b->whole_first = json_is_true(json_object_get(model, "ignore_merges"));
    TRY(read_unknown(model, v, b));
    bpe_set_tokens(b, v->texts, v->n, v->indexed);
    TRY(read_json_merges(model, v, b, &crossing));
    set_byte_ids(b, fallback);
    if (b->chars && !b->whole_first && !crossing && bpe_find(b, "\xE2\x96\x81", 3) >= 0)
        t->splits[t->n_splits++].find.scan =
            scan_words; /* changes no id, and the cache sees words */
    t->kind = byte_level ? "byte-level BPE" : fallback ? "BPE with byte fallback" : "BPE";
    return OK;
}

/* ---- Unigram ------------------------------------------------------------------------------------------- */

typedef struct unigram_reader {
    vocabulary *v;
    double *score;  /* [n] */
    token_use *use; /* [n] */
} unigram_reader;

static err read_scores(const json_t *model, unigram_reader *r) {
    json_t *list = NULL, *pair;
    size_t i;
    vocabulary *v = r->v;
    TRY(io_json_array(model, "the model", "vocab", &list));
    v->n = v->next = (int64_t)json_array_size(list);
    if (v->n == 0 || v->n > TOKEN_MAX_ID) return ERR("the model has %lld tokens", (long long)v->n);
    v->by_text = json_object();
    v->texts = mem_alloc(((size_t)v->n + 1) * sizeof *v->texts);
    v->indexed = mem_alloc((size_t)v->n + 1);
    r->score = mem_alloc(((size_t)v->n + 1) * sizeof *r->score);
    r->use = mem_alloc(((size_t)v->n + 1) * sizeof *r->use);
    json_array_foreach(list, i, pair) {
        const json_t *text = json_array_get(pair, 0), *score = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_string(text) || !json_is_number(score))
            return ERR("token %zu of the model is not [text, score]", i);
        v->texts[i] = (text_span){ json_string_value(text), json_string_length(text) };
        v->indexed[i] = true;
        r->score[i] = json_number_value(score);
        json_object_setn_new(v->by_text, v->texts[i].at, v->texts[i].len,
                             json_integer((json_int_t)i));
    }
    return OK;
}

static bool is_byte_name(text_span s) {
    return s.len == 6 && memcmp(s.at, "<0x", 3) == 0 && s.at[5] == '>';
}

/* In SentencePiece, text never becomes a control symbol, the unknown token or a byte; a token that is added
 * and not special is a user-defined symbol. */
static void read_uses(const json_t *doc, bool fallback, unigram_reader *r) {
    const json_t *added = json_object_get(doc, "added_tokens"), *token;
    size_t i;
    json_array_foreach(added, i, token) {
        const json_t *id =
            json_object_get(r->v->by_text, json_string_value(json_object_get(token, "content")));
        bool special = json_is_true(json_object_get(token, "special"));
        if (id) r->use[json_integer_value(id)] = special ? TOKEN_UNUSED : TOKEN_USER_DEFINED;
    }
    for (int64_t k = 0; fallback && k < r->v->n; k++)
        if (is_byte_name(r->v->texts[k])) r->use[k] = TOKEN_UNUSED;
}

/* Whether U+2581 follows another character in a token: text cannot be split into words then. */
static bool joins_words(const unigram_reader *r) {
    for (int64_t i = 0; i < r->v->n; i++) {
        text_span s = r->v->texts[i];
        size_t end = 0;
        if (r->use[i] != TOKEN_UNUSED && s.len &&
            (scan_words(s.at, s.len, 0, &end, 1), end < s.len))
            return true;
    }
    return false;
}

static err build_unigram(const json_t *doc, const json_t *model, unigram_reader *r, tokenizer *t) {
    const json_t *unknown = json_object_get(model, "unk_id");
    vocabulary *v = r->v;
    bool fallback = json_is_true(json_object_get(model, "byte_fallback"));
    TRY(read_scores(model, r));
    int64_t id = json_is_integer(unknown) ? json_integer_value(unknown) : -1;
    if (id < 0 || id >= v->n)
        return err_hint(ERR("the model's unk_id is not one of its %lld tokens", (long long)v->n),
                        "a Unigram model needs a token for characters that it does not know");
    if (t->sentencepiece) read_uses(doc, fallback, r);
    t->bpe.chars = true;
    t->bpe.unknown = (int32_t)id;
    bpe_set_tokens(&t->bpe, v->texts, v->n, v->indexed);
    set_byte_ids(&t->bpe, fallback);
    if (t->sentencepiece && !joins_words(r) && bpe_find(&t->bpe, "\xE2\x96\x81", 3) >= 0)
        t->splits[t->n_splits++].find.scan = scan_words; /* changes no id */
    t->by_words = t->sentencepiece && t->n_splits == 1 && t->splits[0].find.scan == scan_words &&
                  !t->splits[0].space && !t->splits[0].prepend;
    t->kind = fallback ? "Unigram with byte fallback" : "Unigram";
    unigram_parts parts = { .text = v->texts,
                            .score = r->score,
                            .use = r->use,
                            .n = v->n,
                            .unknown = (int32_t)id,
                            .single = t->sentencepiece };
    return unigram_new(&parts, &t->unigram);
}

static err read_json_unigram(const json_t *doc, const json_t *model, vocabulary *v, tokenizer *t) {
    unigram_reader r = { .v = v };
    err e = build_unigram(doc, model, &r, t);
    free(r.score);
    free(r.use);
    return e;
}

/* ---- added tokens ----------------------------------------------------------------------------------------- */

/* Hugging Face gives ids by itself: the one the text has, else the next free one. */
static int32_t added_id(vocabulary *v, const char *text) {
    const json_t *known = json_object_get(v->added, text);
    if (!known) known = json_object_get(v->by_text, text);
    int64_t id = known ? json_integer_value(known) : v->next;
    v->next = MAX(v->next, id + 1);
    json_object_set_new(v->added, text, json_integer(id));
    return (int32_t)id;
}

static err read_added_token(const json_t *o, vocabulary *v, tokenizer *t) {
    static const char where[] = "an added token";
    added_token a = { 0 };
    const char *text = NULL;
    int64_t id = 0;
    TRY(json_only(o, where, "id content single_word lstrip rstrip normalized special"));
    TRY(io_json_text(o, where, "content", &text));
    TRY(io_json_int(o, where, "id", &id));
    TRY(io_json_bool(o, where, "single_word", &a.single_word));
    TRY(io_json_bool(o, where, "lstrip", &a.lstrip));
    TRY(io_json_bool(o, where, "rstrip", &a.rstrip));
    TRY(io_json_bool(o, where, "normalized", &a.normalized));
    TRY(io_json_bool(o, where, "special", &a.special));
    if (!text[0]) return OK;
    if (t->unigram && t->sentencepiece && !a.special) return OK; /* a piece of the model */
    a.id = added_id(v, text);
    if (a.id != id)
        log_warn("the added token \"%s\" gets the id %d, as Hugging Face gives it, not %lld", text,
                 a.id, (long long)id);
    added_token_set(t, &a, text, strlen(text));
    t->added[t->n_added++] = a;
    t->vocab = MAX(t->vocab, a.id + 1);
    return OK;
}

static err read_added(const json_t *doc, vocabulary *v, tokenizer *t) {
    json_t *tokens = json_object_get(doc, "added_tokens"), *token;
    size_t i;
    t->vocab = v->n;
    v->added = json_object();
    if (!tokens || json_is_null(tokens)) return OK;
    TRY(io_json_array(doc, "the document", "added_tokens", &tokens));
    if (json_array_size(tokens) > TOKEN_MAX_ID / 2) return ERR("too many added tokens");
    t->added = mem_alloc((json_array_size(tokens) + 1) * sizeof *t->added);
    json_array_foreach(tokens, i, token) TRY(read_added_token(token, v, t));
    return OK;
}

/* ---- the document ------------------------------------------------------------------------------------------- */

static err read_tokenizer_document(const json_t *doc, tokenizer *t) {
    json_t *model = NULL;
    vocabulary v = { 0 };
    bool byte_level = false;
    err e = OK;
    TRY(json_only(doc, "the document",
                  "version truncation padding added_tokens normalizer pre_tokenizer "
                  "post_processor decoder model"));
    TRY(io_json_object(doc, "the document", "model", &model));
    TRY(check_json_model(model));
    TRY(json_normalizer(json_object_get(doc, "normalizer"), t));
    TRY(json_pre_tokenizer(json_object_get(doc, "pre_tokenizer"), t, &byte_level));
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type && strcmp(type, "Unigram") == 0)
        TRY_CLEAN(byte_level
                      ? ERR("a Unigram model with a ByteLevel pre-tokenizer is not supported")
                      : read_json_unigram(doc, model, &v, t));
    else
        TRY_CLEAN(read_json_model(model, byte_level, &v, t));
    TRY_CLEAN(read_added(doc, &v, t));
    TRY_CLEAN(json_post_processor(json_object_get(doc, "post_processor"), t));
    TRY_CLEAN(json_decoder(json_object_get(doc, "decoder"), t, byte_level));
cleanup:
    vocabulary_free(&v);
    return e;
}

err tokenizer_from_json(const json_t *doc, const char *name, char *source, size_t len,
                        tokenizer **out) {
    tokenizer *t = mem_alloc(sizeof *t);
    *out = NULL;
    t->source = source;
    t->source_len = len;
    err e =
        json_is_object(doc) ? read_tokenizer_document(doc, t) : ERR("it does not hold an object");
    if (!e) {
        *out = t;
        return OK;
    }
    const char *remedy = err_remedy(e);
    err wrapped =
        err_hint(ERR("cannot use %s: %s", name, err_message(e)), "%s",
                 remedy[0] ? remedy : "is it the tokenizer.json of a BPE or Unigram model?");
    err_free(e);
    tokenizer_free(t);
    return wrapped;
}

err tokenizer_open_json(const char *path, tokenizer **out) {
    char *text = NULL;
    size_t len = 0;
    json_t *doc = NULL;
    TRY(io_read(path, MAX_FILE, &text, &len));
    err e = io_json_parse(text, len, path, &doc);
    if (e) {
        free(text);
        return e;
    }
    e = tokenizer_from_json(doc, path, text, len, out);
    json_decref(doc);
    return e;
}
