/* JSON objects, one per line (json_scan.c). */
#ifndef INGOT_TEXT_JSON_SCAN_INTERNAL_H
#define INGOT_TEXT_JSON_SCAN_INTERNAL_H

#include "text/text.h"

typedef struct json_member {
    size_t at, end; /* in the line; a string's quotes included */
    enum { JSON_ABSENT, JSON_PLAIN, JSON_ESCAPED, JSON_SCALAR } kind; /* a string or a number */
} json_member;
/* A dotted path of member names, and the index of the result that receives its value. */
typedef struct json_want {
    const char *path;
    int result;
} json_want;
/* Checks that the line is one JSON object in valid UTF-8 and finds the wanted members; among
 * members of the same name the last one counts. @param out zeroed. *odd: some escape stands for
 * no character (half a surrogate pair, or NUL). @return NULL, or why the line is not such an
 * object. */
const char *json_scan(const char *line, size_t n, const json_want *wants, int n_wants,
                      json_member *out, bool *odd);
/* Unescapes the inside of a checked JSON string. @param to capacity of at least n + 8 bytes.
 * @return bytes written. */
size_t json_unescape(const char *p, size_t n, char *to);
/* Overwrites each escape that stands for no character with \ufffd. */
void json_replace_odd_escapes(char *line, size_t n);
/* Appends the members of a checked object that are not wanted, each as `, "name": value`. */
void json_add_others(const char *line, size_t n, const json_want *wants, int n_wants, str *out);
/* @return bytes before the first quote, backslash or control character. */
size_t json_plain_length(const char *p, size_t n);

#endif
