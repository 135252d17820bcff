/* Questions with several answers, in the files they are published in, and how often the likeliest answer is
 * the right one. Contexts, answers and scores are those of EleutherAI's lm-evaluation-harness:
 *
 *     hellaswag   activity_label, ctx_a, ctx_b, endings, label
 *     arc         question, choices { text, label } (or question { stem, choices }), answerKey
 *     piqa        goal, sol1, sol2, label
 *     mmlu        question, choices [4], answer, subject
 *     choices     context, choices, answer (an index from 0): used as they are
 *
 * An answer follows its context after a space. Where the text of both is tokenized into other tokens than
 * the context alone, the tokens after the context's number count as the answer's. */
#include "eval/eval.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "io/io.h"

/* ---- texts ---------------------------------------------------------------------------------- */
static bool is_white_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* The text without white space at both ends. */
static void strip_spaces(str *s) {
    size_t from = 0;
    while (s->len > 0 && is_white_space(s->text[s->len - 1])) s->len--;
    while (from < s->len && is_white_space(s->text[from])) from++;
    memmove(s->text, s->text + from, s->len - from);
    s->len -= from;
    s->text[s->len] = 0;
}

static void replace_all(str *s, const char *what, const char *by) {
    str out = { 0 };
    const char *at = s->text, *hit;
    for (; (hit = strstr(at, what)); at = hit + strlen(what))
        str_add(&out, "%.*s%s", (int)(hit - at), at, by);
    str_add(&out, "%s", at);
    str_free(s);
    *s = out;
}

/* Removes what stands in brackets: "[step] Mix." becomes " Mix." */
static void remove_brackets(str *s) {
    size_t to = 0;
    for (size_t i = 0; i < s->len;) {
        const char *end = s->text[i] == '[' ? memchr(s->text + i, ']', s->len - i) : NULL;
        if (end && !memchr(s->text + i, '\n', (size_t)(end - s->text) - i))
            i = (size_t)(end - s->text) + 1;
        else
            s->text[to++] = s->text[i++];
    }
    s->len = to;
    s->text[to] = 0;
}

/* Appends text with its first character in upper case and the others in lower case. */
static void add_capitalized(str *s, const char *text) {
    utf8proc_ssize_t left = (utf8proc_ssize_t)strlen(text), n;
    bool first = true;
    for (utf8proc_int32_t c; left > 0; text += n, left -= n, first = false) {
        utf8proc_uint8_t bytes[4];
        n = utf8proc_iterate((const utf8proc_uint8_t *)text, left, &c);
        if (n < 1) return;
        c = first ? utf8proc_totitle(c) : utf8proc_tolower(c);
        str_add(s, "%.*s", (int)utf8proc_encode_char(c, bytes), (const char *)bytes);
    }
}

static int64_t characters_in(const char *text) {
    int64_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* ---- one line of a file --------------------------------------------------------------------- */
typedef struct task_line {
    const json_t *doc;
    char name[512]; /* file:line, for messages */
} task_line;

static err read_text_member(const task_line *l, const json_t *object, const char *key,
                            const char **out) {
    *out = json_string_value(json_object_get(object, key));
    if (*out) return OK;
    return err_hint(ERR("%s: \"%s\" is not a text", l->name, key),
                    "each line is one question, in the format of its first line");
}

static err add_choice(const task_line *l, task_question *q, const char *text) {
    if (!text || q->choices == TASK_MAX_CHOICES)
        return ERR("%s: an answer is not text, or there are more than %d", l->name,
                   TASK_MAX_CHOICES);
    q->choice[q->choices++] = strdup(text);
    return OK;
}

static err add_choices(const task_line *l, task_question *q, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(add_choice(l, q, json_string_value(json_array_get(list, i))));
    return OK;
}

/* The right answer: an index as a number or as text, or a letter. */
static err read_answer(const task_line *l, task_question *q, const char *key) {
    const json_t *v = json_object_get(l->doc, key);
    const char *text = json_string_value(v);
    long long at = json_is_integer(v) ? json_integer_value(v) : -1;
    char *end;
    if (text && text[0] >= 'A' && text[0] <= 'Z' && !text[1]) at = text[0] - 'A';
    if (text && text[0] >= '0' && text[0] <= '9') {
        at = strtoll(text, &end, 10);
        if (*end) at = -1;
    }
    if (at < 0 || at >= q->choices)
        return err_hint(ERR("%s: \"%s\" names none of the %d answers", l->name, key, q->choices),
                        "test sets are often published without answers: use the validation set");
    q->answer = (int)at;
    return OK;
}

/* ---- formats --------------------------------------------------------------------------------- */
static char *hellaswag_text(str *s) {
    strip_spaces(s);
    replace_all(s, " [title]", ". ");
    remove_brackets(s);
    replace_all(s, "  ", " ");
    return s->text;
}

static err read_hellaswag(const task_line *l, task_question *q) {
    const char *label, *a, *b;
    str s = { 0 };
    TRY(read_text_member(l, l->doc, "activity_label", &label));
    TRY(read_text_member(l, l->doc, "ctx_a", &a));
    TRY(read_text_member(l, l->doc, "ctx_b", &b));
    str_add(&s, "%s: %s ", label, a);
    add_capitalized(&s, b);
    q->context = hellaswag_text(&s);
    TRY(add_choices(l, q, json_object_get(l->doc, "endings")));
    for (int i = 0; i < q->choices; i++) {
        str ending = { 0 };
        str_add(&ending, "%s", q->choice[i]);
        free(q->choice[i]);
        q->choice[i] = hellaswag_text(&ending);
    }
    return read_answer(l, q, "label");
}

/* Both forms in which it is published. */
static err read_arc(const task_line *l, task_question *q) {
    const json_t *question = json_object_get(l->doc, "question");
    const json_t *choices =
        json_object_get(json_is_object(question) ? question : l->doc, "choices");
    const json_t *labels = json_object_get(choices, "label");
    const char *text, *key;
    str s = { 0 };
    if (json_is_object(question))
        TRY(read_text_member(l, question, "stem", &text));
    else
        TRY(read_text_member(l, l->doc, "question", &text));
    TRY(read_text_member(l, l->doc, "answerKey", &key));
    str_add(&s, "Question: %s\nAnswer:", text);
    q->context = s.text;
    q->answer = -1;
    if (json_is_object(choices)) TRY(add_choices(l, q, json_object_get(choices, "text")));
    for (size_t i = 0; i < json_array_size(choices); i++) {
        TRY(read_text_member(l, json_array_get(choices, i), "text", &text));
        TRY(add_choice(l, q, text));
    }
    for (int i = 0; i < q->choices; i++) {
        const json_t *one = json_array_get(choices, (size_t)i);
        const char *label = json_string_value(one ? json_object_get(one, "label")
                                                  : json_array_get(labels, (size_t)i));
        if (label && strcmp(label, key) == 0) q->answer = i;
    }
    if (q->answer >= 0) return OK;
    return ERR("%s: \"answerKey\" names none of the %d answers", l->name, q->choices);
}

static err read_piqa(const task_line *l, task_question *q) {
    const char *goal, *text;
    str s = { 0 };
    TRY(read_text_member(l, l->doc, "goal", &goal));
    str_add(&s, "Question: %s\nAnswer:", goal);
    q->context = s.text;
    TRY(read_text_member(l, l->doc, "sol1", &text));
    TRY(add_choice(l, q, text));
    TRY(read_text_member(l, l->doc, "sol2", &text));
    TRY(add_choice(l, q, text));
    return read_answer(l, q, "label");
}

static err read_mmlu(const task_line *l, task_question *q) {
    const char *text, *subject;
    str s = { 0 }, question = { 0 };
    const json_t *choices = json_object_get(l->doc, "choices");
    TRY(read_text_member(l, l->doc, "subject", &subject));
    TRY(read_text_member(l, l->doc, "question", &text));
    str_add(&question, "%s", text);
    strip_spaces(&question);
    str_add(&s, "The following are multiple choice questions (with answers) about %s.\n\n%s\n",
            subject, question.text);
    str_free(&question);
    for (char *c = s.text; c < strchr(s.text, '\n'); c++)
        if (*c == '_') *c = ' ';
    q->context = s.text;
    for (size_t i = 0; i < json_array_size(choices) && i < 26; i++) {
        char letter[2] = { (char)('A' + i), 0 };
        const char *answer = json_string_value(json_array_get(choices, i));
        str_add(&s, "%s. %s\n", letter, answer ? answer : "");
        q->context = s.text;
        TRY(add_choice(l, q, letter));
    }
    str_add(&s, "Answer:");
    q->context = s.text;
    return read_answer(l, q, "answer");
}

static err read_choices(const task_line *l, task_question *q) {
    const char *context;
    TRY(read_text_member(l, l->doc, "context", &context));
    q->context = strdup(context);
    TRY(add_choices(l, q, json_object_get(l->doc, "choices")));
    return read_answer(l, q, "answer");
}

/* The first whose fields are all there is the file's. */
static const struct task_format {
    const char *name, *fields[4];
    err (*read)(const task_line *l, task_question *q);
} formats[] = {
    { "hellaswag", { "activity_label", "ctx_a", "ctx_b", "endings" }, read_hellaswag },
    { "arc", { "question", "answerKey" }, read_arc },
    { "piqa", { "goal", "sol1", "sol2" }, read_piqa },
    { "mmlu", { "question", "choices", "answer", "subject" }, read_mmlu },
    { "choices", { "context", "choices", "answer" }, read_choices },
};

static const struct task_format *find_task_format(const json_t *doc) {
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        bool all = true;
        for (int k = 0; k < 4 && formats[i].fields[k]; k++)
            all &= json_object_get(doc, formats[i].fields[k]) != NULL;
        if (all) return &formats[i];
    }
    return NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */
static err read_question(const char *path, int64_t number, const char *text, size_t n,
                         const struct task_format **format, task_file *out) {
    task_line l;
    json_t *doc;
    snprintf(l.name, sizeof l.name, "%.400s:%lld", path, (long long)number);
    TRY(io_json_parse(text, n, l.name, &doc));
    l.doc = doc;
    if (!*format) *format = find_task_format(doc);
    if (!*format) {
        json_decref(doc);
        return err_hint(ERR("%s: not a question of a known format", l.name),
                        "expected JSON lines of HellaSwag, ARC, PIQA or MMLU, or lines with "
                        "\"context\", \"choices\" and \"answer\"");
    }
    mem_reserve((void **)&out->question, &out->cap, out->n, sizeof *out->question);
    task_question *q = &out->question[out->n++];
    *q = (task_question){ 0 };
    err e = (*format)->read(&l, q);
    if (!e && q->choices < 2)
        e = ERR("%s: a question needs two answers or more, this has %d", l.name, q->choices);
    json_decref(doc);
    return e;
}

err task_read(const char *path, int64_t limit, task_file *out) {
    enum { MOST_BYTES = 1 << 30 };
    char *text = NULL;
    size_t len = 0;
    const struct task_format *format = NULL;
    err e = OK;
    *out = (task_file){ 0 };
    TRY(io_read(path, MOST_BYTES, &text, &len));
    int64_t number = 1;
    for (size_t at = 0; at < len && !(limit && out->n == limit); number++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        bool blank = strspn(text + at, " \t\r") >= n;
        if (!blank) TRY_CLEAN(read_question(path, number, text + at, n, &format, out));
        at += n + 1;
    }
    if (!out->n) e = err_hint(ERR("%s holds no question", path), "give a file of JSON lines");
    out->format = format ? format->name : "";
cleanup:
    free(text);
    if (e) task_free(out);
    return e;
}

/* What stands before the first question of a context, and is not repeated. */
static size_t preamble_length(const task_file *t, const char *context) {
    const char *end = strcmp(t->format, "mmlu") == 0 ? strstr(context, "\n\n") : NULL;
    return end ? (size_t)(end - context) + 2 : 0;
}

void task_add_examples(task_file *t, const task_file *examples, int64_t n) {
    str before = { 0 };
    for (int64_t i = 0; i < MIN(n, examples->n); i++) {
        const task_question *q = &examples->question[i];
        str_add(&before, "%s %s\n\n", q->context + preamble_length(examples, q->context),
                q->choice[q->answer]);
    }
    for (int64_t i = 0; i < t->n && before.len; i++) {
        str s = { 0 };
        char *context = t->question[i].context;
        size_t first = preamble_length(t, context);
        str_add(&s, "%.*s%s%s", (int)first, context, before.text, context + first);
        free(context);
        t->question[i].context = s.text;
    }
    str_free(&before);
}

void task_free(task_file *t) {
    for (int64_t i = 0; i < t->n; i++) {
        free(t->question[i].context);
        for (int k = 0; k < t->question[i].choices; k++) free(t->question[i].choice[k]);
    }
    free(t->question);
    *t = (task_file){ 0 };
}

/* ---- scores ---------------------------------------------------------------------------------- */
/* The tokens of a context and an answer. White space at a context's end counts as the answer's. */
static err make_request(encoder *enc, const tokenizer *tok, const char *context, const char *choice,
                        token_ids *ids, score_request *out) {
    token_ids before = { 0 };
    str s = { 0 };
    size_t n = strlen(context);
    while (n > 0 && is_white_space(context[n - 1])) n--;
    str_add(&s, "%s %s", context, choice);
    encoder_add_prefixed(enc, s.text, s.len, false, ids);
    encoder_add_prefixed(enc, context, n, false, &before);
    str_free(&s);
    if (before.n == 0 && tokenizer_eos(tok) >= 0) { /* something has to come first */
        token_ids whole = { mem_alloc((ids->n + 1) * sizeof *whole.at), ids->n + 1, ids->n + 1 };
        whole.at[0] = tokenizer_eos(tok);
        memcpy(whole.at + 1, ids->at, ids->n * sizeof *whole.at);
        token_ids_free(ids);
        *ids = whole;
        before.n = 1;
    }
    *out = (score_request){ ids->at, (int64_t)ids->n, (int64_t)MIN(before.n, ids->n), 0 };
    token_ids_free(&before);
    if (out->from < 1)
        return err_hint(ERR("an empty context, and the tokenizer has no token that begins a text"),
                        "give every question a context");
    return OK;
}

static err print_details(const task_run *r, const task_question *q, const score_request *s,
                         int best, int best_norm) {
    if (!r->details) return OK;
    json_t *sums = json_array(), *doc;
    for (int k = 0; k < q->choices; k++) json_array_append_new(sums, json_real(s[k].sum));
    doc = json_pack("{s:o, s:o, s:i, s:i, s:i}", "context",
                    io_json_string(q->context, strlen(q->context)), "loglikelihood", sums, "answer",
                    q->answer, "chosen", best, "chosen_norm", best_norm);
    char *text = json_dumps(doc, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(doc);
    bool ok = text && fprintf(r->details, "%s\n", text) > 0;
    free(text);
    return ok ? OK : ERR("cannot write the details: %s", strerror(errno));
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
            if (s[k].sum > most) most = s[k].sum, best = k;
            if (norm > most_norm) most_norm = norm, best_norm = k;
        }
        sum += s[q->answer].sum;
        right += best == q->answer;
        right_norm += best_norm == q->answer;
        TRY(print_details(r, q, s, best, best_norm));
    }
    out->questions = t->n;
    out->acc = (double)right / (double)t->n;
    out->acc_norm = (double)right_norm / (double)t->n;
    out->likelihood = sum / (double)t->n;
    return OK;
}

typedef struct score_progress {
    const task_run *r;
    int64_t of;
} score_progress;
static void report_batch(void *ctx, int64_t done) {
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
    for (int64_t i = 0; i < t->n; i++)
        for (int k = 0; k < t->question[i].choices && !e; k++, at++)
            e = make_request(enc, tok, t->question[i].context, t->question[i].choice[k],
                             &out->ids[at], &out->all[at]);
    encoder_free(enc);
    return e;
}

err task_score_all(const task_run *r, const task_file *t, task_score *out) {
    task_requests q;
    err e = requests_make(r->tok, t, &q);
    score_progress p = { r, q.n };
    if (!e) e = score_all(r->x, r->m, r->which, r->rows, r->seq, q.all, q.n, report_batch, &p);
    if (!e) e = count_right(r, t, q.all, out);
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
