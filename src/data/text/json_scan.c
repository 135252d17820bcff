/* One pass over a JSON line that validates it and locates the wanted members. Nothing is copied
 * and no tree is built, since of most lines only the text is needed. */
#include <string.h>

#include "text/json_scan_internal.h"
#include "text/span_internal.h"

enum { MOST_DEPTH = 1000, LONGEST_NAME = 256 };

typedef struct json_scanner {
    const char *p, *end;
    const json_want *wants;
    int n_wants;
    json_member *out;
    const char *begin;
    const char *wrong; /* the first error */
    bool odd;
    int depth;
} json_scanner;

static bool json_fault(json_scanner *s, const char *what) {
    if (!s->wrong) s->wrong = what;
    return false;
}

/* ---- strings --------------------------------------------------------------------------------- */
typedef uint8_t bytes16 __attribute__((vector_size(16)));
enum { VECTOR = 16 };

/* @return the first of 16 bytes that is a quote, a backslash or a control character; VECTOR: none. */
static inline size_t first_special(bytes16 v) {
    bytes16 special = (bytes16)((v == '"') | (v == '\\') | (v < 0x20)); /* all ones where it is */
    uint64_t half[2];
    memcpy(half, &special, sizeof half);
    if (!(half[0] | half[1])) return VECTOR;
    if (half[0]) return (size_t)__builtin_ctzll(half[0]) / 8;
    return 8 + (size_t)__builtin_ctzll(half[1]) / 8;
}

static inline bool is_special(char c) { return c == '"' || c == '\\' || (unsigned char)c < 0x20; }

size_t json_plain_length(const char *p, size_t n) {
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        bytes16 v;
        memcpy(&v, p + i, VECTOR);
        size_t plain = first_special(v);
        if (plain < VECTOR) return i + plain;
    }
    while (i < n && !is_special(p[i])) i++;
    return i;
}

/* @return the value of the four hex digits after \u; -1: they are not digits. */
static int32_t hex_four(const char *p, const char *end) {
    if (end - p < 4) return -1;
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(p[i]);
        if (digit < 0) return -1;
        v = v << 4 | digit;
    }
    return v;
}

enum { REPLACEMENT = 0xFFFD };

/* Decodes the escape at p, after "\u". @return bytes used after "\u": 4 or 10; 0 if it is not an
 * escape. If it stands for no character *cp is REPLACEMENT and *odd true. */
static int unicode_escape(const char *p, const char *end, uint32_t *cp, bool *odd) {
    int32_t first = hex_four(p, end);
    if (first < 0) return 0;
    *cp = (uint32_t)first;
    if (first >= 0xD800 && first < 0xDC00 && end - p >= 10 && p[4] == '\\' && p[5] == 'u') {
        int32_t second = hex_four(p + 6, end);
        if (second >= 0xDC00 && second < 0xE000) {
            *cp = 0x10000 + (((uint32_t)first & 0x3FF) << 10) + ((uint32_t)second & 0x3FF);
            return 10;
        }
    }
    if (first == 0 || (first >= 0xD800 && first < 0xE000)) *cp = REPLACEMENT, *odd = true;
    return 4;
}

/* @return the character that backslash and `c` stand for; 0: none. */
static char short_escape(char c) {
    switch (c) {
    case '"':
    case '\\':
    case '/': return c;
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return 0;
    }
}

static bool skip_escape(json_scanner *s) {
    s->p++;
    if (s->p == s->end) return json_fault(s, "a string does not end");
    if (*s->p == 'u') {
        uint32_t cp;
        int used = unicode_escape(s->p + 1, s->end, &cp, &s->odd);
        s->p += 1 + used;
        return used ? true : json_fault(s, "a bad \\u escape");
    }
    return short_escape(*s->p++) ? true : json_fault(s, "a bad escape");
}

/* Skips the string at p. */
static bool skip_string(json_scanner *s, bool *escaped) {
    *escaped = false;
    if (s->p == s->end || *s->p != '"') return json_fault(s, "a quote is missing");
    s->p++;
    for (;;) {
        s->p += json_plain_length(s->p, (size_t)(s->end - s->p));
        if (s->p == s->end) return json_fault(s, "a string does not end");
        if (*s->p == '"') return s->p++, true;
        if (*s->p != '\\') return json_fault(s, "a control character in a string");
        *escaped = true;
        if (!skip_escape(s)) return false;
    }
}

/* Copies up to the first special character, 16 bytes at a time; may write 15 bytes more, but not beyond to[n]. */
static size_t copy_unescaped(const char *p, size_t n, char *to) {
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        bytes16 v;
        memcpy(&v, p + i, VECTOR);
        memcpy(to + i, &v, VECTOR);
        size_t plain = first_special(v);
        if (plain < VECTOR) return i + plain;
    }
    for (; i < n && !is_special(p[i]); i++) to[i] = p[i];
    return i;
}

size_t json_unescape(const char *p, size_t n, char *to) {
    const char *end = p + n;
    char *at = to;
    bool odd = false;
    for (;;) {
        size_t run = copy_unescaped(p, (size_t)(end - p), at);
        p += run, at += run;
        if (p == end) return (size_t)(at - to);
        p++; /* a backslash; the string was validated */
        if (*p != 'u') {
            *at++ = short_escape(*p++);
            continue;
        }
        uint32_t cp = REPLACEMENT;
        p += 1 + unicode_escape(p + 1, end, &cp, &odd);
        at += utf8_encode(cp, at);
    }
}

void json_replace_odd_escapes(char *line, size_t n) {
    char *end = line + n;
    for (char *p = line; (p = memchr(p, '\\', (size_t)(end - p))) && end - p > 1;) {
        if (p[1] != 'u') {
            p += 2;
            continue;
        }
        uint32_t cp;
        bool odd = false;
        int used = unicode_escape(p + 2, end, &cp, &odd);
        if (odd) memcpy(p + 2, "fffd", 4);
        p += 2 + used;
    }
}

/* ---- values ---------------------------------------------------------------------------------- */
static void json_skip_space(json_scanner *s) {
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r' || *s->p == '\n'))
        s->p++;
}

static bool skip_digits(json_scanner *s) {
    const char *from = s->p;
    while (s->p < s->end && *s->p >= '0' && *s->p <= '9') s->p++;
    return s->p > from ? true : json_fault(s, "a bad number");
}

static bool skip_number(json_scanner *s) {
    if (*s->p == '-') s->p++;
    bool zero = s->p < s->end && *s->p == '0';
    const char *whole = s->p;
    if (!skip_digits(s)) return false;
    if (zero && s->p - whole > 1) return json_fault(s, "a bad number");
    if (s->p < s->end && *s->p == '.') {
        s->p++;
        if (!skip_digits(s)) return false;
    }
    if (s->p < s->end && (*s->p | 32) == 'e') {
        s->p++;
        if (s->p < s->end && (*s->p == '+' || *s->p == '-')) s->p++;
        return skip_digits(s);
    }
    return true;
}

static bool skip_word(json_scanner *s) {
    static const char *const words[] = { "true", "false", "null" };
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(s->end - s->p) >= n && memcmp(s->p, words[i], n) == 0) return s->p += n, true;
    }
    return json_fault(s, "not JSON");
}

/* Wants that can still match at this nesting level: bit i for wants[i], of whose path the first
 * used[i] bytes are matched. */
typedef struct paths {
    uint32_t alive;
    uint8_t used[8];
} paths;

static bool skip_value(json_scanner *s, const paths *here);

static bool next_json_item(json_scanner *s, char close, bool *last) {
    json_skip_space(s);
    if (s->p == s->end) return json_fault(s, "the line is truncated");
    *last = *s->p == close;
    if (!*last && *s->p != ',') return json_fault(s, "a comma is missing");
    s->p++;
    return true;
}

static bool skip_array(json_scanner *s) {
    static const paths none = { 0 };
    s->p++;
    json_skip_space(s);
    if (s->p < s->end && *s->p == ']') return s->p++, true;
    for (bool last = false; !last;)
        if (!skip_value(s, &none) || !next_json_item(s, ']', &last)) return false;
    return true;
}

/* Narrows the wants to those whose path continues with this name. A name may itself contain
 * dots. */
static void narrow_paths(json_scanner *s, const paths *here, const char *name, size_t n,
                         paths *to) {
    *to = (paths){ 0 };
    for (int i = 0; i < s->n_wants; i++) {
        if (!(here->alive >> i & 1)) continue;
        const char *rest = s->wants[i].path + here->used[i];
        if (!*rest || strncmp(rest, name, n) != 0 || (rest[n] != '\0' && rest[n] != '.')) continue;
        to->alive |= 1u << i;
        to->used[i] = (uint8_t)(here->used[i] + n + (rest[n] == '.'));
        s->out[s->wants[i].result] = (json_member){ 0 }; /* among duplicates the last counts */
    }
}

static bool skip_member(json_scanner *s, const paths *here) {
    bool escaped;
    char plain[LONGEST_NAME + 8];
    const char *name = s->p + 1;
    if (!skip_string(s, &escaped)) return false;
    size_t n = (size_t)(s->p - 1 - name);
    paths below = { 0 };
    if (here->alive && n <= LONGEST_NAME) {
        if (escaped) n = json_unescape(name, n, plain), name = plain;
        narrow_paths(s, here, name, n, &below);
    }
    json_skip_space(s);
    if (s->p == s->end || *s->p != ':') return json_fault(s, "a colon is missing");
    s->p++;
    return skip_value(s, &below);
}

static bool skip_object(json_scanner *s, const paths *here) {
    s->p++;
    json_skip_space(s);
    if (s->p < s->end && *s->p == '}') return s->p++, true;
    for (bool last = false; !last;) {
        json_skip_space(s);
        if (!skip_member(s, here) || !next_json_item(s, '}', &last)) return false;
    }
    return true;
}

static void record_value(json_scanner *s, const paths *here, json_member found) {
    for (int i = 0; i < s->n_wants; i++)
        if ((here->alive >> i & 1) && !s->wants[i].path[here->used[i]])
            s->out[s->wants[i].result] = found;
}

static bool skip_value(json_scanner *s, const paths *here) {
    json_skip_space(s);
    if (s->p == s->end) return json_fault(s, "the line is truncated");
    const char *from = s->p;
    bool fine, escaped = false, scalar = false;
    if (++s->depth > MOST_DEPTH) return json_fault(s, "nested too deeply");
    switch (*s->p) {
    case '{': fine = skip_object(s, here); break;
    case '[': fine = skip_array(s); break;
    case '"': fine = skip_string(s, &escaped); break;
    case 't':
    case 'f':
    case 'n': fine = skip_word(s); break;
    default: fine = skip_number(s), scalar = true;
    }
    s->depth--;
    if (fine && here->alive && (scalar || *from == '"'))
        record_value(s, here,
                     (json_member){ (size_t)(from - s->begin), (size_t)(s->p - s->begin),
                                    scalar    ? JSON_SCALAR
                                    : escaped ? JSON_ESCAPED
                                              : JSON_PLAIN });
    return fine;
}

void json_add_others(const char *line, size_t n, const json_want *wants, int n_wants, str *out) {
    static const paths none = { 0 };
    json_scanner s = { line, line + n, NULL, 0, NULL, line };
    bool escaped, last = false;
    json_skip_space(&s);
    s.p++; /* the brace */
    for (json_skip_space(&s); !last && s.p < s.end && *s.p != '}'; json_skip_space(&s)) {
        const char *begin = s.p;
        if (!skip_string(&s, &escaped)) return;
        text_span name = { begin + 1, (size_t)(s.p - begin) - 2 };
        json_skip_space(&s);
        s.p++; /* the colon */
        if (!skip_value(&s, &none)) return;
        int i = 0;
        while (i < n_wants && !span_is(name, wants[i].path)) i++;
        if (i == n_wants) {
            str_add(out, ", ");
            str_add_bytes(out, begin, (size_t)(s.p - begin));
        }
        if (!next_json_item(&s, '}', &last)) return;
    }
}

const char *json_scan(const char *line, size_t n, const json_want *wants, int n_wants,
                      json_member *out, bool *odd) {
    json_scanner s = { line, line + n, wants, n_wants, out, line };
    paths all = { .alive = (1u << n_wants) - 1 };
    BUG_IF(n_wants > (int)COUNT_OF(all.used));
    json_skip_space(&s);
    if (s.p == s.end || *s.p != '{') return "not a JSON object";
    if (!skip_object(&s, &all)) return s.wrong;
    json_skip_space(&s);
    *odd = s.odd;
    return s.p == s.end ? NULL : "something follows the object";
}
