/* Posts alerts with libcurl. */
#include <curl/curl.h>
#include <string.h>

#include "webhook_internal.h"

err webhook_check(const char *address) {
    bool good = str_starts(address, "http://") || str_starts(address, "https://");
    if (good && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) return OK;
    if (good) return ERR("alerts.webhook: libcurl does not start");
    return err_hint(
        ERR("alerts.webhook is not an address to post to"),
        "give an http:// or https:// address, or where it stands: env:NAME or file:PATH");
}

/* The answer does not matter. */
static size_t drop_answer(char *bytes, size_t size, size_t n, void *ctx) { return size * n; }

static void set_webhook_options(CURL *c, const char *address, const char *text, double seconds,
                                struct curl_slist *headers) {
    curl_easy_setopt(c, CURLOPT_URL, address);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, text);
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(seconds * 1000));
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, drop_answer);
}

err webhook_post(const char *address, const char *text, double seconds) {
    CURL *c = curl_easy_init();
    if (!c) return ERR("libcurl does not start");
    long status = 0;
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    set_webhook_options(c, address, text, seconds, headers);
    CURLcode code = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    curl_slist_free_all(headers);
    curl_easy_cleanup(c);
    if (code != CURLE_OK)
        return ERR("%s", curl_easy_strerror(code)); /* without the address, a secret */
    return status / 100 == 2 ? OK : ERR("answered %ld", status);
}
