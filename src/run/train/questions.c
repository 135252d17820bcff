/* Questions with several answers during training (validation.tasks): the files are read once, and all ranks answer
 * them together with the programs that compute held-out losses, in any layout. */
#include "questions_internal.h"
#include "trainer_internal.h"

#include <stdlib.h>
#include <string.h>

/* @return the file's name without folders and ending. */
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
    if (task_type_of(q->file[q->n].row) > TASK_SCHEMA) {
        const char *name = q->file[q->n].format;
        task_free(&q->file[q->n]);
        return err_hint(ERR("validation.tasks: %s needs generated text", name),
                        "evaluate it with `ingot eval`, also as checkpoints appear: --watch");
    }
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

/* Chooses rows that the longest question fits in, a multiple of training.seq_len and within the model's positions, so
 * that a question is not cut where a sequence of the training ends. A batch keeps a multiple of the training's tokens,
 * which every layout divides: of the lengths that suffice the one with the fewest tokens in a batch is taken. */
static err fit_rows(trainer *t) {
    run_questions *q = &t->questions;
    int64_t longest = 1, all_cut = 0, most = MAX(1, t->mc.max_seq / t->len.seq);
    for (int i = 0; i < q->n; i++) {
        int64_t here, cut;
        TRY(task_lengths(t->data.tokenizer, &q->file[i], most * t->len.seq, &here, &cut));
        longest = MAX(longest, here);
        all_cut += cut;
    }
    q->rows = 0;
    for (int64_t k = MIN(ceil_div(longest, t->len.seq), most); k <= most; k++) {
        int64_t rows = 1;
        while (rows * k % t->len.rows) rows++;
        if (q->rows && rows * k * t->len.seq >= q->rows * q->seq) continue;
        q->rows = rows;
        q->seq = k * t->len.seq;
    }
    if (all_cut && is_first_rank(t))
        log_warn(
            "validation.tasks: %lld answers have more than %lld tokens, for which the model has "
            "no positions: their beginnings are left out",
            (long long)all_cut, (long long)(most * t->len.seq));
    return OK;
}

err questions_plan(trainer *t) {
    run_questions *q = &t->questions;
    q->eval_id = t->eval_id;
    if (!q->n) return OK;
    q->rows = ranks_eval_rows(t, q->rows, q->seq);
    if (q->seq == t->len.seq) return OK;
    TRY(model_record(t->m, PROG_EVAL, q->rows * q->seq, q->seq, &q->eval));
    return plan_chain(t->p, &q->eval, model_bucket_regions, t->m, &q->eval_id);
}

err questions_open(trainer *t) {
    const config *c = t->cfg;
    if (!questions_are_asked(c)) return OK;
    if (!t->data.tokenizer)
        return err_hint(ERR("validation.tasks: %s has no tokenizer to read questions with",
                            t->data.sources[0].name),
                        "train on plain text or on shards of `ingot data tokenize`, or leave "
                        "validation.tasks out");
    char *copy = strdup(c->validation.tasks), *rest = copy;
    err e = OK;
    for (char *path; !e && (path = strsep(&rest, ","));)
        if (*path) e = add_task_file(t, path);
    free(copy);
    return e ? e : fit_rows(t);
}

err questions_answer(trainer *t, observe_step *s) {
    run_questions *q = &t->questions;
    double from = time_now();
    json_t *all = json_object();
    err e = OK;
    for (int i = 0; i < q->n && !e; i++) {
        task_score score;
        score_chains on = { q->eval_id, q->rows, q->seq };
        task_run run = { .x = &t->x, .m = t->m, .on = &on, .tok = t->data.tokenizer };
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
