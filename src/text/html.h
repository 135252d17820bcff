/* HTML to text, through libxml2 where the build has it.
 *
 *     bytes -> UTF-8 (charset.c) -> tree (libxml2) -> blocks (html_libxml.c) -> chosen (html_choose.c)
 *
 * A page is mostly not its text. What is left out, in this order: elements that are never text
 * (scripts, menus, footers), elements whose class or id says so, and blocks that look like links
 * and labels rather than sentences unless sentences surround them.
 */
#ifndef INGOT_TEXT_HTML_H
#define INGOT_TEXT_HTML_H

#include "util/util.h"

/* Appends the main text of a page as valid UTF-8: blocks on lines of their own, menus, footers and
 * scripts left out. @param charset as the HTTP header said; NULL: the page's own or UTF-8. */
err html_text(const char *page, size_t n, const char *charset, str *out) MUST_USE;

/* Appends a page as valid UTF-8 without NUL, from what the header or the page says it is in; bytes
 * that mean nothing become U+FFFD. */
void html_decode(const char *page, size_t n, const char *charset, str *out);

/* ---- blocks: the lines of a page ---------------------------------------------------------------- */
typedef enum { BLOCK_TEXT, BLOCK_HEADING, BLOCK_ITEM, BLOCK_ROW, BLOCK_CODE } html_kind;
typedef struct html_block {
    html_kind kind;
    size_t at, len; /* in the page's text */
    int characters; /* that are no space */
    int linked;     /* of these, in links */
    bool sentence;  /* ends like one, or holds several */
    bool main;      /* inside <main> or <article> */
    bool keep;      /* the answer */
} html_block;
/* Decides which blocks are the page's text. */
void html_choose(html_block *blocks, int n);

#endif
