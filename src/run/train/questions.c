/* Questions with several answers during training (validation.tasks): the files are read once, and all ranks answer
 * them together with the programs that compute held-out losses, in any layout. */
#include "train_internal.h"

#include <stdlib.h>
#include <string.h>

/* The file's name without folders and ending. */
static char *task_name(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    return strndup(name, dot && dot > name ? (size_t)(dot - name) : strlen(name));
}

static err add_task_file(trainer *t, const char *path) {
    run_questions *q = &t->questions;
    q->file = mem_grow(q->file, (size_t)(q->n + 1) * sizeof *q->file);
    q->score = mem_grow(q->score, (size_t)(q->n + 1) * sizeof *q->score);
    TRY(task_read(path, t->cfg->validation.tasks_limit, &q->file[q->n]));
    q->score[q->n++] = (observe_task){ .name = task_name(path) };
    for (int i = 0; i < q->n - 1; i++)
        if (!strcmp(q->score[i].name, q->score[q->n - 1].name))
            return err_hint(ERR("validation.tasks: two files are called %s", q->score[i].name),
                            "metrics are named after files: rename one");
    return OK;
}

bool questions_are_asked(const config *c) {
    return *c->validation.tasks && c->validation.tasks_every.value > 0;
}

err questions_open(trainer *t) {
    const config *c = t->cfg;
    if (!questions_are_asked(c)) return OK;
    if (!t->tokenizer)
        return err_hint(
            ERR("validation.tasks: %s has no tokenizer to read questions with", t->sources[0].name),
            "train on plain text or on shards of `ingot data tokenize`, or leave "
            "validation.tasks out");
    char *copy = strdup(c->validation.tasks), *rest = copy;
    err e = OK;
    for (char *path; !e && (path = strsep(&rest, ","));)
        if (*path) e = add_task_file(t, path);
    free(copy);
    return e;
}

err questions_answer(trainer *t, observe_step *s) {
    run_questions *q = &t->questions;
    double from = time_now();
    json_t *all = json_object();
    err e = OK;
    for (int i = 0; i < q->n && !e; i++) {
        task_score score;
        task_run run = { &t->x, t->m, t->eval_id, t->rows, t->seq, t->tokenizer, NULL, NULL, NULL };
        e = task_score_all(&run, &q->file[i], &score);
        if (e) break;
        q->score[i].acc = score.acc;
        q->score[i].acc_norm = score.acc_norm;
        progress_note(t->show, "step %lld: %s: acc %.4f, acc_norm %.4f (%lld questions)",
                      (long long)t->state.step, q->score[i].name, score.acc, score.acc_norm,
                      (long long)score.questions);
        json_object_set_new(all, q->score[i].name,
                            json_pack("{s:f, s:f, s:f, s:I}", "acc", score.acc, "acc_norm",
                                      score.acc_norm, "likelihood", score.likelihood, "questions",
                                      (json_int_t)score.questions));
    }
    s->tasks = q->score;
    s->n_tasks = q->n;
    t->eval_s += time_now() - from;
    if (!e) return observe_event(t->log, "tasks", t->state.step, json_pack("{s:o}", "tasks", all));
    json_decref(all);
    return e;
}

void questions_free(trainer *t) {
    run_questions *q = &t->questions;
    for (int i = 0; i < q->n; i++) {
        task_free(&q->file[i]);
        free((char *)(uintptr_t)q->score[i].name);
    }
    free(q->file);
    free(q->score);
    *q = (run_questions){ 0 };
}
