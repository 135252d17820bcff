/* Training: documents in, tokenizer out. Words are counted here, for all models. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/train_internal.h"

static const size_t DEFAULT_MEMORY = (size_t)1 << 30;

/* ---- progress ------------------------------------------------------------------------------------- */

static train_progress train_progress_new(bool quiet) {
    return (train_progress){ .quiet = quiet, .live = term_can_rewrite(stderr), .last = time_now() };
}

void train_progress_show(train_progress *p, const char *fmt, ...) {
    static const double LIVE_S = 0.2, PLAIN_S = 10;
    if (!p || p->quiet) return;
    double now = time_now();
    if (now - p->last < (p->live ? LIVE_S : PLAIN_S)) return;
    p->last = now;
    p->drawn = true;
    va_list args;
    va_start(args, fmt);
    if (p->live) fputs("\r\033[K", stderr);
    vfprintf(stderr, fmt, args);
    fputs(p->live ? "" : "\n", stderr);
    va_end(args);
    fflush(stderr);
}

void train_progress_end(train_progress *p) {
    if (p->live && p->drawn) fputs("\r\033[K", stderr);
    p->drawn = false;
}

/* ---- options -------------------------------------------------------------------------------------- */

static err check_special(const tokenizer_options *o) {
    for (int i = 0; i < o->n_special; i++) {
        size_t n = strlen(o->special[i]);
        for (int k = 0; o->metaspace && k < i; k++)
            if (strcmp(o->special[i], o->special[k]) == 0)
                return ERR("the special token \"%s\" is listed twice", o->special[i]);
        if (n == 0) return ERR("a special token is empty");
        if (utf8_valid(o->special[i], n) != n) return ERR("special token %d is not UTF-8", i + 1);
    }
    return OK;
}

static err check_options(const tokenizer_options *o) {
    bool bytes = o->metaspace == METASPACE_OFF || o->byte_fallback;
    int64_t least = (bytes ? 256 : 1) + o->n_special;
    TRY(check_special(o));
    BUG_IF(o->model == TRAIN_UNIGRAM && o->metaspace == METASPACE_OFF);
    BUG_IF(o->metaspace && o->n_special == 0);
    if (o->vocab < least)
        return err_hint(ERR("a vocabulary of %lld ids is too small: %s and %d special "
                            "token%s alone are %lld",
                            (long long)o->vocab, bytes ? "the 256 bytes" : "a character",
                            o->n_special, o->n_special == 1 ? "" : "s", (long long)least),
                        "32000 is usual for one language, 128000 for many");
    if (o->vocab > TOKEN_MAX_ID)
        return err_hint(ERR("a vocabulary of %lld ids is more than the %d there can be",
                            (long long)o->vocab, TOKEN_MAX_ID),
                        "32000 is usual for one language, 128000 for many");
    return OK;
}

/* Fills in the defaults that the header documents. */
static tokenizer_options with_defaults(tokenizer_options o) {
    if (!o.pattern) o.pattern = "gpt2";
    if (o.threads <= 0) o.threads = thread_cores();
    if (o.memory == 0) o.memory = DEFAULT_MEMORY;
    if (o.coverage <= 0) o.coverage = 0.9995;
    return o;
}

/* ---- counting ------------------------------------------------------------------------------------- */

typedef struct word_counting {
    word_counts *counts;
    splitter *splitter;
    norm_step norms[MAX_STEPS];
    int n_norms, threads;
    struct norm_buffers {
        str text[2], word;
    } * buffers; /* [threads] */
    metaspace_prepend metaspace;
    train_progress *progress;
    int64_t words, raw_bytes, all_bytes;
} word_counting;

/* Words as Metaspace makes them: each begins with a space, which is written as U+2581; so does the text. */
static err count_metaspace_words(word_counting *c, int worker, text_span t, int64_t *words) {
    static const char mark[] = "\xE2\x96\x81";
    str *word = &c->buffers[worker].word;
    word->len = 0;
    if (c->metaspace != METASPACE_NEVER && t.len && t.at[0] != ' ' &&
        !(t.len >= 3 && memcmp(t.at, mark, 3) == 0))
        str_add_bytes(word, mark, sizeof mark - 1);
    for (size_t i = 0; i < t.len;) {
        bool marked = t.len - i >= 3 && memcmp(t.at + i, mark, 3) == 0;
        if (t.at[i] == ' ' || marked) {
            if (word->len) TRY(word_counts_add(c->counts, worker, word->text, word->len, 1));
            *words += word->len > 0;
            word->len = 0;
            str_add_bytes(word, mark, sizeof mark - 1);
            i += marked ? 3 : 1;
            continue;
        }
        size_t end = i + 1;
        while (end < t.len && t.at[end] != ' ' && t.at[end] != mark[0]) end++;
        str_add_bytes(word, t.at + i, end - i);
        i = end;
    }
    if (!word->len) return OK;
    ++*words;
    return word_counts_add(c->counts, worker, word->text, word->len, 1);
}

static err count_block_words(void *ctx, int worker, const text_block *b, void *result) {
    word_counting *c = ctx;
    int64_t words = 0;
    for (int i = 0; i < b->n; i++) {
        /* None of these needs a regular expression. */
        text_span t =
            normalize_text(c->norms, c->n_norms, NULL, b->docs[i].text, c->buffers[worker].text);
        if (c->metaspace) {
            TRY(count_metaspace_words(c, worker, t, &words));
            continue;
        }
        for (size_t from = 0, to; from < t.len; from = to, words++) {
            to = splitter_next(c->splitter, t.at, t.len, from);
            TRY(word_counts_add(c->counts, worker, t.at + from, to - from, 1));
        }
    }
    *(int64_t *)result = words;
    return OK;
}

static err block_counted(void *ctx, const text_block *b, void *result) {
    word_counting *c = ctx;
    char done[32], all[32];
    c->words += *(int64_t *)result;
    c->raw_bytes += b->raw_bytes;
    train_progress_show(c->progress, "counting words: %s of %s",
                        str_bytes(done, sizeof done, (double)c->raw_bytes),
                        c->all_bytes ? str_bytes(all, sizeof all, (double)c->all_bytes) : "?");
    return OK;
}

static err counting_init(word_counting *c, const tokenizer_options *o) {
    if (!o->metaspace) TRY(splitter_check(o->pattern));
    TRY(norms_parse(o->normalize, c->norms, &c->n_norms));
    c->threads = o->threads;
    c->metaspace = o->metaspace;
    c->buffers = mem_alloc((size_t)o->threads * sizeof *c->buffers);
    /* Half: laying the words out for learning holds both the counts and the cells. */
    c->counts = word_counts_new(o->memory / 2, o->threads);
    if (o->metaspace) return OK;
    err e = splitter_new(o->pattern, &c->splitter);
    return e ? err_hint(e, "gpt2, cl100k, qwen2 and o200k are known by name") : OK;
}

static void counting_free(word_counting *c) {
    for (int i = 0; c->buffers && i < c->threads; i++) {
        for (int k = 0; k < 2; k++) str_free(&c->buffers[i].text[k]);
        str_free(&c->buffers[i].word);
    }
    free(c->buffers);
    splitter_free(c->splitter);
    word_counts_free(c->counts);
}

static err count_input_words(word_counting *c, text_inputs *in, text_counts *read) {
    text_pipeline flow = {
        .ctx = c, .result_size = sizeof(int64_t), .work = count_block_words, .merge = block_counted
    };
    c->all_bytes = text_inputs_bytes(in);
    for (int s = 0; s < text_segments(in); s++)
        TRY(text_pipeline_run(in, s, &flow, c->threads, read));
    TRY(word_counts_seal(c->counts));
    if (c->words == 0)
        return err_hint(ERR("no text to learn from: %lld documents with words, %lld empty, %lld "
                            "unreadable, %lld excluded",
                            (long long)read->documents, (long long)read->empty,
                            (long long)read->unreadable, (long long)read->excluded),
                        "check the inputs: the names of their members if they are JSON, and the "
                        "longest record that is read");
    return OK;
}

/* ---- reporting -------------------------------------------------------------------------------------- */

static void report_counted(const word_counting *c, const text_counts *read, double seconds) {
    char bytes[32], words[32], spilled[32], time[32];
    log_info("counted %s words in %lld documents, %s of text: %s",
             str_count(words, sizeof words, (double)c->words), (long long)read->documents,
             str_bytes(bytes, sizeof bytes, (double)read->bytes),
             str_duration(time, sizeof time, seconds));
    int64_t n = word_counts_spilled(c->counts);
    if (n)
        log_info("%s of counts went through temporary files, to stay inside the memory cap",
                 str_bytes(spilled, sizeof spilled, (double)n));
}

void report_uncovered(int64_t chars, const tokenizer_options *o) {
    if (chars)
        log_info("%lld rare characters have no token of their own: %s", (long long)chars,
                 o->byte_fallback ? "they become bytes" : "they become the unknown token");
}

static void report_learned(const bpe_learned *l, const tokenizer_options *o, double seconds) {
    char time[32];
    if (!o->quiet)
        log_info("learned %lld merges: %s", (long long)l->n_merges,
                 str_duration(time, sizeof time, seconds));
    if (!o->quiet) report_uncovered(l->uncovered, o);
    if (l->n_tokens < o->vocab)
        log_warn("the text has no more pairs seen %lld times: %lld ids were made, not %lld",
                 (long long)MAX(1, o->min_frequency), (long long)l->n_tokens, (long long)o->vocab);
}

/* ---- the whole run ------------------------------------------------------------------------------------ */

/* Counts words, and gives them to what learns from them. */
static err learn_documents(text_inputs *in, const tokenizer_options *o, bpe_learned *merges,
                           tokenizer **out) {
    train_progress progress = train_progress_new(o->quiet);
    word_counting c = { .progress = &progress };
    text_counts read = { 0 };
    double begin = time_now();
    err e = OK;
    TRY(check_options(o));
    TRY_CLEAN(counting_init(&c, o));
    TRY_CLEAN(count_input_words(&c, in, &read));
    train_progress_end(&progress);
    if (!o->quiet) report_counted(&c, &read, time_now() - begin);
    begin = time_now();
    TRY_CLEAN(merges ? bpe_learn(c.counts, o, &progress, merges)
                     : unigram_learn(c.counts, o, &progress, out));
    train_progress_end(&progress);
    if (merges) report_learned(merges, o, time_now() - begin);
cleanup:
    train_progress_end(&progress);
    counting_free(&c);
    return e;
}

err bpe_learn_documents(text_inputs *in, const tokenizer_options *options, bpe_learned *out) {
    tokenizer_options o = with_defaults(*options);
    *out = (bpe_learned){ 0 };
    return learn_documents(in, &o, out, NULL);
}

/* Hugging Face gives both the same id, and then reads the text as the special token everywhere. */
static err check_twins(const bpe_learned *l) {
    if (l->twin < 0) return OK;
    text_span t = l->tokens[l->twin];
    return err_hint(ERR("the special token \"%.*s\" is also what the text's own tokens look like, "
                        "and one id cannot be both",
                        (int)t.len, t.at),
                    "give special tokens a text that is in no document, such as <|endoftext|>");
}

err tokenizer_learn(text_inputs *in, const tokenizer_options *options, tokenizer **out) {
    bpe_learned l;
    err e = OK;
    *out = NULL;
    if (options->model == TRAIN_UNIGRAM) {
        tokenizer_options o = with_defaults(*options);
        return learn_documents(in, &o, NULL, out);
    }
    TRY_CLEAN(bpe_learn_documents(in, options, &l));
    TRY_CLEAN(check_twins(&l));
    if (options->metaspace) {
        TRY_CLEAN(metaspace_bpe(&l, options, out));
        goto cleanup;
    }
    bpe_parts parts = { .pattern = with_defaults(*options).pattern,
                        .normalize = options->normalize,
                        .tokens = l.tokens,
                        .n_tokens = l.n_tokens,
                        .merges = l.merges,
                        .n_merges = l.n_merges,
                        .special = l.special,
                        .n_special = l.n_special };
    TRY_CLEAN(tokenizer_from_bpe(&parts, out));
cleanup:
    bpe_learned_free(&l);
    return e;
}
