/* One document as `ingot data explain` finds it, and how a filter judges it. */
#ifndef INGOT_CLI_DATA_EXPLAIN_H
#define INGOT_CLI_DATA_EXPLAIN_H

#include <jansson.h>

#include "text/text.h"

typedef struct found_document {
    bool found;
    str text, source, license;
    char *dropped_by, *value; /* as --dropped writes them; NULL: none */
    char *path;               /* of the file that has it */
    json_t *judged;           /* what data_filter_explain says; NULL: not judged */
} found_document;

/* Judges a document by the options that state.json has of a filter. @param out owned: "rule", "value" and "limit" if it is
 * dropped, and "changes", numbers by name. */
err data_filter_explain(const json_t *options, const text_doc *d, json_t **out) MUST_USE;

#endif
