#ifndef INGOT_REPORT_INTERNAL_H
#define INGOT_REPORT_INTERNAL_H

#include "report/report.h"

/* ---- analyze.c, spikes.c, findings.c -------------------------------------------------------------------- */
/* @return the quantile `q` of the column's finite values, from `row` on, or of rows [from, to); NaN: none. */
double report_quantile(const series_column *c, int64_t row, double q);
double report_quantile_between(const series_column *c, int64_t from, int64_t to, double q);
/* @return the sum of a column's finite values, from a part of the run on. */
double report_sum(const run_report *r, const char *name, double from);
/* @return the standard deviation of the noise from one value of rows [from, to) to the next: a trend does not count. */
double report_noise(const series_column *c, int64_t from, int64_t to);
void report_find_spikes(run_report *r);
/* Notes which document an alert of that step found worst. @param worst an entry of the event's "documents"; NULL: none */
void report_name_document(run_report *r, double step, const struct json_t *worst);
/* Adds what findings.def lists; everything else in the report is known. */
void report_find_all(run_report *r);

/* ---- doc.c: a document that can be printed in several ways ----------------------------------- */
typedef struct doc_curve {
    const char *name; /* borrowed */
    const series_point *point;
    int n;
} doc_curve;
typedef struct doc {
    report_format format;
    int width;
    str *out;
} doc;
void doc_begin(doc *d, const char *title);
void doc_heading(doc *d, const char *text);
void doc_line(doc *d, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* @param cells [rows][columns], the first row is the heading. */
void doc_table(doc *d, char *const *cells, int rows, int columns);
void doc_plot(doc *d, const char *title, const doc_curve *curves, int n);
void doc_end(doc *d);

#endif
