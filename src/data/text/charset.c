/* Character sets of web pages. Pages come in many encodings, and what the HTTP header or the
 * page itself declares is often wrong; html_decode turns any of them into valid UTF-8. */
#include <errno.h>
#include <iconv.h>
#include <string.h>

#include "text/html.h"
#include "text/span_internal.h"

enum { META_WITHIN = 4096, NAME_BYTES = 32 };
#define UNKNOWN "\xEF\xBF\xBD"

/* Reads `charset=NAME` of a <meta> element near the beginning. @return false if there is none. */
static bool meta_charset(const char *page, size_t n, char name[NAME_BYTES]) {
    text_span head = { page, MIN(n, (size_t)META_WITHIN) };
    for (size_t i = 0; i + 8 < head.len; i++) {
        if ((head.at[i] | 32) != 'c' || !span_is_nocase((text_span){ head.at + i, 8 }, "charset="))
            continue;
        size_t used = 0;
        for (i += 8; i < head.len && (head.at[i] == '"' || head.at[i] == '\''); i++) continue;
        for (; i < head.len && used + 1 < NAME_BYTES && !strchr("\"' />;", head.at[i]); i++)
            name[used++] = head.at[i];
        name[used] = 0;
        return used > 0;
    }
    return false;
}

/* Encoding names that browsers treat as a different, larger encoding. */
static const char *browser_charset(const char *name) {
    static const char *const western[] = { "iso-8859-1", "iso8859-1", "latin1",
                                           "us-ascii",   "ascii",     "iso-8859-15" };
    for (size_t i = 0; i < COUNT_OF(western); i++)
        if (span_is_nocase(text_span_of(name), western[i])) return "windows-1252";
    if (span_is_nocase(text_span_of(name), "gb2312") || span_is_nocase(text_span_of(name), "gbk"))
        return "gb18030";
    return span_is_nocase(text_span_of(name), "shift_jis") ? "cp932" : name;
}

static void convert_to_utf8(iconv_t to_utf8, const char *page, size_t n, str *out) {
    char *from = (char *)(uintptr_t)page;
    while (n > 0) {
        str_reserve(out, n + 64);
        char *to = out->text + out->len;
        size_t space = out->cap - out->len - 1;
        size_t rc = iconv(to_utf8, &from, &n, &to, &space);
        out->len = (size_t)(to - out->text);
        if (rc != (size_t)-1 || n == 0 || errno == E2BIG) continue;
        str_add_bytes(out, UNKNOWN, 3);
        from++, n--;
    }
}

static const char *byte_order_mark(const char *page, size_t n) {
    if (n >= 2 && memcmp(page, "\xFF\xFE", 2) == 0) return "utf-16le";
    return n >= 2 && memcmp(page, "\xFE\xFF", 2) == 0 ? "utf-16be" : NULL;
}

void html_decode(const char *page, size_t n, const char *charset, str *out) {
    char meta[NAME_BYTES];
    size_t from = out->len;
    const char *mark = byte_order_mark(page, n);
    /* Text in another encoding is hardly ever valid UTF-8, so validity overrides any
     * declaration. */
    bool valid = !mark && utf8_valid(page, n) == n;
    if (!charset || !*charset) charset = meta_charset(page, n, meta) ? meta : "windows-1252";
    charset = mark ? mark : browser_charset(charset);
    bool utf8 = span_is_nocase(text_span_of(charset), "utf-8") ||
                span_is_nocase(text_span_of(charset), "utf8");
    iconv_t to_utf8 = valid || utf8 ? (iconv_t)-1 : iconv_open("UTF-8", charset);
    if (to_utf8 == (iconv_t)-1) {
        utf8_repair(page, n, out);
    } else {
        convert_to_utf8(to_utf8, page, n, out);
        iconv_close(to_utf8);
    }
    str_add_bytes(out, "", 0);
    for (size_t i = from; i < out->len; i++)
        if (!out->text[i]) out->text[i] = ' ';
}
