/* ingot data quality train: a classifier of documents from labelled ones. */
#include "cli/data_common.h"
#include "curate/curate.h"

#include <string.h>

typedef struct quality_args {
    data_common common;
    quality_options quality;
    const char *label_field;
} quality_args;

static void print_quality_json(const char *out, const quality_report *r) {
    json_t *labels = json_array();
    for (int i = 0; i < r->labels; i++)
        json_array_append_new(labels, json_pack("{s:s, s:I, s:I, s:o}", "label", r->label[i].name,
                                                "training", (json_int_t)r->label[i].training,
                                                "held_out", (json_int_t)r->label[i].held_out, "auc",
                                                r->label[i].auc == r->label[i].auc
                                                    ? json_real(r->label[i].auc)
                                                    : json_null()));
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "out", out, "documents",
                          (json_int_t)r->documents, "unlabelled", (json_int_t)r->unlabelled,
                          "words", (json_int_t)r->words, "held_out", (json_int_t)r->held_out,
                          "correct", (json_int_t)r->correct, "labels", labels);
    BUG_IF(!o);
    json_dumpf(o, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(o);
}

static void print_quality_report(const char *out, const quality_report *r) {
    printf("%s: %lld words\n", out, (long long)r->words);
    printf("  %12s %12s %8s  label\n", "training", "held out", "AUC");
    for (int i = 0; i < r->labels; i++) {
        const quality_label *l = &r->label[i];
        printf("  %12lld %12lld ", (long long)l->training, (long long)l->held_out);
        if (l->auc == l->auc)
            printf("%8.4f", l->auc);
        else
            printf("%8s", "-");
        printf("  %s\n", l->name);
    }
    if (r->held_out)
        printf("  %.2f%% of the held-out documents get their label\n",
               100 * (double)r->correct / (double)r->held_out);
    if (r->unlabelled) printf("  %lld documents without a label\n", (long long)r->unlabelled);
}

static err check_range(const char *option, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return OK;
    return ERR_USAGE("--%s: %lld is not between %lld and %lld", option, (long long)value,
                     (long long)least, (long long)most);
}

static err check_quality(const quality_args *a, char **argv, int n) {
    const quality_options *o = &a->quality;
    if (n < 2 || strcmp(argv[0], "train") != 0)
        return err_hint(ERR_USAGE("the one thing to do here is \"train\", followed by inputs"),
                        "ingot data quality train labelled.jsonl --out quality.bin");
    if (!a->common.out || !str_ends(a->common.out, ".bin"))
        return err_hint(ERR_USAGE("--out: needs a file, ending in .bin, to write the model to"),
                        "for example --out quality.bin");
    TRY(check_range("dim", o->dim, 1, 1024));
    TRY(check_range("ngrams", o->ngrams, 1, 5));
    TRY(check_range("epochs", o->epochs, 1, 1000));
    return check_range("buckets", o->buckets, 1, 100000000);
}

static err run_quality(const cli_subcommand *self, int argc, char **argv) {
    quality_args a = { .quality = quality_defaults(), .label_field = "label" };
    text_inputs *in = NULL;
    quality_report r;
    int n;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(check_quality(&a, argv, n));
    a.common.in.source_field = a.label_field;
    a.quality.quiet = a.common.quiet;
    TRY(data_common_open(&a.common, argv + 1, n - 1, &in));
    err e = text_inputs_check_output(in, a.common.out);
    if (!e) e = quality_train(in, &a.quality, a.common.out, &r);
    text_inputs_close(in);
    if (!e) (a.common.json ? print_quality_json : print_quality_report)(a.common.out, &r);
    return e;
}

#define AT(member) offsetof(quality_args, quality.member)
/* clang-format off */
static const cli_arg args[] = {
    { "out", ARG_TEXT, DATA_AT(out), "FILE", "the model to write, ending in .bin", 'o' },
    { "label-field", ARG_TEXT, offsetof(quality_args, label_field), "NAME", "JSON member, a string, with the label (default label)" },
    { "held-out", ARG_FRACTION, AT(held_out), "F", "documents to measure AUC on, chosen by a hash of their text (default 0.1)" },
    { "dim", ARG_COUNT, AT(dim), "N", "size of the vectors (default 16)" },
    { "ngrams", ARG_COUNT, AT(ngrams), "N", "longest word n-gram (default 2)" },
    { "buckets", ARG_COUNT, AT(buckets), "N", "rows that word n-grams share, by hash (default 200000)" },
    { "min-count", ARG_COUNT, AT(min_count), "N", "a word of the dictionary is seen at least N times (default 3)" },
    { "epochs", ARG_COUNT, AT(epochs), "N", "passes over the documents (default 10)" },
    { "rate", ARG_REAL, AT(rate), "X", "learning rate at the beginning; it falls to 0 (default 0.5)" },
    { "format", ARG_TEXT, DATA_IN(format), "NAME", TEXT_FORMATS " (default: detected from name and content)" },
    { "text-field", ARG_TEXT, DATA_IN(text_field), "NAME", "JSON member, Parquet or Arrow column that holds the text (default text)" },
    { "strict", ARG_FLAG, DATA_IN(strict), "", "fail on a record that cannot be read (default: skip and count it)" },
    { "quiet", ARG_FLAG, DATA_AT(quiet), "", "do not show the loss of each epoch" },
    { "json", ARG_FLAG, DATA_AT(json), "", "print the report as JSON" },
};
/* clang-format on */

const cli_subcommand data_quality = {
    .summary = "train a classifier for `data filter --quality`",
    .run = run_quality,
    .spec = { "data quality", "train INPUT... --out MODEL.bin [options]", args, (int)COUNT_OF(args),
              2, true },
    .help =
        "Documents with a label each, such as good and bad, become a fastText model. The report\n"
        "has the AUC of each label on documents that were held out: 0.5 is a guess, 1 is perfect.\n"
        "The file can be used with fastText's library too.\n"
        "\n"
        "Examples\n"
        "  ingot data quality train labelled.jsonl --out quality.bin\n"
        "  ingot data filter crawl/ --quality quality.bin --keep good --out clean\n"
        "  ingot data filter crawl/ --rules none --quality quality.bin --annotate --out scored\n",
};
