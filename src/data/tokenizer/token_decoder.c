/* Decoding as ids arrive: bytes of a character that is not whole yet are all that is kept. */
#include <stdlib.h>
#include <string.h>

#include "text/text.h"
#include "tokenizer/tokenizer.h"

void token_decoder_push(token_decoder *s, int32_t id, str *out) {
    decode_id(s->t, &s->state, id, false, &s->text);
    size_t rest = s->text.len ? utf8_unfinished(s->text.text, s->text.len) : 0;
    size_t whole = s->text.len - rest;
    if (!whole) return;
    utf8_repair(s->text.text, whole, out);
    memmove(s->text.text, s->text.text + whole, rest);
    s->text.len = rest;
}

void token_decoder_end(token_decoder *s, str *out) {
    if (s->text.len) utf8_repair(s->text.text, s->text.len, out);
    str_free(&s->text);
    *s = (token_decoder){ 0 };
}
