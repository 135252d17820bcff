/* Splits the bytes of a segment into blocks of whole records (block_reader.c). */
#ifndef INGOT_TEXT_BLOCK_READER_INTERNAL_H
#define INGOT_TEXT_BLOCK_READER_INTERNAL_H

#include "text/text.h"
#include "text/parser_internal.h"

void raw_block_free(raw_block *b);
typedef struct row_reader row_reader;

struct block_reader {
    const text_inputs *in;
    const text_format *format;
    byte_reader *from;
    int64_t offset; /* of the next byte to be read */
    str head;       /* the file's header, in formats that have one */
    str carry;      /* bytes read that belong to the next block */
    bool at_end, done;
    const char *damage; /* borrowed: why nothing of the file can be read; NULL: something can */
    int64_t file_bytes; /* 0 for a pipe */
    row_reader *rows;   /* of a Parquet file; NULL: none */
};
err block_reader_open(block_reader *r, const text_inputs *in, int segment) MUST_USE;
/* Reads the next block. *more is false at the end. @param b reused from block to block. */
err block_reader_next(block_reader *r, raw_block *b, bool *more) MUST_USE;
void block_reader_close(block_reader *r);

#endif
