/* series: metrics.jsonl read back as columns, for reports and the live page. It is followed as it grows,
 * also across a resume that removes lines. Depends on util and io.
 *
 *     series *s = series_new("runs/a");
 *     TRY(series_update(s));                                 // again for what was appended since
 *     const series_column *loss = series_find(s, "loss");
 *     for (int64_t i = 0; loss && i < loss->n; i++)
 *         printf("%.0f %g\n", series_step(s, loss, i), series_value(loss, i));
 *     series_free(s);
 *
 * Nested members have names with dots: "sources.web.loss", "validation.web", "blocks.grad_norm.0". null
 * is NaN. A line that is not an object with a rising "step" is left out and counted.
 */
#ifndef INGOT_SERIES_H
#define INGOT_SERIES_H

#include "util/util.h"

/* The parts of a value: several rows that became one have a mean (of a count: the last) and extremes. */
enum { SERIES_VALUE, SERIES_LOW, SERIES_HIGH, SERIES_PARTS };

typedef struct series_column {
    char *name;
    int64_t n, capacity;
    /* One of them: counts and the loss are kept as double, all else as float. Extremes are NULL while no value stands for several. */
    double *wide[SERIES_PARTS];
    float *narrow[SERIES_PARTS];
    uint32_t *row;   /* of each value; NULL: the column has a value in every row */
    uint32_t *count; /* finite values that each stands for; NULL: one */
    bool is_wide, is_count;
} series_column;

typedef struct series series;
series *series_new(const char *run); /* the folder; nothing is read yet */
/* Bounds its memory, for whoever follows a run of months: beyond this many rows, or values of all columns, the older half of the
 * rows becomes coarser. Every 2, 4, 8, ... steps become one row with their means, extremes and last counts, and another one
 * where a row has values that few rows have, such as held-out losses, which so keep their step. */
void series_set_most(series *s, int64_t rows, int64_t values);
/* Keeps the steps and one column alone; before the first update. `name` is borrowed. */
void series_set_only(series *s, const char *name);
/* Reads what is new. A file that does not exist is an empty one. */
err series_update(series *s) MUST_USE;
/* Reads the next MiB of the file in place of the rows that it has, so that a run of any length passes through the memory of
 * one part. @param more false: the file has ended, or was replaced by that of a resume */
err series_next_part(series *s, bool *more) MUST_USE;
void series_free(series *s); /* takes NULL */
int64_t series_rows(const series *s);
int64_t series_skipped(const series *s); /* lines that were left out */
int series_columns(const series *s);
const series_column *series_at(const series *s, int i);
const series_column *series_find(const series *s, const char *name); /* NULL: there is none */
double series_value(const series_column *c, int64_t i); /* of several rows: their mean */
double series_last(const series *s, const char *name);  /* NaN: there is none */
/* @return the row, and the step, of the i-th value of a column. */
int64_t series_row(const series_column *c, int64_t i);
double series_step(const series *s, const series_column *c, int64_t i);
/* @return the column's value in a row; NaN where it has none. */
double series_in_row(const series_column *c, int64_t row);

/* A range of a column's values as one point. */
typedef struct series_point {
    double step; /* of its last value */
    double low, high, mean;
    int64_t n; /* finite values in it */
} series_point;
/* Splits the values of steps [from, to] into at most `most` points of equally many values, as far as rows were not merged, so
 * that no extreme is lost. @param out [most]. @return how many. */
int series_points(const series *s, const series_column *c, double from, double to, int most,
                  series_point *out);

#endif
