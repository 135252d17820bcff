/* HTML to text, with libxml2 where the build has it.
 *
 *     bytes -> UTF-8 (charset.c) -> tree (libxml2) -> blocks (html_libxml.c) -> selection
 * (html_choose.c)
 *
 * Most of a page is not its text. What is removed, in this order: elements that never hold text
 * (scripts, menus, footers), elements whose class or id marks them as page furniture, and blocks
 * that look like links and labels rather than sentences, unless sentences surround them. */
#ifndef INGOT_TEXT_HTML_H
#define INGOT_TEXT_HTML_H

#include "util/util.h"

enum { HTML_LONGEST_PAGE = 8 << 20 }; /* the parsed tree takes up to forty times as much */

/* Appends the main text of a page as valid UTF-8, one block per line, without menus, footers and
 * scripts. @param charset from the HTTP header; NULL: the one the page declares, or UTF-8. */
err html_text(const char *page, size_t n, const char *charset, str *out) MUST_USE;

/* Appends a page as valid UTF-8 without NUL, converted from the encoding that the header or the
 * page declares; bytes that cannot be converted become U+FFFD. */
void html_decode(const char *page, size_t n, const char *charset, str *out);

/* ---- blocks: the lines of a page ------------------------------------------------------------- */
typedef enum { BLOCK_TEXT, BLOCK_HEADING, BLOCK_ITEM, BLOCK_ROW, BLOCK_CODE } html_kind;
typedef struct html_block {
    html_kind kind;
    size_t at, len; /* in the page's text */
    int characters; /* not counting white space */
    int linked;     /* ... inside links */
    bool sentence;  /* ends like a sentence, or contains several */
    bool main;      /* inside <main> or <article> */
    bool keep;      /* set by html_choose */
} html_block;
/* Decides which blocks are the page's text. */
void html_choose(html_block *blocks, int n);

#endif
