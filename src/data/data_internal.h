/* What the files of data/ share. */
#ifndef INGOT_DATA_INTERNAL_H
#define INGOT_DATA_INTERNAL_H

#include "data/data.h"
#include "io/io.h"

struct data_source {
    data_info info;
    char *path;         /* owned; info.path */
    const void *tokens; /* info.tokens of info.width bytes: inside `file` or `made` */
    io_mapping file;    /* zeroed for tokens made in memory */
    void *made;         /* owned: tokens made in memory */
    uint64_t checksum;  /* of the tokens' bytes, when has_checksum */
    bool has_checksum;
    int64_t vocab_limit; /* of the model; 0: none */
};

/* ---- tokfile.c: token files, told by their first bytes ------------------------------------ */
/* Recognises a token file and fills in info, tokens and checksum from s->file.
 * @param found false when the file is none of the formats, which is no error. */
err tokfile_parse(data_source *s, bool *found);

/* ---- text.c: byte-tokenised sources --------------------------------------------------------- */
/* Tokens under construction, 2 bytes each. */
typedef struct byte_tokens {
    uint16_t *at;
    size_t n, cap;
    int64_t documents;
} byte_tokens;
/* Appends a document and its end; an empty one leaves no trace. */
void byte_tokens_add(byte_tokens *t, const char *text, size_t n);
/* Makes `s` own the tokens, which must not be empty. */
void byte_tokens_give(byte_tokens *t, const char *format, data_source *s);
err text_tokenize(data_source *s);
err jsonl_tokenize(data_source *s);

/* ---- batch.c: one row of a batch ---------------------------------------------------------- */
/* @return targets in window w of the loader's range. */
int64_t window_valid(const data_source *s, const loader_options *o, int64_t w);
/* Fills row `row` of `b` with window w; every token is padding when w is past the range's end.
 * @param limit longest piece of the curriculum. @param scratch room for seq_len + 1 ids. */
err window_fill(const data_source *s, const loader_options *o, int64_t w, int64_t limit,
                int32_t *scratch, int64_t row, data_batch *b);

#endif
