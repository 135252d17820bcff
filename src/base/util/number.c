/* Numbers as people write them, from options, configs and commands: one grammar. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "util/util.h"

const double number_powers[NUMBER_POWERS] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };

static bool is_digit(char ch) { return ch >= '0' && ch <= '9'; }

/* Copies digits, without the underscores between them. @return the rest of s. */
static const char *copy_digits(const char *s, str *out) {
    for (; is_digit(*s) || (*s == '_' && is_digit(s[1]) && out->len); s++)
        if (*s != '_') str_add_bytes(out, s, 1);
    return s;
}

/* Powers of a thousand (K M G B T) or, with an i behind, of 1024. Must end the word.
 * @return the rest of s, behind the suffix if there is one. */
static const char *take_suffix(const char *s, double *factor) {
    static const struct {
        char letter;
        int power;
    } suffixes[] = { { 'k', 1 }, { 'K', 1 }, { 'M', 2 }, { 'G', 3 }, { 'B', 3 }, { 'T', 4 } };
    for (size_t i = 0; i < COUNT_OF(suffixes); i++) {
        if (*s != suffixes[i].letter) continue;
        const char *end = s + 1 + (s[1] == 'i');
        if (*end && *end != ' ') return s;
        *factor = pow(s[1] == 'i' ? 1024 : 1000, suffixes[i].power);
        return end;
    }
    return s;
}

/* As number_take; `digits` gets the plain decimal form when it is a whole number written out in full, for
 * values beyond what a double holds exactly; else "". @return what follows, NULL if no number. */
static const char *scan_number(const char *text, double *v, str *digits) {
    str plain = { 0 };
    const char *s = text;
    if (*s == '-' || *s == '+') str_add_bytes(&plain, s++, 1);
    size_t sign = plain.len;
    s = copy_digits(s, &plain);
    bool whole = true;
    if (*s == '.') {
        whole = false;
        str_add_bytes(&plain, s++, 1);
        s = copy_digits(s, &plain);
    }
    bool any = plain.len - sign > (whole ? 0u : 1u);
    const char *exponent = s + 1 + (s[0] && (s[1] == '-' || s[1] == '+'));
    if (any && (*s == 'e' || *s == 'E') && is_digit(*exponent)) {
        whole = false;
        str_add_bytes(&plain, s, (size_t)(exponent - s));
        s = copy_digits(exponent, &plain);
    }
    double factor = 1;
    if (any) s = take_suffix(s, &factor);
    *v = any ? strtod(plain.text, NULL) * factor : 0;
    if (any && whole && factor == 1) str_add(digits, "%s", plain.text);
    str_free(&plain);
    return any && isfinite(*v) ? s : NULL;
}

bool number_parse_int(const char *text, int64_t *out) {
    str digits = { 0 };
    double v;
    const char *rest = scan_number(text, &v, &digits);
    bool ok = rest && *rest == '\0';
    if (ok && digits.len) {
        errno = 0;
        long long whole = strtoll(digits.text, NULL, 10);
        ok = errno == 0;
        if (ok) *out = whole;
    } else if (ok) {
        ok = v == floor(v) && fabs(v) <= 9007199254740992.0;
        if (ok) *out = (int64_t)v;
    }
    str_free(&digits);
    return ok;
}

const char *number_take(const char *text, double *out) {
    str digits = { 0 };
    double v;
    const char *rest = scan_number(text, &v, &digits);
    str_free(&digits);
    if (rest) *out = v;
    return rest;
}

bool number_parse_real(const char *text, double *out) {
    double v;
    const char *rest = number_take(text, &v);
    if (!rest || *rest) return false;
    *out = v;
    return true;
}

int compare_int64(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
