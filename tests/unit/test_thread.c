/* The pool: every task once, whatever the number of threads; as many of those as may run. */
#include "support/folder.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "util/util.h"

enum { TASKS = 1000, ROUNDS = 50 };
typedef struct counts {
    _Atomic int task[TASKS];
    _Atomic int bad_workers;
    int workers;
} counts;

static void count(void *ctx, int64_t i, int worker) {
    counts *c = ctx;
    atomic_fetch_add(&c->task[i], 1);
    if (worker < 0 || worker >= c->workers) atomic_fetch_add(&c->bad_workers, 1);
}

static void each_task_runs_once(void **state) {
    for (int threads = 0; threads <= 7; threads++) {
        pool *p = threads ? pool_new(threads) : NULL;
        counts c = { .workers = pool_size(p) };
        assert_int_equal(c.workers, MAX(threads, 1));
        for (int k = 0; k < ROUNDS; k++) pool_run(p, TASKS - k, count, &c);
        pool_run(p, 0, count, &c);
        for (int i = 0; i < TASKS; i++)
            assert_int_equal(c.task[i], i < TASKS - ROUNDS ? ROUNDS : TASKS - i);
        assert_int_equal(c.bad_workers, 0);
        pool_free(p);
    }
}

/* Stands before the system's own: as if it had threads for that many more. */
static int threads_left = 1000;
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    int (*start)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    *(void **)&start = dlsym(RTLD_NEXT, "pthread_create");
    return threads_left-- > 0 ? start(thread, attr, run, arg) : EAGAIN;
}

static void a_pool_makes_do_with_the_threads_there_are(void **state) {
    log_set_level(LOG_ERROR);
    for (int left = 0; left < 3; left++) {
        threads_left = left;
        pool *p = pool_new(5);
        counts c = { .workers = pool_size(p) };
        assert_int_equal(c.workers, left + 1);
        pool_run(p, TASKS, count, &c);
        for (int i = 0; i < TASKS; i++) assert_int_equal(c.task[i], 1);
        assert_int_equal(c.bad_workers, 0);
        pool_free(p);
    }
    threads_left = 1000;
}

static void memory_that_is_not_free_is_refused(void **state) {
    size_t left = mem_free();
    void *p = NULL;
    assert_true(left > 0 && left < SIZE_MAX);
    assert_error(mem_map(left + (left >> 1), &p), "of memory are needed", "are free");
    assert_null(p);
    assert_ok(mem_map(1 << 20, &p));
    mem_unmap(p, 1 << 20);
}

/* Stands before the system's own: files of control groups are those of a folder, with "#" for "/" in their names. */
static test_folder *groups;
FILE *fopen(const char *path, const char *mode) {
    FILE *(*open_file)(const char *, const char *);
    *(void **)&open_file = dlsym(RTLD_NEXT, "fopen");
    bool is_group = !strncmp(path, "/sys/fs/cgroup", 14) || !strcmp(path, "/proc/self/cgroup");
    if (!groups || !is_group) return open_file(path, mode);
    char name[256];
    snprintf(name, sizeof name, "%s", path + 1);
    for (char *at = name; *at; at++)
        if (*at == '/') *at = '#';
    return open_file(in_folder(groups, name), mode);
}

static void only_allowed_cores_are_counted(void **state) {
    cpu_set_t all, one;
    groups = *state; /* none */
    CPU_ZERO(&one);
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(thread_cores(), CPU_COUNT(&all));
    for (int i = 0; CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    pool *p = pool_new(0);
    assert_int_equal(pool_size(p), 1);
    pool_free(p);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    groups = NULL;
}

static int cores_with(const char *name, const char *text) {
    folder_write(groups, name, text);
    return thread_cores();
}

static void cores_are_those_of_the_control_groups(void **state) {
    groups = *state;
    int cores = thread_cores();
    assert_int_equal(cores_with("proc#self#cgroup", "0::/job/step\n"), cores);
    assert_int_equal(cores_with("sys#fs#cgroup#job#step#cpu.max", "max 100000\n"), cores);
    assert_int_equal(cores_with("sys#fs#cgroup#job#step#cpu.max", "50000 100000\n"), 1);
    assert_int_equal(cores_with("sys#fs#cgroup#job#step#cpu.max", "100000000 100000\n"), cores);
    assert_int_equal(cores_with("sys#fs#cgroup#job#cpu.max", "190000 100000\n"), 1); /* around it */
    assert_int_equal(cores_with("sys#fs#cgroup#job#cpu.max", "damaged\n"), cores);
    assert_int_equal(cores_with("sys#fs#cgroup#cpu.max", "100000 100000\n"), 1);
    /* version 1, in a container: the path is the host's */
    folder_write(groups, "proc#self#cgroup", "5:memory:/docker/1\n4:cpuacct,cpu:/docker/1\n");
    folder_write(groups, "sys#fs#cgroup#cpu#cpu.cfs_period_us", "100000\n");
    assert_int_equal(cores_with("sys#fs#cgroup#cpu#cpu.cfs_quota_us", "-1\n"), cores);
    assert_int_equal(cores_with("sys#fs#cgroup#cpu#cpu.cfs_quota_us", "150000\n"), 1);
    groups = NULL;
}

static void free_memory_is_that_of_the_control_groups(void **state) {
    groups = *state;
    folder_write(groups, "proc#self#cgroup", "0::/\n");
    assert_true(mem_free() > 1 << 20);
    folder_write(groups, "sys#fs#cgroup#memory.max", "1000000\n");
    folder_write(groups, "sys#fs#cgroup#memory.current", "700000\n");
    assert_int_equal(mem_free(), 300000);
    folder_write(groups, "sys#fs#cgroup#memory.stat", "inactive_file 200000\n");
    assert_int_equal(mem_free(), 500000);
    folder_write(groups, "sys#fs#cgroup#memory.current", "1300000\n");
    assert_int_equal(mem_free(), 0);
    folder_write(groups, "proc#self#cgroup", "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n");
    folder_write(groups, "sys#fs#cgroup#memory#memory.limit_in_bytes", "1000000\n");
    folder_write(groups, "sys#fs#cgroup#memory#memory.usage_in_bytes", "700000\n");
    folder_write(groups, "sys#fs#cgroup#memory#memory.stat", "total_inactive_file 100000\n");
    assert_int_equal(mem_free(), 400000);
    groups = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_runs_once),
        cmocka_unit_test_setup_teardown(only_allowed_cores_are_counted, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(cores_are_those_of_the_control_groups, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(free_memory_is_that_of_the_control_groups, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(a_pool_makes_do_with_the_threads_there_are),
        cmocka_unit_test(memory_that_is_not_free_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
