/* Perplexity over rolling windows, as EleutherAI's harness computes it:
 *
 *     prefix | t0 t1 ...          |                 a window predicts `seq` tokens; its input is the token before them and all of
 *            |                    | t(seq) ...  |   them but the last. The last window predicts the rest, and reads as many tokens
 *                     | context   | the rest |      before it as fit.
 *
 * Every token of a document counts once, also the first. */
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"
#include "eval/py_text.h"
#include "io/io.h"

/* Python's len(re.split(r"\s+", text)). */
static int64_t count_split_words(const char *text, size_t n) {
    int64_t words = 1;
    bool space = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += py_read(text + i, n - i, &cp);
        words += py_is_space(cp) && !space;
        space = py_is_space(cp);
    }
    return words;
}

/* ---- WikiText ------------------------------------------------------------------------------------- */
/* The harness undoes WikiText's tokenization before it scores a page, and counts words and bytes of the page as published. The
 * rules apply in turn to the whole text. Where `pair` is set, white space inside each pair of these two characters is removed;
 * '#' in `from` is any digit. */
static const struct {
    const char *from, *to, *pair;
} wikitext_rules[] = {
    { "s '", "s'", NULL },
    { "/' #/", "/'[0-9]/", NULL }, /* the harness writes the pattern itself */
    { " @-@ ", "-", NULL },
    { " @,@ ", ",", NULL },
    { " @.@ ", ".", NULL },
    { " : ", ": ", NULL },
    { " ; ", "; ", NULL },
    { " . ", ". ", NULL },
    { " ! ", "! ", NULL },
    { " ? ", "? ", NULL },
    { " , ", ", ", NULL },
    { NULL, NULL, "()" },
    { NULL, NULL, "[]" },
    { NULL, NULL, "{}" },
    { NULL, NULL, "\"\"" },
    { NULL, NULL, "''" },
    { "= = = =", "====", NULL },
    { "= = =", "===", NULL },
    { "= =", "==", NULL },
    { " \xC2\xB0 ", "\xC2\xB0", NULL }, /* degrees */
    { " \n", "\n", NULL },
    { "\n ", "\n", NULL },
    { " N ", " 1 ", NULL },
    { " 's", "'s", NULL },
};

static bool pattern_begins(const char *text, size_t n, const char *from) {
    size_t length = strlen(from);
    if (length > n) return false;
    for (size_t i = 0; i < length; i++)
        if (from[i] == '#' ? text[i] < '0' || text[i] > '9' : text[i] != from[i]) return false;
    return true;
}

static void replace_all(const char *text, size_t n, const char *from, const char *to, str *out) {
    for (size_t i = 0; i < n;) {
        if (pattern_begins(text + i, n - i, from)) {
            str_add_bytes(out, to, strlen(to));
            i += strlen(from);
        } else {
            str_add_bytes(out, text + i++, 1);
        }
    }
}

static void trim_pairs(const char *text, size_t n, const char *pair, str *out) {
    bool closed = true; /* until a character has no partner, and then none after it has one */
    for (size_t i = 0; i < n;) {
        bool opens = closed && text[i] == pair[0];
        const char *close = opens ? memchr(text + i + 1, pair[1], n - i - 1) : NULL;
        closed &= !opens || close;
        str_add_bytes(out, text + i++, 1);
        if (!close) continue;
        size_t end = (size_t)(close - text), from = i,
               to = i; /* the part that is not white space */
        for (bool found = false; i < end;) {
            uint32_t cp;
            size_t bytes = py_read(text + i, end - i, &cp);
            bool space = py_is_space(cp);
            found |= !space;
            i += bytes;
            if (!found) from = to = i;
            if (!space) to = i;
        }
        str_add_bytes(out, text + from, to - from);
        str_add_bytes(out, close, 1);
        i = end + 1;
    }
}

static str wikitext_detokenize(const char *text, size_t n) {
    str now = { 0 };
    str_add_bytes(&now, text, n);
    for (size_t i = 0; i < COUNT_OF(wikitext_rules); i++) {
        str next = { 0 };
        str_add_bytes(&next, "", 0);
        if (wikitext_rules[i].pair)
            trim_pairs(now.text, now.len, wikitext_rules[i].pair, &next);
        else
            replace_all(now.text, now.len, wikitext_rules[i].from, wikitext_rules[i].to, &next);
        str_free(&now);
        now = next;
    }
    return now;
}

/* ---- documents ------------------------------------------------------------------------------------ */
/* Adds the likelihood of a document's tokens. */
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
    for (int64_t i = 0; i < windows; i++) {
        int64_t end = MIN((i + 1) * seq, tokens), start = MAX(0, end - seq);
        all[i] = (score_request){ ids.at + start, end - start + 1, i * seq - start + 1 };
    }
    err e = OK;
    if (windows) e = score_all(r->x, r->m, r->on, all, windows, NULL, NULL);
    for (int64_t i = 0; i < windows && !e; i++) out->sum += all[i].sum;
    out->documents++;
    out->tokens += MAX(tokens, 0);
    free(all);
    token_ids_free(&ids);
    return e;
}

static void add_text_counts(const char *text, size_t n, eval_rolling *out) {
    out->words += count_split_words(text, n);
    out->bytes += (int64_t)n;
}

static err add_json_document(const task_run *r, const char *path, int64_t number, const char *line,
                             size_t n, eval_rolling *out) {
    char name[512];
    json_t *doc;
    snprintf(name, sizeof name, "%.400s:%lld", path, (long long)number);
    TRY(io_json_parse(line, n, name, &doc));
    const json_t *v = json_object_get(doc, "text"), *page = json_object_get(doc, "page");
    err e = OK;
    if (json_is_string(v)) {
        add_text_counts(json_string_value(v), json_string_length(v), out);
        e = add_document(r, json_string_value(v), json_string_length(v), out);
    } else if (!v && json_is_string(page)) { /* WikiText of the harness */
        add_text_counts(json_string_value(page), json_string_length(page), out);
        str text = wikitext_detokenize(json_string_value(page), json_string_length(page));
        e = add_document(r, text.text, text.len, out);
        str_free(&text);
    } else {
        e = err_hint(ERR("%s: \"text\" is not a text", name),
                     "give JSON lines with \"text\" or \"page\", or a text file");
    }
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
    if (!lines) {
        add_text_counts(text, len, out);
        e = add_document(r, text, len, out);
    }
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
