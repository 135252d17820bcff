/* Texts as sources. They are read by the pipeline of `ingot data tokenize` (text/), so that a file
 * gives the same tokens whether it is trained on directly or tokenized first; only, what that skips
 * and counts is an error here, since the count would not be shown. Tokens are kept in memory.
 *
 *     file -> blocks of documents -> workers: tokens of a block -> in order: tokens of the source */
#include "shards/data_internal.h"

#include <stdlib.h>
#include <string.h>

#include "parquet/parquet.h"
#include "tokenizer/tokenizer.h"

/* Text may hold this share of bytes that are not UTF-8 before it is taken for something else. */
static const double MAX_INVALID = 0.001;

/* ---- tokens under construction ------------------------------------------------------------- */

static void *reserve_tokens(token_buffer *t, size_t n) {
    if (t->n + n > t->cap) {
        t->cap = MAX(t->cap * 2, t->n + n);
        t->at = mem_grow(t->at, t->cap * (size_t)t->width);
    }
    t->n += n;
    return (char *)t->at + (t->n - n) * (size_t)t->width;
}

static void end_document(token_buffer *t, uint64_t end) {
    if (t->docs == t->docs_cap) {
        t->docs_cap = MAX(64, t->docs_cap * 2);
        t->ends = mem_grow(t->ends, t->docs_cap * sizeof *t->ends);
        t->prompts = mem_grow(t->prompts, t->docs_cap * sizeof *t->prompts);
    }
    t->prompts[t->docs] = 0;
    t->ends[t->docs++] = end;
}

void token_buffer_add(token_buffer *t, const int32_t *ids, size_t n, int32_t eos) {
    if (n == 0) return;
    void *to = reserve_tokens(t, n + (eos >= 0));
    if (t->width == 2) {
        uint16_t *narrow = to;
        for (size_t i = 0; i < n; i++) narrow[i] = (uint16_t)ids[i];
        if (eos >= 0) narrow[n] = (uint16_t)eos;
    } else {
        memcpy(to, ids, n * sizeof *ids);
        if (eos >= 0) ((int32_t *)to)[n] = eos;
    }
    end_document(t, t->n);
}

void token_buffer_add_bytes(token_buffer *t, const char *text, size_t n) {
    BUG_IF(t->width != 2);
    if (n == 0) return;
    uint16_t *to = reserve_tokens(t, n + 1);
    for (size_t i = 0; i < n; i++) to[i] = (unsigned char)text[i];
    to[n] = BYTE_EOS;
    end_document(t, t->n);
}

static void append_buffer(token_buffer *t, const token_buffer *from) {
    BUG_IF(t->width != from->width);
    uint64_t before = t->n;
    if (from->n) memcpy(reserve_tokens(t, from->n), from->at, from->n * (size_t)t->width);
    for (size_t d = 0; d < from->docs; d++) end_document(t, before + from->ends[d]);
}

void token_buffer_move(token_buffer *t, data_shard *s) {
    BUG_IF(t->n == 0);
    s->made = t->at;
    s->tokens = t->at;
    s->width = t->width;
    s->n = (int64_t)t->n;
    s->docs = (int64_t)t->docs;
    s->made_ends = t->ends;
    s->ends = t->ends;
    free(t->prompts);
    *t = (token_buffer){ 0 };
}

void token_buffer_free(token_buffer *t) {
    free(t->at);
    free(t->ends);
    free(t->prompts);
    *t = (token_buffer){ 0 };
}

data_info byte_info(const char *format) {
    return (data_info){
        .format = format, .tokenizer = TOKENIZER_BYTES, .vocab = BYTE_VOCAB, .eos = BYTE_EOS
    };
}

/* ---- what is not text ------------------------------------------------------------------------ */

static int64_t count_invalid(const unsigned char *text, size_t n) {
    byte_decoder d = { 0 };
    char out[BYTE_DECODE_MAX];
    int64_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        if (d.len == 0 && text[i] < 0x80) continue;
        int got = byte_decoder_push(&d, text[i], out);
        /* A replacement that was not in the text came from bytes that are not a character. */
        bool genuine = got == 3 && i >= 2 && memcmp(text + i - 2, out, 3) == 0;
        bad += got >= 3 && memcmp(out, "\xEF\xBF\xBD", 3) == 0 && !genuine;
    }
    return bad + (byte_decoder_end(&d, out) > 0);
}

/* gzip, zstd, Parquet, Arrow: text/ looks inside. */
static bool is_compressed(const io_mapping *m) {
    return m->size > 4 &&
           (memcmp(m->data, "\x1F\x8B", 2) == 0 || memcmp(m->data, "\x28\xB5\x2F\xFD", 4) == 0 ||
            parquet_has_magic(m->data, m->size));
}

static err check_text(const data_shard *s) {
    if (is_compressed(&s->file)) return OK;
    const unsigned char *nul = memchr(s->file.data, 0, s->file.size);
    if (nul)
        return err_hint(
            ERR("%s: byte %lld is zero, so this is neither text nor a token file known "
                "here",
                s->path, (long long)(nul - s->file.data)),
            "known are .tok files, llm.c .bin, raw tokens named .bin, .parquet, .arrow, .jsonl "
            "and UTF-8 text, the last two also as .gz and .zst");
    int64_t bad = count_invalid(s->file.data, s->file.size);
    if ((double)bad > MAX_INVALID * (double)s->file.size)
        return err_hint(
            ERR("%s: %lld of %zu bytes are not UTF-8", s->path, (long long)bad, s->file.size),
            "convert the text to UTF-8, for example with iconv");
    return OK;
}

/* ---- documents to tokens ------------------------------------------------------------------- */

typedef struct text_worker {
    encoder *encoder;
    token_ids ids;       /* of one document */
    token_buffer tokens; /* of one block; appended before the worker begins another */
} text_worker;

typedef struct text_job {
    tokenizer *t;
    document_layout layout;
    int threads;
    text_worker *workers; /* [threads] */
    token_buffer all;
} text_job;

static err encode_text_block(void *ctx, int index, const text_block *b, void *result) {
    const text_job *j = ctx;
    text_worker *w = &j->workers[index];
    *(text_worker **)result = w;
    w->tokens.n = w->tokens.docs = 0;
    for (int i = 0; i < b->n; i++) {
        document_encode(w->encoder, &j->layout, NULL, 0, b->docs[i].text.at, b->docs[i].text.len,
                        &w->ids);
        token_buffer_add(&w->tokens, w->ids.at, w->ids.n, j->layout.append);
    }
    return OK;
}

static err append_block(void *ctx, const text_block *b, void *result) {
    text_job *j = ctx;
    append_buffer(&j->all, &(*(text_worker **)result)->tokens);
    return OK;
}

static err job_open(text_job *j, const data_options *o, data_info *info) {
    const char *name = o->tokenizer ? o->tokenizer : "bytes";
    TRY(tokenizer_open(name, NULL, &j->t));
    err e = document_layout_of(j->t, DOCUMENT_END_OWN, !o->no_prefix, &j->layout);
    if (e) {
        err_free(e);
        return err_hint(ERR("%s: has no token that ends a document", name),
                        "tokenize the text with `ingot data tokenize --eos TOKEN` and train on "
                        "what it writes");
    }
    token_kind kind = token_kind_of(j->t);
    *info = kind == TOKENIZER_BYTES ? byte_info("text")
                                    : (data_info){ .format = "text",
                                                   .tokenizer = kind,
                                                   .tokenizer_hash = tokenizer_hash(j->t),
                                                   .vocab = tokenizer_vocab(j->t),
                                                   .eos = j->layout.eos };
    j->all.width = token_width(info->vocab);
    j->threads = thread_cores();
    j->workers = mem_alloc((size_t)j->threads * sizeof *j->workers);
    for (int i = 0; i < j->threads; i++)
        j->workers[i] =
            (text_worker){ .encoder = encoder_new(j->t), .tokens = { .width = j->all.width } };
    return OK;
}

static void job_free(text_job *j) {
    for (int i = 0; i < j->threads; i++) {
        encoder_free(j->workers[i].encoder);
        token_ids_free(&j->workers[i].ids);
        token_buffer_free(&j->workers[i].tokens);
    }
    free(j->workers);
    token_buffer_free(&j->all);
    tokenizer_free(j->t);
}

err text_tokenize(data_shard *s, const data_options *o, data_info *info) {
    static const text_pipeline stages = { .result_size = sizeof(text_worker *),
                                          .work = encode_text_block,
                                          .merge = append_block };
    text_job j = { 0 };
    text_inputs *in = NULL;
    text_pipeline f = stages;
    const char *path = s->path;
    err e = OK;
    f.ctx = &j;
    if (s->file.size) TRY(check_text(s)); /* of a folder, text/ checks each file */
    TRY_CLEAN(text_inputs_open(&path, 1, &(text_input_options){ .strict = true }, &in));
    TRY_CLEAN(job_open(&j, o, info));
    text_counts counts = { 0 };
    for (int i = 0; i < text_segments(in) && !e; i++)
        e = text_pipeline_run(in, i, &f, j.threads, &counts);
    if (!e && j.all.n == 0) e = ERR("%s holds no text", s->path);
    if (!e) token_buffer_move(&j.all, s);
cleanup:
    text_inputs_close(in);
    job_free(&j);
    return e;
}
