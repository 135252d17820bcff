/* HTML to text, through libxml2 where the build has it. */
#ifndef INGOT_TEXT_HTML_H
#define INGOT_TEXT_HTML_H

#include "util/util.h"

/* Appends the main text of a page as UTF-8: paragraphs on lines of their own, menus, footers and
 * scripts left out. @param charset as the HTTP header said; NULL: the page's own or UTF-8. */
err html_text(const char *page, size_t n, const char *charset, str *out) MUST_USE;

#endif
