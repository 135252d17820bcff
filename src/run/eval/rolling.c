/* Rolling windows:
 *
 *     prefix | t0 t1 ... | t(seq-1) ...        the input of a window is the token before it and all of its own but the last
 *            | t0 t1 ...              |        what it predicts
 *
 * so that every token of a document counts once, also the first. */
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"
#include "io/io.h"

/* Python's len(re.split(r"\s+", text)) of ASCII white space. */
static int64_t count_split_words(const char *text, size_t n) {
    int64_t words = 1;
    bool in_space = false;
    for (size_t i = 0; i < n; i++) {
        bool space = text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r');
        words += space && !in_space;
        in_space = space;
    }
    return words;
}

static err add_document(const task_run *r, const char *text, size_t n, eval_rolling *out) {
    token_ids ids = { 0 };
    encoder *enc = encoder_new(r->tok);
    const token_affixes *a = tokenizer_affixes(r->tok);
    /* A text begins with the last token of the tokenizer's prefix, else with the one that ends documents. */
    int32_t first = a->n_prefix ? a->prefix[a->n_prefix - 1] : tokenizer_eos(r->tok);
    if (first >= 0) token_ids_add(&ids, &first, 1);
    encoder_add(enc, text, n, false, &ids);
    encoder_free(enc);
    int64_t seq = r->on->seq, tokens = (int64_t)ids.n - 1,
            windows = MAX(0, (tokens + seq - 1) / seq);
    score_request *all = mem_alloc((size_t)MAX(windows, 1) * sizeof *all);
    for (int64_t i = 0; i < windows; i++)
        all[i] = (score_request){ ids.at + i * seq, MIN(seq, tokens - i * seq) + 1, 1 };
    err e = OK;
    if (windows) e = score_all(r->x, r->m, r->on, all, windows, NULL, NULL);
    for (int64_t i = 0; i < windows && !e; i++) out->sum += all[i].sum;
    out->documents++;
    out->tokens += MAX(tokens, 0);
    out->words += count_split_words(text, n);
    out->bytes += (int64_t)n;
    free(all);
    token_ids_free(&ids);
    return e;
}

static err add_json_document(const task_run *r, const char *path, int64_t number, const char *line,
                             size_t n, eval_rolling *out) {
    char name[512];
    json_t *doc;
    snprintf(name, sizeof name, "%.400s:%lld", path, (long long)number);
    TRY(io_json_parse(line, n, name, &doc));
    const json_t *v = json_object_get(doc, "text");
    if (!v) v = json_object_get(doc, "page"); /* WikiText of the harness */
    err e = json_is_string(v)
                ? add_document(r, json_string_value(v), json_string_length(v), out)
                : err_hint(ERR("%s: \"text\" is not a text", name),
                           "give JSON lines with \"text\" or \"page\", or a text file");
    json_decref(doc);
    return e;
}

err eval_rolling_file(const task_run *r, const char *path, eval_rolling *out) {
    enum { MOST_BYTES = 1 << 30 };
    char *text = NULL;
    size_t len = 0;
    err e = OK;
    *out = (eval_rolling){ 0 };
    TRY(io_read(path, MOST_BYTES, &text, &len));
    bool lines = str_ends(path, ".jsonl") || str_ends(path, ".json");
    if (!lines) e = add_document(r, text, len, out);
    for (size_t at = 0, number = 1; lines && at < len && !e; number++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        if (strspn(text + at, " \t\r") < n)
            e = add_json_document(r, path, (int64_t)number, text + at, n, out);
        at += n + 1;
        if (r->show.on_batch) r->show.on_batch(r->show.ctx, (int64_t)MIN(at, len), (int64_t)len);
    }
    free(text);
    if (!e && !out->tokens) e = err_hint(ERR("%s holds nothing to predict", path), "give a text");
    return e;
}
