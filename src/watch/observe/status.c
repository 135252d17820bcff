/* See status.h. */
#include "observe/status.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"

const char *const run_state_names[RUN_STATE_COUNT] = {
#define X(name, text) [RUN_##name] = text,
    RUN_STATES(X)
#undef X
};

run_status status_none(void) {
    return (run_status){
        .tokens = NAN, .total_tokens = NAN, .eta_s = NAN, .step_s = NAN, .checkpoint = -1
    };
}

static void fit_text(char *to, size_t capacity, const char *text) {
    size_t n = text ? strlen(text) : 0;
    if (n >= capacity) n = capacity - 1;
    while (n && text && n < strlen(text) && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--; /* no part of a character */
    memcpy(to, text ? text : "", n);
    to[n] = '\0';
}
#define FIT_TEXT(to, text) fit_text(to, sizeof(to), text)

/* ---- processes ------------------------------------------------------------------------------------ */
/* @return when a process began, in ticks since the machine's start; 0: the process does not exist. */
static int64_t process_began(int64_t pid) {
    char path[64], text[1024] = "";
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) close(fd);
    if (n <= 0) return 0;
    text[n] = '\0';
    const char *at = strrchr(text, ')'); /* a program's name may hold spaces */
    char status = at && at[1] ? at[2] : 'Z';
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at && status != 'Z' && status != 'X' ? strtoll(at, NULL, 10) : 0;
}

static void name_machine(char *out, size_t capacity) {
    char boot[64] = "", space[48] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot - 1) : 0;
    if (fd >= 0) close(fd);
    boot[MAX(n, 0)] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    n = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    space[MAX(n, 0)] = '\0';
    snprintf(out, capacity, "%s %s", boot, space);
}

/* ---- JSON ------------------------------------------------------------------------------------------- */
/* The numbers of a status. NULLED: `none` means that it is not known, which is null in JSON. */
static const struct status_number {
    const char *key;
    size_t offset;
    enum { COUNT, COUNT_NULLED, REAL, REAL_NULLED } kind; /* an int64_t, or a double */
    double none;                                          /* where a file has no such number */
} numbers[] = {
#define NUMBER(name, kind, none)                                                                   \
    { #name, offsetof(run_status, name), kind, none }
    NUMBER(step, COUNT, 0),
    NUMBER(steps, COUNT_NULLED, 0),
    NUMBER(tokens, REAL, NAN),
    NUMBER(total_tokens, REAL, NAN),
    NUMBER(eta_s, REAL, NAN),
    NUMBER(checkpoint, COUNT_NULLED, -1),
    NUMBER(restarts, COUNT, 0),
    NUMBER(rollbacks, COUNT, 0),
    NUMBER(alerts, COUNT, 0),
    NUMBER(began, REAL_NULLED, 0),
    NUMBER(updated, REAL_NULLED, 0),
    NUMBER(step_s, REAL, NAN),
    NUMBER(flops_per_token, REAL, NAN),
};

static double known_number(const run_status *s, const struct status_number *n) {
    const char *at = (const char *)s + n->offset;
    double v = n->kind < REAL ? (double)*(const int64_t *)at : *(const double *)at;
    return (n->kind == COUNT_NULLED || n->kind == REAL_NULLED) && v <= n->none ? NAN : v;
}

double status_number(const run_status *s, const char *key) {
    size_t i = 0;
    while (strcmp(numbers[i].key, key) != 0) BUG_IF(++i == COUNT_OF(numbers));
    return known_number(s, &numbers[i]);
}

json_t *status_json(const run_status *s) {
    json_t *o = json_object(), *alerts = json_array();
    json_object_set_new(o, "state", json_string(run_state_names[s->state]));
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        double v = known_number(s, &numbers[i]);
        bool whole = isfinite(v) && v == floor(v) && fabs(v) < 9e15;
        json_object_set_new(o, numbers[i].key,
                            whole ? json_integer((json_int_t)v) : io_json_number(v));
    }
    json_object_set_new(o, "cause", io_json_string(s->cause, strlen(s->cause)));
    json_object_set_new(o, "remedy", io_json_string(s->remedy, strlen(s->remedy)));
    for (int i = 0; i < s->n_last; i++) {
        const status_alert *a = &s->last[i];
        json_array_append_new(alerts,
                              json_pack("{s:I, s:o, s:o, s:o}", "step", (json_int_t)a->step,
                                        "alert", io_json_string(a->name, strlen(a->name)),
                                        "message", io_json_string(a->message, strlen(a->message)),
                                        "remedy", io_json_string(a->remedy, strlen(a->remedy))));
    }
    json_object_set_new(o, "last_alerts", alerts);
    return o;
}

static double number_at(const json_t *o, const char *key, double otherwise) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

/* A count of a file that anyone may have written. */
static int64_t stored_count(const json_t *o, const char *key, int64_t otherwise) {
    double v = number_at(o, key, NAN);
    return v >= 0 && v < 9e15 ? (int64_t)v : otherwise;
}

static const char *text_at(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static void read_status_json(const json_t *o, run_status *s) {
    const char *state = text_at(o, "state");
    for (int i = 0; i < RUN_STATE_COUNT; i++)
        if (!strcmp(state, run_state_names[i])) s->state = (run_state)i;
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        char *at = (char *)s + numbers[i].offset;
        if (numbers[i].kind < REAL)
            *(int64_t *)at = stored_count(o, numbers[i].key, (int64_t)numbers[i].none);
        else
            *(double *)at = number_at(o, numbers[i].key, numbers[i].none);
    }
    s->pid = stored_count(o, "pid", 0);
    s->pid_began = stored_count(o, "pid_began", 0);
    FIT_TEXT(s->cause, text_at(o, "cause"));
    FIT_TEXT(s->remedy, text_at(o, "remedy"));
    FIT_TEXT(s->host, text_at(o, "host"));
    FIT_TEXT(s->machine, text_at(o, "machine"));
    size_t i;
    const json_t *a;
    json_array_foreach(json_object_get(o, "last_alerts"), i, a) {
        if (s->n_last == STATUS_ALERTS) break;
        status_alert *to = &s->last[s->n_last++];
        to->step = stored_count(a, "step", 0);
        FIT_TEXT(to->name, text_at(a, "alert"));
        FIT_TEXT(to->message, text_at(a, "message"));
        FIT_TEXT(to->remedy, text_at(a, "remedy"));
    }
}

char *status_file_tail(const char *dir, const char *name, int64_t most) {
    char *text = mem_alloc((size_t)most + 1);
    struct stat st;
    int fd = open(PATH_IN(dir, name), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        int64_t from = MAX(0, (int64_t)st.st_size - most);
        ssize_t n = pread(fd, text, (size_t)most, (off_t)from);
        text[n > 0 ? n : 0] = '\0';
        char *line = from ? strchr(text, '\n') : NULL;
        if (line) memmove(text, line + 1, strlen(line + 1) + 1);
    }
    if (fd >= 0) close(fd);
    return text;
}

json_t *status_tail(const char *dir, const char *name, int64_t most) {
    char *text = status_file_tail(dir, name, most), *next = NULL;
    json_t *list = json_array();
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (json_is_object(o)) json_array_append(list, o);
        json_decref(o);
    }
    free(text);
    return list;
}

/* ---- events -------------------------------------------------------------------------------------------- */
static void take_alert(run_status *s, const json_t *e) {
    s->alerts++;
    s->n_last = MIN(s->n_last + 1, STATUS_ALERTS);
    memmove(&s->last[1], &s->last[0], (size_t)(s->n_last - 1) * sizeof s->last[0]);
    s->last[0].step = stored_count(e, "step", 0);
    FIT_TEXT(s->last[0].name, text_at(e, "alert"));
    FIT_TEXT(s->last[0].message, text_at(e, "message"));
    FIT_TEXT(s->last[0].remedy, text_at(e, "remedy"));
}

bool status_take_event(run_status *s, const json_t *e) {
    const char *kind = text_at(e, "event");
    int64_t step = stored_count(e, "step", 0);
    if (!strcmp(kind, "alert")) {
        take_alert(s, e);
    } else if (!strcmp(kind, "save")) {
        s->checkpoint = step;
    } else if (!strcmp(kind, "rollback")) {
        s->rollbacks++;
        s->step = step;
    } else if (!strcmp(kind, "finish")) {
        s->state = RUN_FINISHED;
        s->eta_s = NAN;
    } else if (!strcmp(kind, "stop") || !strcmp(kind, "failure")) {
        s->state = *kind == 's' ? RUN_STOPPED : RUN_DIED;
        s->eta_s = NAN;
        s->step = MAX(s->step, step);
        FIT_TEXT(s->cause, text_at(e, "message"));
        FIT_TEXT(s->remedy, text_at(e, "remedy"));
    } else {
        return false;
    }
    return true;
}

/* ---- the process that runs ------------------------------------------------------------------------------ */
static bool read_status_file(const char *dir, run_status *out) {
    const char *path = PATH_IN(dir, STATUS_FILE);
    json_t *o = NULL;
    err e = io_exists(path) ? io_json_read(path, &o) : OK;
    *out = status_none();
    bool there = !e && json_is_object(o);
    if (there) read_status_json(o, out);
    err_free(e);
    json_decref(o);
    return there;
}

void status_begin(const char *dir, int64_t step, int64_t steps, double total_tokens,
                  run_status *out) {
    run_status before;
    bool again = read_status_file(dir, &before);
    run_status s = again ? before : status_none();
    s.pid = (int64_t)getpid();
    s.pid_began = process_began(s.pid);
    if (gethostname(s.host, sizeof s.host - 1) != 0) s.host[0] = '\0';
    name_machine(s.machine, sizeof s.machine);
    bool same = before.pid == s.pid && before.pid_began == s.pid_began &&
                !strcmp(before.machine, s.machine); /* it rolls back */
    s.restarts += again && !same;
    s.state = RUN_RUNNING;
    s.step = step;
    s.steps = steps;
    s.total_tokens = total_tokens > 0 ? total_tokens : NAN;
    s.eta_s = NAN;
    s.cause[0] = s.remedy[0] = '\0';
    s.updated = (double)time(NULL);
    if (!s.began) s.began = s.updated;
    *out = s;
}

err status_write(const char *dir, const run_status *s) {
    const char *path = PATH_IN(dir, STATUS_FILE);
    json_t *o = status_json(s);
    json_object_set_new(o, "pid", json_integer(s->pid));
    json_object_set_new(o, "pid_began", json_integer(s->pid_began));
    json_object_set_new(o, "host", io_json_string(s->host, strlen(s->host)));
    json_object_set_new(o, "machine", io_json_string(s->machine, strlen(s->machine)));
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    BUG_IF(!text);
    err e = io_publish(path, text, strlen(text));
    free(text);
    json_decref(o);
    return e;
}

/* ---- readers ------------------------------------------------------------------------------------------------ */
/* Of what a launch logged, the attempt that failed last, if nothing was written since. */
static void explain_death(const char *dir, run_status *s) {
    json_t *list = status_tail(dir, "launch.jsonl", 1 << 16);
    const json_t *o = json_array_get(list, MAX(json_array_size(list), 1) - 1);
    if (o && stored_count(o, "status", 0) && number_at(o, "time", 0) + 1 >= s->updated) {
        int64_t rank = stored_count(o, "rank", -1);
        const char *cause = text_at(o, "cause"), *host = text_at(o, "host");
        if (rank >= 0)
            snprintf(s->cause, sizeof s->cause, "rank %lld%s%.60s: %.200s", (long long)rank,
                     *host ? " on " : "", host, *cause ? cause : "cause not known");
        else if (*cause)
            FIT_TEXT(s->cause, cause);
    }
    json_decref(list);
}

/* Whether the process that is reported as running exists. */
static void check_life(const char *dir, run_status *s) {
    enum { SILENT_S = 3600, SILENT_STEPS = 100 };
    char machine[sizeof s->machine], age[32];
    if (s->state != RUN_RUNNING) return;
    name_machine(machine, sizeof machine);
    bool here = *machine && !strcmp(machine, s->machine);
    double silent = (double)time(NULL) - s->updated;
    double most = fmax(SILENT_S, isfinite(s->step_s) ? SILENT_STEPS * s->step_s : 0);
    if (here && process_began(s->pid) == s->pid_began) return;
    if (!here && silent < most) return;
    s->state = RUN_DIED;
    s->eta_s = NAN;
    if (here)
        snprintf(s->cause, sizeof s->cause, "process %lld was killed or ended without a message",
                 (long long)s->pid);
    else
        snprintf(s->cause, sizeof s->cause, "no sign of life from %s for %s", s->host,
                 str_duration(age, sizeof age, silent));
    snprintf(s->remedy, sizeof s->remedy,
             "train.log has its last lines; the same command continues%s",
             s->checkpoint < 0 ? " from the beginning" : " from the last checkpoint");
    explain_death(dir, s);
}

/* Of a run that has no status.json: an older one, or figures from elsewhere. */
static void derive_status(const char *dir, run_status *s) {
    json_t *events = status_tail(dir, "events.jsonl", 1 << 20), *launches, *e;
    size_t i;
    json_array_foreach(events, i, e) {
        const char *kind = text_at(e, "event");
        run_state before = s->state;
        if (before != RUN_UNKNOWN) s->state = RUN_UNKNOWN; /* something followed */
        if (!strcmp(kind, "resume")) s->restarts++;
        status_take_event(s, e);
    }
    if (s->state == RUN_UNKNOWN) s->cause[0] = s->remedy[0] = '\0';
    launches = status_tail(dir, "launch.jsonl", 1 << 16);
    e = json_array_get(launches, MAX(json_array_size(launches), 1) - 1);
    if (e && stored_count(e, "status", 0) && s->state == RUN_UNKNOWN) {
        s->state = RUN_DIED;
        explain_death(dir, s);
    }
    json_decref(launches);
    json_decref(events);
}

void status_read(const char *dir, const series *all, run_status *out) {
    bool there = read_status_file(dir, out);
    if (there)
        check_life(dir, out);
    else
        derive_status(dir, out);
    if (!all || !series_rows(all)) return;
    double step = series_last(all, "step"), tokens = series_last(all, "tokens"),
           time = series_last(all, "time");
    if (step > (double)out->step) { /* status.json is written once per second */
        out->step = (int64_t)step;
        if (isfinite(tokens)) out->tokens = tokens;
    }
    if (isnan(out->tokens)) out->tokens = tokens;
    if (time > out->updated) out->updated = time;
}

void status_line(const run_status *s, str *out) {
    char a[32], b[32];
    str_add(out, "%s: step %lld", run_state_names[s->state], (long long)s->step);
    if (s->steps)
        str_add(out, " of %lld (%.0f %%)", (long long)s->steps,
                floor(100 * (double)s->step / (double)s->steps));
    if (isfinite(s->tokens)) {
        str_add(out, ", %s", str_count(a, sizeof a, s->tokens));
        if (isfinite(s->total_tokens))
            str_add(out, " of %s", str_count(b, sizeof b, s->total_tokens));
        str_add(out, " tokens");
    }
    if (s->state == RUN_RUNNING && isfinite(s->eta_s))
        str_add(out, ", %s left", str_duration(a, sizeof a, s->eta_s));
    if (s->checkpoint >= 0) str_add(out, ", last checkpoint: step %lld", (long long)s->checkpoint);
    const struct {
        const char *one, *many;
        int64_t n;
    } counts[] = { { "restart", "restarts", s->restarts },
                   { "rollback", "rollbacks", s->rollbacks },
                   { "alert", "alerts", s->alerts } };
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        if (counts[i].n)
            str_add(out, ", %lld %s", (long long)counts[i].n,
                    counts[i].n == 1 ? counts[i].one : counts[i].many);
}
