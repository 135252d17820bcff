/* The decoder of a tokenizer.json. What it does to one token is done once, here; what it does to
 * the whole is left for decode.c: a few spaces at the ends. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "tokenizer/open_internal.h"

typedef struct decoder_reader {
    tokenizer *t;
    bool byte_level;
    bool first;         /* tokens are decoded as the first of a text */
    bool first_differs; /* some step treats the first token of a text in its own way */
    bool fused;         /* the steps that follow see all tokens joined */
    str text[2];        /* of all tokens, before and after a step */
    size_t *at;         /* [vocab + 1] where each lies in text[now] */
    int now;
    regex_work *regex;
} decoder_reader;

/* ---- steps: each turns one token into another ------------------------------------------------------- */

typedef void (*token_fn)(const decoder_reader *r, const void *how, const char *s, size_t n,
                         str *out);

static void each_token(decoder_reader *r, token_fn fn, const void *how) {
    str *out = &r->text[!r->now];
    out->len = 0;
    for (int64_t i = 0; i < r->t->vocab; i++) {
        size_t begin = r->at[i], end = r->at[i + 1];
        r->at[i] = out->len;
        fn(r, how, r->text[r->now].text + begin, end - begin, out);
        if (i + 1 == r->t->vocab) r->at[i + 1] = out->len;
    }
    r->now = !r->now;
}

/* <0xNN> to the byte. */
static void as_bytes(const decoder_reader *r, const void *how, const char *s, size_t n, str *out) {
    static const char digits[] = "0123456789ABCDEF";
    const char *high = NULL, *low = NULL;
    if (n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>') {
        high = memchr(digits, s[3], 16);
        low = memchr(digits, s[4], 16);
    }
    char byte = high && low ? (char)((high - digits) * 16 + (low - digits)) : 0;
    str_add_bytes(out, high && low ? &byte : s, high && low ? 1 : n);
}

typedef struct replacement {
    finder find;
    const char *with;
} replacement;

static void replace_text(const decoder_reader *r, const void *how, const char *s, size_t n,
                         str *out) {
    const replacement *rep = how;
    size_t done = 0, start, end;
    finder_cursor p = { 0 };
    /* A token whose bytes are not UTF-8 came from <0xNN>: nothing to find there. */
    bool text = utf8_valid(s, n) == n;
    while (text && finder_walk(&rep->find, r->regex, s, n, &p, &start, &end)) {
        str_add_bytes(out, s + done, start - done);
        str_add(out, "%s", rep->with);
        done = end;
    }
    str_add_bytes(out, s + done, n - done);
}

typedef struct ends {
    int64_t left, right;
} ends;

static void strip_text(const decoder_reader *r, const void *how, const char *s, size_t n,
                       str *out) {
    const ends *e = how;
    size_t left = 0, right = 0;
    while (left < n && (int64_t)left < e->left && s[left] == ' ') left++;
    while (right < n - left && (int64_t)right < e->right && s[n - 1 - right] == ' ') right++;
    str_add_bytes(out, s + left, n - left - right);
}

/* ---- reading ---------------------------------------------------------------------------------------- */

static err decode_replace(const json_t *o, decoder_reader *r) {
    replacement rep = { 0 };
    TRY(json_only(o, "Replace", "type pattern content"));
    TRY(io_json_text(o, "Replace", "content", &rep.with));
    TRY(json_finder(o, "Replace", &rep.find));
    each_token(r, replace_text, &rep);
    finder_free(&rep.find);
    return OK;
}

static err read_strip(const json_t *o, decoder_reader *r) {
    ends e = { 0 };
    const char *what = NULL;
    TRY(json_only(o, "Strip", "type content start stop"));
    TRY(io_json_text(o, "Strip", "content", &what));
    TRY(io_json_int(o, "Strip", "start", &e.left));
    TRY(io_json_int(o, "Strip", "stop", &e.right));
    if (strcmp(what, " ") != 0 || e.left < 0 || e.right < 0 || e.left > 1000 || e.right > 1000)
        return ERR(
            "the decoder strips %lld and %lld of \"%s\": only spaces, and few, are supported",
            (long long)e.left, (long long)e.right, what);
    if (r->fused) {
        r->t->strip_left = (int)e.left;
        r->t->strip_right = (int)e.right;
    } else {
        each_token(r, strip_text, &e);
    }
    return OK;
}

static err decode_metaspace(const json_t *o, decoder_reader *r) {
    const char *mark = NULL, *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    bool never = scheme ? strcmp(scheme, "never") == 0
                        : json_is_false(json_object_get(o, "add_prefix_space"));
    replacement rep = { .with = r->first && !never ? "" : " " };
    TRY(json_only(o, "Metaspace",
                  "type replacement str_rep add_prefix_space prepend_scheme split"));
    TRY(io_json_text(o, "Metaspace", "replacement", &mark));
    rep.find.literal = strdup(mark);
    each_token(r, replace_text, &rep);
    finder_free(&rep.find);
    r->first_differs |= !never;
    return OK;
}

static err read_fuse(const json_t *o, decoder_reader *r) {
    r->fused = true;
    return json_only(o, "Fuse", "type");
}

static err read_byte_fallback(const json_t *o, decoder_reader *r) {
    each_token(r, as_bytes, NULL);
    return json_only(o, "ByteFallback", "type");
}

static err decode_byte_level(const json_t *o, decoder_reader *r) {
    if (!r->byte_level) return ERR("the decoder is ByteLevel but no pre-tokenizer is");
    return json_only(o, "ByteLevel", "type add_prefix_space trim_offsets use_regex");
}

static const struct {
    const char *type;
    bool each; /* works on tokens one by one: not allowed after Fuse */
    err (*read)(const json_t *o, decoder_reader *r);
} kinds[] = {
    { "ByteLevel", true, decode_byte_level },
    { "Replace", true, decode_replace },
    { "ByteFallback", true, read_byte_fallback },
    { "Fuse", false, read_fuse },
    { "Strip", false, read_strip },
    { "Metaspace", true, decode_metaspace },
};

static err read_one(const json_t *o, decoder_reader *r) {
    const char *type = NULL;
    TRY(io_json_text(o, "the decoder", "type", &type));
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        if (strcmp(kinds[i].type, type) != 0) continue;
        if (kinds[i].each && r->fused)
            return ERR("the decoder has %s after Fuse, which is not supported", type);
        return kinds[i].read(o, r);
    }
    return ERR("the decoder has the type \"%s\", which is not supported", type);
}

static err read_decoder(const json_t *o, decoder_reader *r) {
    const char *type = json_string_value(json_object_get(o, "type"));
    json_t *steps = NULL, *step;
    size_t i;
    if (!o || json_is_null(o)) return OK;
    if (!type || strcmp(type, "Sequence") != 0) return read_one(o, r);
    TRY(io_json_array(o, "the decoder", "decoders", &steps));
    json_array_foreach(steps, i, step) TRY(read_one(step, r));
    return OK;
}

/* ---- from all texts to what they give ------------------------------------------------------------------ */

/* Decodes each of the texts. @param out [vocab] in the reader's memory. */
static err decode_texts(const json_t *o, decoder_reader *r, const text_span *texts,
                        text_span *out) {
    int64_t vocab = r->t->vocab;
    r->fused = false;
    r->now = 0;
    r->text[0].len = 0;
    str_add(&r->text[0], "%s", "");
    for (int64_t i = 0; i < vocab; i++) {
        bool missing = texts[i].len == 0;
        r->at[i] = r->text[0].len;
        str_add_bytes(&r->text[0], missing ? "\xEF\xBF\xBD" : texts[i].at,
                      missing ? 3 : texts[i].len);
    }
    r->at[vocab] = r->text[0].len;
    TRY(read_decoder(o, r));
    for (int64_t i = 0; i < vocab; i++)
        out[i] = (text_span){ r->text[r->now].text + r->at[i], r->at[i + 1] - r->at[i] };
    return OK;
}

err json_decoder(const json_t *o, tokenizer *t, bool byte_level) {
    decoder_reader r = { .t = t, .byte_level = byte_level, .regex = regex_work_new(true) };
    text_span *texts = tokenizer_texts(t),
              *decoded = mem_alloc((size_t)(t->vocab + 1) * sizeof *decoded);
    err e = OK;
    r.at = mem_alloc(((size_t)t->vocab + 1) * sizeof *r.at);
    TRY_CLEAN(decode_texts(o, &r, texts, decoded));
    tokenizer_finish(t, decoded);
    if (r.first_differs) {
        r.first = true;
        TRY_CLEAN(decode_texts(o, &r, texts, decoded));
        t->decoded_first = spans_copy(decoded, t->vocab, &t->decoded_first_bytes);
    }
cleanup:
    free(texts);
    free(decoded);
    free(r.at);
    str_free(&r.text[0]);
    str_free(&r.text[1]);
    regex_work_free(r.regex);
    return e;
}
