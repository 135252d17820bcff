/* HTTP messages in WARC records (http.c). */
#ifndef INGOT_TEXT_HTTP_INTERNAL_H
#define INGOT_TEXT_HTTP_INTERNAL_H

#include "text/text.h"

/* @return the value of a header line; empty if there is none. @param head lines; the
 * first is skipped. */
text_span header_value(text_span head, const char *name);
/* @return bytes of the header at p, including the empty line that ends it; 0: it does not end. */
size_t header_length(const char *p, size_t n);

typedef struct http_body {
    text_span bytes;   /* decoded; into the message or `made` */
    const char *wrong; /* why it cannot be used; NULL if it can */
    text_span type;    /* "text/html" */
    char charset[32];  /* "" when not given */
} http_body;
/* Parses a response. A body that is not text has an empty type. @param most limit on the bytes
 * of a decompressed body. @param made storage for what was decoded. */
http_body http_parse(text_span message, size_t most, str *made);
/* Splits "text/html; charset=x". */
void http_split_media_type(text_span value, http_body *out);

#endif
