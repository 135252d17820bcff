/* Shared by `ingot data inspect`, `stats` and `export`. */
#ifndef INGOT_CLI_DATA_LOOK_H
#define INGOT_CLI_DATA_LOOK_H

#include <jansson.h>

#include "cli/cli.h"
#include "shards/data.h"
#include "tokenizer/tokenizer.h"

/* Opens token files or a text. @param dtype of the ids of a raw .bin file; NULL: guessed. @param held_out the part that is held
 * out: an error where there is none. */
err look_open(const char *path, const char *dtype, bool held_out, data_source **out) MUST_USE;

/* Ids as text: by a tokenizer, as bytes, or as numbers when nothing better is known. */
typedef struct look_text {
    tokenizer *t; /* owned; NULL: none */
    bool bytes;
} look_text;
/* @param path names the tokenizer; NULL: what the source brings. */
err look_text_open(const data_source *s, const char *path, look_text *out) MUST_USE;
void look_text_close(look_text *l);

/* Prints the head of both: path, format, counts. */
void look_print_info(const data_info *info, int shards);
json_t *look_info_json(const data_info *info, int shards);
/* Prints a JSON document and frees it. */
err look_print_json(json_t *o) MUST_USE;

#endif
