/* A document as plain text, Markdown or one self-contained HTML page. Text that comes from a run is
 * escaped: a folder may have any name. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_internal.h"

/* ---- text ------------------------------------------------------------------------------------ */
/* Whether a character could move a terminal's cursor or end a row of a table. */
static bool breaks_layout(char c) { return (unsigned char)c < ' ' || c == 127; }

static void add_html(str *out, const char *text) {
    for (; *text; text++) {
        if (*text == '<')
            str_add(out, "&lt;");
        else if (*text == '&')
            str_add(out, "&amp;");
        else if (*text == '"')
            str_add(out, "&quot;");
        else
            str_add_bytes(out, breaks_layout(*text) ? "?" : text, 1);
    }
}

static void add_plain(doc *d, const char *text) {
    if (d->format == REPORT_HTML) {
        add_html(d->out, text);
        return;
    }
    for (; *text; text++) {
        if (d->format == REPORT_MARKDOWN && strchr("|<*_`\\", *text)) str_add(d->out, "\\");
        str_add_bytes(d->out, breaks_layout(*text) ? "?" : text, 1);
    }
}

static const char style[] =
    "<style>:root{color-scheme:light dark;--ink:#1a1a1a;--paper:#fff;--line:#ccc}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#161616;--line:#444}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);"
    "max-width:60rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;margin:1rem 0}"
    "td,th{border:1px solid var(--line);padding:.2rem .6rem;text-align:left}"
    "svg{width:100%;height:auto;border:1px solid var(--line)}text{fill:var(--ink);font-size:12px}"
    "figure{margin:1rem 0}</style>";

void doc_begin(doc *d, const char *title) {
    if (d->format == REPORT_HTML) {
        str_add(d->out, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
                        "<meta name=\"viewport\" content=\"width=device-width\"><title>");
        add_html(d->out, title);
        str_add(d->out, "</title>%s<h1>", style);
        add_html(d->out, title);
        str_add(d->out, "</h1>\n");
    } else if (d->format == REPORT_MARKDOWN) {
        str_add(d->out, "# ");
        add_plain(d, title);
        str_add(d->out, "\n\n");
    }
}

void doc_heading(doc *d, const char *text) {
    static const char *const open[] = { "", "## ", "<h2>" };
    static const char *const close[] = { "\n", "\n\n", "</h2>\n" };
    str_add(d->out, "%s", open[d->format]);
    add_plain(d, text);
    str_add(d->out, "%s", close[d->format]);
}

void doc_line(doc *d, const char *fmt, ...) {
    static const char *const open[] = { "  ", "", "<p>" };
    static const char *const close[] = { "\n", "\n\n", "</p>\n" };
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    str_add(d->out, "%s", open[d->format]);
    add_plain(d, text);
    str_add(d->out, "%s", close[d->format]);
}

/* ---- tables ---------------------------------------------------------------------------------- */
static void text_table(doc *d, char *const *cells, int rows, int columns) {
    for (int i = 0; i < rows; i++) {
        str_add(d->out, "  ");
        for (int k = 0; k < columns; k++) {
            int width = 0;
            for (int j = 0; j < rows; j++) width = MAX(width, (int)strlen(cells[j * columns + k]));
            const char *cell = cells[i * columns + k];
            add_plain(d, cell);
            if (k + 1 < columns) str_add(d->out, "%*s", width - (int)strlen(cell) + 2, "");
        }
        str_add(d->out, "\n");
    }
}

void doc_table(doc *d, char *const *cells, int rows, int columns) {
    bool html = d->format == REPORT_HTML;
    if (d->format == REPORT_TEXT) {
        text_table(d, cells, rows, columns);
        return;
    }
    if (html) str_add(d->out, "<table>\n");
    for (int i = 0; i < rows; i++) {
        str_add(d->out, html ? "<tr>" : "|");
        for (int k = 0; k < columns; k++) {
            str_add(d->out, "%s", !html ? " " : i ? "<td>" : "<th>");
            add_plain(d, cells[i * columns + k]);
            str_add(d->out, "%s", !html ? " |" : i ? "</td>" : "</th>");
        }
        str_add(d->out, html ? "</tr>\n" : "\n");
        for (int k = 0; !html && i == 0 && k < columns; k++) str_add(d->out, k ? "---|" : "|---|");
        if (!html && i == 0) str_add(d->out, "\n");
    }
    str_add(d->out, html ? "</table>\n" : "\n");
}

/* ---- plots ----------------------------------------------------------------------------------- */
typedef struct frame {
    double left, right, bottom, top; /* steps and values */
} frame;

static frame frame_of(const doc_curve *curves, int n) {
    frame f = { INFINITY, -INFINITY, INFINITY, -INFINITY };
    for (int k = 0; k < n; k++)
        for (int i = 0; i < curves[k].n; i++) {
            const series_point *p = &curves[k].point[i];
            if (!p->n) continue;
            f.left = fmin(f.left, p->step), f.right = fmax(f.right, p->step);
            f.bottom = fmin(f.bottom, p->low), f.top = fmax(f.top, p->high);
        }
    if (f.right <= f.left) f.right = f.left + 1;
    if (f.top <= f.bottom) f.top = f.bottom + 1;
    return f;
}

/* Plots with a letter for each run; the range of a column's values is a vertical bar. */
static void text_plot(doc *d, const doc_curve *curves, int n, frame f) {
    enum { ROWS = 14, AXIS = 12 };
    int columns = MAX(20, d->width - AXIS - 2);
    char *grid = mem_alloc((size_t)(ROWS * columns));
    memset(grid, ' ', (size_t)(ROWS * columns));
    for (int k = 0; k < n; k++)
        for (int i = 0; i < curves[k].n; i++) {
            const series_point *p = &curves[k].point[i];
            if (!p->n) continue;
            int x = (int)((p->step - f.left) / (f.right - f.left) * (columns - 1));
            int high = (int)((f.top - p->high) / (f.top - f.bottom) * (ROWS - 1) + 0.5);
            int low = (int)((f.top - p->low) / (f.top - f.bottom) * (ROWS - 1) + 0.5);
            for (int y = high; y <= low; y++)
                grid[y * columns + x] = n > 1 ? (char)('a' + k % 26) : '*';
        }
    for (int y = 0; y < ROWS; y++) {
        double v = f.top - (f.top - f.bottom) * y / (ROWS - 1);
        int end = columns;
        while (end > 0 && grid[y * columns + end - 1] == ' ') end--;
        str_add(d->out, "%*.5g |%.*s\n", AXIS - 2, v, end, grid + y * columns);
    }
    str_add(d->out, "%*s +", AXIS - 2, "step");
    for (int x = 0; x < columns; x++) str_add(d->out, "-");
    char right[32];
    snprintf(right, sizeof right, "%.0f", f.right);
    str_add(d->out, "\n%*s%-*.0f%s\n", AXIS, "", columns - (int)strlen(right), f.left, right);
    free(grid);
}

static void add_svg_curve(doc *d, const doc_curve *c, int k, frame f) {
    static const char *const colors[] = { "#2563eb", "#dc2626", "#059669", "#d97706",
                                          "#7c3aed", "#0891b2", "#be185d", "#4d7c0f" };
    const char *color = colors[(size_t)k % COUNT_OF(colors)];
    str_add(d->out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", color);
    for (int i = 0; i < c->n; i++) {
        const series_point *p = &c->point[i];
        if (!p->n) continue;
        str_add(d->out, "%.1f,%.1f ", 70 + 710 * (p->step - f.left) / (f.right - f.left),
                20 + 200 * (f.top - p->mean) / (f.top - f.bottom));
    }
    str_add(d->out, "\"/><text x=\"%d\" y=\"14\" style=\"fill:%s\">", 70 + 180 * k, color);
    add_html(d->out, c->name);
    str_add(d->out, "</text>");
}

static void svg_plot(doc *d, const doc_curve *curves, int n, frame f) {
    str_add(d->out, "<svg viewBox=\"0 0 800 250\" role=\"img\">");
    for (int i = 0; i <= 4; i++) {
        double y = 20 + 50 * i, v = f.top - (f.top - f.bottom) * i / 4;
        str_add(d->out,
                "<line x1=\"70\" x2=\"780\" y1=\"%.0f\" y2=\"%.0f\" stroke=\"var(--line)\"/>"
                "<text x=\"64\" y=\"%.0f\" text-anchor=\"end\">%.4g</text>",
                y, y, y + 4, v);
    }
    str_add(d->out,
            "<text x=\"70\" y=\"240\">step %.0f</text>"
            "<text x=\"780\" y=\"240\" text-anchor=\"end\">%.0f</text>",
            f.left, f.right);
    for (int k = 0; k < n; k++) add_svg_curve(d, &curves[k], k, f);
    str_add(d->out, "</svg>");
}

void doc_plot(doc *d, const char *title, const doc_curve *curves, int n) {
    frame f = frame_of(curves, n);
    if (!isfinite(f.bottom)) return;
    if (d->format == REPORT_HTML) {
        str_add(d->out, "<figure><figcaption>%s</figcaption>", title);
        svg_plot(d, curves, n, f);
        str_add(d->out, "</figure>\n");
        return;
    }
    bool fenced = d->format == REPORT_MARKDOWN;
    str_add(d->out, "%s%s\n", fenced ? "```\n" : "\n  ", title);
    text_plot(d, curves, n, f);
    for (int k = 0; k < n && n > 1; k++) {
        str_add(d->out, "  %c: ", 'a' + k % 26);
        doc plain = { .format = REPORT_TEXT, .out = d->out };
        add_plain(&plain, curves[k].name);
        str_add(d->out, "\n");
    }
    str_add(d->out, fenced ? "```\n\n" : "\n");
}

void doc_end(doc *d) {
    if (d->format == REPORT_HTML) str_add(d->out, "</html>\n");
}
