/* ingot report: how a run went, and how runs compare. */
#include <stdlib.h>

#include "cli/cli.h"
#include "io/io.h"
#include "report/report.h"

typedef struct report_args {
    const char *html, *markdown;
    double tolerance;
    bool json;
} report_args;

#define AT(member) offsetof(report_args, member)
static const cli_arg args[] = {
    { "html", ARG_TEXT, AT(html), "FILE", "write the report as one HTML page" },
    { "markdown", ARG_TEXT, AT(markdown), "FILE", "write the report as Markdown" },
    { "json", ARG_FLAG, AT(json), "", "print the figures as JSON" },
    { "assert-equal-loss", ARG_REAL, AT(tolerance), "X",
      "fail unless the losses of all runs agree to within a fraction X in every step" },
};
const cli_spec cmd_report_spec = { "report", "RUN... [options]", CLI_ARGS(args), 1, true };

static err write_report_file(const run_report *const *runs, int n, report_format format,
                             const char *path) {
    str text = { 0 };
    report_write(runs, n, format, 100, &text);
    err e = io_write(path, text.text, text.len);
    str_free(&text);
    return e;
}

static err put_out(const report_args *a, const run_report *const *runs, int n) {
    const struct {
        const char *path;
        report_format format;
    } files[] = { { a->html, REPORT_HTML }, { a->markdown, REPORT_MARKDOWN } };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        if (!files[i].path) continue;
        TRY(write_report_file(runs, n, files[i].format, files[i].path));
        if (!a->json) printf("The report is written to %s.\n", files[i].path);
    }
    if (a->json && !io_json_print(stdout, report_json(runs, n), JSON_INDENT(2)))
        return ERR("the path of a run is not UTF-8");
    if (a->json || a->html || a->markdown || a->tolerance >= 0) return OK;
    str text = { 0 };
    report_write(runs, n, REPORT_TEXT, cli_width(40, 80), &text);
    fputs(text.text, stdout);
    str_free(&text);
    return OK;
}

err cmd_report(int argc, char **argv) {
    report_args a = { .tolerance = -1 };
    int n;
    TRY(cli_parse_many(&cmd_report_spec, argc - 1, argv + 1, &a, &n));
    if (a.tolerance >= 0 && n < 2)
        return ERR_USAGE("--assert-equal-loss: needs two runs or more; got %d", n);
    err e = OK;
    run_report **runs = mem_alloc((size_t)n * sizeof *runs);
    for (int i = 0; i < n; i++) TRY_CLEAN(report_read(argv[1 + i], &runs[i]));
    TRY_CLEAN(put_out(&a, (const run_report *const *)runs, n));
    if (a.tolerance >= 0) {
        TRY_CLEAN(report_same_loss((const run_report *const *)runs, n, a.tolerance));
        printf("%d runs of %lld steps: every loss is equal to within %g\n", n,
               (long long)runs[0]->rows, a.tolerance);
    }
cleanup:
    for (int i = 0; i < n; i++) report_free(runs[i]);
    free(runs);
    return e;
}
