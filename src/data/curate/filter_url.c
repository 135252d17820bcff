/* Checks URLs against lists: domains with all their subdomains, whole words, and substrings. */
#include "curate/filter_internal.h"

#include <string.h>

/* @return the host of a URL, without scheme, user, port, path and trailing dot. */
static text_span url_host(text_span url) {
    const char *at = url.at, *end = url.at + url.len;
    for (const char *p = at; p + 2 < end && *p != '/' && *p != '?'; p++)
        if (memcmp(p, "://", 3) == 0) {
            at = p + 3;
            break;
        }
    const char *stop = at;
    while (stop < end && !strchr("/?#", *stop)) {
        if (*stop == '@') at = stop + 1;
        stop++;
    }
    const char *port = memchr(at, ':', (size_t)(stop - at));
    if (port) stop = port;
    while (stop > at && stop[-1] == '.') stop--;
    return (text_span){ at, (size_t)(stop - at) };
}

/* @return how many of the host, its parent domain, and so on are in the list. */
static int64_t count_domains(const phrase_list *l, text_span host) {
    int64_t count = 0;
    while (host.len > 0) {
        count += phrase_list_has(l, host);
        const char *dot = memchr(host.at, '.', host.len);
        if (!dot) break;
        host = (text_span){ dot + 1, host.len - (size_t)(dot + 1 - host.at) };
    }
    return count;
}

bool filter_url(judgment *j) {
    const filter *f = j->f;
    if (j->doc->url.len == 0) {
        j->v->count[COUNTER_no_url]++;
        return false;
    }
    fold_text(j->doc->url, &j->w->folded);
    text_span url = { j->w->folded.text, j->w->folded.len };
    int64_t domains = f->url_domains ? count_domains(f->url_domains, url_host(url)) : 0;
    if (judgment_fails(j, FILTER_url_domains, (double)domains)) return true;
    int64_t words = f->url_words ? phrase_list_count(f->url_words, url) : 0;
    if (f->url_parts) words += phrase_list_parts(f->url_parts, url);
    return judgment_fails(j, FILTER_url_words, (double)words);
}
