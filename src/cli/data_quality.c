/* ingot data quality train, data language train: a classifier of documents from labelled ones. */
#include "cli/data_common.h"
#include "io/io.h"
#include "curate/curate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct quality_args {
    data_common common;
    quality_options quality;
    const char *label_field;
} quality_args;

static void print_quality_json(const char *out, const quality_report *r) {
    json_t *labels = json_array();
    for (int i = 0; i < r->labels; i++)
        json_array_append_new(
            labels, json_pack("{s:s, s:I, s:I, s:I, s:o}", "label", r->label[i].name, "training",
                              (json_int_t)r->label[i].training, "held_out",
                              (json_int_t)r->label[i].held_out, "correct",
                              (json_int_t)r->label[i].correct, "auc",
                              r->label[i].auc == r->label[i].auc ? json_real(r->label[i].auc)
                                                                 : json_null()));
    json_t *o =
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:o}", "out", io_json_string(out, strlen(out)),
                  "documents", (json_int_t)r->documents, "unlabelled", (json_int_t)r->unlabelled,
                  "words", (json_int_t)r->words, "held_out", (json_int_t)r->held_out, "correct",
                  (json_int_t)r->correct, "labels", labels);
    BUG_IF(!o);
    io_json_print(stdout, o, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
}

static void print_quality_report(const char *out, const quality_report *r) {
    printf("%s: %lld words\n", out, (long long)r->words);
    printf("  %12s %12s %8s %8s  label\n", "training", "held out", "correct", "AUC");
    for (int i = 0; i < r->labels; i++) {
        const quality_label *l = &r->label[i];
        printf("  %12lld %12lld ", (long long)l->training, (long long)l->held_out);
        if (l->held_out)
            printf("%7.2f%% ", 100 * (double)l->correct / (double)l->held_out);
        else
            printf("%8s ", "-");
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

static err check_quality(const quality_args *a, const char *command, char **argv, int n) {
    const quality_options *o = &a->quality;
    const char *end = o->quantize ? ".ftz" : ".bin";
    if (n < 2 || strcmp(argv[0], "train") != 0)
        return err_hint(ERR_USAGE("the one thing to do here is \"train\", followed by inputs"),
                        "ingot %s train labelled.jsonl --out model%s", command, end);
    if (!a->common.out || !str_ends(a->common.out, end))
        return err_hint(ERR_USAGE("--out: needs a file, ending in %s, to write the model to", end),
                        "for example --out model%s", end);
    TRY(data_common_check_held_out(o->held_out));
    TRY(check_range("dim", o->dim, 1, 1024));
    TRY(check_range("ngrams", o->ngrams, 1, 5));
    TRY(check_range("max-chars", o->max_chars, 0, 16));
    TRY(check_range("min-chars", o->min_chars, 0, MAX(o->max_chars, 1)));
    TRY(check_range("epochs", o->epochs, 1, 1000));
    TRY(check_range("pieces", o->pieces, 0, 1000));
    TRY(check_range("zero-rows", o->zero_rows, 0, 1 << 20));
    return check_range("buckets", o->buckets, 1, 100000000);
}

/* GOOD=PATH: all documents of PATH have the label GOOD. A path that exists as it is written is not split. */
static err open_labelled(const quality_args *a, char *word, quality_input *out) {
    char *equals = strchr(word, '=');
    if (equals > word && access(word, F_OK) != 0 && !memchr(word, '/', (size_t)(equals - word))) {
        *equals = 0;
        out->label = word;
        word = equals + 1;
    }
    TRY(data_common_open(&a->common, &word, 1, &out->in));
    return text_inputs_check_output(out->in, a->common.out);
}

static err run_training(const cli_subcommand *self, int argc, char **argv, quality_options o) {
    quality_args a = { .quality = o, .label_field = "label" };
    int n;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(check_quality(&a, self->spec.command, argv, n));
    a.common.in.source_field = a.label_field;
    a.quality.quiet = a.common.quiet;
    quality_report *r = mem_alloc(sizeof *r);
    quality_input *inputs = mem_alloc((size_t)n * sizeof *inputs);
    err e = OK;
    for (int i = 1; i < n; i++) TRY_CLEAN(open_labelled(&a, argv[i], &inputs[i - 1]));
    TRY_CLEAN(quality_train(inputs, n - 1, &a.quality, a.common.out, r));
    (a.common.json ? print_quality_json : print_quality_report)(a.common.out, r);
cleanup:
    for (int i = 0; i < n; i++) text_inputs_close(inputs[i].in);
    free(inputs);
    free(r);
    return e;
}

static err run_quality(const cli_subcommand *self, int argc, char **argv) {
    return run_training(self, argc, argv, quality_defaults());
}
static err run_language(const cli_subcommand *self, int argc, char **argv) {
    return run_training(self, argc, argv, language_train_defaults());
}

#define AT(member) offsetof(quality_args, quality.member)
/* clang-format off */
#define READ_ARGS \
    DATA_TEXT_ARGS, \
    DATA_STRICT_ARG, \
    { "quiet", ARG_FLAG, DATA_AT(quiet), "", "do not show the loss of each epoch" }, \
    { "json", ARG_FLAG, DATA_AT(json), "", "print the report as JSON" }
static const cli_arg args[] = {
    { "out", ARG_TEXT, DATA_AT(out), "FILE", "the model to write, ending in .bin; .ftz with --quantize", 'o' },
    { "label-field", ARG_TEXT, offsetof(quality_args, label_field), "NAME", "JSON member, a string, with the label (default label)" },
    { "held-out", ARG_FRACTION, AT(held_out), "F", "documents to measure AUC on, chosen by a hash of their text (default 0.1)" },
    { "dim", ARG_COUNT, AT(dim), "N", "size of the vectors (default 16)" },
    { "ngrams", ARG_COUNT, AT(ngrams), "N", "longest word n-gram (default 2)" },
    { "min-chars", ARG_COUNT, AT(min_chars), "N", "shortest n-gram of characters of a word (default 0)" },
    { "max-chars", ARG_COUNT, AT(max_chars), "N", "longest one; 0: no n-grams of characters (default 0)" },
    { "buckets", ARG_COUNT, AT(buckets), "N", "rows that n-grams share, by hash (default 200000)" },
    { "quantize", ARG_FLAG, AT(quantize), "", "write an .ftz file, a seventh of the size" },
    { "min-count", ARG_COUNT, AT(min_count), "N", "a word of the dictionary is seen at least N times (default 3)" },
    { "epochs", ARG_COUNT, AT(epochs), "N", "passes over the documents (default 20)" },
    { "rate", ARG_REAL, AT(rate), "X", "learning rate at the beginning; it falls to 0 (default 0.5)" },
    READ_ARGS,
};
static const cli_arg language_args[] = {
    { "out", ARG_TEXT, DATA_AT(out), "FILE", "the model to write, ending in .ftz", 'o' },
    { "label-field", ARG_TEXT, offsetof(quality_args, label_field), "NAME", "JSON member, a string, with the language (default label)" },
    { "held-out", ARG_FRACTION, AT(held_out), "F", "documents to measure accuracy on, chosen by a hash of their text (default 0.5)" },
    { "dim", ARG_COUNT, AT(dim), "N", "size of the vectors (default 16)" },
    { "min-chars", ARG_COUNT, AT(min_chars), "N", "shortest n-gram of characters of a word (default 1)" },
    { "max-chars", ARG_COUNT, AT(max_chars), "N", "longest one (default 4)" },
    { "buckets", ARG_COUNT, AT(buckets), "N", "rows that n-grams share, by hash (default 180000)" },
    { "epochs", ARG_COUNT, AT(epochs), "N", "passes over the documents (default 5)" },
    { "rate", ARG_REAL, AT(rate), "X", "learning rate at the beginning; it falls to 0 (default 0.5)" },
    { "pieces", ARG_COUNT, AT(pieces), "N", "pieces of 1 to 20 words cut from each document in each epoch, for accuracy on short texts (default 2)" },
    { "zero-rows", ARG_COUNT, AT(zero_rows), "N", "rows of zeros counted in the mean of a text, which lower the probabilities of short texts (default 30)" },
    READ_ARGS,
};
/* clang-format on */

const cli_subcommand data_quality = {
    .summary = "train a classifier for `data filter --quality`",
    .run = run_quality,
    .spec = { "data quality", "train INPUT... --out MODEL.bin [options]", CLI_ARGS(args), 2, true },
    .help =
        "Documents with a label each, such as good and bad, become a fastText model. LABEL=PATH gives\n"
        "all documents of a file or folder one label. The report\n"
        "has the AUC of each label on documents that were held out: 0.5 is a guess, 1 is perfect.\n"
        "The file can be used with fastText's library too.\n"
        "\n"
        "Examples\n"
        "  ingot data quality train labelled.jsonl --out quality.bin\n"
        "  ingot data quality train clean=wikipedia/ toxic=forum.jsonl --out toxic.bin\n"
        "  ingot data filter crawl/ --quality quality.bin --keep good --out clean\n"
        "  ingot data filter crawl/ --rules none --quality quality.bin --annotate --out scored\n",
};

const cli_subcommand data_language = {
    .summary = "train a language model for `data filter --language-model`",
    .run = run_language,
    .spec = { "data language", "train INPUT... --out MODEL.ftz [options]", CLI_ARGS(language_args),
              2, true },
    .help =
        "Documents with the code of their language each become a fastText model of n-grams of\n"
        "characters, quantized to about 9 bytes per bucket. The report has the share of the held-out\n"
        "documents of each language that get their label. The model that is compiled in was made by\n"
        "this command; docs/data.md says from what.\n"
        "\n"
        "Examples\n"
        "  ingot data language train languages.jsonl --out mine.ftz\n"
        "  ingot data filter crawl/ --language-model mine.ftz --language de,fr --out clean\n",
};
