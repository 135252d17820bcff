/* Questions from the JSON lines of a task's file, by its row of task_table.c, and the examples before them. */
#include <stdlib.h>
#include <string.h>

#include "eval/py_random.h"
#include "eval/tasks_internal.h"
#include "eval/template.h"
#include "io/io.h"

/* ---- rows ------------------------------------------------------------------------------------------- */
const task_row *task_find(const char *name) {
    for (int i = 0; i < task_table_rows; i++)
        if (!strcmp(task_table[i].name, name)) return &task_table[i];
    return NULL;
}

const task_row *task_row_at(int i) { return &task_table[i]; }
const char *task_row_name(const task_row *r) { return r->name; }
const char *task_source(const task_row *r) { return r->source; }
task_type task_type_of(const task_row *r) { return r->type; }

/* "a|b" is there when one of them is. */
static bool has_member(const json_t *doc, const char *names) {
    for (const char *at = names;; at++) {
        char name[64];
        size_t n = strcspn(at, "|");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        if (json_object_get(doc, name)) return true;
        at += n;
        if (!*at) return false;
    }
}

static bool fits_row(const task_row *r, const json_t *doc) {
    for (size_t i = 0; i < COUNT_OF(r->fields) && r->fields[i]; i++)
        if (!has_member(doc, r->fields[i])) return false;
    return true;
}

static const task_row *recognize_task(const json_t *doc) {
    for (int i = 0; i < task_table_rows; i++)
        if (!task_table[i].by_name && fits_row(&task_table[i], doc)) return &task_table[i];
    return NULL;
}

/* ---- lines -------------------------------------------------------------------------------------------- */
/* Brings the forms in which a task is published to one: {"question": {"stem": ..., "choices": [{"text", "label"}]}} has its members
 * on top, with choices as two lists; a list that is written as text is a list. */
static err bring_to_one_form(json_t *doc) {
    json_t *question = json_object_get(doc, "question"), *list, *one;
    const char *problems = json_string_value(json_object_get(doc, "problems"));
    if (json_is_object(question)) {
        json_incref(question);
        json_object_update_missing(doc, question);
        json_t *stem = json_object_get(question, "stem");
        if (stem) {
            json_object_set(doc, "question", stem);
            json_object_set(doc, "question_stem", stem);
        }
        json_decref(question);
    }
    list = json_object_get(doc, "choices");
    if (json_is_object(json_array_get(list, 0))) {
        json_t *text = json_array(), *label = json_array();
        size_t i;
        json_array_foreach(list, i, one) {
            json_array_append(text, json_object_get(one, "text"));
            json_array_append(label, json_object_get(one, "label"));
        }
        json_object_set_new(doc, "choices", json_pack("{s:o, s:o}", "text", text, "label", label));
    }
    if (!problems) return OK;
    TRY(template_evaluate(problems, doc, &list));
    json_object_set_new(doc, "problems", list);
    return OK;
}

static err render_member(const char *template, json_t *doc, char **out) {
    str s = { 0 };
    str_add(&s, "%s", "");
    err e = template_render(template, doc, &s);
    *out = s.text;
    return e;
}

static err add_one_choice(const task_row *row, json_t *doc, const json_t *v, task_question *q) {
    const char *text = json_string_value(v);
    if (!text || q->choices == TASK_MAX_CHOICES)
        return ERR("an answer is not text, or there are more than %d", TASK_MAX_CHOICES);
    char **to = row->type == TASK_SCHEMA ? &q->other[q->choices] : &q->choice[q->choices];
    if (row->each) {
        json_object_set_new(doc, "choice", json_string(text));
        TRY(render_member(row->each, doc, to));
    } else {
        *to = strdup(text);
    }
    q->choices++;
    return OK;
}

static err read_choice_list(const task_row *row, json_t *doc, task_question *q) {
    json_t *list = NULL, *one;
    size_t i;
    err e = OK;
    TRY(template_evaluate(row->choices, doc, &list));
    json_array_foreach(list, i, one) {
        if (row->type == TASK_GENERATE && q->choices == TASK_MAX_CHOICES)
            break; /* further aliases */
        e = add_one_choice(row, doc, one, q);
        if (e) break;
    }
    json_decref(list);
    return e;
}

/* Reads an index: a number, a truth value or text, or a letter. */
static err read_answer_index(const task_row *row, json_t *doc, task_question *q) {
    json_t *v = NULL;
    TRY(template_evaluate(row->answer, doc, &v));
    const char *text = json_string_value(v);
    long long at = json_is_integer(v)   ? json_integer_value(v)
                   : json_is_boolean(v) ? json_is_true(v)
                                        : -1;
    if (text && text[0] >= 'A' && text[0] <= 'Z' && !text[1]) at = text[0] - 'A';
    if (text && text[0] >= '0' && text[0] <= '9') {
        char *end;
        at = strtoll(text, &end, 10);
        if (*end) at = -1;
    }
    json_decref(v);
    if (at < 0 || at >= q->choices)
        return err_hint(ERR("\"%s\" names none of the %d answers", row->answer, q->choices),
                        "test sets are often published without answers: use the validation set");
    q->answer = (int)at;
    return OK;
}

static err read_by_row(const task_row *row, json_t *doc, task_question *q) {
    str s = { 0 };
    str_add(&s, "%s", "");
    err e = row->preamble ? template_render(row->preamble, doc, &s) : OK;
    q->preamble = s.len;
    if (!e && row->context) e = template_render(row->context, doc, &s);
    q->context = s.text;
    TRY(e);
    if (row->target) TRY(render_member(row->target, doc, &q->target));
    if (row->choices) TRY(read_choice_list(row, doc, q));
    const char *group = row->group ? json_string_value(json_object_get(doc, row->group)) : NULL;
    if (group) q->group = strdup(group);
    if (row->type == TASK_GREEDY) q->choice[q->choices++] = strdup(q->target);
    if (row->type == TASK_SCHEMA)
        for (int i = 0; i < q->choices; i++) q->choice[i] = strdup(q->target);
    int least = row->type == TASK_CHOICES || row->type == TASK_SCHEMA ? 2 : 1;
    if (q->choices < least)
        return ERR("a question of %s needs %d answers or more, this has %d", row->name, least,
                   q->choices);
    if (row->answer) TRY(read_answer_index(row, doc, q));
    if (!q->target) q->target = strdup(q->choice[q->answer]);
    return OK;
}

static err read_line(const char *path, int64_t number, const char *text, size_t n, task_file *out) {
    char name[512];
    json_t *doc;
    snprintf(name, sizeof name, "%.400s:%lld", path, (long long)number);
    TRY(io_json_parse(text, n, name, &doc));
    err e = json_is_object(doc) ? bring_to_one_form(doc) : OK;
    if (!e && !out->row) out->row = recognize_task(doc);
    if (!e && !out->row)
        e = err_hint(
            ERR("%s: not a question of a known task", name),
            "name the task (--tasks NAME=FILE, `ingot eval --tasks list`), or write lines with \"context\", "
            "\"choices\" and \"answer\"");
    else if (!e && !fits_row(out->row, doc))
        e = err_hint(
            ERR("%s: not a question of %s: its members are not there", name, out->row->name),
            "each line is one question; the files are those of %s", out->row->source);
    if (!e) {
        task_question *q = &LIST_ADD(out->question, out->n, out->cap);
        *q = (task_question){ 0 };
        e = read_by_row(out->row, doc, q);
        if (e) {
            err named = ERR("%s: %s", name, err_message(e));
            if (*err_remedy(e)) named = err_hint(named, "%s", err_remedy(e));
            err_free(e);
            e = named;
        }
    }
    json_decref(doc);
    return e;
}

err task_read_as(const task_row *row, const char *path, int64_t limit, task_file *out) {
    enum { MOST_BYTES = 1 << 30 };
    char *text = NULL;
    size_t len = 0;
    err e = OK;
    *out = (task_file){ .row = row };
    TRY(io_read(path, MOST_BYTES, &text, &len));
    int64_t number = 1;
    for (size_t at = 0; at < len && !(limit && out->n == limit); number++) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        bool blank = strspn(text + at, " \t\r") >= n;
        if (!blank) TRY_CLEAN(read_line(path, number, text + at, n, out));
        at += n + 1;
    }
    if (!out->n) e = err_hint(ERR("%s holds no question", path), "give a file of JSON lines");
    out->format = out->row ? out->row->name : "";
    out->delimiter = out->row && out->row->delimiter ? out->row->delimiter : " ";
cleanup:
    free(text);
    if (e) task_free(out);
    return e;
}

err task_read(const char *path, int64_t limit, task_file *out) {
    return task_read_as(NULL, path, limit, out);
}

void task_free(task_file *t) {
    for (int64_t i = 0; i < t->n; i++) {
        task_question *q = &t->question[i];
        char *const own[] = { q->context, q->target, q->group };
        for (size_t k = 0; k < COUNT_OF(own); k++) free(own[k]);
        for (int k = 0; k < q->choices; k++) {
            free(q->choice[k]);
            free(q->other[k]);
        }
    }
    free(t->question);
    *t = (task_file){ 0 };
}

/* ---- examples --------------------------------------------------------------------------------------------- */
static void add_example(const task_file *from, const task_question *q, str *out) {
    const char *context =
        from->row->type == TASK_SCHEMA ? q->other[q->answer] : q->context + q->preamble;
    /* the harness has a space before every target of an example, also where the target begins with one */
    bool core = from->row && from->row->by_tokens;
    str_add(out, "%s%s%s\n\n", context, core ? from->delimiter : " ", q->target);
}

static bool same_question(const task_question *a, const task_question *b) {
    return !strcmp(a->context, b->context) && !strcmp(a->target, b->target) &&
           a->choices == b->choices && a->answer == b->answer &&
           (!a->other[0] || !strcmp(a->other[0], b->other[0]));
}

/* Takes the first examples of the question's group. */
static err first_examples(const task_file *from, const task_question *q, int64_t n, str *out) {
    int64_t found = 0;
    for (int64_t i = 0; i < from->n && found < n; i++) {
        const task_question *p = &from->question[i];
        if (p == q || (q->group && p->group && strcmp(q->group, p->group) != 0) ||
            same_question(p, q))
            continue;
        add_example(from, p, out);
        found++;
    }
    if (found == n) return OK;
    return err_hint(ERR("there are %lld examples%s%s, fewer than --shots %lld", (long long)found,
                        q->group ? " of " : "", q->group ? q->group : "", (long long)n),
                    "use fewer, or another file");
}

static void put_before(task_question *q, const str *shots, bool schema) {
    char **contexts = schema ? q->other : &q->context;
    for (int i = 0; i < (schema ? q->choices : 1) && shots->len; i++) {
        str whole = { 0 };
        str_add_bytes(&whole, q->context, q->preamble);
        str_add(&whole, "%s%s", shots->text, contexts[i] + (schema ? 0 : q->preamble));
        free(contexts[i]);
        contexts[i] = whole.text;
    }
}

/* All texts are made before the first is put in place: with `from` the file itself, questions are examples too. */
err task_add_shots(task_file *t, const task_file *from, int64_t n, task_draw draw) {
    str *shots = mem_alloc((size_t)MAX(t->n, 1) * sizeof *shots);
    int64_t *drawn = mem_alloc((size_t)(n + 1) * sizeof *drawn);
    py_random r;
    err e = OK;
    bool own = from == t;
    py_random_seed(&r, 1234);
    if (n && from->n < n + own)
        e = err_hint(
            ERR("there are %d examples, fewer than --shots %lld", from->n - own, (long long)n),
            "use fewer, or another file");
    for (int64_t i = 0; i < t->n && n && !e; i++) {
        const task_question *q = &t->question[i];
        if (draw == TASK_DRAW_CORE) { /* of the others, anew for each question */
            py_random_seed(&r, 1234 + (uint64_t)i);
            py_random_sample(&r, from->n - 1, n, drawn);
            for (int64_t k = 0; k < n; k++)
                add_example(from, &from->question[drawn[k] + (drawn[k] >= i)], &shots[i]);
        } else if (t->row->group) {
            e = first_examples(from, q, n, &shots[i]);
        } else { /* of the same file one more is drawn, and the question itself left out */
            int64_t added = 0;
            py_random_sample(&r, from->n, n + own, drawn);
            for (int64_t k = 0; k < n + own && added < n; k++) {
                const task_question *p = &from->question[drawn[k]];
                if (own && same_question(p, q)) continue;
                add_example(from, p, &shots[i]);
                added++;
            }
        }
    }
    for (int64_t i = 0; i < t->n; i++) {
        if (!e) put_before(&t->question[i], &shots[i], t->row->type == TASK_SCHEMA);
        str_free(&shots[i]);
    }
    free(drawn);
    free(shots);
    return e;
}

/* ---- CORE ------------------------------------------------------------------------------------------------------- */
double core_centered(const core_task *t, double acc) {
    return (acc - t->baseline / 100) / (1 - t->baseline / 100);
}

err core_read(const core_task *t, const char *folder, int64_t limit, task_file *out) {
    char *data = io_join(folder, "eval_data"),
         *path = io_join(io_is_dir(data) ? data : folder, t->file);
    err e = OK;
    if (!io_exists(path))
        e = err_hint(ERR("%s is not there: the questions of %s", path, t->name),
                     "give the folder of DCLM's evaluation bundle, which has eval_data/ in it");
    if (!e) e = task_read(path, 0, out);
    free(data);
    free(path);
    TRY(e);
    py_random r;
    int64_t *order = mem_alloc((size_t)out->n * sizeof *order);
    task_question *shuffled = mem_alloc((size_t)out->n * sizeof *shuffled);
    for (int64_t i = 0; i < out->n; i++) order[i] = i;
    py_random_seed(&r, 1337);
    py_random_shuffle(&r, order, out->n);
    for (int64_t i = 0; i < out->n; i++) shuffled[i] = out->question[order[i]];
    free(order);
    free(out->question);
    out->question = shuffled;
    out->delimiter = t->delimiter;
    task_file rest = *out; /* examples come from those that are asked */
    if (limit && limit < out->n) {
        rest.question = mem_alloc((size_t)(out->n - limit) * sizeof *shuffled);
        rest.n = (int)(out->n - limit);
        memcpy(rest.question, out->question + limit, (size_t)rest.n * sizeof *shuffled);
        out->n = (int)limit;
        task_free(&rest);
    }
    e = task_add_shots(out, out, t->shots, TASK_DRAW_CORE);
    if (e) task_free(out);
    return e;
}
