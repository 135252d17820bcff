/* Documents as rows of a Parquet file. The fields are columns; all other members of a document are a JSON
 * object in the column "metadata", which the reader takes apart again. */
#include <math.h>

#include "text/inputs_internal.h"
#include "text/output_internal.h"

const parquet_column doc_columns[DOC_COLUMNS_DROPPED] = {
    { "id", PARQUET_STRING, false },         { "url", PARQUET_STRING, false },
    { "source", PARQUET_STRING, false },     { "license", PARQUET_STRING, false },
    { "metadata", PARQUET_JSON, false },     { "text", PARQUET_STRING, false },
    { "dropped_by", PARQUET_STRING, false }, { "value", PARQUET_STRING, false },
};

static parquet_value value_of(text_span s) {
    return (parquet_value){ .at = s.len ? s.at : NULL, .length = s.len };
}

/* The other members as an object; empty if there are none. */
static text_span metadata_of(const text_inputs *in, const text_doc *d, str *scratch) {
    scratch->len = 0;
    if (d->line.len)
        json_add_others(d->line.at, d->line.len, in->wants, in->n_wants, scratch);
    else
        str_add_bytes(scratch, d->members.at ? d->members.at : "", d->members.len);
    if (scratch->len == 0) return (text_span){ 0 };
    str_add_bytes(scratch, "}", 1);
    scratch->text[1] = '{'; /* in place of the space of the first ", " */
    return (text_span){ scratch->text + 1, scratch->len - 1 };
}

void doc_add_row(const text_inputs *in, const text_doc *d, text_span text, const char *dropped_by,
                 double value, str *scratch, parquet_rows *rows) {
    char number[32] = "";
    if (dropped_by && isfinite(value)) snprintf(number, sizeof number, "%.9g", value);
    const parquet_value row[DOC_COLUMNS_DROPPED] = { value_of(d->id),
                                                     value_of(d->url),
                                                     value_of(d->source),
                                                     value_of(d->license),
                                                     value_of(metadata_of(in, d, scratch)),
                                                     { .at = text.at ? text.at : "",
                                                       .length = text.len },
                                                     value_of(text_span_of(dropped_by)),
                                                     value_of(text_span_of(number)) };
    parquet_rows_add(rows, row);
}
