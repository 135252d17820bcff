/* Windows to skip: a short sorted list of ranges of positions. */
#include "shards/data_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

err data_skips_add(data_skips *s, data_range r, int64_t now) {
    r.from = MAX(r.from, now);
    if (r.from >= r.to) return OK;
    data_skips out = { 0 };
    bool placed = false;
    for (int i = 0; i <= s->n; i++) {
        data_range next = i < s->n ? s->at[i] : (data_range){ INT64_MAX, INT64_MAX };
        if (!placed && r.to < next.from) { /* what touches becomes one */
            if (out.n == DATA_MAX_SKIPS)
                return err_hint(ERR("more than %d ranges of windows to skip", DATA_MAX_SKIPS),
                                "join ranges that are close to one another");
            out.at[out.n++] = r;
            placed = true;
        }
        if (i == s->n) break;
        if (placed || next.to < r.from) {
            if (out.n == DATA_MAX_SKIPS)
                return err_hint(ERR("more than %d ranges of windows to skip", DATA_MAX_SKIPS),
                                "join ranges that are close to one another");
            out.at[out.n++] = next;
        } else {
            r = (data_range){ MIN(r.from, next.from), MAX(r.to, next.to) };
        }
    }
    *s = out;
    return OK;
}

int64_t data_skips_before(const data_skips *s, int64_t position) {
    int64_t n = 0;
    for (int i = 0; i < s->n && s->at[i].from < position; i++)
        n += MIN(s->at[i].to, position) - s->at[i].from;
    return n;
}

bool data_skips_holds(const data_skips *s, int64_t position) {
    return data_skips_before(s, position + 1) > data_skips_before(s, position);
}

int64_t data_skips_position(const data_skips *s, int64_t consumed) {
    int64_t position = consumed;
    for (int i = 0; i < s->n && s->at[i].from <= position; i++)
        position += s->at[i].to - s->at[i].from;
    return position;
}

static bool read_skip_number(const char **at, int64_t *out) {
    char *end;
    *at += strspn(*at, " ");
    errno = 0;
    long long v = strtoll(*at, &end, 10);
    bool good = end != *at && **at != '-' && **at != '+' && !errno && v >= 0;
    *out = v;
    *at = end + strspn(end, " ");
    return good;
}

err data_skips_parse(const char *text, data_skips *out) {
    *out = (data_skips){ 0 };
    for (const char *at = text; *at;) {
        data_range r;
        bool good = read_skip_number(&at, &r.from) && *at == '-' &&
                    (at++, read_skip_number(&at, &r.to)) && r.from < r.to && (*at == ',' || !*at);
        if (!good)
            return err_hint(ERR("data.skip: \"%s\" is not a list of ranges of sequences", text),
                            "write it like 1000-2000, 5000-5100: from the first sequence to skip "
                            "to the first to read again");
        TRY(data_skips_add(out, r, 0));
        at += *at == ',';
    }
    return OK;
}
