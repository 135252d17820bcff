/* Texts as sources: plain text and JSON lines, tokenised in memory. */
#include "data/data_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer.h"

/* Text may hold this share of bytes that are not UTF-8 before it is taken for something else. */
static const double MAX_INVALID = 0.001;

/* ---- tokens under construction ------------------------------------------------------------- */

static void *buffer_room(token_buffer *t, size_t n) {
    size_t width = (size_t)t->width;
    if (t->n + n > t->cap) {
        t->cap = MAX(t->cap * 2, t->n + n);
        t->at = mem_grow(t->at, t->cap * width);
    }
    t->n += n;
    return (char *)t->at + (t->n - n) * width;
}

static void buffer_end_document(token_buffer *t) {
    if (t->docs == t->docs_cap) {
        t->docs_cap = MAX(1024, t->docs_cap * 2);
        t->ends = mem_grow(t->ends, t->docs_cap * sizeof *t->ends);
    }
    t->ends[t->docs++] = t->n;
}

void token_buffer_add_bytes(token_buffer *t, const char *text, size_t n) {
    BUG_IF(t->width != 2);
    if (n == 0) return;
    uint16_t *to = buffer_room(t, n + 1);
    for (size_t i = 0; i < n; i++) to[i] = (unsigned char)text[i];
    to[n] = BYTE_EOS;
    buffer_end_document(t);
}

static void add_ids(token_buffer *t, const int32_t *ids, size_t n, int32_t eos) {
    if (n == 0) return;
    void *to = buffer_room(t, n + 1);
    for (size_t i = 0; i <= n; i++) {
        int32_t id = i < n ? ids[i] : eos;
        if (t->width == 2)
            ((uint16_t *)to)[i] = (uint16_t)id;
        else
            ((uint32_t *)to)[i] = (uint32_t)id;
    }
    buffer_end_document(t);
}

void token_buffer_give(token_buffer *t, data_shard *s) {
    BUG_IF(t->n == 0);
    s->made = t->at;
    s->tokens = t->at;
    s->width = t->width;
    s->n = (int64_t)t->n;
    s->docs = (int64_t)t->docs;
    s->made_ends = t->ends;
    s->ends = t->ends;
    *t = (token_buffer){ 0 };
}

data_info byte_info(const char *format) {
    return (data_info){
        .format = format, .tokenizer = TOKENIZER_BYTES, .vocab = BYTE_VOCAB, .eos = BYTE_EOS
    };
}

/* ---- documents to tokens ------------------------------------------------------------------- */

typedef struct text_encoder {
    token_buffer tokens;
    tokenizer *t; /* NULL: bytes */
    encoder *e;
    token_ids ids; /* of one document */
    int32_t eos;
    data_info info;
} text_encoder;

static err encoder_open(text_encoder *x, const char *name, const char *format) {
    *x = (text_encoder){ .tokens = { .width = 2 }, .info = byte_info(format) };
    if (strcmp(name, "bytes") == 0) return OK;
    TRY(tokenizer_open(name, NULL, &x->t));
    x->e = encoder_new(x->t);
    x->eos = tokenizer_eos(x->t);
    if (x->eos < 0) {
        tokenizer_free(x->t);
        encoder_free(x->e);
        return err_hint(ERR("%s: has no token that ends a document", name),
                        "tokenize the text with `ingot data tokenize --eos TOKEN` and train on "
                        "what it writes");
    }
    x->tokens.width = token_width(tokenizer_vocab(x->t));
    x->info = (data_info){ .format = format,
                           .tokenizer = TOKENIZER_BPE,
                           .tokenizer_hash = tokenizer_hash(x->t),
                           .vocab = tokenizer_vocab(x->t),
                           .eos = x->eos };
    return OK;
}

static void encode_document(text_encoder *x, const char *text, size_t n) {
    if (!x->t) {
        token_buffer_add_bytes(&x->tokens, text, n);
        return;
    }
    x->ids.n = 0;
    encoder_add(x->e, text, n, false, &x->ids);
    add_ids(&x->tokens, x->ids.at, x->ids.n, x->eos);
}

static void encoder_finish(text_encoder *x, data_shard *s, data_info *info) {
    if (x->tokens.n) token_buffer_give(&x->tokens, s);
    *info = x->info;
    free(x->tokens.at);
    free(x->tokens.ends);
    token_ids_free(&x->ids);
    encoder_free(x->e);
    tokenizer_free(x->t);
}

/* ---- plain text ------------------------------------------------------------------------------ */

static int64_t count_replaced(const unsigned char *text, size_t n) {
    byte_decoder d = { 0 };
    char out[BYTE_DECODE_MAX];
    int64_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        if (d.len == 0 && text[i] < 0x80) continue;
        int got = byte_decoder_push(&d, text[i], out);
        /* A replacement that was not in the text came from bytes that are no character. */
        bool genuine = got == 3 && i >= 2 && memcmp(text + i - 2, out, 3) == 0;
        bad += got >= 3 && memcmp(out, "\xEF\xBF\xBD", 3) == 0 && !genuine;
    }
    return bad + (byte_decoder_end(&d, out) > 0);
}

static err check_text(const data_shard *s) {
    const unsigned char *nul = memchr(s->file.data, 0, s->file.size);
    if (nul)
        return err_hint(
            ERR("%s: byte %lld is zero, so this is neither text nor a token file known "
                "here",
                s->path, (long long)(nul - s->file.data)),
            "known are .tok files, llm.c .bin, raw 16-bit tokens named .bin, .jsonl and "
            "UTF-8 text; unpack compressed files first");
    int64_t bad = count_replaced(s->file.data, s->file.size);
    if ((double)bad > MAX_INVALID * (double)s->file.size)
        return err_hint(
            ERR("%s: %lld of %zu bytes are not UTF-8", s->path, (long long)bad, s->file.size),
            "convert the text to UTF-8, for example with iconv");
    return OK;
}

/* @return the length of the line at `p`, its break not counted; *next is after the break. */
static size_t line_length(const char *p, const char *end, const char **next) {
    const char *brk = memchr(p, '\n', (size_t)(end - p));
    *next = brk ? brk + 1 : end;
    size_t n = (size_t)((brk ? brk : end) - p);
    return n > 0 && p[n - 1] == '\r' ? n - 1 : n;
}

/* Ends a document before the break that leads to a separator line. */
static size_t without_break(const char *text, size_t n) {
    if (n > 0 && text[n - 1] == '\n') n--;
    if (n > 0 && text[n - 1] == '\r') n--;
    return n;
}

err text_tokenize(data_shard *s, const char *vocabulary, data_info *info) {
    static const char separator[] = TEXT_SEPARATOR;
    text_encoder x;
    TRY(check_text(s));
    TRY(encoder_open(&x, vocabulary, "text"));
    const char *text = (const char *)s->file.data, *end = text + s->file.size, *begin = text, *next;
    for (const char *p = text; p < end; p = next) {
        size_t n = line_length(p, end, &next);
        if (n != sizeof separator - 1 || memcmp(p, separator, n) != 0) continue;
        encode_document(&x, begin, without_break(begin, (size_t)(p - begin)));
        begin = next;
    }
    encode_document(&x, begin, (size_t)(end - begin));
    encoder_finish(&x, s, info);
    if (s->n == 0) return ERR("%s holds nothing but document separators", s->path);
    return OK;
}

/* ---- JSON lines ------------------------------------------------------------------------------ */

static err add_json_line(const data_shard *s, const char *line, size_t n, int64_t number,
                         text_encoder *x) {
    json_error_t why;
    json_t *object = json_loadb(line, n, JSON_ALLOW_NUL, &why);
    if (!object)
        return err_hint(ERR("%s:%lld: not JSON: %s", s->path, (long long)number, why.text),
                        "each line of a .jsonl file is one object with a \"text\" member");
    const json_t *text = json_object_get(object, "text");
    err e = OK;
    if (json_is_string(text))
        encode_document(x, json_string_value(text), json_string_length(text));
    else
        e = err_hint(ERR("%s:%lld: no \"text\" string", s->path, (long long)number),
                     "each line of a .jsonl file is one object with a \"text\" member");
    json_decref(object);
    return e;
}

err jsonl_tokenize(data_shard *s, const char *vocabulary, data_info *info) {
    text_encoder x;
    err e = OK;
    TRY(encoder_open(&x, vocabulary, "JSON lines"));
    const char *end = (const char *)s->file.data + s->file.size, *next;
    int64_t number = 1;
    for (const char *p = (const char *)s->file.data; p < end && !e; p = next, number++) {
        size_t n = line_length(p, end, &next);
        if (n > 0) e = add_json_line(s, p, n, number, &x);
    }
    encoder_finish(&x, s, info);
    TRY(e);
    if (s->n == 0) return ERR("%s holds no text", s->path);
    return OK;
}
