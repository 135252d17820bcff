/* Tasks whose answers are generated, and how an answer is compared with those that are right: as lm-evaluation-harness does. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/tasks_internal.h"
#include "io/io.h"

/* ---- comparing --------------------------------------------------------------------------------------- */
/* In lower case and without punctuation; with `words`, without articles and runs of white space too. ASCII alone, as the harness's
 * string.punctuation. @return owned */
static char *normalize_answer(const char *text, bool words) {
    str s = { 0 }, out = { 0 };
    str_add(&s, "%s", "");
    str_add(&out, "%s", "");
    for (; *text; text++) {
        char c = (char)(*text >= 'A' && *text <= 'Z' ? *text + 32 : *text);
        if (!ispunct((unsigned char)c)) str_add_bytes(&s, &c, 1);
    }
    if (!words) {
        str_free(&out);
        return s.text;
    }
    char *next = NULL;
    for (char *w = strtok_r(s.text, " \t\n\r\f\v", &next); w;
         w = strtok_r(NULL, " \t\n\r\f\v", &next))
        if (strcmp(w, "a") != 0 && strcmp(w, "an") != 0 && strcmp(w, "the") != 0)
            str_add(&out, "%s%s", out.len ? " " : "", w);
    str_free(&s);
    return out.text;
}

/* The last number: two or more of "$0123456789.,", perhaps after a minus, or digits alone; without $ and commas and without a period
 * at its end. @return owned; "" when there is none */
static char *last_number(const char *text) {
    str found = { 0 };
    str_add(&found, "%s", "");
    for (const char *at = text; *at;) {
        const char *from = at + (*at == '-');
        size_t wide = strspn(from, "$0123456789.,"), digits = strspn(from, "0123456789");
        size_t n = wide >= 2 ? wide : digits;
        if (!n) {
            at++;
            continue;
        }
        found.len = 0;
        if (from > at) str_add(&found, "-");
        for (size_t i = 0; i < n; i++)
            if (from[i] != '$' && from[i] != ',') str_add_bytes(&found, from + i, 1);
        at = from + n;
    }
    if (found.len && found.text[found.len - 1] == '.') found.len--;
    found.text[found.len] = '\0';
    return found.text;
}

static char *prepare_answer(task_match how, const char *text) {
    if (how == MATCH_NUMBER) {
        const char *mark = strstr(text, "#### "); /* before which GSM8K's solutions explain */
        return last_number(mark ? mark + 5 : text);
    }
    text += strspn(text, " \t\n\r\f\v");
    return normalize_answer(text, how == MATCH_SQUAD);
}

bool task_matches(task_match how, const char *answer, const task_question *q) {
    char *got = prepare_answer(how, answer);
    bool right = false;
    for (int i = 0; i < q->choices && !right; i++) {
        char *want = prepare_answer(how, q->choice[i]);
        right = !strcmp(got, want) && (*want || how != MATCH_NUMBER);
        free(want);
    }
    free(got);
    return right;
}

/* ---- generating ----------------------------------------------------------------------------------------- */
typedef struct task_answer {
    struct answer_run *of;
    token_ids ids;
    str text;
    bool right;
} task_answer;

typedef struct answer_run {
    const task_run *r;
    const task_file *t;
    task_answer *all; /* [questions] */
    int64_t done;
    sample_options o;
} answer_run;

static bool keep_text(void *ctx, const char *text, size_t n) {
    str_add_bytes(&((task_answer *)ctx)->text, text, n);
    return true;
}

static void judge_answer(void *ctx, const generated *g) {
    task_answer *a = ctx;
    answer_run *run = a->of;
    const eval_progress *show = &run->r->show;
    a->right = task_matches(run->t->row->match, a->text.text, &run->t->question[a - run->all]);
    token_ids_free(&a->ids);
    if (show->on_batch) show->on_batch(show->ctx, ++run->done, run->t->n);
}

static err add_question(void *ctx, int64_t i) {
    answer_run *run = ctx;
    task_answer *a = &run->all[i];
    const char *context = run->t->question[i].context;
    a->of = run;
    str_add(&a->text, "%s", "");
    encoder *enc = encoder_new(run->r->tok);
    encoder_add_prefixed(enc, context, strlen(context), true, &a->ids);
    encoder_free(enc);
    return generation_add(run->r->gen, run->r->tok, a->ids.at, (int64_t)a->ids.n, &run->o,
                          (decode_sink){ .emit_text = keep_text, .done = judge_answer, .ctx = a });
}

static err print_generated(const task_run *r, const task_question *q, const str *text, bool right) {
    if (!r->details) return OK;
    json_t *doc =
        json_pack("{s:o, s:o, s:o, s:b}", "context", io_json_string(q->context, strlen(q->context)),
                  "generated", io_json_string(text->text, text->len), "target",
                  io_json_string(q->target, strlen(q->target)), "right", (int)right);
    if (io_json_print(r->details, doc, JSON_COMPACT)) return OK;
    return ERR("cannot write the details: %s", strerror(errno));
}

err task_generate_all(const task_run *r, const task_file *t, task_score *out) {
    const task_row *row = t->row;
    int64_t right = 0;
    int stops = 0;
    while (stops < (int)COUNT_OF(row->stop) && row->stop[stops]) stops++;
    answer_run run = { .r = r, .t = t, .all = mem_alloc((size_t)t->n * sizeof *run.all) };
    run.o = (sample_options){
        .tokens = row->tokens, .temperature = 0, .stop_texts = row->stop, .n_stop_texts = stops
    };
    err e = generation_run(r->gen, t->n, add_question, &run);
    for (int64_t i = 0; i < t->n; i++) {
        task_answer *a = &run.all[i];
        right += a->right;
        if (!e) e = print_generated(r, &t->question[i], &a->text, a->right);
        token_ids_free(&a->ids);
        str_free(&a->text);
    }
    free(run.all);
    *out = (task_score){ (double)right / (double)t->n, NAN, NAN, t->n };
    return e;
}
