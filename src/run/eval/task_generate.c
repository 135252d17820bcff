/* Tasks whose answers are generated, and how an answer is compared with those that are right: as lm-evaluation-harness does. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "eval/py_text.h"
#include "eval/tasks_internal.h"
#include "io/io.h"
#include "text/text.h"

/* ---- comparing --------------------------------------------------------------------------------------- */
/* In lower case and without ASCII's punctuation. @return owned */
static str lower_without_punctuation(const char *text, size_t n) {
    str s = { 0 };
    str_add_bytes(&s, "", 0);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        char bytes[4];
        i += py_read(text + i, n - i, &cp);
        if (cp < 0x80 && ispunct((int)cp)) continue;
        str_add_bytes(&s, bytes, (size_t)utf8_encode(py_lower(cp), bytes));
    }
    return s;
}

/* @return bytes of the word, Python's \w+, that the text begins with; 0 when it begins with none */
static size_t word_length(const char *text, size_t n) {
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        size_t bytes = py_read(text + i, n - i, &cp);
        if (!py_is_word(cp)) break;
        i += bytes;
    }
    return i;
}

static bool is_article(const char *word, size_t n) {
    static const char *const articles[] = { "a", "an", "the" };
    for (size_t i = 0; i < COUNT_OF(articles); i++)
        if (strlen(articles[i]) == n && !memcmp(word, articles[i], n)) return true;
    return false;
}

/* Removes articles, and puts one space where there is white space. @return owned */
static str without_articles(const str *s) {
    str out = { 0 };
    bool space = false;
    str_add_bytes(&out, "", 0);
    for (size_t i = 0; i < s->len;) {
        uint32_t cp;
        size_t one = py_read(s->text + i, s->len - i, &cp),
               word = word_length(s->text + i, s->len - i), n = word ? word : one;
        if (py_is_space(cp) || is_article(s->text + i, word)) {
            space = true;
        } else {
            if (space && out.len) str_add(&out, " ");
            str_add_bytes(&out, s->text + i, n);
            space = false;
        }
        i += n;
    }
    return out;
}

/* @param words SQuAD's comparison. @return owned */
static char *normalize_answer(const char *text, bool words) {
    str s = lower_without_punctuation(text, strlen(text));
    if (!words) return s.text;
    str out = without_articles(&s);
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
    for (uint32_t cp = ' '; *text && py_is_space(cp);) {
        size_t bytes = py_read(text, strlen(text), &cp);
        if (py_is_space(cp)) text += bytes;
    }
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
    TRY(prompt_encode(run->r->tok, context, strlen(context), &a->ids));
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
