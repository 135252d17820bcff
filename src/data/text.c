/* Byte-tokenised sources: plain text and JSON lines. */
#include "data/data_internal.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Text may hold this share of bytes that are not UTF-8 before it is taken for something else. */
static const double MAX_INVALID = 0.001;

/* ---- tokens under construction ------------------------------------------------------------- */

void byte_tokens_add(byte_tokens *t, const char *text, size_t n) {
    if (n == 0) return;
    if (t->n + n + 1 > t->cap) {
        t->cap = MAX(t->cap * 2, t->n + n + 1);
        t->at = mem_grow(t->at, t->cap * sizeof *t->at);
    }
    for (size_t i = 0; i < n; i++) t->at[t->n + i] = (unsigned char)text[i];
    t->at[t->n + n] = BYTE_EOS;
    t->n += n + 1;
    t->documents++;
}

void byte_tokens_give(byte_tokens *t, const char *format, data_source *s) {
    BUG_IF(t->n == 0);
    s->made = t->at;
    s->tokens = t->at;
    s->info.format = format;
    s->info.tokenizer = TOKENIZER_BYTES;
    s->info.tokens = (int64_t)t->n;
    s->info.documents = t->documents;
    s->info.vocab = BYTE_VOCAB;
    s->info.eos = BYTE_EOS;
    s->info.width = sizeof *t->at;
    *t = (byte_tokens){ 0 };
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

static err check_text(const data_source *s) {
    const unsigned char *nul = memchr(s->file.data, 0, s->file.size);
    if (nul)
        return err_hint(
            ERR("%s: byte %lld is zero, so this is neither text nor a token file known "
                "here",
                s->info.path, (long long)(nul - s->file.data)),
            "known are .tok files, llm.c .bin, raw 16-bit tokens named .bin, .jsonl and "
            "UTF-8 text; unpack compressed files first");
    int64_t bad = count_replaced(s->file.data, s->file.size);
    if ((double)bad > MAX_INVALID * (double)s->file.size)
        return err_hint(
            ERR("%s: %lld of %zu bytes are not UTF-8", s->info.path, (long long)bad, s->file.size),
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

err text_tokenize(data_source *s) {
    static const char separator[] = DATA_SEPARATOR;
    TRY(check_text(s));
    byte_tokens t = { 0 };
    const char *text = (const char *)s->file.data, *end = text + s->file.size, *begin = text, *next;
    for (const char *p = text; p < end; p = next) {
        size_t n = line_length(p, end, &next);
        if (n != sizeof separator - 1 || memcmp(p, separator, n) != 0) continue;
        byte_tokens_add(&t, begin, without_break(begin, (size_t)(p - begin)));
        begin = next;
    }
    byte_tokens_add(&t, begin, (size_t)(end - begin));
    if (t.n == 0) return ERR("%s holds nothing but document separators", s->info.path);
    byte_tokens_give(&t, "text", s);
    return OK;
}

/* ---- JSON lines ------------------------------------------------------------------------------ */

static err add_json_line(data_source *s, const char *line, size_t n, int64_t number,
                         byte_tokens *t) {
    json_error_t why;
    json_t *object = json_loadb(line, n, JSON_ALLOW_NUL, &why);
    if (!object)
        return err_hint(ERR("%s:%lld: not JSON: %s", s->info.path, (long long)number, why.text),
                        "each line of a .jsonl file is one object with a \"text\" member");
    const json_t *text = json_object_get(object, "text");
    err e = OK;
    if (json_is_string(text))
        byte_tokens_add(t, json_string_value(text), json_string_length(text));
    else
        e = err_hint(ERR("%s:%lld: no \"text\" string", s->info.path, (long long)number),
                     "each line of a .jsonl file is one object with a \"text\" member");
    json_decref(object);
    return e;
}

err jsonl_tokenize(data_source *s) {
    byte_tokens t = { 0 };
    err e = OK;
    const char *end = (const char *)s->file.data + s->file.size, *next;
    int64_t number = 1;
    for (const char *p = (const char *)s->file.data; p < end; p = next, number++) {
        size_t n = line_length(p, end, &next);
        if (n > 0) TRY_CLEAN(add_json_line(s, p, n, number, &t));
    }
    if (t.n == 0) {
        e = ERR("%s holds no text", s->info.path);
        goto cleanup;
    }
    byte_tokens_give(&t, "JSON lines", s);
cleanup:
    free(t.at);
    return e;
}
