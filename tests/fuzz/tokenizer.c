/* Any bytes as a tokenizer: a SentencePiece model where the first byte is the one such a file begins with,
 * a tokenizer.json where they begin a JSON object, else lines of a .tiktoken file. What is accepted
 * encodes and decodes some text. */
#include "fuzz/fuzz.h"

#include "tokenizer/tokenizer.h"

static void use(const tokenizer *t) {
    static const char text[] = "Grüße, <|endoftext|> \xff\xfe 12345  \n\t it's 日本 e\xcc\x81 <s>";
    encoder *e = encoder_new(t);
    token_ids ids = { 0 };
    str back = { 0 };
    encoder_add(e, text, sizeof text - 1, false, &ids);
    encoder_add_affixed(e, text, sizeof text - 1, true, &ids);
    encoder_add_prefixed(e, text, sizeof text - 1, true, &ids);
    for (size_t i = 0; i < ids.n; i++) BUG_IF(ids.at[i] < 0 || ids.at[i] >= tokenizer_vocab(t));
    tokenizer_decode(t, ids.at, ids.n, true, &back);
    str_free(&back);
    token_ids_free(&ids);
    encoder_free(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    tokenizer *t = NULL;
    log_set_level(LOG_ERROR);
    const char *name = n && data[0] == 0x0a  ? "tokenizer.model"
                       : n && data[0] == '{' ? "tokenizer.json"
                                             : "tokenizer.tiktoken";
    err e = tokenizer_open(fuzz_write(name, data, n), NULL, &t);
    if (!e) use(t);
    err_free(e);
    tokenizer_free(t);
    return 0;
}
