/* Faults on purpose: see fault.h. */
#include "util/fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const point_names[] = {
#define FAULT_NAME(id, name) [FAULT_##id] = name,
    FAULT_POINTS(FAULT_NAME)
#undef FAULT_NAME
};
typedef enum { NO_FAULT, KILL, STOP, HANG, SLOW, FLIP } fault_action;
static const char *const action_names[] = {
    [NO_FAULT] = "", [KILL] = "kill", [STOP] = "stop",
    [HANG] = "hang", [SLOW] = "slow", [FLIP] = "flip",
};

/* Read once from the environment. */
static struct {
    fault_action action;
    int point;
    int64_t rank, hit, attempt;
    double by;
    _Atomic int64_t hits;
} fault;

/* A fault that is misspelled would be a test that tests nothing. */
static void refuse_fault(const char *text) {
    fprintf(stderr, "error: INGOT_FAULT: \"%s\" is not a fault; see util/fault.h\n", text);
    abort();
}

static int find_name(const char *text, const char *const *names, int n, const char *whole) {
    for (int i = 0; i < n; i++)
        if (strcmp(text, names[i]) == 0) return i;
    refuse_fault(whole);
    return 0;
}

static void read_key(const char *word, const char *whole) {
    const struct {
        const char *name;
        int64_t *to;
    } keys[] = { { "rank=", &fault.rank }, { "hit=", &fault.hit }, { "attempt=", &fault.attempt } };
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (str_starts(word, keys[i].name)) {
            const char *value = word + strlen(keys[i].name);
            if (strcmp(value, "any") == 0)
                *keys[i].to = 0;
            else if (!number_parse_int(value, keys[i].to))
                refuse_fault(whole);
            return;
        }
    if (!str_starts(word, "by=") || !number_parse_real(word + 3, &fault.by)) refuse_fault(whole);
}

static void read_environment(void) {
    const char *whole = getenv("INGOT_FAULT"), *attempt = getenv("INGOT_ATTEMPT");
    if (!whole || !*whole) return;
    char *copy = strdup(whole), *rest = copy, *word;
    fault.hit = fault.attempt = 1;
    fault_action action = NO_FAULT;
    for (int i = 0; (word = strsep(&rest, ":")); i++) {
        if (i == 0)
            action = (fault_action)find_name(word, action_names, COUNT_OF(action_names), whole);
        else if (i == 1)
            fault.point = find_name(word, point_names, COUNT_OF(point_names), whole);
        else
            read_key(word, whole);
    }
    free(copy);
    int64_t now = 1;
    if (attempt) number_parse_int(attempt, &now);
    if (!fault.attempt || fault.attempt == now) fault.action = action;
}

static bool is_asked(fault_point_id point, int rank) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
    return fault.action && fault.point == (int)point && fault.rank == rank;
}

void fault_point(fault_point_id point, int rank) {
    if (!is_asked(point, rank) || fault.action > HANG) return;
    if (atomic_fetch_add(&fault.hits, 1) + 1 != fault.hit) return;
    if (fault.action == KILL) kill(getpid(), SIGKILL);
    if (fault.action == STOP) kill(getpid(), SIGSTOP);
    while (fault.action == HANG) sleep(1);
}

bool fault_flips(fault_point_id point, int rank) {
    return is_asked(point, rank) && fault.action == FLIP &&
           (atomic_fetch_add(&fault.hits, 1) + 1 == fault.hit || !fault.hit);
}

double fault_slows(fault_point_id point, int rank) {
    return is_asked(point, rank) && fault.action == SLOW ? fault.by : 0;
}
