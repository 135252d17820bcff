/* Token sources: opening, checking, reading. */
#include "data/data_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const TOKENIZER_NAMES[] = {
    [TOKENIZER_UNKNOWN] = "unknown",
    [TOKENIZER_BYTES] = "bytes",
    [TOKENIZER_BPE] = "bpe",
};

const char *tokenizer_kind_name(tokenizer_kind kind) {
    BUG_IF((int)kind < 0 || kind >= TOKENIZER_KINDS);
    return TOKENIZER_NAMES[kind];
}

const data_info *data_source_info(const data_source *s) { return &s->info; }

int32_t data_token(const data_source *s, int64_t i) {
    BUG_IF(i < 0 || i >= s->info.tokens);
    if (s->info.width == 2) return ((const uint16_t *)s->tokens)[i];
    return (int32_t)((const uint32_t *)s->tokens)[i];
}

void data_read(const data_source *s, int64_t from, int64_t n, int32_t *out) {
    BUG_IF(n > 0 && (from < 0 || from + n > s->info.tokens));
    if (s->info.width == 2) {
        const uint16_t *t = (const uint16_t *)s->tokens + from;
        for (int64_t i = 0; i < n; i++) out[i] = t[i];
    } else if (n > 0) {
        memcpy(out, (const uint32_t *)s->tokens + from, (size_t)n * sizeof *out);
    }
}

/* ---- checking ---------------------------------------------------------------------------- */

static uint32_t largest_id(const data_source *s) {
    uint32_t max = 0;
    if (s->info.width == 2) {
        const uint16_t *t = s->tokens;
        uint16_t max16 = 0;
        for (int64_t i = 0; i < s->info.tokens; i++) max16 = MAX(max16, t[i]);
        max = max16;
    } else {
        const uint32_t *t = s->tokens;
        for (int64_t i = 0; i < s->info.tokens; i++) max = MAX(max, t[i]);
    }
    return max;
}

static err id_beyond(const data_source *s, uint32_t max, int64_t limit, const char *whose) {
    int64_t at = 0;
    while ((uint32_t)data_token(s, at) < (uint64_t)limit) at++;
    return err_hint(ERR("%s: id %lld at token %lld is outside %s vocabulary of %lld (largest id in "
                        "the file: %lld)",
                        s->info.path, (long long)(uint32_t)data_token(s, at), (long long)at, whose,
                        (long long)limit, (long long)max),
                    "the file was made with another tokenizer than the model's; tokenize the text "
                    "again, or give the model a vocabulary of at least %lld",
                    (long long)max + 1);
}

static err check_ids(const data_source *s) {
    uint32_t max = largest_id(s);
    if (s->info.vocab > 0 && max >= s->info.vocab)
        return id_beyond(s, max, s->info.vocab, "the file's own");
    if (s->vocab_limit > 0 && max >= s->vocab_limit)
        return id_beyond(s, max, s->vocab_limit, "the model's");
    return OK;
}

err data_verify(const data_source *s) {
    size_t bytes = (size_t)s->info.tokens * (size_t)s->info.width;
    if (s->has_checksum && hash_bytes(s->tokens, bytes, 0) != s->checksum)
        return err_hint(ERR("%s: the tokens do not match the checksum in the header", s->info.path),
                        "the file was damaged after it was written; make it again with `ingot data "
                        "tokenize`, or copy it again");
    return check_ids(s);
}

static err check_declared_vocab(const data_source *s) {
    if (s->vocab_limit <= 0 || s->info.vocab <= s->vocab_limit) return OK;
    return err_hint(ERR("%s: made with a vocabulary of %lld, the model has %lld", s->info.path,
                        (long long)s->info.vocab, (long long)s->vocab_limit),
                    "give the model a vocabulary of at least %lld, or tokenize the text with the "
                    "model's tokenizer",
                    (long long)s->info.vocab);
}

/* ---- opening ----------------------------------------------------------------------------- */

static data_source *source_new(const char *path, int64_t vocab_limit) {
    data_source *s = mem_alloc(sizeof *s);
    s->path = mem_alloc(strlen(path) + 1);
    strcpy(s->path, path);
    s->info = (data_info){ .path = s->path, .documents = -1, .eos = -1 };
    s->vocab_limit = vocab_limit;
    return s;
}

/* Token files stay mapped; a text is left behind once its bytes have become tokens. */
static err open_content(data_source *s) {
    bool is_tokens = false;
    TRY(tokfile_parse(s, &is_tokens));
    if (!is_tokens) {
        TRY(str_ends(s->path, ".jsonl") ? jsonl_tokenize(s) : text_tokenize(s));
        io_unmap(&s->file);
    }
    TRY(check_declared_vocab(s));
    if (s->info.tokens * s->info.width <= DATA_VERIFY_BYTES) TRY(data_verify(s));
    return OK;
}

err data_open(const char *path, int64_t vocab_limit, data_source **out) {
    data_source *s = source_new(path, vocab_limit);
    err e = OK;
    TRY_CLEAN(io_map(path, &s->file));
    if (s->file.size == 0) {
        e = ERR("%s is empty", path);
        goto cleanup;
    }
    TRY_CLEAN(open_content(s));
    *out = s;
    s = NULL;
cleanup:
    data_close(s);
    return e;
}

err data_open_synth(uint64_t seed, int64_t documents, data_source **out) {
    if (documents < 1)
        return ERR("a synthetic corpus needs a document, %lld were asked for",
                   (long long)documents);
    data_source *s = source_new("synthetic corpus", 0);
    byte_tokens t = { 0 };
    str text = { 0 };
    for (int64_t i = 0; i < documents; i++) {
        text.len = 0;
        data_synth_document(seed, i, NULL, &text);
        byte_tokens_add(&t, text.text, text.len);
    }
    str_free(&text);
    byte_tokens_give(&t, "synthetic", s);
    *out = s;
    return OK;
}

err data_open_memory(const int32_t *tokens, int64_t n, int64_t vocab, int32_t eos,
                     data_source **out) {
    BUG_IF(n < 1);
    data_source *s = source_new("tokens in memory", 0);
    s->made = mem_alloc((size_t)n * sizeof *tokens);
    memcpy(s->made, tokens, (size_t)n * sizeof *tokens);
    s->tokens = s->made;
    s->info.format = "memory";
    s->info.tokens = n;
    s->info.vocab = vocab;
    s->info.eos = eos;
    s->info.width = 4;
    err e = data_verify(s);
    if (e) {
        data_close(s);
        return err_trail(e, __FILE__, __LINE__);
    }
    *out = s;
    return OK;
}

void data_close(data_source *s) {
    if (!s) return;
    io_unmap(&s->file);
    free(s->made);
    free(s->path);
    free(s);
}

/* ---- the held-out part ------------------------------------------------------------------- */

err data_split(const data_source *s, double fraction, int64_t seq_len, data_range *train,
               data_range *held_out) {
    int64_t n = s->info.tokens, need = seq_len + 1;
    if (!(fraction > 0 && fraction < 1))
        return err_hint(ERR("a held-out fraction of %g", fraction), "it must be between 0 and 1");
    int64_t cut = n - MAX((int64_t)((double)n * fraction), need);
    if (cut < need)
        return err_hint(ERR("%s has %lld tokens: too few for a window of %lld to train on and one "
                            "held out",
                            s->info.path, (long long)n, (long long)seq_len),
                        "use a longer file or a shorter sequence");
    /* Back to the end of a document, unless that costs much of the training part or of time. */
    int64_t least = MAX(need, cut - MIN(cut / 10, 1 << 20)), at = cut;
    while (at > least && data_token(s, at - 1) != s->info.eos) at--;
    if (at > least) cut = at;
    *train = (data_range){ 0, cut };
    *held_out = (data_range){ cut, n };
    return OK;
}
