/* Decoding: each id's bytes, one after another. A decoder that strips spaces from the ends of a text does so as ids arrive: at the left
 * while the text is empty, at the right by holding spaces back until something follows them. */

#include "tokenizer/tokenizer_internal.h"

static void add_spaces(size_t n, str *out) {
    for (size_t i = 0; i < n; i++) str_add_bytes(out, " ", 1);
}

/* Appends bytes of the text, without the spaces that may turn out to be at its ends. */
static void decode_bytes(const tokenizer *t, decode_state *s, const char *bytes, size_t n,
                         str *out) {
    size_t right = s->unstripped ? 0 : (size_t)t->strip_right;
    while (!s->unstripped && n && *bytes == ' ' && s->left < t->strip_left) bytes++, n--, s->left++;
    if (!n) return;
    s->left = t->strip_left;
    size_t end = n;
    while (right && end && bytes[end - 1] == ' ') end--;
    size_t spaces = n - end + (end ? 0 : s->held), held = MIN(spaces, right);
    if (end) {
        add_spaces(s->held, out);
        str_add_bytes(out, bytes, end);
    }
    add_spaces(spaces - held, out);
    s->held = held;
}

void decode_id(const tokenizer *t, decode_state *s, int32_t id, bool special, str *out) {
    if (id < 0 || id >= t->vocab) {
        decode_bytes(t, s, "\xEF\xBF\xBD", 3, out);
    } else if (t->unknown_surface && id == t->bpe.unknown) {
        s->unstripped = s->begun = true; /* its own space is not the one put in front of a text */
        s->held = 0;
        str_add(out, "%s", t->unknown_surface);
    } else if (special || !t->is_special[id]) {
        bool first = t->decoded_first && !s->begun;
        text_span span = (first ? t->decoded_first : t->decoded)[id];
        decode_bytes(t, s, span.at, span.len, out);
        s->begun = true;
    }
}

void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool special, str *out) {
    decode_state s = { 0 };
    for (size_t i = 0; i < n; i++) decode_id(t, &s, ids[i], special, out);
}
