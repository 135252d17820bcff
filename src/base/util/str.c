/* Growing text, near misses of names, and numbers as people read them. */
#include "util/util.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void str_reserve(str *s, size_t more) {
    if (s->len + more + 1 <= s->cap) return;
    s->cap = MAX(s->cap * 2, s->len + more + 1);
    s->text = mem_grow(s->text, s->cap);
}

void str_add(str *s, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    BUG_IF(n < 0);
    str_reserve(s, (size_t)n);
    vsnprintf(s->text + s->len, (size_t)n + 1, fmt, again);
    va_end(again);
    s->len += (size_t)n;
}

void str_add_bytes(str *s, const void *bytes, size_t n) {
    str_reserve(s, n);
    if (n) memcpy(s->text + s->len, bytes, n);
    s->len += n;
    s->text[s->len] = 0;
}

void str_free(str *s) {
    free(s->text);
    *s = (str){ 0 };
}

int str_distance(const char *a, const char *b) {
    enum { MOST = 63 };
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > MOST || m > MOST) return MOST;
    int d[MOST + 2][MOST + 2];
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int same = a[i - 1] == b[j - 1];
            int best = MIN(MIN(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + !same);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = MIN(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    return d[n][m];
}

const char *str_nearer(const char *word, const char *name, const char *best) {
    /* anything further away is not worth suggesting */
    int least = best ? str_distance(word, best) : 2 + (int)strlen(word) / 3;
    return str_distance(word, name) < least ? name : best;
}

bool str_starts(const char *s, const char *prefix) { return !strncmp(s, prefix, strlen(prefix)); }

bool str_ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && !strcmp(s + n - m, suffix);
}

static char *format_scaled(char *buf, size_t n, double v, double step, const char *const *units,
                           int most) {
    int u = 0;
    while (v >= step && u < most) {
        v /= step;
        u++;
    }
    snprintf(buf, n,
             v >= 100 || (u == 0 && v == floor(v)) ? "%.0f%s"
             : v >= 10                             ? "%.1f%s"
                                                   : "%.2f%s",
             v, units[u]);
    return buf;
}

char *str_bytes(char *buf, size_t n, double bytes) {
    static const char *const units[] = { " B", " KiB", " MiB", " GiB", " TiB" };
    return format_scaled(buf, n, bytes, 1024, units, 4);
}

char *str_count(char *buf, size_t n, double count) {
    static const char *const units[] = { "", " k", " M", " B", " T" };
    return format_scaled(buf, n, count, 1000, units, 4);
}

char *str_duration(char *buf, size_t n, double s) {
    if (s < 60)
        snprintf(buf, n, s < 10 ? "%.1fs" : "%.0fs", s);
    else if (s < 3600)
        snprintf(buf, n, "%dm %02ds", (int)s / 60, (int)s % 60);
    else if (s < 86400)
        snprintf(buf, n, "%dh %02dm", (int)(s / 3600), (int)(s / 60) % 60);
    else
        snprintf(buf, n, "%dd %02dh", (int)(s / 86400), (int)(s / 3600) % 24);
    return buf;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Writes 9 significant digits of a number as "%.9g" does, at a tenth of its cost. The scaled value is off by less than 2e-7, so
 * its digits are certain unless it is that close to the middle between two of them. @return the length; 0: printf must decide. */
static int format_nine_digits(char *to, double v) {
    enum { DIGITS = 9 };
    double size = fabs(v);
    if (!(size >= 1e-13 && size < 1e22)) return 0;
    int exponent = (int)floor(log10(size)), shift = DIGITS - 1 - exponent;
    double scaled = shift >= 0 ? size * number_powers[shift] : size / number_powers[-shift];
    double whole = floor(scaled), rest = scaled - whole;
    if (!(whole >= 1e8 && whole < 1e9) || fabs(rest - 0.5) < 1e-6) return 0;
    int64_t number = (int64_t)whole + (rest > 0.5);
    if (number == 1000000000) number /= 10, exponent++;
    char digits[DIGITS];
    for (int i = DIGITS - 1; i >= 0; i--, number /= 10) digits[i] = (char)('0' + number % 10);
    int n = DIGITS, at = 0, before = exponent + 1; /* before: the digits before the point */
    while (n > 1 && digits[n - 1] == '0') n--;
    bool scientific = exponent < -4 || exponent >= DIGITS;
    if (scientific) before = 1;
    if (v < 0) to[at++] = '-';
    if (before <= 0) to[at++] = '0', to[at++] = '.';
    for (int i = before; i < 0; i++) to[at++] = '0';
    for (int i = 0; i < MAX(n, before); i++) {
        if (i == before && i > 0) to[at++] = '.';
        to[at++] = i < n ? digits[i] : '0';
    }
    if (!scientific) return at;
    to[at++] = 'e';
    to[at++] = exponent < 0 ? '-' : '+';
    to[at++] = (char)('0' + abs(exponent) / 10);
    to[at++] = (char)('0' + abs(exponent) % 10);
    return at;
}

void str_add_json_number(str *s, double v) {
    str_reserve(s, 32);
    int n = format_nine_digits(s->text + s->len, v);
    if (n) {
        s->len += (size_t)n;
        s->text[s->len] = '\0';
    } else if (isfinite(v)) {
        str_add(s, "%.9g", v);
    } else {
        str_add(s, "null");
    }
}
