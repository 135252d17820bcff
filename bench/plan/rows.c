/* Simulated against published speeds: prints every row of bench/plan/rows.txt, errors by source and both halves.
 *
 *     bench_plan_rows FOLDER [--markdown]     FOLDER: bench/plan of the sources
 *
 * Exits with 1 when the planner refuses a row. */
#include "plan/rows.h"

#include "bench.h"

/* The lines of the tables of docs/planning.md. */
static void print_markdown(const published_rows *p) {
    char line[ROW_LINE];
    for (int reported = 1; reported >= 0; reported--) {
        half_line(p, reported, line);
        puts(line);
    }
    for (int i = 0; i < p->sources; i++) {
        source_line(p, p->source[i], line);
        puts(line);
    }
    for (int i = 0; i < p->n; i++) {
        row_line(&p->row[i], line);
        puts(line);
    }
}

static void print_row(const published_row *r) {
    const char *half = r->reported ? "" : "fitted";
    const step_time *t = &r->time;
    printf("%-44s %9.5g %9.5g %-7s %+6.1f %% %-6s %3.0f %3.0f %3.0f %3.0f %3.0f  %5.1f GB%s\n",
           r->name, r->simulated, r->published, row_units[r->measure], 100 * r->off, half,
           100 * t->run.compute / t->seconds, 100 * t->run.exposed / t->seconds,
           100 * t->run.bubble * t->run.seconds / t->seconds, 100 * t->stragglers / t->seconds,
           100 * t->update / t->seconds, r->memory / 1e9,
           r->memory > r->limit ? " does not fit" : "");
}

static void print_sum(const char *name, rows_summary s) {
    if (!s.n) return;
    printf(
        "%-24s %4d rows   median %5.1f %%   within 15 %%: %3.0f %%   within 25 %%: %3.0f %%   worst %5.1f %%   fit: %d",
        name, s.n, 100 * s.median, 100.0 * s.within_15 / s.n, 100.0 * s.within_25 / s.n,
        100 * s.worst, s.fits);
    if (s.pairs) printf("   pairs in order: %d of %d", s.in_order, s.pairs);
    putchar('\n');
}

static void print_sums(const published_rows *p, bool reported) {
    printf("\n%s\n", reported ? "Reported half" : "Calibration half");
    for (int i = 0; i < p->n; i++) {
        bool first = true;
        for (int k = 0; k < i; k++) first &= strcmp(p->row[k].source, p->row[i].source) != 0;
        if (first) print_sum(p->row[i].source, rows_sum(p, reported, p->row[i].source));
    }
    print_sum("all", rows_sum(p, reported, NULL));
}

int main(int argc, char **argv) {
    published_rows p;
    bool markdown = argc > 2 && !strcmp(argv[2], "--markdown");
    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER [--markdown]\n", argv[0]);
        return 2;
    }
    bench_check(rows_open(argv[1], &p));
    int refused = rows_simulate(&p);
    if (markdown) {
        print_markdown(&p);
        rows_close(&p);
        return refused > 0;
    }
    printf("%-44s %9s %9s %-7s %8s %-6s %3s %3s %3s %3s %3s  %s\n", "", "simulated", "published",
           "", "error", "half", "cmp", "exp", "idl", "str", "upd", "memory");
    for (int i = 0; i < p.n; i++)
        if (!isnan(p.row[i].off)) print_row(&p.row[i]);
    print_sums(&p, false);
    print_sums(&p, true);
    if (refused) printf("\n%d rows are refused\n", refused);
    rows_close(&p);
    return refused > 0;
}
