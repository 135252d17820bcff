/* Built without libcurl. */
#include "store/store_internal.h"

err http_open(const store_settings *s, http **out) {
    return err_hint(
        ERR("this program was built without libcurl, so s3:// cannot be read or written"),
        "install libcurl4-openssl-dev (Debian, Ubuntu) and build again");
}

void http_close(http *h) {}

void http_send(http *h, const http_request *q, http_reply *r) { BUG("there is no connection"); }
