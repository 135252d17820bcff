/* How fast documents are judged, in megabytes of text per second of CPU time on one thread, for
 * each rule set and for all of them.
 *
 *     bench_data_filter FILE... [--bad-words LIST] [--language-model MODEL]
 *
 * bench/peers/filter_datatrove.py FILE... runs the same documents through datatrove. "in use" stops
 * at the first rule that drops a document. "at worst" has limits that drop nothing, so that every rule
 * measures every document. Reading the files is not timed. */
#include "corpus.h"

#include "curate/curate.h"

enum { REPEATS = 5 };

/* The best of a few passes, in MB/s. @param kept how many documents pass. */
static err measure(const corpus *c, const filter_options *o, double *rate, int *kept) {
    filter *f = NULL;
    TRY(filter_new(o, 1, &f));
    double best = INFINITY;
    for (int r = 0; r < REPEATS; r++) {
        double start = time_cpu();
        *kept = 0;
        for (int i = 0; i < c->n; i++) {
            int64_t count[FILTER_COUNTER_COUNT] = { 0 };
            text_doc d = { .text = c->doc[i] };
            text_verdict v = { .rule = TEXT_KEEP, .text = d.text, .count = count };
            err_free(filter_judge(f, 0, 0, &d, &v));
            *kept += v.rule == TEXT_KEEP;
        }
        best = MIN(best, time_cpu() - start);
    }
    filter_free(f);
    *rate = (double)c->bytes / best / 1e6;
    return OK;
}

static err bench_row(const corpus *c, bench_table *table, const char *name, filter_options o) {
    double in_use, at_worst;
    int kept, all;
    TRY(measure(c, &o, &in_use, &kept));
    for (int i = 0; i < FILTER_RULE_COUNT; i++)
        o.limit[i] = filter_rules[i].direction == FILTER_LEAST ? 0 : INFINITY;
    TRY(measure(c, &o, &at_worst, &all));
    bench_cell(table, "%s", name);
    bench_cell(table, "%.1f", in_use);
    bench_cell(table, "%.1f", at_worst);
    bench_cell(table, "%d", kept);
    return OK;
}

static err bench_sets(const corpus *c, const char *bad_words, const char *model) {
    static const char *const sets[] = { "gopher-repetition", "gopher-quality", "c4", "fineweb",
                                        "basic" };
    static const bench_column columns[] = {
        { "", -34 }, { "in use", 9 }, { "at worst", 9 }, { "kept", 9 }
    };
    printf("%d documents, %.1f MB; MB/s of one thread\n\n", c->n, (double)c->bytes / 1e6);
    bench_table table = bench_table_start(columns, COUNT_OF(columns));
    filter_options o = filter_defaults();
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        o.sets = sets[i];
        TRY(bench_row(c, &table, sets[i], o));
    }
    o.sets = NULL;
    TRY(bench_row(c, &table, "FineWeb's sets (the default)", o));
    o.sets = "gopher-repetition,gopher-quality,c4,fineweb,basic";
    TRY(bench_row(c, &table, "all sets", o));
    o.pii = "email,ip,phone";
    TRY(bench_row(c, &table, "all sets, PII", o));
    o.bad_words = bad_words;
    if (bad_words) TRY(bench_row(c, &table, "all sets, PII, bad words", o));
    o.language_model = model;
    if (model) TRY(bench_row(c, &table, "... and language", o));
    return OK;
}

int main(int argc, char **argv) {
    const char *bad_words = NULL, *model = NULL;
    int n = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bad-words") == 0 && i + 1 < argc)
            bad_words = argv[++i];
        else if (strcmp(argv[i], "--language-model") == 0 && i + 1 < argc)
            model = argv[++i];
        else
            argv[n++] = argv[i];
    }
    if (!n) bench_check(ERR("usage: bench_data_filter FILE..."));
    corpus c = { 0 };
    bench_check(corpus_read(&c, (const char *const *)argv, n));
    bench_check(bench_sets(&c, bad_words, model));
    corpus_free(&c);
    return 0;
}
