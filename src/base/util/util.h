/* util: what every other folder builds on. Errors, memory, strings, logging, random numbers,
 * hashing, threads. Depends on libc and POSIX only.
 *
 * Given `const char *name` and `int count`:
 *
 *     void *buffer = NULL;
 *     if (!name[0]) return ERR("the name is empty");      // a fault of the world: an error
 *     BUG_IF(count < 0);                                  // a fault of ours: abort, naming the line
 *     TRY(mem_map((size_t)count * 8, &buffer));           // forwards an error with file:line
 *     mem_unmap(buffer, (size_t)count * 8);
 */
#ifndef INGOT_UTIL_H
#define INGOT_UTIL_H

#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define NORETURN               __attribute__((noreturn))
#define MUST_USE               __attribute__((warn_unused_result))
#else
#define PRINTF_LIKE(fmt, args)
#define NORETURN
#define MUST_USE
#endif

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b)   ((a) < (b) ? (a) : (b))
#define MAX(a, b)   ((a) > (b) ? (a) : (b))

/* ---- errors ------------------------------------------------------------------------------
 * An `err` is NULL on success, else an owned object: a message (what, where, expected, got), an
 * optional hint (the remedy) and the trail of file:line it unwound through. The caller frees it
 * or forwards it. */
typedef struct err_object *err;
#define OK ((err)0)

err err_make(const char *file, int line, const char *fmt, ...) PRINTF_LIKE(3, 4) MUST_USE;
/* Adds a remedy, shown on its own line. @return e. */
err err_hint(err e, const char *fmt, ...) PRINTF_LIKE(2, 3) MUST_USE;
/* Appends a place to the trail. @return e. */
err err_trail(err e, const char *file, int line) MUST_USE;
/* Exit codes of the program: exits.def. */
typedef enum {
#define EXIT_ROW(name, code, restart, meaning) EXIT_##name = code,
#include "util/exits.def"
} exit_code;
typedef enum { RESTART_NEVER, RESTART_NOW, RESTART_BACKOFF } exit_restart;
typedef struct exit_row {
    const char *name; /* "PREEMPTED" */
    exit_code code;
    exit_restart restart;
    const char *meaning;
} exit_row;
/* @return the row of a code; NULL: not one of ours. */
const exit_row *exit_find(int code);

/* Sets the code that the program exits with for it; EXIT_ERROR unless set. @return e. */
err err_exit(err e, exit_code code) MUST_USE;
exit_code err_exit_code(err e);
/* Marks a mistake in the command line: EXIT_USAGE. */
static inline err err_usage(err e) { return err_exit(e, EXIT_USAGE); }
static inline bool err_is_usage(err e) { return err_exit_code(e) == EXIT_USAGE; }
/* Marks an error that only states that another rank failed: that rank's own error has the cause. @return e. */
err err_echo(err e) MUST_USE;
bool err_is_echo(err e);
/* Marks an error that another attempt would meet again: a retry does not help. @return e. */
err err_lasting(err e) MUST_USE;
bool err_is_lasting(err e);
const char *err_message(err e);
const char *err_remedy(err e); /* "" when none was given */
/* Prints "error: message", the remedy, and with `trail` the places. */
void err_print(FILE *to, err e, bool trail);
void err_free(err e); /* takes NULL */

#define ERR(...)       err_make(__FILE__, __LINE__, __VA_ARGS__)
#define ERR_USAGE(...) err_usage(ERR(__VA_ARGS__))
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        err try_error_ = (expr);                                                                   \
        if (try_error_) return err_trail(try_error_, __FILE__, __LINE__);                          \
    } while (0)
/* For functions with a `cleanup:` label and a local `err e = OK;` that they return. */
#define TRY_CLEAN(expr)                                                                            \
    do {                                                                                           \
        e = (expr);                                                                                \
        if (e) {                                                                                   \
            e = err_trail(e, __FILE__, __LINE__);                                                  \
            goto cleanup;                                                                          \
        }                                                                                          \
    } while (0)

/* A fault of ours: prints the place and `what`, then aborts. BUG stands where control must never
 * arrive: BUG("unknown dtype"). */
NORETURN void bug_at(const char *file, int line, const char *what);
#define BUG(what) bug_at(__FILE__, __LINE__, what)
#define BUG_IF(cond)                                                                               \
    do {                                                                                           \
        if (cond) bug_at(__FILE__, __LINE__, #cond);                                               \
    } while (0)

/* ---- memory ------------------------------------------------------------------------------ */
/* malloc and friends that abort when memory is out: for small host structures only. The large
 * buffers of a run come from mem_map, whose failure is an error with a remedy. */
void *mem_alloc(size_t bytes); /* zeroed */
void *mem_grow(void *p, size_t bytes);
/* For buffers of megabytes that are freed like others; not zeroed. They are backed by huge pages where the
 * system gives them, since otherwise each 4 KiB cost a page fault. */
void *mem_alloc_large(size_t bytes);
/* @return the items, moved to where one more fits if `count` has reached `*capacity`. */
void *mem_reserve(void *items, int *capacity, int count, size_t item_size) MUST_USE;
/* A new last element of a growing list, to be assigned: LIST_ADD(l->items, l->n, l->capacity) = x, where x reads neither
 * the list nor its length. */
#define LIST_ADD(items, n, capacity)                                                               \
    (*((items) = mem_reserve(items, &(capacity), n, sizeof *(items)), &(items)[(n)++]))

/* Page-aligned zeroed memory for the big buffers, huge pages where the system gives them. An error when
 * there is not as much free as is asked for. */
err mem_map(size_t bytes, void **out) MUST_USE;
/* @return bytes that this process can still have, of the machine's memory and of its control group's
 * limit; SIZE_MAX: not known. */
size_t mem_free(void);
void mem_unmap(void *p, size_t bytes);

/* A bump allocator: many small things freed at once. No destructor, zeroed memory. */
typedef struct arena arena;
arena *arena_new(void);
void *arena_alloc(arena *a, size_t bytes);
char *arena_strdup(arena *a, const char *s);
char *arena_printf(arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
void arena_free(arena *a); /* takes NULL */

/* a / b, rounded up; a >= 0, b > 0. */
static inline int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0); }
/* Sorts n elements of `size` bytes; those that compare equal keep their order. `at` may be NULL if n is 0. */
void sort_array(void *at, size_t n, size_t size, int (*compare)(const void *, const void *));
/* Defines a comparison for sort_array by members of the elements, of which the first that differ decide:
 * SORT_ORDER(by_size, file, FALLING(bytes) RISING_TEXT(name)). */
#define SORT_ORDER(name, type, members)                                                            \
    static int name(const void *a_, const void *b_) {                                              \
        const type *x_ = a_, *y_ = b_;                                                             \
        members;                                                                                   \
        return 0;                                                                                  \
    }                                                                                              \
    _Static_assert(sizeof(type) > 0, "the semicolon that follows")
#define RISING(member)                                                                             \
    if (x_->member < y_->member) return -1;                                                        \
    if (x_->member > y_->member) return 1;
#define FALLING(member)                                                                            \
    if (x_->member > y_->member) return -1;                                                        \
    if (x_->member < y_->member) return 1;
#define RISING_TEXT(member)                                                                        \
    if (strcmp(x_->member, y_->member)) return strcmp(x_->member, y_->member);
/* For sort_array, ascending. */
int compare_texts(const void *a, const void *b); /* of pointers to text */
int compare_uint32(const void *a, const void *b);
int compare_doubles(const void *a, const void *b);
int compare_int64(const void *a, const void *b);
static inline size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
/* @return the most bytes this process has had resident so far. */
size_t mem_peak(void);
/* @return false when a*b overflows. */
bool mul_size(size_t a, size_t b, size_t *out);

/* ---- strings ----------------------------------------------------------------------------- */
/* A growing text buffer. Zero-initialize, append, free. `text` is always NUL-terminated once
 * something was appended. */
typedef struct str {
    char *text;
    size_t len, cap;
} str;
void str_add(str *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
void str_add_bytes(str *s, const void *bytes, size_t n);
/* Makes capacity for `more` bytes, and a NUL, after the first len; len stays. */
void str_reserve(str *s, size_t more);
void str_free(str *s);
/* Levenshtein distance with transpositions, for "did you mean". */
int str_distance(const char *a, const char *b);
/* @return the one of `name` and `best` that is nearer to `word`; NULL, as `best` is at first: none is near. */
const char *str_nearer(const char *word, const char *name, const char *best);
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);
/* "1.5 GiB", "124 M", "3m 20s": written into buf, which is returned. */
/* @return the value of a hexadecimal digit, -1 for any other character. */
int hex_digit(char c);
/* Appends a number as JSON: null for NaN and infinity, which JSON does not have. */
void str_add_json_number(str *s, double v);
char *str_bytes(char *buf, size_t n, double bytes);
char *str_count(char *buf, size_t n, double count);
char *str_duration(char *buf, size_t n, double seconds);

/* Appends the exit codes as a table of Markdown. */
void exit_docs(str *out);

/* A text file compiled into the program (cmake/embed_files.cmake). A list of them ends in { 0 }. */
typedef struct embedded_file {
    const char *name, *text;
} embedded_file;

/* ---- numbers as people write them --------------------------------------------------------
 * 4096, 4_096, 1e6, 2.5M (powers of 1000: k or K, M, G or B, T), 64Ki (powers of 1024). Never hexadecimal,
 * infinite or NaN. The one grammar of options, configs and commands. */
/* @return false when the text is not such a number, or not a whole one. `out` is then untouched. */
bool number_parse_int(const char *text, int64_t *out);
bool number_parse_real(const char *text, double *out);
/* Reads a number at the start of `text`. @return what follows it; NULL when there is none. */
const char *number_take(const char *text, double *out);
/* Holds the powers of ten that are exact as doubles. */
enum { NUMBER_POWERS = 23 };
extern const double number_powers[NUMBER_POWERS];

/* ---- command lines -----------------------------------------------------------------------
 * The one grammar of all commands:
 *
 *     --name=value   --name value   -n value   --flag   --switch [yes|no]   WORD   -   -- WORD...
 *
 * "-" alone is a word (standard input); after "--" everything is. Every error is a usage error. */
typedef enum {
    ARGS_VALUE,
    ARGS_FLAG,   /* stands alone */
    ARGS_SWITCH, /* stands alone for true, or takes a bool */
} args_kind;
typedef struct args_option {
    args_kind kind;
    const void *option;  /* whatever find() knows it by */
    const char *example; /* a value, for "write --name=..." */
} args_option;
typedef struct args_grammar {
    /* Looks up "name" of --name, or one letter of -n. @return false when there is none. */
    bool (*find)(void *ctx, const char *name, args_option *out);
    /* @param label the option as it was written, "--name"; `value` is NULL for a flag. Both are
     * borrowed. */
    err (*set)(void *ctx, const args_option *o, const char *label, const char *value);
    err (*word)(void *ctx, char *word);
    /* The remedy for an option that does not exist: adds a hint to e. */
    err (*unknown)(void *ctx, err e, const char *name);
    void *ctx;
} args_grammar;
err args_parse(const args_grammar *g, int argc, char **argv) MUST_USE;
/* true, yes, on; false, no, off. @return false when it is none of them. */
bool args_parse_bool(const char *text, bool *out);

/* ---- log --------------------------------------------------------------------------------- */
typedef enum { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } log_level;
void log_set_level(log_level least);
/* Mutes the messages of this thread, where another prints the same. */
void log_mute_thread(bool mute);
void log_at(log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Copies every message, with its time, to a file as well, which is borrowed. NULL: no longer. */
void log_keep(FILE *f);
/* Writes a line to that file alone: of what a command prints by itself. */
void log_line(const char *text);
#define log_info(...) log_at(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_at(LOG_WARN, __VA_ARGS__)
/* @return true when `f` is a terminal that understands escape codes: TERM is set, and is not "dumb". mpirun
 * gives every rank a terminal, wherever its own output goes; `ingot launch` describes it to them by TERM. */
bool term_can_rewrite(FILE *f);
/* @return true when term_can_rewrite(f) and NO_COLOR is not set. */
bool term_has_color(FILE *f);

/* @return what `git describe` printed when the program was built; "" outside of a repository. */
const char *build_revision(void);
/* @return the optional features that this build has, or those it lacks: "MPI, S3"; "" when there are none. */
const char *build_features(bool present);

/* ---- time -------------------------------------------------------------------------------- */
double time_now(void); /* seconds, monotonic */
double time_cpu(void); /* seconds of all threads of this process, the system's included */

/* ---- random numbers: Philox 4x32 ---------------------------------------------------------
 * Counter based: the value is a pure function of (key, counter), so any element of any sequence is
 * reached directly, by any rank, in any order. */
typedef struct rng_key {
    uint32_t k[2];
} rng_key;
rng_key rng_key_of(uint64_t seed, uint64_t stream);
enum {
    PHILOX_ROUNDS = 10
}; /* of all draws but those of attention's dropout (ops/attention_drop.h) */
void philox4x32(rng_key key, const uint32_t ctr[4], int rounds, uint32_t out[4]);
uint32_t rng_u32(rng_key key, uint64_t index);
float rng_uniform(rng_key key, uint64_t index); /* [0, 1) */
float rng_normal(rng_key key, uint64_t index);  /* mean 0, deviation 1 */
/* Draws the n values from `first` on, each as rng_normal returns it. */
void rng_normals(rng_key key, uint64_t first, int64_t n, float *to);
/* @return an unbiased integer below n, n > 0. */
uint64_t rng_below(rng_key key, uint64_t index, uint64_t n);

/* ---- hashing ----------------------------------------------------------------------------- */
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed); /* xxHash64, stable on disk */
uint64_t hash_str(const char *s);

/* ---- control groups ------------------------------------------------------------------------ */
/* @return the least of what `of` returns for the control groups of this process, which have this controller ("cpu", "memory"), and for those
 * around them; SIZE_MAX where there are none. */
size_t control_group_least(const char *controller, size_t (*of)(const char *folder));
/* @return number `which` of the line in a control group's file; SIZE_MAX where there is none: no file, no limit. */
size_t control_group_number(const char *folder, const char *name, int which);

/* ---- threads ----------------------------------------------------------------------------- */
/* Cores this process may use: fewer than the machine has under taskset, in a batch job or in a container with a limit. */
int thread_cores(void);
/* Blocks the signals that the main thread handles: all but SIGBUS, which a thread raises itself by
 * reading a file that was shortened, and the one of backtrace_write. @param before for pthread_sigmask. */
void thread_block_signals(sigset_t *before);
/* Sets up backtrace_write. Once, early: it may allocate. */
void backtrace_prepare(void);
/* Writes what every thread of the process is doing. Takes up to a second for each that does not answer. */
void backtrace_write(int fd);
/* A pool of workers for data-parallel loops. The caller's thread takes part. */
typedef struct pool pool;
/* @param threads 0 means thread_cores(). Where the system does not start as many, the pool is smaller
 * and a warning says so. */
pool *pool_new(int threads);
int pool_size(const pool *p); /* 1 for a NULL pool */
/* Calls fn(ctx, i, worker) for i in [0, n), each once, spread over the pool; returns when all are
 * done. `worker` is in [0, pool_size). A NULL pool runs everything in the caller. Tasks must not
 * depend on which worker runs them, so that results do not depend on the number of threads. */
void pool_run(pool *p, int64_t n, void (*fn)(void *ctx, int64_t i, int worker), void *ctx);
void pool_free(pool *p); /* takes NULL */

#endif
