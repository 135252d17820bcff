#ifndef INGOT_WEBHOOK_INTERNAL_H
#define INGOT_WEBHOOK_INTERNAL_H

#include "monitor/monitor.h"

/* webhook_curl.c, or webhook_none.c in a build without libcurl. */
/* An error where this build cannot post to the address. */
err webhook_check(const char *address) MUST_USE;
/* Posts a JSON text; an answer other than 2xx is an error. */
err webhook_post(const char *address, const char *text, double seconds) MUST_USE;

#endif
