/* Decoding as ids arrive. What an id reads as may depend on those before it (a word's leading space
 * is dropped at the beginning of a text alone), so that all of them are decoded again each time;
 * samples are short. */
#include <stdlib.h>

#include "text/text.h"
#include "tokenizer/tokenizer.h"

void token_decoder_push(token_decoder *s, int32_t id, str *out) {
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->ids = mem_grow(s->ids, s->cap * sizeof *s->ids);
    }
    s->ids[s->n++] = id;
    s->text.len = 0;
    tokenizer_decode(s->t, s->ids, s->n, false, &s->text);
    size_t fresh = s->text.len - MIN(s->shown, s->text.len);
    if (!fresh) return;
    const char *from = s->text.text + s->shown;
    size_t whole = fresh - utf8_unfinished(from, fresh);
    utf8_repair(from, whole, out);
    s->shown += whole;
}

void token_decoder_end(token_decoder *s, str *out) {
    if (s->text.len > s->shown) utf8_repair(s->text.text + s->shown, s->text.len - s->shown, out);
    free(s->ids);
    str_free(&s->text);
    *s = (token_decoder){ 0 };
}
