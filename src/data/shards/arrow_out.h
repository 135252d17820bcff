/* Writes the metadata of Arrow streams with one column, a list of int32 that is never missing. */
#ifndef INGOT_SHARDS_ARROW_OUT_H
#define INGOT_SHARDS_ARROW_OUT_H

#include "util/util.h"

/* Eight zeros, for padding; and what ends a stream. */
#define ARROW_ZEROS "\0\0\0\0\0\0\0\0"
#define ARROW_END   "\xFF\xFF\xFF\xFF\0\0\0\0"

/* Appends the message of the schema. */
void arrow_list_schema(const char *column, str *out);
/* Appends the message of a record batch, up to its body: int32[rows + 1], the ends of the rows; padding; int32[values],
 * padded to 8 bytes. @return bytes of the padding in the middle. */
size_t arrow_batch_head(int64_t rows, int64_t values, str *out);

#endif
