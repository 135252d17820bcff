/* Any bytes as a file of questions: of a task that is recognized, and of one that a byte draws; with examples as both harnesses
 * draw them. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"

static void look_at_questions(const task_file *t) {
    for (int i = 0; i < t->n; i++) {
        const task_question *q = &t->question[i];
        if (q->choices < 1 || q->choices > TASK_MAX_CHOICES || q->answer < 0) abort();
        if (!q->context || !q->target || q->preamble > strlen(q->context)) abort();
        if (task_type_of(t->row) != TASK_GENERATE && q->answer >= q->choices) abort();
        for (int k = 0; k < q->choices; k++)
            if (!q->choice[k] || (task_type_of(t->row) == TASK_SCHEMA && !q->other[k])) abort();
    }
}

static err read_questions(const task_row *row, const char *path, task_draw draw) {
    task_file t;
    TRY(task_read_as(row, path, 0, &t));
    look_at_questions(&t);
    err e = task_add_shots(&t, &t, 2, draw);
    look_at_questions(&t);
    task_free(&t);
    return e;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    log_set_level(LOG_ERROR);
    const char *path = fuzz_write("questions.jsonl", data, n);
    const task_row *drawn = task_row_at(n ? data[n / 2] % task_table_rows : 0);
    err_free(read_questions(NULL, path, TASK_DRAW_HARNESS));
    err_free(read_questions(drawn, path, TASK_DRAW_CORE));
    return 0;
}
