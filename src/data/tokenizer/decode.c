/* Decoding: each id's bytes, one after another, and what a decoder does to the ends. */
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

static void add_without_spaces(text_span s, str *out) {
    for (size_t i = 0; i < s.len; i++)
        if (s.at[i] != ' ') str_add_bytes(out, &s.at[i], 1);
}

static void strip_ends(const tokenizer *t, size_t begin, str *out) {
    size_t left = 0, right = 0, n = out->len - begin;
    const char *s = out->text + begin;
    while (left < n && left < (size_t)t->strip_left && s[left] == ' ') left++;
    while (right < n - left && right < (size_t)t->strip_right && s[n - 1 - right] == ' ') right++;
    if (left) memmove(out->text + begin, s + left, n - left);
    out->len -= left + right;
    out->text[out->len] = 0;
}

void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool special, str *out) {
    size_t begin = out->len;
    bool first = true, strip = t->strip_left || t->strip_right;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab) {
            str_add_bytes(out, "\xEF\xBF\xBD", 3);
            continue;
        }
        if (t->unknown_surface && ids[i] == t->bpe.unknown) {
            if (strip && out->len > begin) strip_ends(t, begin, out);
            strip = first = false; /* its own space is not the one put in front of a text */
            str_add(out, "%s", t->unknown_surface);
            continue;
        }
        if (!special && t->is_special[ids[i]]) continue;
        text_span s = t->decoded[ids[i]];
        if (first && t->strip_first)
            add_without_spaces(s, out);
        else
            str_add_bytes(out, s.at, s.len);
        first = false;
    }
    if (out->len > begin && strip) strip_ends(t, begin, out);
}
