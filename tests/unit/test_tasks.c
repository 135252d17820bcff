/* Likelihood of continuations, and questions as their files hold them. */
#include "support/folder.h"
#include "support/model.h"

#include "eval/eval.h"

enum { ROWS = 2, SEQ = 12, VOCAB = 40 };

typedef struct judge {
    model *m;
    exec x;
    chain c;
    int id;
} judge;

static void open_judge(judge *j) {
    model_config c = small_llama();
    model_layout l = { .dt = DT_F32 };
    c.vocab = VOCAB;
    *j = (judge){ 0 };
    assert_ok(model_new(&c, &l, &j->m));
    j->x.comm = comm_self();
    j->x.plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(j->m, j->x.plan, false);
    assert_ok(model_record(j->m, PROG_EVAL, ROWS * SEQ, SEQ, &j->c));
    assert_ok(plan_chain(j->x.plan, &j->c, model_bucket_regions, j->m, &j->id));
    assert_ok(plan_commit(j->x.plan));
    model_init(j->m, j->x.plan, 7);
}

static void close_judge(judge *j) {
    plan_free(j->x.plan);
    model_free(j->m);
    comm_free(j->x.comm);
}

static void score(judge *j, score_request *all, int64_t n) {
    assert_ok(score_all(&j->x, j->m, j->id, ROWS, SEQ, all, n, NULL, NULL));
}

/* The probabilities of all tokens that can follow a context sum to one, however they share batches. */
static void probabilities_sum_to_one(void **state) {
    judge j;
    open_judge(&j);
    int32_t text[VOCAB][5];
    score_request all[VOCAB];
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        memcpy(text[i], (int32_t[]){ 3, 9, 27, 1, i }, sizeof text[i]);
        all[i] = (score_request){ text[i], 5, 4, 0 };
    }
    score(&j, all, VOCAB);
    for (int i = 0; i < VOCAB; i++) sum += exp(all[i].sum);
    if (fabs(sum - 1) > 1e-5) fail_msg("the probabilities sum to %.8f", sum);
    close_judge(&j);
}

/* p(ab | c) = p(a | c) p(b | ca), whatever lies beside it in the batch. */
static void likelihoods_follow_the_chain_rule(void **state) {
    judge j;
    open_judge(&j);
    static const int32_t text[] = { 5, 6, 7, 8, 9, 10, 11 };
    score_request all[] = { { text, 7, 3, 0 }, { text, 5, 3, 0 }, { text, 7, 5, 0 } };
    score(&j, all, 3);
    assert_true(all[0].sum < 0);
    if (fabs(all[0].sum - all[1].sum - all[2].sum) > 1e-5)
        fail_msg("%.8f is not %.8f + %.8f", all[0].sum, all[1].sum, all[2].sum);
    double before = all[0].sum;
    score(&j, all, 1);
    assert_true(fabs(all[0].sum - before) < 1e-6);
    close_judge(&j);
}

/* Of a text longer than a row the end counts. */
static void long_texts_lose_their_beginning(void **state) {
    judge j;
    open_judge(&j);
    int32_t text[3 * SEQ];
    for (int i = 0; i < 3 * SEQ; i++) text[i] = i * 7 % VOCAB;
    score_request all[] = { { text, 3 * SEQ, 3 * SEQ - 2, 0 },
                            { text + 2 * SEQ - 1, SEQ + 1, SEQ - 1, 0 } };
    score(&j, all, 2);
    assert_true(fabs(all[0].sum - all[1].sum) < 1e-6);
    close_judge(&j);
}

/* ---- files ----------------------------------------------------------------------------------- */
static task_file read_fixture(const char *name, const char *format) {
    char path[512];
    task_file t;
    snprintf(path, sizeof path, "%s/eval/%s", FIXTURES, name);
    assert_ok(task_read(path, 0, &t));
    assert_string_equal(t.format, format);
    assert_int_equal(t.n, 24);
    return t;
}

static void expect_question(const task_file *t, int i, const char *context, const char *right) {
    const task_question *q = &t->question[i];
    assert_string_equal(q->context, context);
    assert_string_equal(q->choice[q->answer], right);
}

static void formats_are_recognized(void **state) {
    task_file t = read_fixture("hellaswag.jsonl", "hellaswag");
    expect_question(&t, 0, "Doing Things: the baker wants to light a fire. The baker",
                    "while it rains.");
    expect_question(&t, 1, "Doing Things: Zoë wants to fold a letter. Élan", "and then waits.");
    assert_string_equal(t.question[1].choice[0], " then cleans up.");
    task_free(&t);
    t = read_fixture("arc.jsonl", "arc");
    expect_question(&t, 0,
                    "Question: What does Zoë need to read a map?\nAnswer:", "until it is dry.");
    assert_int_equal(t.question[0].choices, 3);
    task_free(&t);
    t = read_fixture("arc_nested.jsonl", "arc");
    expect_question(&t, 0,
                    "Question: Why would a sailor light a fire?\nAnswer:", "until it is dry.");
    task_free(&t);
    t = read_fixture("piqa.jsonl", "piqa");
    expect_question(&t, 0, "Question: To read a map, Mrs. Low should\nAnswer:", "and then waits.");
    task_free(&t);
    t = read_fixture("mmlu.jsonl", "mmlu");
    expect_question(&t, 0,
                    "The following are multiple choice questions (with answers) about abstract "
                    "algebra.\n\nWhich of these is how a sailor would mix the dough?\n"
                    "A. until it is dry.\nB. and sings a song.\nC. while  it rains.\n"
                    "D. with great care.\nAnswer:",
                    "A");
    task_free(&t);
}

static void examples_come_before_questions(void **state) {
    task_file t = read_fixture("mmlu.jsonl", "mmlu"), same = read_fixture("mmlu.jsonl", "mmlu");
    task_add_examples(&t, &same, 2);
    const char *c = t.question[5].context;
    assert_true(str_starts(c, "The following are multiple choice questions"));
    assert_null(strstr(c + 1, "The following")); /* once */
    assert_non_null(strstr(c, "Answer: A\n\n"));
    assert_non_null(strstr(c, "Answer: B\n\n"));
    assert_true(strcmp(c + strlen(c) - 8, "\nAnswer:") == 0);
    task_free(&t);
    task_free(&same);
}

static void refuse(test_folder *f, const char *text, const char *words) {
    task_file t;
    folder_write(f, "bad.jsonl", text);
    assert_error(task_read(in_folder(f, "bad.jsonl"), 0, &t), words);
}

static void bad_files_are_refused(void **state) {
    test_folder *f = *state;
    refuse(f, "", "holds no question");
    refuse(f, "{\"text\": 1}\n", "not a question of a known format");
    refuse(f, "not json\n", "bad.jsonl:1");
    refuse(f, "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}\n", "names none");
    refuse(f, "{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 0}\n", "two answers or more");
    refuse(f, "{\"context\": \"a\", \"choices\": [\"b\", 3], \"answer\": 0}\n", "not text");
    refuse(f, "{\"context\": 7, \"choices\": [\"b\", \"c\"], \"answer\": 0}\n", "is not a text");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probabilities_sum_to_one),
        cmocka_unit_test(likelihoods_follow_the_chain_rule),
        cmocka_unit_test(long_texts_lose_their_beginning),
        cmocka_unit_test(formats_are_recognized),
        cmocka_unit_test(examples_come_before_questions),
        cmocka_unit_test_setup_teardown(bad_files_are_refused, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests_name("tasks", tests, NULL, NULL);
}
