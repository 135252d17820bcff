/* Likelihood of continuations, and questions as their files hold them. */
#include "support/folder.h"
#include "support/model.h"

#include "eval/py_random.h"
#include "eval/tasks_internal.h"

enum { ROWS = 2, SEQ = 12, VOCAB = 260 }; /* bytes are tokens of it */

typedef struct judge {
    model *m;
    exec x;
    score_chains on;
} judge;

static void open_judge_of(judge *j, bool shares, int64_t rows, int64_t seq) {
    model_config c = small_llama();
    model_layout l = { .dt = DT_F32 };
    c.vocab = VOCAB;
    c.smear = true; /* reads the token before, which is not always in the row before */
    c.layer_scalars = c.backout = true;
    *j = (judge){ 0 };
    assert_ok(model_new(&c, &l, &j->m));
    j->x.comm = comm_self();
    j->x.plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(j->m, j->x.plan, false);
    j->on = (score_chains){ .rows = rows, .seq = seq };
    assert_ok(score_plan(j->m, j->x.plan, shares, &j->on));
    assert_ok(plan_commit(j->x.plan));
    model_init(j->m, j->x.plan, 7);
    stir_vectors(j->m, &j->x);
}

static void open_judge(judge *j) { open_judge_of(j, false, ROWS, SEQ); }

static void close_judge(judge *j) {
    plan_free(j->x.plan);
    model_free(j->m);
    comm_free(j->x.comm);
}

static void score(judge *j, score_request *all, int64_t n) {
    assert_ok(score_all(&j->x, j->m, &j->on, all, n, NULL, NULL));
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
        all[i] = (score_request){ text[i], 5, 4 };
    }
    score(&j, all, VOCAB);
    for (int i = 0; i < VOCAB; i++) sum += exp(all[i].sum);
    if (fabs(sum - 1) > 1e-5) fail_msg("the probabilities sum to %.8f", sum);
    /* one of them is the likeliest, and the only one that greedy decoding would yield */
    int likeliest = 0;
    for (int i = 1; i < VOCAB; i++)
        if (all[i].sum > all[likeliest].sum) likeliest = i;
    for (int i = 0; i < VOCAB; i++) assert_int_equal((int)all[i].missed, i != likeliest);
    close_judge(&j);
}

/* p(ab | c) = p(a | c) p(b | ca), whatever else is in the batch. */
static void likelihoods_follow_the_chain_rule(void **state) {
    judge j;
    open_judge(&j);
    static const int32_t text[] = { 5, 6, 7, 8, 9, 10, 11 };
    score_request all[] = { { text, 7, 3 }, { text, 5, 3 }, { text, 7, 5 } };
    score(&j, all, 3);
    assert_true(all[0].sum < 0);
    if (fabs(all[0].sum - all[1].sum - all[2].sum) > 1e-5)
        fail_msg("%.8f is not %.8f + %.8f", all[0].sum, all[1].sum, all[2].sum);
    double before = all[0].sum;
    score(&j, all, 1);
    assert_true(fabs(all[0].sum - before) < 1e-6);
    close_judge(&j);
}

/* Requests as evaluations have them: answers to questions after examples, and some with nothing in common; the lengths are drawn, and
 * some are longer than a sequence. */
enum { REQUESTS = 120, LONGEST = 60, LONG_SEQ = 48 };
static void draw_requests(int32_t text[REQUESTS][LONGEST], score_request *all) {
    rng_key key = rng_key_of(5, 0);
    uint64_t at = 0;
    int64_t examples = 0, question = 0;
    for (int i = 0; i < REQUESTS; i++) {
        if (i % 30 == 0) examples = (int64_t)rng_below(key, at++, 25);
        if (i % 4 == 0) question = examples + (int64_t)rng_below(key, at++, 20);
        int64_t from = question + 1, n = from + 1 + (int64_t)rng_below(key, at++, 14);
        for (int k = 0; k < LONGEST; k++) {
            uint64_t of = k < examples   ? (uint64_t)(i / 30)
                          : k < question ? (uint64_t)(i / 4) + 100
                                         : (uint64_t)i + 1000;
            text[i][k] = (int32_t)rng_below(rng_key_of(of, 1), (uint64_t)k, VOCAB);
        }
        all[i] = (score_request){ text[i], n, MAX(1, from - (int64_t)rng_below(key, at++, 3)) };
    }
}

/* Tokens that answers share are computed once, and give the same likelihoods; batches end within a group, and the last ones run in
 * smaller chains, whatever number of requests is left for them. */
static void shared_beginnings_change_no_likelihood(void **state) {
    static const int counts[] = { REQUESTS, REQUESTS - 7, 31, 5, 1 }, rows[] = { 2, 12 };
    static int32_t text[REQUESTS][LONGEST];
    score_request alone[REQUESTS], all[REQUESTS];
    judge j, k;
    open_judge_of(&j, false, 2, LONG_SEQ);
    draw_requests(text, alone);
    assert_ok(score_all(&j.x, j.m, &j.on, alone, REQUESTS, NULL, NULL));
    for (size_t c = 0; c < COUNT_OF(counts) * COUNT_OF(rows); c++) {
        int n = counts[c / COUNT_OF(rows)];
        open_judge_of(&k, true, rows[c % COUNT_OF(rows)], LONG_SEQ);
        draw_requests(text, all);
        assert_ok(score_all(&k.x, k.m, &k.on, all, n, NULL, NULL));
        for (int i = 0; i < n; i++)
            if (!(fabs(alone[i].sum - all[i].sum) < 1e-4) || alone[i].missed != all[i].missed)
                fail_msg("request %d of %d: %.7f, shared %.7f; %g and %g tokens missed", i, n,
                         alone[i].sum, all[i].sum, alone[i].missed, all[i].missed);
        close_judge(&k);
    }
    close_judge(&j);
}

/* A large batch beside a generator, whose programs take fewer tokens: an input that only they read is not written past its end. */
static void a_batch_writes_no_input_of_smaller_programs(void **state) {
    enum { BIG = 512 * LONG_SEQ };
    model_config c = small_llama();
    model_layout l = { .dt = DT_F32 };
    judge j = { .on = { .rows = 512, .seq = LONG_SEQ } };
    generator g;
    assert_ok(model_new(&c, &l, &j.m));
    j.x.comm = comm_self();
    j.x.plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(j.m, j.x.plan, false);
    assert_ok(generator_plan(j.m, j.x.plan, 16, 1, &g));
    assert_ok(score_plan(j.m, j.x.plan, true, &j.on));
    assert_ok(plan_commit(j.x.plan));
    int32_t *zero = mem_alloc(BIG * sizeof *zero), *start = mem_alloc(BIG * sizeof *start),
            *targets = mem_alloc(BIG * sizeof *targets),
            *ranges = mem_alloc(2 * MODEL_RANGES * BIG * sizeof *ranges);
    int64_t *ids = mem_alloc(BIG * sizeof *ids);
    for (int i = 0; i < BIG; i++) ids[i] = start[i] = i, targets[i] = DATA_NO_TARGET;
    model_set_batch(
        j.m, j.x.plan,
        &(model_batch){ zero, targets, zero, start, ids, BIG, .ranges = ranges, .previous = zero });
    assert_memory_equal(plan_input(j.x.plan, "targets", 0), targets, BIG * sizeof *targets);
    free(zero);
    free(start);
    free(targets);
    free(ranges);
    free(ids);
    close_judge(&j);
}

/* A batch has less padding than the difference of two chains, or than the request that did not fit: requests of drawn lengths and
 * numbers, which have nothing in common, so that each takes its own tokens. */
typedef struct batch_check {
    const score_request *all;
    int64_t done, n, most; /* requests before this batch, all of them; tokens of padding allowed */
} batch_check;
static void check_padding(void *ctx, int64_t done, int64_t tokens) {
    batch_check *b = ctx;
    int64_t used = 0;
    for (int64_t i = b->done; i < done; i++) used += b->all[i].n - 1;
    int64_t most = MAX(b->most, done < b->n ? b->all[done].n - 1 : 0);
    if (tokens < used || tokens - used >= most)
        fail_msg("requests %lld to %lld of %lld: %lld tokens run as %lld", (long long)b->done,
                 (long long)done, (long long)b->n, (long long)used, (long long)tokens);
    b->done = done;
}
static void batches_have_little_padding(void **state) {
    enum { N = 60, SEQ_LEN = 64 };
    static int32_t text[N][SEQ_LEN];
    rng_key key = rng_key_of(9, 0);
    score_request all[N];
    judge j;
    open_judge_of(&j, true, 16, SEQ_LEN);
    for (uint64_t round = 0; round < 12; round++) {
        int64_t n = 1 + (int64_t)rng_below(key, 100 * round, round < 6 ? 12 : N);
        for (int64_t i = 0; i < n; i++) {
            int64_t len = 2 + (int64_t)rng_below(key, 100 * round + 1 + (uint64_t)i, SEQ_LEN - 2);
            for (int k = 0; k < SEQ_LEN; k++) text[i][k] = (int32_t)((i + k) % VOCAB);
            all[i] = (score_request){ text[i], len, len - 1 };
        }
        batch_check b = { all, 0, n, 128 };
        assert_ok(score_all(&j.x, j.m, &j.on, all, n, check_padding, &b));
        assert_int_equal(b.done, n);
    }
    close_judge(&j);
}

/* Chains of a last batch use memory of the chain of whole batches. */
static void smaller_chains_take_no_memory(void **state) {
    static const char *const regions[] = { "residual", "carried" };
    judge one, all;
    open_judge_of(&one, false, 32, 64);
    open_judge_of(&all, true, 32, 64);
    assert_int_equal(all.on.tails, SCORE_TAILS);
    for (size_t i = 0; i < COUNT_OF(regions); i++) {
        assert_true(plan_bytes(one.x.plan, regions[i]) > 0);
        assert_int_equal(plan_bytes(all.x.plan, regions[i]), plan_bytes(one.x.plan, regions[i]));
    }
    close_judge(&one);
    close_judge(&all);
}

/* A beginning that all questions have is computed once per batch. */
static void count_batch(void *ctx, int64_t done, int64_t tokens) { ++*(int *)ctx; }
static void common_beginnings_take_fewer_batches(void **state) {
    enum { N = 24, PREFIX = 20, OWN = 8 };
    static int32_t text[N][PREFIX + OWN];
    score_request all[N];
    judge j;
    int batches = 0;
    open_judge_of(&j, true, 2, LONG_SEQ);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < PREFIX + OWN; k++)
            text[i][k] = k < PREFIX ? k % VOCAB : (i * 7 + k) % VOCAB;
        all[i] = (score_request){ text[i], PREFIX + OWN, PREFIX + OWN - 1 };
    }
    /* 96 tokens hold the beginning and ten questions of 7 */
    assert_ok(score_all(&j.x, j.m, &j.on, all, N, count_batch, &batches));
    assert_int_equal(batches, 3);
    close_judge(&j);
}

/* Of a text longer than a row the end counts. */
static void long_texts_lose_their_beginning(void **state) {
    judge j;
    open_judge(&j);
    int32_t text[3 * SEQ];
    for (int i = 0; i < 3 * SEQ; i++) text[i] = i * 7 % VOCAB;
    score_request all[] = { { text, 3 * SEQ, 3 * SEQ - 2 },
                            { text + 2 * SEQ - 1, SEQ + 1, SEQ - 1 } };
    score(&j, all, 2);
    assert_true(fabs(all[0].sum - all[1].sum) < 1e-6);
    close_judge(&j);
}

/* In CORE a text begins with the token that ends documents where the tokenizer puts none before it; in other tasks only where
 * nothing else does. */
static void core_texts_begin_with_a_token(void **state) {
    judge j;
    tokenizer *tok;
    int32_t ids[] = { 256, 'a', 'b', ' ', 'c', 'd' };
    score_request core = { ids, 6, 3 }, harness = { ids + 1, 5, 2 };
    open_judge(&j);
    assert_ok(tokenizer_open("bytes", NULL, &tok));
    score(&j, &core, 1);
    score(&j, &harness, 1);
    task_run r = { .x = &j.x, .m = j.m, .on = &j.on, .tok = tok };
    const struct {
        const char *task, *text;
        double expected;
    } cases[] = { { "core_greedy", "{\"context\": \"ab\", \"continuation\": \"cd\"}\n", core.sum },
                  { "lambada", "{\"text\": \"ab cd\"}\n", harness.sum } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        task_file t;
        task_score s;
        folder_write(*state, "q.jsonl", cases[i].text);
        assert_ok(task_read_as(task_find(cases[i].task), in_folder(*state, "q.jsonl"), 0, &t));
        assert_ok(task_score_all(&r, &t, &s));
        if (fabs(s.likelihood - cases[i].expected) > 1e-5)
            fail_msg("%s: %g, not %g", cases[i].task, s.likelihood, cases[i].expected);
        task_free(&t);
    }
    tokenizer_free(tok);
    close_judge(&j);
}

/* ---- rolling windows --------------------------------------------------------------------------- */
static eval_rolling roll(judge *j, test_folder *f, const char *name, const char *text) {
    tokenizer *tok;
    eval_rolling t;
    assert_ok(tokenizer_open("bytes", NULL, &tok));
    task_run r = { .x = &j->x, .m = j->m, .on = &j->on, .tok = tok };
    folder_write(f, name, text);
    assert_ok(eval_rolling_file(&r, in_folder(f, name), &t));
    tokenizer_free(tok);
    return t;
}

/* Each token is predicted once, from all that its window reads before it: SEQ tokens end with the window's last one, so that the
 * rest of a long document has as much before it as fits. */
static void rolling_windows_are_full(void **state) {
    static const int lengths[] = { 1, SEQ - 1, SEQ, SEQ + 1, 2 * SEQ, 2 * SEQ + 5, 3 * SEQ - 1 };
    judge j;
    open_judge(&j);
    for (size_t c = 0; c < COUNT_OF(lengths); c++) {
        int32_t ids[3 * SEQ + 1] = { 256 }; /* what ends documents is before the first token */
        char text[3 * SEQ + 1] = "";
        score_request each[3 * SEQ];
        double expected = 0;
        int n = lengths[c];
        for (int i = 0; i < n; i++)
            ids[i + 1] = (unsigned char)(text[i] = (char)('a' + i * 7 % 26));
        for (int i = 0; i < n; i++) {
            int end = MIN((i / SEQ + 1) * SEQ, n), start = MAX(0, end - SEQ);
            each[i] = (score_request){ ids + start, i + 2 - start, i + 1 - start };
        }
        score(&j, each, n);
        for (int i = 0; i < n; i++) expected += each[i].sum;
        eval_rolling t = roll(&j, *state, "a.txt", text);
        assert_int_equal(t.tokens, n);
        if (fabs(t.sum - expected) > 1e-4) fail_msg("%d: %g, not %g", n, t.sum, expected);
    }
    close_judge(&j);
}

/* A page of WikiText has the likelihood of the text that the harness makes of it, and its own words and bytes; words end at what
 * Python takes for white space. */
static void wikitext_is_detokenized(void **state) {
    judge j;
    open_judge(&j);
    static const char page[] =
        "{\"page\": \" = Robert =\\n \\n The band 's ( \\\" Album \\\" ) sold 1 @,@ 000 @-@ odd copies , at 20 @.@ 5 "
        "\\u00b0 C . It was [  new\\u00a0] ; the boys ' { a } one : N ! Why ? ( open /' 5/ ' x ' = = Notes = = \\n = = = "
        "Sub = = = \\n\"}\n";
    static const char text[] =
        "{\"text\": \" = Robert =\\n\\nThe band's (\\\"Album\\\") sold 1,000-odd copies, at 20.5\\u00b0C. It was [new]; the "
        "boys' {a} one: N! Why? ( open /'[0-9]/' x ' == Notes ==\\n=== Sub ===\\n\"}\n";
    eval_rolling a = roll(&j, *state, "a.jsonl", page), b = roll(&j, *state, "b.jsonl", text);
    assert_int_equal(a.tokens, b.tokens);
    assert_true(fabs(a.sum - b.sum) < 1e-6);
    assert_int_equal(a.bytes, 196);
    assert_int_equal(a.words, 65);
    assert_int_equal(b.bytes, b.tokens);
    b = roll(&j, *state, "c.jsonl", "{\"text\": \"a\\u00a0b\\u001cc \\u3000d\\u200be\"}\n");
    assert_int_equal(b.words, 4);
    b = roll(&j, *state, "d.txt", "a\xE3\x80 b\xFF\xC2");
    assert_int_equal(b.words, 2);
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
    assert_ok(task_add_shots(&t, &same, 1, TASK_DRAW_HARNESS));
    for (int i = 0; i < t.n;
         i++) { /* of the question's own subject, and never the question itself */
        const char *c = t.question[i].context, *subject = t.question[i].group;
        assert_true(str_starts(c, "The following are multiple choice questions"));
        assert_null(strstr(c + 1, "The following")); /* once */
        assert_true(str_ends(c, same.question[i].context + same.question[i].preamble));
        const char *shown = c + t.question[i].preamble;
        int k = 0;
        while (k < same.n && (k == i || strcmp(same.question[k].group, subject) != 0 ||
                              !strcmp(same.question[k].context, same.question[i].context)))
            k++;
        assert_true(k < same.n);
        assert_true(str_starts(shown, same.question[k].context + same.question[k].preamble));
    }
    task_free(&t);
    assert_error(task_add_shots(&same, &same, 30, TASK_DRAW_HARNESS), "fewer than --shots 30");
    task_free(&same);
}

/* ---- every task, against what tests/fixtures/eval/tasks.py computes from the definitions ------------------- */
static json_t *read_expected(const char *task) {
    char path[512], *text, *next = NULL;
    snprintf(path, sizeof path, "%s/eval/tasks/%s.expected.jsonl", FIXTURES, task);
    assert_ok(io_read(path, 1 << 24, &text, NULL));
    json_t *list = json_array();
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
        json_array_append_new(list, json_loads(line, 0, NULL));
    free(text);
    return list;
}

static task_file read_task(const char *name, const char *ending) {
    char path[512];
    task_file t;
    snprintf(path, sizeof path, "%s/eval/tasks/%s%s.jsonl", FIXTURES, name, ending);
    assert_ok(task_read_as(task_find(name), path, 0, &t));
    return t;
}

/* The contexts of a question, with what stands before them. */
static void expect_contexts(const char *task, const task_question *q, const json_t *want,
                            const char *shots) {
    const json_t *contexts = json_object_get(want, "contexts");
    for (size_t k = 0; k < json_array_size(contexts); k++) {
        str all = { 0 };
        const char *got = q->other[k] ? q->other[k] : q->context;
        str_add(&all, "%s%s", shots, json_string_value(json_array_get(contexts, k)));
        if (strcmp(got, all.text) != 0)
            fail_msg("%s:\nexpected \"%s\"\ngot \"%s\"", task, all.text, got);
        str_free(&all);
    }
}

static void expect_answers(const char *task, const task_question *q, const json_t *want) {
    const json_t *answers = json_object_get(want, "answers");
    size_t n = json_array_size(answers);
    for (size_t k = 0; k < (size_t)q->choices; k++) {
        const char *text = json_string_value(json_array_get(answers, n > 1 ? k : 0));
        if (strcmp(q->choice[k], text) != 0)
            fail_msg("%s: expected \"%s\", got \"%s\"", task, text, q->choice[k]);
    }
    assert_int_equal(q->answer, json_integer_value(json_object_get(want, "right")));
}

static void every_task_is_shown_as_defined(void **state) {
    int tested = 0;
    for (int i = 0; i < task_table_rows; i++) {
        const char *name = task_row_name(task_row_at(i));
        char path[512];
        snprintf(path, sizeof path, "%s/eval/tasks/%s.jsonl", FIXTURES, name);
        if (!io_exists(path)) continue; /* in the older fixtures */
        json_t *want = read_expected(name);
        bool core = str_starts(name, "core_");
        for (int shots = 0; shots < 3; shots++) {
            task_file t = read_task(name, ""), train = read_task(name, ".train");
            const char *key = shots == 2 ? "own" : "shots";
            if (shots == 2 && !core) assert_ok(task_add_shots(&t, &t, 3, TASK_DRAW_HARNESS));
            if (shots == 1)
                assert_ok(task_add_shots(&t, core ? &t : &train, 3,
                                         core ? TASK_DRAW_CORE : TASK_DRAW_HARNESS));
            assert_int_equal(t.n, (int)json_array_size(want));
            for (int k = 0; k < t.n; k++) {
                const json_t *w = json_array_get(want, (size_t)k);
                const char *before = json_string_value(json_object_get(w, key));
                if (shots < 2 || !core)
                    expect_contexts(name, &t.question[k], w, shots ? before : "");
                expect_answers(name, &t.question[k], w);
            }
            task_free(&t);
            task_free(&train);
        }
        json_decref(want);
        tested++;
    }
    assert_int_equal(tested, 16);
}

/* Those that can be told by their members are. */
static void tasks_are_recognized(void **state) {
    static const char *const names[] = { "boolq",       "sciq",       "commonsense_qa",
                                         "arc",         "piqa",       "copa",
                                         "race",        "winogrande", "squad",
                                         "triviaqa",    "gsm8k",      "core_choices",
                                         "core_schema", "core_greedy" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char path[512];
        task_file t;
        snprintf(path, sizeof path, "%s/eval/tasks/%s.jsonl", FIXTURES, names[i]);
        assert_ok(task_read(path, 0, &t));
        assert_string_equal(t.format, names[i]);
        task_free(&t);
    }
}

static void generated_answers_are_compared(void **state) {
    static const struct {
        task_match how;
        const char *answer, *right;
        bool matches;
    } cases[] = {
        { MATCH_WORDS, " The Beatles!", "the beatles", true },
        { MATCH_WORDS, "a  b", "a b", false },
        { MATCH_WORDS, "Paris, France", "Paris", false },
        { MATCH_SQUAD, " an  old   Tree.", "the old tree", true },
        { MATCH_SQUAD, "then", "the n", false },
        { MATCH_SQUAD, "A–B the", "–b", true }, /* "a" is a word of its own beside a dash */
        { MATCH_SQUAD, "the\xC2\xA0GRÖSSE", "Grösse", true },
        { MATCH_SQUAD, "étude a", "ÉTUDE", true },
        { MATCH_SQUAD, "été", "été a", true },
        { MATCH_SQUAD, "naïve", "naive", false },
        { MATCH_WORDS, "\xE3\x80\x80Ångström", "ÅNGSTRÖM.", true },
        { MATCH_WORDS, "the x", "x", false },
        { MATCH_NUMBER, "So 3 + 4 = 7.\nThe answer is $1,234.", "x = 1234\n#### 1,234", true },
        { MATCH_NUMBER, "it is -5", "#### -5", true },
        { MATCH_NUMBER, "it is 5", "#### -5", false },
        { MATCH_NUMBER, "12 or 13", "#### 12", false },
        { MATCH_NUMBER, "none", "#### 4", false },
        { MATCH_NUMBER, "#### 4\n", "because\n#### 4", true },
        { MATCH_NUMBER, "3.50", "#### 3.50", true },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        task_question q = { .choice = { (char *)(uintptr_t)cases[i].right }, .choices = 1 };
        if (task_matches(cases[i].how, cases[i].answer, &q) != cases[i].matches)
            fail_msg("\"%s\" against \"%s\"", cases[i].answer, cases[i].right);
    }
}

static void python_draws_the_same_numbers(void **state) {
    static const struct {
        uint64_t n;
        int64_t k, want[10];
    } draws[] = { { 1000, 5, { 989, 796, 451, 119, 7 } },
                  { 20, 10, { 2, 18, 1, 19, 3, 12, 5, 15, 0, 11 } },
                  { 300, 10, { 8, 177, 247, 237, 76, 46, 93, 58, 7, 257 } },
                  { 85, 10, { 62, 31, 8, 69, 59, 82, 76, 11, 65, 74 } } };
    static const int64_t shuffled[] = { 4,  7, 28, 0, 2,  24, 3,  15, 27, 8,  14, 13, 21, 16, 1,
                                        29, 6, 20, 9, 26, 12, 10, 5,  23, 25, 18, 11, 22, 17, 19 };
    py_random r;
    py_random_seed(&r, 1234);
    for (size_t i = 0; i < COUNT_OF(draws); i++) {
        int64_t got[10];
        py_random_sample(&r, (int64_t)draws[i].n, draws[i].k, got);
        assert_memory_equal(got, draws[i].want, (size_t)draws[i].k * sizeof *got);
    }
    int64_t list[30];
    for (int i = 0; i < 30; i++) list[i] = i;
    py_random_seed(&r, 1337);
    py_random_shuffle(&r, list, 30);
    assert_memory_equal(list, shuffled, sizeof list);
    py_random_seed(&r, ((uint64_t)1 << 40) + 5);
    assert_true(py_random_below(&r, (uint64_t)1 << 35) == 3976222944);
    assert_true(py_random_below(&r, (uint64_t)1 << 35) == 3829167211);
}

static void core_is_centered(void **state) {
    double sum = 0;
    for (int i = 0; i < CORE_TASKS; i++)
        sum += core_centered(&core_table[i], core_table[i].baseline / 100);
    assert_true(fabs(sum) < 1e-12); /* chance is 0 */
    for (int i = 0; i < CORE_TASKS; i++) assert_true(core_centered(&core_table[i], 1) == 1);
    assert_true(fabs(core_centered(&core_table[20], 0.81) - 0.5) <
                1e-12); /* boolq: (0.81 - 0.62) / 0.38 */
}

static void refuse(test_folder *f, const char *text, const char *words) {
    task_file t;
    folder_write(f, "bad.jsonl", text);
    assert_error(task_read(in_folder(f, "bad.jsonl"), 0, &t), words);
}

static void bad_files_are_refused(void **state) {
    test_folder *f = *state;
    refuse(f, "", "holds no question");
    refuse(f, "{\"text\": 1}\n", "not a question of a known task");
    refuse(f, "not json\n", "bad.jsonl:1");
    refuse(f, "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}\n", "names none");
    refuse(f, "{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 0}\n", "2 answers or more");
    refuse(f, "{\"context\": \"a\", \"choices\": [\"b\", 3], \"answer\": 0}\n", "not text");
    refuse(f, "{\"passage\": \"a\", \"question\": \"b\", \"label\": 1}\n{\"goal\": \"a\"}\n",
           "bad.jsonl:2: not a question of boolq");
    refuse(
        f,
        "{\"sentence\": \"no gap\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}\n",
        "bad.jsonl:1: template");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probabilities_sum_to_one),
        cmocka_unit_test(likelihoods_follow_the_chain_rule),
        cmocka_unit_test(shared_beginnings_change_no_likelihood),
        cmocka_unit_test(batches_have_little_padding),
        cmocka_unit_test(smaller_chains_take_no_memory),
        cmocka_unit_test(common_beginnings_take_fewer_batches),
        cmocka_unit_test(long_texts_lose_their_beginning),
        cmocka_unit_test_setup_teardown(core_texts_begin_with_a_token, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(rolling_windows_are_full, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(wikitext_is_detokenized, folder_setup, folder_teardown),
        cmocka_unit_test(formats_are_recognized),
        cmocka_unit_test(examples_come_before_questions),
        cmocka_unit_test(every_task_is_shown_as_defined),
        cmocka_unit_test(a_batch_writes_no_input_of_smaller_programs),
        cmocka_unit_test(tasks_are_recognized),
        cmocka_unit_test(generated_answers_are_compared),
        cmocka_unit_test(python_draws_the_same_numbers),
        cmocka_unit_test(core_is_centered),
        cmocka_unit_test_setup_teardown(bad_files_are_refused, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests_name("tasks", tests, NULL, NULL);
}
