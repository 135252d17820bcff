/* How well a model answers: the likelihood of every answer (score.c), and generated answers (task_generate.c).
 *
 * An answer follows its context after the task's delimiter. Where the text of both is tokenized into other tokens than the context
 * alone, the tokens after the context's number count as the answer's. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/tasks_internal.h"
#include "io/io.h"

static int64_t characters_in(const char *text) {
    int64_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static bool is_white_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* ---- scores ---------------------------------------------------------------------------------- */
/* Puts a token before those of a text that has none before it. */
static void put_first(token_ids *ids, int32_t id) {
    token_ids whole = { mem_alloc((ids->n + 1) * sizeof *whole.at), ids->n + 1, ids->n + 1 };
    whole.at[0] = id;
    if (ids->n) memcpy(whole.at + 1, ids->at, ids->n * sizeof *whole.at);
    token_ids_free(ids);
    *ids = whole;
}

/* The tokens of a context and an answer. White space at a context's end counts as the answer's. With `whole` so does that of the
 * delimiter, but for its text. */
static err make_request(encoder *enc, const tokenizer *tok, const task_file *t, const char *context,
                        const char *choice, token_ids *ids, score_request *out) {
    token_ids before = { 0 };
    str s = { 0 };
    bool whole = t->row->by_tokens;
    str_add(&s, "%s%s", context, t->delimiter);
    size_t n = whole ? s.len : strlen(context);
    while (n > 0 && is_white_space(s.text[n - 1])) n--;
    encoder_add_prefixed(enc, s.text, n, false, &before);
    str_add(&s, "%s", choice);
    encoder_add_prefixed(enc, s.text, s.len, false, ids);
    str_free(&s);
    /* Something has to come first; in CORE a text always begins with the token that begins or ends documents. */
    bool bare = before.n == 0 || (whole && tokenizer_affixes(tok)->n_prefix == 0);
    if (bare && tokenizer_eos(tok) >= 0) {
        put_first(ids, tokenizer_eos(tok));
        before.n++;
    }
    *out = (score_request){ ids->at, (int64_t)ids->n, (int64_t)MIN(before.n, ids->n) };
    token_ids_free(&before);
    if (out->from < 1)
        return err_hint(ERR("an empty context, and the tokenizer has no token that begins a text"),
                        "give every question a context");
    return OK;
}

/* As DCLM counts: of answers, the tokens after those that all have in common at the beginning; of contexts, those that all have in
 * common at the end. */
static void find_common_part(task_type type, score_request *s, int n) {
    int64_t least = s[0].n, common = 0;
    bool end = type == TASK_SCHEMA;
    for (int k = 1; k < n; k++) least = MIN(least, s[k].n);
    for (bool same = true; same && common < least;) {
        int32_t first = s[0].tokens[end ? s[0].n - 1 - common : common];
        for (int k = 1; k < n; k++)
            same &= s[k].tokens[end ? s[k].n - 1 - common : common] == first;
        common += same;
    }
    for (int k = 0; k < n; k++) s[k].from = MAX(1, MIN(end ? s[k].n - common : common, s[k].n - 1));
}

static err print_details(const task_run *r, const task_question *q, const score_request *s,
                         int best, int best_norm) {
    if (!r->details) return OK;
    json_t *sums = json_array(), *doc;
    for (int k = 0; k < q->choices; k++) json_array_append_new(sums, json_real(s[k].sum));
    doc = json_pack("{s:o, s:o, s:i, s:i, s:i}", "context",
                    io_json_string(q->context, strlen(q->context)), "loglikelihood", sums, "answer",
                    q->answer, "chosen", best, "chosen_norm", best_norm);
    if (io_json_print(r->details, doc, JSON_COMPACT | JSON_REAL_PRECISION(9))) return OK;
    return ERR("cannot write the details: %s", strerror(errno));
}

static err count_right(const task_run *r, const task_file *t, const score_request *s,
                       task_score *out) {
    int64_t right = 0, right_norm = 0;
    double sum = 0;
    for (int64_t i = 0; i < t->n; s += t->question[i++].choices) {
        const task_question *q = &t->question[i];
        int best = 0, best_norm = 0;
        double most = -INFINITY, most_norm = -INFINITY;
        for (int k = 0; k < q->choices; k++) {
            double norm = s[k].sum / (double)MAX(1, characters_in(q->choice[k]));
            double value =
                t->row->by_tokens ? s[k].sum / (double)MAX(1, s[k].n - s[k].from) : s[k].sum;
            if (value > most) most = value, best = k;
            if (norm > most_norm) most_norm = norm, best_norm = k;
        }
        sum += s[q->answer].sum;
        right += best == q->answer;
        right_norm += best_norm == q->answer;
        TRY(print_details(r, q, s, best, best_norm));
    }
    out->questions = t->n;
    out->acc = (double)right / (double)t->n;
    out->acc_norm = t->row->by_tokens ? NAN : (double)right_norm / (double)t->n;
    out->likelihood = sum / (double)t->n;
    return OK;
}

typedef struct score_progress {
    const task_run *r;
    int64_t of;
} score_progress;
static void report_batch(void *ctx, int64_t done, int64_t tokens) {
    const score_progress *p = ctx;
    const eval_progress *show = &p->r->show;
    if (show->on_batch) show->on_batch(show->ctx, done, p->of);
}

/* The answers of a file as requests. */
typedef struct task_requests {
    score_request *all;
    token_ids *ids; /* what each request borrows */
    int64_t n;
} task_requests;

static void requests_free(task_requests *q) {
    for (int64_t i = 0; i < q->n; i++) token_ids_free(&q->ids[i]);
    free(q->ids);
    free(q->all);
}

static err requests_make(const tokenizer *tok, const task_file *t, task_requests *out) {
    int64_t n = 0, at = 0;
    for (int64_t i = 0; i < t->n; i++) n += t->question[i].choices;
    *out = (task_requests){ mem_alloc((size_t)n * sizeof *out->all),
                            mem_alloc((size_t)n * sizeof *out->ids), n };
    encoder *enc = encoder_new(tok);
    err e = OK;
    for (int64_t i = 0; i < t->n && !e; i++) {
        const task_question *q = &t->question[i];
        for (int k = 0; k < q->choices && !e; k++, at++)
            e = make_request(enc, tok, t, q->other[k] ? q->other[k] : q->context, q->choice[k],
                             &out->ids[at], &out->all[at]);
        if (!e && t->row->by_tokens && q->choices > 1)
            find_common_part(t->row->type, &out->all[at - q->choices], q->choices);
    }
    encoder_free(enc);
    return e;
}

/* Whether greedy decoding would yield the answers. */
static err count_greedy(const task_run *r, const task_file *t, const score_request *s,
                        task_score *out) {
    int64_t right = 0;
    double sum = 0;
    for (int64_t i = 0; i < t->n; i++) {
        bool whole = s[i].missed < 0.5;
        right += whole;
        sum += s[i].sum;
        TRY(print_details(r, &t->question[i], &s[i], whole ? 0 : -1, -1));
    }
    *out = (task_score){ (double)right / (double)t->n, NAN, sum / (double)t->n, t->n };
    return OK;
}

err task_score_all(const task_run *r, const task_file *t, task_score *out) {
    task_requests q;
    if (t->row->type == TASK_GENERATE && !r->gen)
        return err_hint(ERR("%s needs generated text, which is not made here", t->format),
                        "evaluate it with `ingot eval`");
    if (t->row->type == TASK_GENERATE) return task_generate_all(r, t, out);
    err e = requests_make(r->tok, t, &q);
    score_progress p = { r, q.n };
    if (!e) e = score_all(r->x, r->m, r->on, q.all, q.n, report_batch, &p);
    bool greedy = t->row->type == TASK_GREEDY;
    if (!e) e = greedy ? count_greedy(r, t, q.all, out) : count_right(r, t, q.all, out);
    requests_free(&q);
    return e;
}

err task_lengths(const tokenizer *tok, const task_file *t, int64_t seq, int64_t *longest,
                 int64_t *cut) {
    task_requests q;
    err e = requests_make(tok, t, &q);
    *longest = *cut = 0;
    for (int64_t i = 0; i < q.n && !e; i++) {
        *longest = MAX(*longest, q.all[i].n - 1); /* the last token is only predicted */
        *cut += q.all[i].n - 1 > seq;
    }
    requests_free(&q);
    return e;
}

double task_stderr(double share, int64_t n) {
    return n > 1 ? sqrt(share * (1 - share) / (double)(n - 1)) : 0;
}
