/* ingot tokenizer train: a vocabulary and merges learned from text. */
#include "cli/data_common.h"
#include "io/io.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

typedef struct train_args {
    data_common common;
    int64_t vocab, min_frequency;
    const char *pattern, *special, *normalize;
} train_args;

/* ---- special tokens: "A,B" to a list ------------------------------------------------------------- */

typedef struct names {
    char *text;
    const char **at;
    int n;
} names;

static void names_free(names *l) {
    free(l->text);
    free(l->at);
}

static err names_split(const char *list, names *out) {
    size_t n = strlen(list);
    out->text = mem_alloc(n + 1);
    memcpy(out->text, list, n);
    out->at = mem_alloc((n + 1) * sizeof *out->at);
    for (char *p = out->text, *comma; n > 0 && p; p = comma ? comma + 1 : NULL) {
        comma = strchr(p, ',');
        if (comma) *comma = 0;
        if (!*p)
            return err_hint(ERR_USAGE("--special: a token of \"%s\" is empty", list),
                            "write them like \"<|endoftext|>,<|pad|>\"");
        out->at[out->n++] = p;
    }
    return OK;
}

/* ---- the command ----------------------------------------------------------------------------------- */

static err check_out(const char *out) {
    io_writer *probe = NULL;
    if (!out || !str_ends(out, ".json"))
        return err_hint(
            ERR_USAGE("--out: needs a file, ending in .json, to write the tokenizer to"),
            "for example --out tokenizer.json");
    TRY(io_writer_open(out, &probe)); /* better known now than after the training */
    io_writer_abort(probe);
    return OK;
}

static void print_result(const train_args *a, const tokenizer *t, double seconds) {
    char peak[32], time[32];
    if (a->common.json)
        printf("{\"ids\": %lld, \"seconds\": %.3f, \"peak_memory\": %zu}\n",
               (long long)tokenizer_vocab(t), seconds, mem_peak());
    else
        printf("%s: %lld ids, %s in all, peak memory %s\n", a->common.out,
               (long long)tokenizer_vocab(t), str_duration(time, sizeof time, seconds),
               str_bytes(peak, sizeof peak, (double)mem_peak()));
}

static err train_tokenizer(const train_args *a, const bpe_options *o, const char *const *paths,
                           int n) {
    text_inputs *in = NULL;
    tokenizer *t = NULL;
    double begin = time_now();
    err e = OK;
    TRY_CLEAN(text_inputs_open(paths, n, &a->common.in, &in));
    TRY_CLEAN(text_inputs_check_output(in, a->common.out));
    TRY_CLEAN(bpe_train(in, o, &t));
    TRY_CLEAN(tokenizer_save(t, a->common.out));
    print_result(a, t, time_now() - begin);
cleanup:
    tokenizer_free(t);
    text_inputs_close(in);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    train_args a = {
        .vocab = 32000, .min_frequency = 2, .pattern = "gpt2", .special = TEXT_SEPARATOR
    };
    names special = { 0 };
    int n = 0, threads = 0;
    err e = OK;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    size_t memory = (size_t)a.common.memory;
    /* Words are counted in half of it while documents are read; after that all is for learning. */
    TRY(data_common_fit(&a.common, memory / 2, 0, &threads));
    TRY(check_out(a.common.out));
    TRY_CLEAN(names_split(a.special, &special));
    bpe_options o = { .vocab = a.vocab,
                      .min_frequency = a.min_frequency,
                      .pattern = a.pattern,
                      .normalize = a.normalize,
                      .special = special.at,
                      .n_special = special.n,
                      .threads = threads,
                      .memory = memory - memory / 16,
                      .quiet = a.common.quiet };
    TRY_CLEAN(train_tokenizer(&a, &o, (const char *const *)argv, n));
cleanup:
    names_free(&special);
    return e;
}

#define AT(member) offsetof(train_args, member)
/* clang-format off */
static const cli_arg args[] = {
    { "out", ARG_TEXT, DATA_AT(out), "FILE", "the tokenizer.json to write", 'o' },
    { "vocab", ARG_COUNT, AT(vocab), "N", "vocabulary size, including the 256 bytes and the special tokens (default 32000)" },
    { "min-frequency", ARG_COUNT, AT(min_frequency), "N", "merge only pairs seen at least N times (default 2)" },
    { "special", ARG_TEXT, AT(special), "A,B", "special tokens, which get the first ids; \"\" for none (default " TEXT_SEPARATOR ")" },
    { "pattern", ARG_TEXT, AT(pattern), "NAME|REGEX", "how text is split into words before learning: gpt2, cl100k, qwen2, o200k or an expression (default gpt2)" },
    { "normalize", ARG_TEXT, AT(normalize), "A,B", "normalizers of the tokenizer, in order: " NORMALIZER_NAMES " (default: none)" },
    { "threads", ARG_COUNT, DATA_AT(threads), "N", "number of threads, which does not change the result (default: one per core)" },
    { "memory", ARG_COUNT, DATA_AT(memory), "BYTES", "memory limit (default: 1Gi plus what reading needs); what does not fit is spilled to files in TMPDIR" },
    { "longest", ARG_COUNT, DATA_AT(longest), "BYTES", "skip and count longer records (default: 64Mi, at most 1/256 of --memory)" },
    { "format", ARG_TEXT, DATA_IN(format), "NAME", TEXT_FORMATS " (default: by name and content)" },
    { "text-field", ARG_TEXT, DATA_IN(text_field), "NAME", "JSON member with the text, or a path such as doc.text (default text)" },
    { "text-column", ARG_TEXT, DATA_IN(text_field), "NAME", "the same: the column of a Parquet file" },
    { "invalid", ARG_TEXT, DATA_AT(invalid), "repair|refuse", "replace bytes that are not UTF-8 by U+FFFD, or drop the document (default repair)" },
    { "strict", ARG_FLAG, DATA_IN(strict), "", "fail on a record that cannot be read (default: skip and count it)" },
    { "quiet", ARG_FLAG, DATA_AT(quiet), "", "do not show progress" },
    { "json", ARG_FLAG, DATA_AT(json), "", "print the result as JSON" },
};
/* clang-format on */

const cli_subcommand tokenizer_train = {
    .summary = "learn a byte-level BPE tokenizer from text",
    .run = run,
    .spec = { "tokenizer train", "INPUT... --out FILE [options]", args, (int)COUNT_OF(args), 1,
              true },
    .help =
        "Inputs are files, folders, globs or - : text, JSON lines, WARC, WET, plain or compressed.\n"
        "The vocabulary and merges are those of Hugging Face's trainer for the same documents, and\n"
        "the file is a tokenizer.json that it loads.\n"
        "\n"
        "When the distinct words would take more than --memory, the rarest are left out, with a\n"
        "warning that states how much memory all of them need.\n"
        "\n"
        "Examples\n"
        "  ingot tokenizer train clean/ --out tokenizer.json --vocab 32000\n"
        "  ingot tokenizer train notes.txt -o small.json --vocab 4096 --special \"<|endoftext|>,<|pad|>\"\n",
};
