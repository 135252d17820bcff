/* text: transforms. What is written, in parts that a killed run resumes with, the same for any number of
 * threads. */
#include <sched.h>
#include <stdatomic.h>

#include "support/text.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "comm/comm.h"
#include "text/inputs_internal.h"
#include "text/transform_report_internal.h"

enum { MOST_WORKERS = 256 };

/* Drops documents whose text begins with 'd', upper-cases those that begin with 'e', counts 'x'. */
typedef struct letters {
    char scratch[MOST_WORKERS][4096];
    int kill_after; /* documents of one worker; 0: live */
    _Atomic int seen;
    err (*refuse)(void);
} letters;

static err judge(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) {
    letters *l = ctx;
    assert_in_range(worker, 0, MOST_WORKERS - 1);
    if (l->kill_after && ++l->seen > l->kill_after) raise(SIGKILL);
    if (l->refuse && d->text.at[0] == '!') return l->refuse();
    for (size_t i = 0; i < d->text.len; i++) v->count[0] += d->text.at[i] == 'x';
    if (d->text.at[0] == 'd') {
        v->rule = 1;
        v->value = 0.5;
    }
    if (d->text.at[0] == 'e') {
        assert_true(d->text.len < sizeof l->scratch[0]);
        memcpy(l->scratch[worker], d->text.at, d->text.len);
        l->scratch[worker][0] = 'E';
        v->text = (text_span){ l->scratch[worker], d->text.len };
    }
    return OK;
}

static const char *const rules[] = { "never", "begins with d" };
static const char *const counters[] = { "letters x" };

static text_transform transform_of(letters *l) {
    return (text_transform){ .name = "letters",
                             .rules = rules,
                             .n_rules = 2,
                             .counters = counters,
                             .n_counters = 1,
                             .hash = 7,
                             .ctx = l,
                             .judge = judge };
}

static err run(const char *const *paths, int n, const text_input_options *io,
               const text_transform_options *o, letters *l, text_transform_report *r) {
    text_inputs *inputs = NULL;
    text_transform s = transform_of(l);
    TRY(text_inputs_open(paths, n, io, &inputs));
    err e = text_transform_run(&s, inputs, o, r);
    text_inputs_close(inputs);
    return e;
}

static char *slurp(const char *path, size_t *n) {
    char *text = NULL;
    assert_ok(io_read(path, 1 << 28, &text, n));
    return text;
}

static void assert_holds(const char *path, const char *expected) {
    char *text = slurp(path, NULL);
    assert_string_equal(text, expected);
    free(text);
}

static const text_input_options plain = { 0 };

static void documents_are_kept_edited_and_dropped(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    text_transform_report r;
    const char *path =
        write_input(p, "a.jsonl",
                    "{\"text\": \"axx\", \"n\": 1}\n{\"n\": 2, \"text\": \"drop\"  }\n"
                    "{\"text\": \"edit\", \"n\": 3}\nbroken\n{\"text\":\"\"}\n");
    text_transform_options o = { .out = in_folder(p, "out.jsonl"),
                                 .dropped = in_folder(p, "drop.jsonl"),
                                 .threads = 2 };
    assert_ok(run(&path, 1, &plain, &o, &l, &r));
    assert_holds(o.out, "{\"text\": \"axx\", \"n\": 1}\n{\"text\": \"Edit\", \"n\": 3}\n");
    assert_holds(o.dropped, "{\"n\": 2, \"text\": \"drop\"  , \"dropped_by\": \"begins with d\", "
                            "\"value\": 0.5}\n");
    assert_int_equal(r.read.documents, 3);
    assert_int_equal(r.read.unreadable, 1);
    assert_int_equal(r.read.empty, 1);
    assert_int_equal(r.kept, 2);
    assert_int_equal(r.kept_bytes, 7);
    assert_int_equal(r.edited, 1);
    assert_int_equal(r.dropped[0], 0);
    assert_int_equal(r.dropped[1], 1);
    assert_int_equal(r.dropped_bytes[1], 4);
    assert_int_equal(r.count[0], 2);
    text_transform_report_free(&r);
}

/* ---- parts --------------------------------------------------------------------------------------- */
static const char *put_many(test_folder *p, const char *name, int n) {
    rng_key key = rng_key_of(3, 3);
    str lines = { 0 };
    for (int i = 0; i < n; i++) {
        str_add(&lines, "{\"id\":\"%d\",\"text\":\"%c", i,
                "abcdefgh"[rng_below(key, (uint64_t)i, 8)]);
        for (int w = 0; w < i % 60; w++) str_add(&lines, " word%d", w * i % 977);
        str_add(&lines, "\"}\n");
    }
    const char *path = write_input_bytes(p, name, lines.text, lines.len);
    str_free(&lines);
    return path;
}

static const text_input_options small = { .segment_bytes = 200000, .block_bytes = 3000 };

/* All files of a folder, one after another, with their names; state.json apart. */
static void folder_bytes(const char *folder, str *out) {
    char **names = NULL;
    int n = 0;
    assert_ok(io_list(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        char *path = io_join(folder, names[i]);
        size_t len;
        char *bytes = slurp(path, &len);
        str_add(out, "== %s %zu\n", names[i], len);
        str_add_bytes(out, bytes, len);
        free(bytes);
        free(path);
    }
    io_list_free(names, n);
}

static void assert_same_folder(const char *a, const char *b) {
    str all_a = { 0 }, all_b = { 0 };
    folder_bytes(a, &all_a);
    folder_bytes(b, &all_b);
    assert_int_equal(all_a.len, all_b.len);
    assert_memory_equal(all_a.text, all_b.text, all_a.len);
    str_free(&all_a);
    str_free(&all_b);
}

static void same_bytes_for_any_threads(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    const char *path = put_many(p, "many.jsonl", 3000);
    const int threads[] = { 1, 2, 3, 8 };
    for (size_t c = 0; c < 3; c++)
        for (size_t t = 0; t < COUNT_OF(threads); t++) {
            char out[32], dropped[32];
            snprintf(out, sizeof out, "out%zu%zu", c, t);
            snprintf(dropped, sizeof dropped, "drop%zu%zu", c, t);
            text_transform_options o = { .out = in_folder(p, out),
                                         .dropped = in_folder(p, dropped),
                                         .compress = (const char *[]){ NULL, "gz", "none" }[c],
                                         .threads = threads[t] };
            text_transform_report r;
            assert_ok(run(&path, 1, &small, &o, &l, &r));
            assert_true(r.kept > 2000 && r.dropped[1] > 200);
            text_transform_report_free(&r);
            if (t == 0) continue;
            out[4] = dropped[5] = '0';
            assert_same_folder(o.dropped, in_folder(p, dropped));
            char *state_a = io_join(o.out, "state.json"),
                 *state_b = io_join(in_folder(p, out), "state.json");
            unlink(state_a); /* it names where dropped ones go */
            unlink(state_b);
            assert_same_folder(o.out, in_folder(p, out));
            free(state_a);
            free(state_b);
        }
}

/* A transform reads what another one wrote. */
static void parts_are_read_again(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    const char *path = put_many(p, "many.jsonl", 500), *out = in_folder(p, "out"),
               *again = in_folder(p, "again");
    text_transform_report a, b;
    assert_ok(run(&path, 1, &small, &(text_transform_options){ .out = out }, &l, &a));
    assert_ok(
        run(&out, 1, &plain, &(text_transform_options){ .out = again, .compress = "gz" }, &l, &b));
    assert_int_equal(b.read.documents, a.kept);
    assert_int_equal(b.read.bytes, a.kept_bytes);
    assert_int_equal(b.read.unreadable, 0);
    assert_int_equal(b.kept, a.kept);
    text_transform_report_free(&a);
    text_transform_report_free(&b);
}

static void killed_stages_go_on(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    const char *path = put_many(p, "many.jsonl", 3000);
    text_transform_options calm = { .out = in_folder(p, "calm"),
                                    .dropped = in_folder(p, "dropped"),
                                    .threads = 2 };
    text_transform_report expected;
    assert_ok(run(&path, 1, &small, &calm, &l, &expected));
    str once = { 0 }, again = { 0 };
    folder_bytes(calm.out, &once);
    folder_bytes(calm.dropped, &once);
    for (int after = 100; after < 3000; after += 900) { /* judged documents */
        text_transform_options o = calm;
        text_transform_report r;
        pid_t child = fork();
        if (child == 0) {
            letters dying = { .kill_after = after };
            o.fresh = true;
            err e = run(&path, 1, &small, &o, &dying, &r);
            _exit(e ? 1 : 0);
        }
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        seen s;
        assert_error(read_one(calm.out, &plain, 1, &s), "has not finished");
        seen_free(&s);
        assert_ok(run(&path, 1, &small, &o, &l, &r));
        assert_int_equal(r.kept, expected.kept);
        assert_int_equal(r.read.documents, expected.read.documents);
        assert_int_equal(r.dropped[1], expected.dropped[1]);
        assert_int_equal(r.count[0], expected.count[0]);
        if (after > 2000) assert_true(r.resumed_parts > 0);
        text_transform_report_free(&r);
        again.len = 0;
        folder_bytes(calm.out, &again);
        folder_bytes(calm.dropped, &again);
        assert_int_equal(again.len, once.len);
        assert_memory_equal(again.text, once.text, once.len);
    }
    text_transform_report_free(&expected);
    str_free(&once);
    str_free(&again);
}

/* A part is whole when its report is there, which is written last; one without is rewritten. */
static void parts_without_reports_are_made_again(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    const char *path = put_many(p, "many.jsonl", 1500);
    text_transform_options o = { .out = in_folder(p, "out") };
    text_transform_report r;
    assert_ok(run(&path, 1, &small, &o, &l, &r));
    text_transform_report_free(&r);
    str before = { 0 }, after = { 0 };
    folder_bytes(o.out, &before);
    write_input(p, "out/part-000000.jsonl.zst", "half of a part");
    unlink(in_folder(p, "out/part-000000.report"));
    unlink(in_folder(p, "out/part-000001.jsonl.zst"));
    write_input(p, "out/part-000001.jsonl.zst.99999.0.tmp", "left by a killed run");
    assert_ok(run(&path, 1, &small, &o, &l, &r));
    text_transform_report_free(&r);
    folder_bytes(o.out, &after);
    assert_int_equal(after.len, before.len);
    assert_memory_equal(after.text, before.text, before.len);
    str_free(&before);
    str_free(&after);
}

static void other_results_are_refused(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    const char *path = put_many(p, "many.jsonl", 50), *other = put_many(p, "other.jsonl", 60);
    text_transform_options o = { .out = in_folder(p, "out") };
    text_transform_report r;
    assert_ok(run(&path, 1, &plain, &o, &l, &r));
    text_transform_report_free(&r);
    assert_error(run(&other, 1, &plain, &o, &l, &r), "other inputs");
    o.compress = "gz";
    assert_error(run(&path, 1, &plain, &o, &l, &r), "another compression");
    o.compress = NULL;
    o.dropped = in_folder(p, "dropped");
    assert_error(run(&path, 1, &plain, &o, &l, &r), "another --dropped");
    o.dropped = NULL;
    o.fresh = true;
    assert_ok(run(&other, 1, &plain, &o, &l, &r));
    assert_int_equal(r.read.documents, 60);
    text_transform_report_free(&r);
    o.fresh = false;
    assert_ok(run(&other, 1, &plain, &o, &l, &r));
    assert_int_equal(r.resumed_parts, 1);
    assert_int_equal(r.read.documents, 60);
    text_transform_report_free(&r);
    unlink(in_folder(p, "out/state.json"));
    assert_error(run(&other, 1, &plain, &o, &l, &r), "without state.json");
}

static void places_are_checked(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    const char *path = put_many(p, "many.jsonl", 5);
    text_transform_report r;
#define REFUSED(part, ...)                                                                         \
    assert_error(run(&path, 1, &plain, &(text_transform_options){ __VA_ARGS__ }, &l, &r), part)
    REFUSED("unknown compression", .out = in_folder(p, "o"), .compress = "lzma");
    REFUSED("must be too", .out = in_folder(p, "o"), .dropped = in_folder(p, "d.jsonl"));
    REFUSED("must be too", .out = in_folder(p, "o.jsonl"), .dropped = in_folder(p, "d"));
    REFUSED("different paths", .out = in_folder(p, "o"), .dropped = in_folder(p, "o"));
    REFUSED("standard output", .out = in_folder(p, "o"), .dropped = "-");
    REFUSED("the input", .out = p->path);
    REFUSED("the input", .out = path);
    REFUSED("a file of that name", .out = write_input(p, "file", "x"));
#undef REFUSED
    assert_true(io_exists(path));
}

static err refuse(void) { return ERR("told to fail"); }

/* A transform that fails leaves no part that looks whole, and the file of before as it was. */
static void failures_leave_nothing(void **state) {
    test_folder *p = *state;
    letters l = { .refuse = refuse };
    const char *path = write_input(p, "a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"!\"}\n");
    text_transform_report r;
    text_transform_options o = { .out = write_input(p, "out.jsonl", "before"), .threads = 2 };
    assert_error(run(&path, 1, &plain, &o, &l, &r), "told to fail");
    assert_holds(o.out, "before");
    o.out = in_folder(p, "out");
    assert_error(run(&path, 1, &plain, &o, &l, &r), "told to fail");
    char **names = NULL;
    int n = 0;
    assert_ok(io_list(o.out, &names, &n));
    assert_int_equal(n, 1);
    assert_string_equal(names[0], "state.json");
    io_list_free(names, n);
}

static void files_are_packed_as_named(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    const char *empty = write_input(p, "empty.jsonl", "");
    const char *path = write_input(p, "a.jsonl", "{\"text\":\"a\"}\n");
    const char *names[] = { "o.jsonl", "o.jsonl.gz", "o.jsonl.zst" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        text_transform_report r;
        text_transform_options o = { .out = in_folder(p, names[i]) };
        text_input_options strict = { .strict = true };
        const char *both[] = { path, path };
        assert_ok(run(both, 2, &plain, &o, &l, &r));
        text_transform_report_free(&r);
        assert_sees(o.out, &strict, "[0|a||||][1|a||||]");
        assert_ok(run(&empty, 1, &plain, &o, &l, &r)); /* nothing, but a whole file of it */
        text_transform_report_free(&r);
        assert_sees(o.out, &strict, "");
    }
}

/* Runs with a descriptor turned to a file. */
typedef struct diversion {
    int fd, kept;
} diversion;
static diversion divert(FILE *f, const char *path) {
    fflush(f);
    diversion d = { fileno(f), dup(fileno(f)) };
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(to >= 0 && dup2(to, d.fd) >= 0);
    close(to);
    return d;
}
static void restore(FILE *f, diversion d) {
    fflush(f);
    dup2(d.kept, d.fd);
    close(d.kept);
}

static void documents_go_to_standard_output(void **state) {
    test_folder *p = *state;
    letters l = { 0 };
    const char *path = write_input(p, "a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"d\"}\n");
    text_transform_report r;
    diversion d = divert(stdout, in_folder(p, "stdout"));
    err e = run(&path, 1, &plain, &(text_transform_options){ .threads = 1 }, &l, &r);
    restore(stdout, d);
    assert_ok(e);
    text_transform_report_free(&r);
    assert_holds(in_folder(p, "stdout"), "{\"text\":\"a\"}\n");
}

/* A line when there is something to wait for, and none when there is not. */
static void progress_is_shown(void **state) {
    test_folder *p = *state;
    text_progress quick, slow, quiet;
    diversion d = divert(stderr, in_folder(p, "stderr"));
    text_progress_init(&quick, "quick", 1000);
    assert_ok(text_progress_add(&quick, 500));
    text_progress_init(&quiet, NULL, 1000);
    text_progress_init(&slow, "slow", 4 << 20);
    slow.began -= 100, slow.shown -= 100, quiet.began -= 100, quiet.shown -= 100;
    assert_ok(text_progress_add(&quiet, 500));
    assert_ok(text_progress_add(&slow, 1 << 20));
    text_progress_end(&slow);
    restore(stderr, d);
    assert_holds(in_folder(p, "stderr"),
                 "slow: 1.00 MiB of 4.00 MiB (25%), 10.2 KiB/s, 5m 00s left\n");
}

/* ---- reports ------------------------------------------------------------------------------------------ */
static void reports_are_printed(void **state) {
    letters l = { 0 };
    text_transform s = transform_of(&l);
    int64_t dropped[] = { 0, 25 }, bytes[] = { 0, 2048 }, count[] = { 3 };
    text_transform_report r = { .peak_memory = 1 << 20,
                                .ranks = 1,
                                .read = { .documents = 100, .bytes = 10240, .unreadable = 2 },
                                .kept = 75,
                                .kept_bytes = 8192,
                                .edited = 5,
                                .dropped = dropped,
                                .dropped_bytes = bytes,
                                .count = count,
                                .seconds = 2,
                                .seen_bytes = 10240 };
    char *table = NULL;
    size_t size;
    FILE *to = open_memstream(&table, &size);
    text_transform_print(&s, &r, to);
    fclose(to);
    const char *lines[] = {
        "letters\n                                    documents     share         text\n",
        "  read                                    100   100.00%     10.0 KiB\n",
        "  unreadable records                        2\n",
        "  dropped                                  25    25.00%     2.00 KiB\n",
        "    begins with d                          25    25.00%     2.00 KiB\n",
        "    1 rule dropped nothing\n",
        "  kept                                     75    75.00%     8.00 KiB\n",
        "    edited                                  5     5.00%\n",
        "  letters x                                 3\n",
        "  2.0s, 5.00 KiB/s, peak memory ",
    };
    char *at = table;
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        if (!str_starts(at, lines[i])) fail_msg("expected \"%s\" at \"%s\"", lines[i], at);
        at += strlen(lines[i]);
    }
    free(table);
    json_t *doc = text_transform_json(&s, &r), *list, *read;
    int64_t n;
    assert_ok(io_json_object(doc, "report", "read", &read));
    assert_ok(io_json_int(read, "report", "unreadable", &n));
    assert_int_equal(n, 2);
    assert_ok(io_json_array(doc, "report", "dropped", &list));
    assert_ok(io_json_int(json_array_get(list, 1), "report", "documents", &n));
    assert_int_equal(n, 25);
    assert_ok(io_json_int(doc, "report", "peak_memory_bytes", &n));
    assert_true(n > 0);
    json_decref(doc);
}

/* ---- ranks --------------------------------------------------------------------------------------------- */
enum { TASKS = 50, RANKS = 3 };

static void tasks_are_shared_by_bytes(void **state) {
    comm *ends[RANKS];
    int64_t bytes[TASKS], load[RANKS] = { 0 }, all = 0;
    bool done[TASKS] = { [7] = true };
    int owner[TASKS];
    assert_ok(comm_threads((mesh){ .size = { [AX_DP_SHARD] = RANKS } }, 20, ends));
    for (int i = 0; i < TASKS; i++) bytes[i] = i == 3 ? 900 : i * 37 % 101;
    text_tasks t = { .comm = ends[1], .n = TASKS, .bytes = bytes, .done = done };
    text_tasks_assign(&t, owner);
    assert_int_equal(owner[7], TEXT_DONE);
    for (int i = 0; i < TASKS; i++) {
        if (i == 7) continue;
        load[owner[i]] += bytes[i];
        all += bytes[i];
    }
    for (int r = 0; r < RANKS; r++)
        assert_true(load[r] > all / RANKS - 101 && load[r] < all / RANKS + 101);
    for (int r = 0; r < RANKS; r++) comm_free(ends[r]);
}

typedef struct task_rank {
    comm *c;
    bool fails;            /* rank 1 does */
    _Atomic int *finished; /* set: the first task of rank 1 takes until all others are through */
    int ran[TASKS];
    err error;
} task_rank;

/* Where a rank fails, the others work until they hear of it. */
static err run_task(void *ctx, int task, text_progress *p) {
    task_rank *r = ctx;
    r->ran[task]++;
    if (r->fails && comm_rank(r->c) == 1) return ERR("the disk is full");
    while (r->finished && comm_rank(r->c) == 1 && atomic_load(r->finished) < TASKS - 1)
        sched_yield();
    if (r->finished) atomic_fetch_add(r->finished, 1);
    do TRY(text_progress_add(p, 1));
    while (r->fails);
    return OK;
}

static void *run_tasks(void *arg) {
    task_rank *r = arg;
    int64_t bytes[TASKS] = { 0 };
    r->error = text_tasks_run(
        &(text_tasks){ .comm = r->c, .n = TASKS, .bytes = bytes, .ctx = r, .run = run_task });
    return NULL;
}

static void run_task_ranks(task_rank *ranks, bool fails, _Atomic int *finished) {
    comm *ends[RANKS];
    pthread_t thread[RANKS];
    assert_ok(comm_threads((mesh){ .size = { [AX_DP_SHARD] = RANKS } }, 20, ends));
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (task_rank){ .c = ends[r], .fails = fails, .finished = finished };
        pthread_create(&thread[r], NULL, run_tasks, &ranks[r]);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < RANKS; r++) comm_free(ends[r]);
}

static void each_task_runs_once(void **state) {
    task_rank ranks[RANKS];
    run_task_ranks(ranks, false, NULL);
    for (int r = 0; r < RANKS; r++) assert_ok(ranks[r].error);
    for (int i = 0; i < TASKS; i++) {
        int ran = 0;
        for (int r = 0; r < RANKS; r++) ran += ranks[r].ran[i];
        assert_int_equal(ran, 1);
    }
}

/* One rank is at its first task until the others have run all of the rest: those that were its own too. */
static void tasks_of_a_slow_rank_are_taken_over(void **state) {
    task_rank ranks[RANKS];
    _Atomic int finished = 0;
    run_task_ranks(ranks, false, &finished);
    for (int i = 0; i < TASKS; i++) {
        int ran = 0;
        for (int r = 0; r < RANKS; r++) ran += ranks[r].ran[i];
        assert_int_equal(ran, 1);
    }
    int slow = 0;
    for (int i = 0; i < TASKS; i++) slow += ranks[1].ran[i];
    assert_int_equal(slow, 1);
    for (int r = 0; r < RANKS; r++) assert_ok(ranks[r].error);
}

static void a_rank_that_fails_stops_the_others(void **state) {
    task_rank ranks[RANKS];
    run_task_ranks(ranks, true, NULL);
    for (int r = 0; r < RANKS; r++) {
        assert_non_null(ranks[r].error);
        assert_int_equal(err_is_echo(ranks[r].error), r != 1);
        err_free(ranks[r].error);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, text_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(documents_are_kept_edited_and_dropped),
        TEST(same_bytes_for_any_threads),
        TEST(parts_are_read_again),
        TEST(killed_stages_go_on),
        TEST(parts_without_reports_are_made_again),
        TEST(other_results_are_refused),
        TEST(places_are_checked),
        TEST(failures_leave_nothing),
        TEST(files_are_packed_as_named),
        TEST(documents_go_to_standard_output),
        TEST(progress_is_shown),
        TEST(reports_are_printed),
        cmocka_unit_test(tasks_are_shared_by_bytes),
        cmocka_unit_test(each_task_runs_once),
        cmocka_unit_test(tasks_of_a_slow_rank_are_taken_over),
        cmocka_unit_test(a_rank_that_fails_stops_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
