/* Any bytes as a reply of S3: a list of objects, the begin and the end of an upload, an error. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "store/store_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *text = (const char *)data;
    store_list list = { 0 };
    reply_fault fault;
    char *next = NULL, *id = NULL;
    err_free(reply_list(text, n, "s3://bucket", "", &list, &next));
    for (int i = 0; i < list.n; i++) BUG_IF(list.at[i].bytes < 0 || !store_is_url(list.at[i].url));
    store_list_free(&list);
    free(next);
    err e = reply_upload_id(text, n, &id);
    BUG_IF(!e && !*id);
    err_free(e);
    free(id);
    reply_error(text, n, &fault);
    (void)reply_is_complete(text, n);
    return 0;
}
