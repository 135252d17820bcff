/* Stands in for html_libxml.c in builds without libxml2: every page is an error. */
#include "text/html.h"

err html_text(const char *page, size_t n, const char *charset, str *out) {
    return err_hint(ERR("this ingot was built without libxml2, which reads HTML"),
                    "install libxml2-dev and build again, or use the WET files");
}
