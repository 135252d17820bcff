/* The byte tokenizer and its streaming decoder. */
#include "shards/data.h"

#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* @return the length of the character this byte begins, 0 when it begins none. */
static int sequence_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return 0;
}

/* Whether `c` may follow the bytes held back: a continuation byte that makes the character neither
 * overlong, nor a surrogate, nor beyond U+10FFFF. Those limits show in the second byte alone. */
static bool continues_character(const byte_decoder *d, unsigned char c) {
    unsigned char low = 0x80, high = 0xBF;
    if (d->len == 1) {
        switch (d->pending[0]) {
        case 0xE0: low = 0xA0; break;
        case 0xED: high = 0x9F; break;
        case 0xF0: low = 0x90; break;
        case 0xF4: high = 0x8F; break;
        default: break;
        }
    }
    return c >= low && c <= high;
}

int byte_decoder_end(byte_decoder *d, char out[BYTE_DECODE_MAX]) {
    int half = d->len;
    d->len = 0;
    if (half == 0) return 0;
    memcpy(out, REPLACEMENT, 3);
    return 3;
}

int byte_decoder_push(byte_decoder *d, int32_t id, char out[BYTE_DECODE_MAX]) {
    if (id < 0 || id > 255) return byte_decoder_end(d, out);
    unsigned char c = (unsigned char)id;
    int n = 0;
    if (d->len > 0 && !continues_character(d, c)) n = byte_decoder_end(d, out);
    if (d->len == 0) {
        d->need = sequence_length(c);
        if (d->need == 0) {
            memcpy(out + n, REPLACEMENT, 3);
            return n + 3;
        }
    }
    d->pending[d->len++] = c;
    if (d->len < d->need) return n;
    memcpy(out + n, d->pending, (size_t)d->len);
    n += d->len;
    d->len = 0;
    return n;
}

void byte_decode(const int32_t *ids, size_t n, str *out) {
    byte_decoder d = { 0 };
    char piece[BYTE_DECODE_MAX];
    for (size_t i = 0; i < n; i++) {
        str_add_bytes(out, piece, (size_t)byte_decoder_push(&d, ids[i], piece));
        if (ids[i] == BYTE_EOS) str_add(out, "\n%s\n", TEXT_SEPARATOR);
    }
    str_add_bytes(out, piece, (size_t)byte_decoder_end(&d, piece));
}
