/* ingot tokenizer train: a vocabulary learned from text. */
#include "cli/data_common.h"
#include "io/io.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

typedef struct train_args {
    data_common common;
    int64_t vocab, min_frequency;
    const char *model, *pattern, *metaspace, *special, *bos, *eos, *normalize;
    double coverage;
    bool byte_fallback;
} train_args;

/* ---- special tokens: "A,B" to a list ------------------------------------------------------------- */

typedef struct names {
    char *text;
    const char **at;
    int n;
} names;

static err names_split(const char *list, names *out) {
    size_t n = strlen(list);
    out->text = mem_alloc(n + 1);
    memcpy(out->text, list, n);
    out->at = mem_alloc((n + 2) * sizeof *out->at);
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

/* ---- models ---------------------------------------------------------------------------------------- */

static err refuse_option(const char *option, const char *model) {
    return err_hint(ERR_USAGE("--%s: %s", option, model), "omit --%s, or see --help", option);
}

/* A model over characters needs a token for those it does not know: the first of the special ones. */
static err put_unknown_first(names *special) {
    static const char unknown[] = "<unk>";
    for (int i = 1; i < special->n; i++)
        if (strcmp(special->at[i], unknown) == 0)
            return err_hint(ERR_USAGE("--special: %s has to come first", unknown),
                            "it is the unknown token, and added when it is left out");
    if (special->n && strcmp(special->at[0], unknown) == 0) return OK;
    memmove(special->at + 1, special->at, (size_t)special->n * sizeof *special->at);
    special->at[0] = unknown;
    special->n++;
    return OK;
}

static err check_model_options(const train_args *a, const tokenizer_options *o) {
    static const char characters[] = "is for --model unigram, and for BPE with --metaspace";
    if (o->metaspace && a->pattern)
        return refuse_option("pattern", o->model == TRAIN_UNIGRAM
                                            ? "a Unigram model splits text by Metaspace"
                                            : "--metaspace splits text already");
    if (!o->metaspace && a->byte_fallback) return refuse_option("byte-fallback", characters);
    if (!o->metaspace && a->coverage > 0) return refuse_option("coverage", characters);
    return OK;
}

static err choose_model(train_args *a, names *special, tokenizer_options *o) {
    for (int i = METASPACE_ALWAYS; a->metaspace && i <= METASPACE_NEVER; i++)
        if (strcmp(metaspace_name((metaspace_prepend)i), a->metaspace) == 0)
            o->metaspace = (metaspace_prepend)i;
    if (a->metaspace && o->metaspace == METASPACE_OFF)
        return ERR_USAGE("--metaspace: expected always, first or never; got \"%s\"", a->metaspace);
    if (strcmp(a->model, "unigram") == 0)
        o->model = TRAIN_UNIGRAM;
    else if (strcmp(a->model, "bpe") != 0)
        return ERR_USAGE("--model: expected bpe or unigram; got \"%s\"", a->model);
    if (o->model == TRAIN_UNIGRAM && !o->metaspace) o->metaspace = METASPACE_ALWAYS;
    TRY(check_model_options(a, o));
    const char *usual = o->metaspace ? "<unk>,<s>,</s>" : TEXT_SEPARATOR;
    TRY(names_split(a->special ? a->special : usual, special));
    if (o->metaspace) TRY(put_unknown_first(special));
    o->special = special->at;
    o->n_special = special->n;
    return OK;
}

/* ---- BOS and EOS ----------------------------------------------------------------------------------- */

static err check_affix(const char *option, const char *token, const names *special) {
    if (!token) return OK;
    for (int i = 0; i < special->n; i++)
        if (strcmp(special->at[i], token) == 0) return OK;
    return err_hint(ERR_USAGE("--%s: \"%s\" is not one of the special tokens", option, token),
                    "list it in --special");
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

static err train_tokenizer(const train_args *a, const tokenizer_options *o,
                           const char *const *paths, int n) {
    text_inputs *in = NULL;
    tokenizer *t = NULL;
    double begin = time_now();
    err e = OK;
    TRY_CLEAN(text_inputs_open(paths, n, &a->common.in, &in));
    TRY_CLEAN(text_inputs_check_output(in, a->common.out));
    TRY_CLEAN(tokenizer_learn(in, o, &t));
    token_affixes affixes = { 0 };
    if (a->bos) affixes.prefix[affixes.n_prefix++] = tokenizer_find(t, a->bos, strlen(a->bos));
    if (a->eos) affixes.suffix[affixes.n_suffix++] = tokenizer_find(t, a->eos, strlen(a->eos));
    if (a->bos || a->eos) tokenizer_set_affixes(t, &affixes);
    TRY_CLEAN(tokenizer_save(t, a->common.out));
    print_result(a, t, time_now() - begin);
cleanup:
    tokenizer_free(t);
    text_inputs_close(in);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    train_args a = { .model = "bpe", .vocab = 32000, .min_frequency = 2 };
    names special = { 0 };
    int n = 0, threads = 0;
    err e = OK;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    size_t memory = (size_t)a.common.memory;
    /* Words are counted in half of it while documents are read; after that all is for learning. */
    TRY(data_common_fit(&a.common, memory / 2, 0, &threads));
    TRY(check_out(a.common.out));
    tokenizer_options o = { .vocab = a.vocab,
                            .min_frequency = a.min_frequency,
                            .pattern = a.pattern,
                            .coverage = a.coverage,
                            .byte_fallback = a.byte_fallback,
                            .normalize = a.normalize,
                            .threads = threads,
                            .memory = memory - memory / 16,
                            .quiet = a.common.quiet };
    TRY_CLEAN(choose_model(&a, &special, &o));
    TRY_CLEAN(check_affix("bos", a.bos, &special));
    TRY_CLEAN(check_affix("eos", a.eos, &special));
    TRY_CLEAN(train_tokenizer(&a, &o, (const char *const *)argv, n));
cleanup:
    free(special.text);
    free(special.at);
    return e;
}

#define AT(member) offsetof(train_args, member)
/* clang-format off */
static const cli_arg args[] = {
    { "out", ARG_TEXT, DATA_AT(out), "FILE", "the tokenizer.json to write", 'o' },
    { "model", ARG_TEXT, AT(model), "bpe|unigram", "BPE, byte-level unless --metaspace is passed, or a Unigram model as SentencePiece trains it (default bpe)" },
    { "vocab", ARG_COUNT, AT(vocab), "N", "vocabulary size, including bytes and special tokens (default 32000)" },
    { "min-frequency", ARG_COUNT, AT(min_frequency), "N", "of BPE: merge only pairs seen at least N times (default 2)" },
    { "special", ARG_TEXT, AT(special), "A,B", "special tokens, which get the first ids; \"\" for none (default " TEXT_SEPARATOR "; with Metaspace <unk>,<s>,</s>, where <unk> is always the first)" },
    { "bos", ARG_TEXT, AT(bos), "TOKEN", "special token that the tokenizer puts before every text (default: none)" },
    { "eos", ARG_TEXT, AT(eos), "TOKEN", "special token that it puts after every text (default: none)" },
    { "pattern", ARG_TEXT, AT(pattern), "NAME|REGEX", "of byte-level BPE: how text is split into words before learning: gpt2, cl100k, qwen2, o200k or an expression (default gpt2)" },
    { "metaspace", ARG_TEXT, AT(metaspace), "always|first|never", "learn from characters, not bytes, with spaces as U+2581, and put one before texts that do not begin with a space: all, only the first between special tokens, or none (default of a Unigram model: always)" },
    { "byte-fallback", ARG_FLAG, AT(byte_fallback), "", "with Metaspace: 256 tokens for the bytes of other characters, which otherwise become <unk>" },
    { "coverage", ARG_FRACTION, AT(coverage), "F", "with Metaspace: share of the text whose characters get tokens; the rarest do not (default 0.9995)" },
    { "normalize", ARG_TEXT, AT(normalize), "A,B", "normalizers of the tokenizer, in order: " NORMALIZER_NAMES " (default: none)" },
    DATA_THREADS_ARG,
    { "memory", ARG_COUNT, DATA_AT(memory), "BYTES", "memory limit (default: 1Gi plus what reading needs); what does not fit is spilled to files in TMPDIR" },
    DATA_LONGEST_ARG,
    DATA_TEXT_ARGS,
    DATA_INVALID_ARG,
    DATA_STRICT_ARG,
    { "quiet", ARG_FLAG, DATA_AT(quiet), "", "do not show progress" },
    { "json", ARG_FLAG, DATA_AT(json), "", "print the result as JSON" },
};
/* clang-format on */

const cli_subcommand tokenizer_train = {
    .summary = "learn a BPE or Unigram tokenizer from text",
    .run = run,
    .spec = { "tokenizer train", "INPUT... --out FILE [options]", CLI_ARGS(args), 1, true },
    .help =
        "Inputs are files, folders, globs or - : text, JSON lines, WARC, WET, plain or compressed.\n"
        "The file is a tokenizer.json that Hugging Face's library loads. The vocabulary and merges of\n"
        "BPE are those of its trainer for the same documents; with --metaspace, for --coverage 1. A\n"
        "Unigram model is learned by expectation maximization from the substrings of words, as by\n"
        "SentencePiece.\n"
        "\n"
        "When the distinct words would take more than --memory, the rarest are left out, with a\n"
        "warning that states how much memory all of them need.\n"
        "\n"
        "Examples\n"
        "  ingot tokenizer train clean/ --out tokenizer.json --vocab 32000\n"
        "  ingot tokenizer train notes.txt -o small.json --vocab 4096 --special \"<|endoftext|>,<|pad|>\"\n"
        "  ingot tokenizer train clean/ -o llama.json --metaspace first --byte-fallback --bos \"<s>\"\n"
        "  ingot tokenizer train clean/ -o unigram.json --model unigram --byte-fallback --normalize nfkc\n",
};
