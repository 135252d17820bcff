/* metrics.jsonl as columns. A line has some thirty numbers and a run a million lines, so it is scanned by
 * hand; keys come in the same order in every line, so the next column is nearly always the guess. */
#include "observe/series.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io.h"
#include "observe/observe.h"

enum {
    CHUNK = 1 << 20,
    LONGEST_LINE = 1 << 22,
    LONGEST_NAME = 200,
    MOST_COLUMNS = 1 << 14,
    DEPTH = 4
};

struct series {
    char *path;
    series_column *column;
    int columns, capacity;
    int64_t rows, skipped;
    double last_step;
    int64_t offset;         /* bytes of the file that were read */
    uint64_t device, inode; /* of that file */
    str carry;              /* the beginning of a line whose end is not there yet */
    struct {
        int column;
        double value;
    } * line; /* [MOST_COLUMNS]: the values of the line that is being read */
    int in_line, guess;
    int64_t values, most_rows, most_values; /* values: of all columns; most: 0 for any number */
    double stride;                          /* steps that share a row in the past; 0: none do yet */
    const char *only; /* the column that is kept beside the steps; NULL: all are */
};

/* ---- columns -------------------------------------------------------------------------------- */
static bool is_count(const char *name) {
    for (int i = 0; i < METRICS; i++)
        if (metric_table[i].kind == METRIC_COUNT && !strcmp(metric_table[i].key, name)) return true;
    return false;
}

/* @return its index, -1 when there are too many columns. */
static int column_index(series *s, const char *name, size_t n) {
    for (int i = 0; i < s->columns; i++) {
        int k = (s->guess + i) % s->columns;
        if (strncmp(s->column[k].name, name, n) != 0 || s->column[k].name[n]) continue;
        s->guess = k + 1;
        return k;
    }
    if (s->columns == MOST_COLUMNS) return -1;
    s->column = mem_reserve(s->column, &s->capacity, s->columns, sizeof *s->column);
    series_column *c = &s->column[s->columns];
    *c = (series_column){ .name = strndup(name, n) };
    c->is_count = is_count(c->name);
    c->is_wide = c->is_count || s->only || !strcmp(c->name, "loss");
    s->guess = s->columns + 1;
    return s->columns++;
}

static void grow_column(series_column *c) {
    c->capacity = MAX(64, c->capacity * 2);
    for (int k = 0; k < SERIES_PARTS; k++) {
        if (c->wide[k]) c->wide[k] = mem_grow(c->wide[k], (size_t)c->capacity * sizeof *c->wide[k]);
        if (c->narrow[k])
            c->narrow[k] = mem_grow(c->narrow[k], (size_t)c->capacity * sizeof *c->narrow[k]);
    }
    if (c->row) c->row = mem_grow(c->row, (size_t)c->capacity * sizeof *c->row);
    if (c->count) c->count = mem_grow(c->count, (size_t)c->capacity * sizeof *c->count);
}

static double part_of(const series_column *c, int part, int64_t i) {
    int k = c->count ? part : SERIES_VALUE;
    return c->is_wide ? c->wide[k][i] : (double)c->narrow[k][i];
}

static void set_part(series_column *c, int part, int64_t i, double v) {
    if (c->is_wide)
        c->wide[part][i] = v;
    else
        c->narrow[part][i] = (float)v;
}

static int64_t finite_count(const series_column *c, int64_t i) {
    return c->count ? c->count[i] : isfinite(part_of(c, SERIES_VALUE, i));
}

static void alloc_part(series_column *c, int part) {
    if (c->is_wide)
        c->wide[part] = mem_alloc((size_t)c->capacity * sizeof *c->wide[part]);
    else
        c->narrow[part] = mem_alloc((size_t)c->capacity * sizeof *c->narrow[part]);
}

static void column_append(series_column *c, int64_t row, double v) {
    if (c->n && series_row(c, c->n - 1) == row) return; /* a key that is there twice */
    if (c->n == c->capacity) grow_column(c);
    if (!c->n && !c->wide[SERIES_VALUE] && !c->narrow[SERIES_VALUE]) alloc_part(c, SERIES_VALUE);
    if (!c->row && c->n != row) { /* the first gap */
        c->row = mem_alloc((size_t)c->capacity * sizeof *c->row);
        for (int64_t i = 0; i < c->n; i++) c->row[i] = (uint32_t)i;
    }
    if (c->row) c->row[c->n] = (uint32_t)row;
    for (int k = 0; k < (c->count ? SERIES_PARTS : 1); k++) set_part(c, k, c->n, v);
    if (c->count) c->count[c->n] = isfinite(v);
    c->n++;
}

/* ---- fewer rows ------------------------------------------------------------------------------- */
/* Combines values [from, to) into value `at`, at or before them. */
static void merge_values(series_column *c, int64_t from, int64_t to, int64_t at) {
    double sum = 0, last = NAN, low = NAN, high = NAN;
    int64_t n = 0;
    for (int64_t i = from; i < to; i++) {
        int64_t count = finite_count(c, i);
        if (!count) continue;
        last = part_of(c, SERIES_VALUE, i);
        sum += last * (double)count;
        low = fmin(low, part_of(c, SERIES_LOW, i));
        high = fmax(high, part_of(c, SERIES_HIGH, i));
        n += count;
    }
    set_part(c, SERIES_VALUE, at, c->is_count || !n ? last : sum / (double)n);
    set_part(c, SERIES_LOW, at, low);
    set_part(c, SERIES_HIGH, at, high);
    c->count[at] = (uint32_t)MIN(n, UINT32_MAX);
}

/* Gives each value its extremes and its count. */
static void prepare_merge(series_column *c) {
    uint32_t *count = mem_alloc((size_t)c->capacity * sizeof *count);
    alloc_part(c, SERIES_LOW);
    alloc_part(c, SERIES_HIGH);
    for (int64_t i = 0; i < c->n; i++) {
        count[i] = (uint32_t)finite_count(c, i);
        set_part(c, SERIES_LOW, i, part_of(c, SERIES_VALUE, i));
        set_part(c, SERIES_HIGH, i, part_of(c, SERIES_VALUE, i));
    }
    c->count = count;
}

/* Merges the values of rows that become one. @param to the new number of each row. */
static void merge_column(series_column *c, const uint32_t *to) {
    int64_t n = 0, end;
    if (!c->n) return;
    if (!c->count) prepare_merge(c);
    for (int64_t i = 0; i < c->n; i = end, n++) {
        uint32_t row = to[series_row(c, i)];
        for (end = i + 1; end < c->n && to[series_row(c, end)] == row;) end++;
        if (end > i + 1 || n < i) merge_values(c, i, end, n);
        if (c->row) c->row[n] = row;
    }
    c->n = n;
}

/* Counts the values of each row that few rows have. @return owned (free). */
static uint16_t *count_rare_values(const series *s) {
    enum { RARE = 4 }; /* in less than one row of four */
    uint16_t *rare = mem_alloc((size_t)s->rows * sizeof *rare);
    for (int k = 0; k < s->columns; k++)
        for (int64_t i = 0; s->column[k].n < s->rows / RARE && i < s->column[k].n; i++)
            rare[series_row(&s->column[k], i)]++;
    return rare;
}

/* Numbers the rows that are left: each `stride` steps of the first `older` become one row, or two, where the first ends with
 * the row that has the most rare values; all later rows are kept. @return how many. */
static uint32_t renumber_rows(const series *s, const uint16_t *rare, int64_t older, uint32_t *to) {
    const series_column *steps = series_find(s, "step");
    uint32_t n = 0;
    for (int64_t from = 0, end; from < older; from = end) {
        int64_t rarest = from;
        double cell = floor(series_in_row(steps, from) / s->stride);
        for (end = from; end < older && floor(series_in_row(steps, end) / s->stride) == cell; end++)
            if (rare[end] > rare[rarest]) rarest = end;
        bool split = rare[rarest] && rarest + 1 < end;
        for (int64_t row = from; row < end; row++) to[row] = n + (split && row > rarest);
        n += 1 + split;
    }
    for (int64_t row = older; row < s->rows; row++) to[row] = n++;
    return n;
}

/* Makes the older half coarser. */
static void thin_rows(series *s) {
    enum { FEW = 64 };
    for (s->stride = MAX(s->stride, 2); s->rows > FEW; s->stride *= 2) {
        uint32_t *to = mem_alloc((size_t)s->rows * sizeof *to);
        uint16_t *rare = count_rare_values(s);
        int64_t left = renumber_rows(s, rare, s->rows / 2, to);
        s->values = 0;
        for (int k = 0; k < s->columns; k++) {
            merge_column(&s->column[k], to);
            s->values += s->column[k].n;
        }
        s->rows = left;
        free(rare);
        free(to);
        if (s->values <= s->most_values / 4 * 3 && s->rows <= s->most_rows / 4 * 3) return;
    }
}

void series_set_most(series *s, int64_t rows, int64_t values) {
    s->most_rows = rows;
    s->most_values = values;
}

void series_set_only(series *s, const char *name) { s->only = name; }

/* ---- lines ---------------------------------------------------------------------------------- */
typedef struct scanner {
    const char *at, *end;
    char name[LONGEST_NAME + 1]; /* of the member, with those it is nested in */
    size_t named;
    series *s;
} scanner;

static char peek_char(scanner *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')) p->at++;
    return p->at < p->end ? *p->at : '\0';
}
static bool accept_char(scanner *p, char c) {
    if (peek_char(p) != c) return false;
    p->at++;
    return true;
}
static bool accept_word(scanner *p, const char *word) {
    size_t n = strlen(word);
    if (*p->at != *word || (size_t)(p->end - p->at) < n || strncmp(p->at, word, n)) return false;
    p->at += n;
    return true;
}

/* A string, escapes as they are written. */
static bool take_string(scanner *p, const char **text, size_t *n) {
    if (!accept_char(p, '"')) return false;
    *text = p->at;
    while (*p->at && *p->at != '"') p->at += *p->at == '\\' && p->at[1] ? 2 : 1;
    if (*p->at != '"') return false; /* a NUL: the line's end, or before it, where none may be */
    *n = (size_t)(p->at - *text);
    p->at++;
    return true;
}

/* A decimal whose digits and whose power of ten are exact as doubles: their product or quotient is the nearest
 * double, as strtod's. @return where it ends, or NULL: it is not such a decimal. */
static const char *read_short_decimal(const char *at, double *v) {
    bool negative = *at == '-';
    uint64_t digits = 0;
    int read = 0, power = 0, exponent = 0;
    for (at += negative; *at >= '0' && *at <= '9' && read < 16; at++, read++)
        digits = digits * 10 + (uint64_t)(*at - '0');
    if (*at == '.')
        for (at++; *at >= '0' && *at <= '9' && read < 16; at++, read++, power--)
            digits = digits * 10 + (uint64_t)(*at - '0');
    if (*at == 'e' || *at == 'E') {
        bool small = *++at == '-';
        at += small || *at == '+';
        if (*at < '0' || *at > '9') return NULL;
        for (; *at >= '0' && *at <= '9' && exponent < 100; at++)
            exponent = exponent * 10 + (*at - '0');
        power += small ? -exponent : exponent;
    }
    if (read == 0 || read >= 16 || power < -22 || power > 22) return NULL;
    *v = power < 0 ? (double)digits / number_powers[-power] : (double)digits * number_powers[power];
    if (negative) *v = -*v;
    return at;
}

/* The line ends in a NUL, which neither way of reading passes. */
static bool accept_number(scanner *p, double *v) {
    if (accept_word(p, "null")) {
        *v = NAN;
        return true;
    }
    const char *digits = p->at + (*p->at == '-');
    bool hexadecimal = digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X');
    if (*digits < '0' || *digits > '9' || hexadecimal)
        return false; /* what strtod takes beyond JSON */
    const char *after = read_short_decimal(p->at, v);
    if (!after) {
        char *end;
        *v = strtod(p->at, &end);
        after = end;
    }
    if (after == p->at || after > p->end) return false;
    p->at = after;
    return true;
}

/* Appends to the name of the member. @return false when it is too long: the value is not kept. */
static bool extend_name(scanner *p, const char *text, size_t n) {
    size_t dot = p->named > 0;
    if (p->named + dot + n > LONGEST_NAME) return false;
    if (dot) p->name[p->named++] = '.';
    memcpy(p->name + p->named, text, n);
    p->named += n;
    return true;
}

/* Whether the member, or one inside of it, is kept. */
static bool is_kept_member(const scanner *p) {
    const char *only = p->s->only;
    if (!only) return true;
    if (p->named == 4 && !memcmp(p->name, "step", 4)) return true;
    if (p->name[0] != *only) return false; /* most members, without a call */
    return !strncmp(p->name, only, p->named) && (only[p->named] == '\0' || only[p->named] == '.');
}

static bool take_value(scanner *p, int depth, bool kept);

static bool take_members(scanner *p, int depth, bool kept, char close) {
    size_t named = p->named;
    int index = 0;
    for (p->at++; !accept_char(p, close); index++) {
        char number[16];
        const char *key = number;
        size_t n = 0;
        if (index && !accept_char(p, ',')) return false;
        if (close == '}') {
            if (!take_string(p, &key, &n) || !accept_char(p, ':')) return false;
        } else {
            n = (size_t)snprintf(number, sizeof number, "%d", index);
        }
        bool wanted = kept && extend_name(p, key, n) && is_kept_member(p);
        if (!take_value(p, depth + 1, wanted)) return false;
        p->named = named;
    }
    return true;
}

static bool take_value(scanner *p, int depth, bool kept) {
    const char *text;
    size_t n;
    double v = NAN;
    char c = peek_char(p);
    if (depth > DEPTH) return false;
    if (c == '{') return take_members(p, depth, kept, '}');
    if (c == '[') return take_members(p, depth, kept, ']');
    if (c == '"') return take_string(p, &text, &n);
    if (accept_word(p, "true") || accept_word(p, "false")) return true;
    if (!accept_number(p, &v)) return false;
    series *s = p->s;
    int column = kept && s->in_line < MOST_COLUMNS ? column_index(s, p->name, p->named) : -1;
    if (column < 0) return true;
    s->line[s->in_line].column = column;
    s->line[s->in_line++].value = v;
    return true;
}

/* Takes a line whole, or not at all. `line[len]` is a NUL. */
static void read_metrics_line(series *s, const char *line, size_t len) {
    scanner p = { .at = line, .end = line + len, .s = s };
    double step = NAN;
    int columns = s->columns;
    s->in_line = 0;
    bool whole =
        peek_char(&p) == '{' && take_value(&p, 0, true) && peek_char(&p) == '\0' && p.at == p.end;
    /* of a key that is there twice, the first counts */
    for (int i = s->in_line - 1; whole && i >= 0; i--)
        if (!strcmp(s->column[s->line[i].column].name, "step")) step = s->line[i].value;
    if (!(step > s->last_step) || s->rows == UINT32_MAX) {
        while (s->columns > columns) free(s->column[--s->columns].name);
        s->skipped++;
        return;
    }
    for (int i = 0; i < s->in_line; i++)
        column_append(&s->column[s->line[i].column], s->rows, s->line[i].value);
    s->values += s->in_line;
    s->last_step = step;
    s->rows++;
    if (s->most_rows && (s->rows >= s->most_rows || s->values > s->most_values)) thin_rows(s);
}

/* Takes the whole lines of what was read, and keeps the rest for later. */
static void take_lines(series *s) {
    char *at = s->carry.text, *end = at + s->carry.len, *newline;
    while ((newline = memchr(at, '\n', (size_t)(end - at)))) {
        *newline = '\0';
        if (newline > at) read_metrics_line(s, at, (size_t)(newline - at));
        at = newline + 1;
    }
    s->carry.len = (size_t)(end - at);
    memmove(s->carry.text, at, s->carry.len);
    if (s->carry.len > LONGEST_LINE) s->carry.len = 0, s->skipped++;
}

/* ---- the file ------------------------------------------------------------------------------- */
static void forget_rows(series *s) {
    for (int i = 0; i < s->columns; i++) {
        free(s->column[i].name);
        for (int k = 0; k < SERIES_PARTS; k++) {
            free(s->column[i].wide[k]);
            free(s->column[i].narrow[k]);
        }
        free(s->column[i].row);
        free(s->column[i].count);
    }
    s->columns = s->guess = 0;
    s->rows = s->skipped = s->offset = s->values = 0;
    s->last_step = -INFINITY;
    s->stride = 0;
    s->carry.len = 0;
}

series *series_new(const char *run) {
    series *s = mem_alloc(sizeof *s);
    s->path = io_join(run, "metrics.jsonl");
    s->line = mem_alloc(MOST_COLUMNS * sizeof *s->line);
    forget_rows(s);
    return s;
}

/* A resume replaces the file by a shorter one. */
static void notice_other_file(series *s, const struct stat *now) {
    bool same = (uint64_t)now->st_dev == s->device && (uint64_t)now->st_ino == s->inode;
    if (!same || now->st_size < s->offset) forget_rows(s);
    s->device = (uint64_t)now->st_dev;
    s->inode = (uint64_t)now->st_ino;
}

/* Reads a chunk of the file. @param more whether there was anything to read */
static err read_chunk(series *s, int fd, bool *more) {
    str_reserve(&s->carry, CHUNK);
    ssize_t n;
    do n = pread(fd, s->carry.text + s->carry.len, CHUNK, (off_t)s->offset);
    while (n < 0 && errno == EINTR);
    if (n < 0) return ERR("cannot read %s: %s", s->path, strerror(errno));
    *more = n > 0;
    s->offset += n;
    s->carry.len += (size_t)n;
    if (n > 0) take_lines(s);
    return OK;
}

/* Opens the file, and begins anew where it is another one. @param out -1: there is none */
static err open_metrics(series *s, int *out) {
    struct stat now;
    int fd = *out = open(s->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        forget_rows(s);
        return OK;
    }
    if (fd < 0 || fstat(fd, &now) != 0) {
        err e =
            err_hint(ERR("cannot read %s: %s", s->path, strerror(errno)), "check its permissions");
        if (fd >= 0) close(fd);
        return e;
    }
    notice_other_file(s, &now);
    return OK;
}

err series_update(series *s) {
    int fd;
    bool more = true;
    TRY(open_metrics(s, &fd));
    if (fd < 0) return OK;
    err e = OK;
    while (more && !e) e = read_chunk(s, fd, &more);
    close(fd);
    return e;
}

err series_next_part(series *s, bool *more) {
    int fd;
    int64_t before = s->offset;
    *more = false;
    for (int i = 0; i < s->columns; i++) s->column[i].n = 0;
    s->rows = 0;
    TRY(open_metrics(s, &fd));
    if (fd < 0) return OK;
    bool same = s->offset == before; /* the rest of a file that was replaced does not follow */
    err e = same ? read_chunk(s, fd, more) : OK;
    close(fd);
    return e;
}

void series_free(series *s) {
    if (!s) return;
    forget_rows(s);
    str_free(&s->carry);
    free(s->column);
    free(s->line);
    free(s->path);
    free(s);
}

/* ---- reading it ------------------------------------------------------------------------------ */
int64_t series_rows(const series *s) { return s->rows; }
int64_t series_skipped(const series *s) { return s->skipped; }
int series_columns(const series *s) { return s->columns; }
const series_column *series_at(const series *s, int i) { return &s->column[i]; }

const series_column *series_find(const series *s, const char *name) {
    for (int i = 0; i < s->columns; i++)
        if (!strcmp(s->column[i].name, name)) return &s->column[i];
    return NULL;
}

double series_value(const series_column *c, int64_t i) { return part_of(c, SERIES_VALUE, i); }

int64_t series_row(const series_column *c, int64_t i) { return c->row ? c->row[i] : i; }

double series_step(const series *s, const series_column *c, int64_t i) {
    return series_value(series_find(s, "step"), series_row(c, i));
}

double series_last(const series *s, const char *name) {
    const series_column *c = series_find(s, name);
    return c && c->n ? series_value(c, c->n - 1) : NAN;
}

/* @return the first value of a row at or after `row`. */
static int64_t first_from_row(const series_column *c, int64_t row) {
    int64_t low = 0, high = c->n;
    if (!c->row) return MIN(row, c->n);
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (c->row[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

double series_in_row(const series_column *c, int64_t row) {
    int64_t i = c ? first_from_row(c, row) : 0;
    return c && i < c->n && series_row(c, i) == row ? series_value(c, i) : NAN;
}

/* @return the first row whose step is at least `step`. */
static int64_t row_of_step(const series *s, const series_column *steps, double step) {
    int64_t low = 0, high = s->rows;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (series_value(steps, middle) < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static series_point point_of(const series_column *steps, const series_column *c, int64_t from,
                             int64_t to) {
    series_point p = {
        .step = series_value(steps, series_row(c, to - 1)), .low = NAN, .high = NAN, .mean = NAN
    };
    double sum = 0;
    for (int64_t i = from; i < to; i++) {
        int64_t count = finite_count(c, i);
        if (!count) continue;
        p.low = fmin(p.low, part_of(c, SERIES_LOW, i));
        p.high = fmax(p.high, part_of(c, SERIES_HIGH, i));
        sum += series_value(c, i) * (double)count;
        p.n += count;
    }
    if (p.n) p.mean = sum / (double)p.n;
    return p;
}

/* @return how many steps' values the i-th one stands for, at least one. */
static int64_t weight_of(const series_column *c, int64_t i) {
    return MAX(1, c->count ? c->count[i] : 1);
}

int series_points(const series *s, const series_column *c, double from, double to, int most,
                  series_point *out) {
    const series_column *steps = series_find(s, "step");
    if (!steps || most < 1) return 0;
    int64_t first = first_from_row(c, row_of_step(s, steps, from));
    int64_t last = first_from_row(c, row_of_step(s, steps, nextafter(to, INFINITY)));
    int64_t weight = 0, before = 0, end;
    for (int64_t i = first; i < last; i++) weight += weight_of(c, i);
    int64_t points = MIN(last - first, most);
    int n = 0;
    for (int64_t i = first; i < last; i = end) {
        /* values that begin in the same share of the whole are one point */
        int64_t share = before * points / weight;
        for (end = i; end < last && before * points / weight == share; end++)
            before += weight_of(c, end);
        out[n++] = point_of(steps, c, i, end);
    }
    return n;
}
