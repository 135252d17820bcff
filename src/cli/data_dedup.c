/* ingot data dedup: removes copies and near-copies of documents, repeated paragraphs, or repeated substrings. */
#include "cli/data_common.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

typedef struct dedup_args {
    data_common common;
    const char *method, *keep, *report, *against, *index, *save_index, *tokenizer;
    int64_t ngram, hashes, bands, rows, paragraph_words, stride, length;
    double threshold, overlap, index_error;
    bool lines;
    normalization words;
} dedup_args;

enum { NOT_GIVEN = -1 };
enum { WORKER_PER_BYTE = 8 }; /* memory of a worker per byte of the longest record */
enum { METHOD_SUBSTRING = DEDUP_PARAGRAPH + 1, METHODS, KEEP_NONE = DEDUP_LONGEST + 1, KEEPS };
enum { LENGTH_BYTES = 200, LENGTH_TOKENS = 50, LENGTH_MOST = 1 << 20 };
static const char *const methods[METHODS] = { [DEDUP_NEAR] = "near",
                                              [DEDUP_EXACT] = "exact",
                                              [DEDUP_PARAGRAPH] = "paragraph",
                                              [METHOD_SUBSTRING] = "substring" };
static const char *const keeps[KEEPS] = { [DEDUP_FIRST] = "first",
                                          [DEDUP_LAST] = "last",
                                          [DEDUP_LONGEST] = "longest",
                                          [KEEP_NONE] = "none" };

static err choose_name(const char *option, const char *value, const char *const names[4],
                       int *out) {
    for (int i = 0; i < 4; i++)
        if (strcmp(value, names[i]) == 0) return *out = i, OK;
    return ERR_USAGE("--%s: \"%s\" is not %s, %s, %s or %s", option, value, names[0], names[1],
                     names[2], names[3]);
}

static err check_keep(const dedup_args *a, int method, int keep) {
    bool documents = method == DEDUP_NEAR || method == DEDUP_EXACT;
    if (keep == KEEP_NONE && method != METHOD_SUBSTRING)
        return ERR_USAGE("--keep: none applies to --method substring, not to %s", methods[method]);
    if (method == DEDUP_PARAGRAPH && keep != DEDUP_FIRST)
        return ERR_USAGE("--keep: of repeated paragraphs the first is always kept");
    if (method == METHOD_SUBSTRING && keep != DEDUP_FIRST && keep != KEEP_NONE)
        return ERR_USAGE("--keep: of repeated substrings none or the first is kept");
    if (documents && keep != DEDUP_FIRST && (a->against || a->index))
        return ERR_USAGE("--keep: what an earlier corpus has comes first; %s is not possible",
                         keeps[keep]);
    return OK;
}

/* @param of bits of the methods that use the option. */
static err refuse_option_of_others(const char *option, int of, int method) {
    str list = { 0 };
    for (int i = 0; i < METHODS; i++)
        if (of >> i & 1) str_add(&list, "%s%s", list.len ? " or " : "", methods[i]);
    err e =
        ERR_USAGE("--%s: applies to --method %s, not to %s", option, list.text, methods[method]);
    str_free(&list);
    return e;
}

/* Refuses options that the chosen method does not use. */
static err check_method(const dedup_args *a, int method, int keep) {
    enum { NEAR = 1 << DEDUP_NEAR, EXACT = 1 << DEDUP_EXACT, PARAGRAPH = 1 << DEDUP_PARAGRAPH };
    enum { SUBSTRING = 1 << METHOD_SUBSTRING };
    const struct {
        const char *name;
        bool given;
        int of;
    } options[] = {
        { "threshold", a->threshold >= 0, NEAR },
        { "ngram", a->ngram != NOT_GIVEN, NEAR | PARAGRAPH },
        { "hashes", a->hashes != NOT_GIVEN, NEAR },
        { "bands", a->bands != NOT_GIVEN, NEAR },
        { "rows", a->rows != NOT_GIVEN, NEAR },
        { "lines", a->lines, PARAGRAPH },
        { "paragraph-words", a->paragraph_words != NOT_GIVEN, PARAGRAPH },
        { "stride", a->stride != NOT_GIVEN, PARAGRAPH },
        { "overlap", a->overlap >= 0, PARAGRAPH },
        { "length", a->length != NOT_GIVEN, SUBSTRING },
        { "tokenizer", a->tokenizer != NULL, SUBSTRING },
        { "report", a->report != NULL, NEAR | EXACT },
        { "index", a->index != NULL, NEAR | EXACT | PARAGRAPH },
        { "save-index", a->save_index != NULL, NEAR | EXACT | PARAGRAPH },
        { "keep-case", a->words.keep_case, NEAR | PARAGRAPH },
        { "keep-accents", a->words.keep_accents, NEAR | PARAGRAPH },
        { "keep-punctuation", a->words.keep_punctuation, NEAR | PARAGRAPH },
        { "zero-digits", a->words.zero_digits, NEAR | PARAGRAPH },
    };
    for (size_t i = 0; i < COUNT_OF(options); i++)
        if (options[i].given && !(options[i].of >> method & 1))
            return refuse_option_of_others(options[i].name, options[i].of, method);
    if (method == DEDUP_PARAGRAPH && a->ngram == NOT_GIVEN &&
        (a->stride != NOT_GIVEN || a->overlap >= 0))
        return err_hint(ERR_USAGE("--stride and --overlap: apply to n-grams of paragraphs"),
                        "pass --ngram N");
    if (a->index_error >= 0 && (a->index_error < 1e-12 || a->index_error > 0.1 || !a->save_index))
        return ERR_USAGE("--index-error: a probability from 1e-12 to 0.1, with --save-index");
    return check_keep(a, method, keep);
}

/* @param given NOT_GIVEN keeps the default in *out. */
static err check_count(const char *option, int64_t given, int64_t most, int *out) {
    if (given == NOT_GIVEN) return OK;
    if (given < 1 || given > most)
        return ERR_USAGE("--%s: %lld is not between 1 and %lld", option, (long long)given,
                         (long long)most);
    *out = (int)given;
    return OK;
}

/* Takes bands and rows as given, or chooses the best ones for a threshold. */
static err choose_bands(const dedup_args *a, dedup_options *o) {
    int hashes = o->bands * o->rows;
    bool bands = a->bands != NOT_GIVEN, rows = a->rows != NOT_GIVEN;
    TRY(check_count("ngram", a->ngram, NGRAM_MAX, &o->ngram));
    TRY(check_count("hashes", a->hashes, MINHASH_MAX, &hashes));
    TRY(check_count("bands", a->bands, MINHASH_MAX, &o->bands));
    TRY(check_count("rows", a->rows, MINHASH_MAX, &o->rows));
    if (a->threshold >= 0 && (bands || rows))
        return ERR_USAGE("--threshold: chooses bands and rows; omit --bands and --rows");
    if (a->threshold >= 1)
        return err_hint(ERR_USAGE("--threshold: %g is not below 1", a->threshold),
                        "--method exact finds identical documents");
    if (a->threshold == 0)
        return err_hint(ERR_USAGE("--threshold: 0 would treat all documents as copies"),
                        "values from 0.7 to 0.9 are common");
    if (a->threshold > 0) {
        minhash_choose_bands(hashes, a->threshold, &o->bands, &o->rows);
        return OK;
    }
    if (bands && rows && a->hashes == NOT_GIVEN) hashes = MINHASH_MAX; /* as many as needed */
    if (bands && !rows) o->rows = hashes / o->bands;
    if (!bands) o->bands = hashes / o->rows;
    if (o->rows >= 1 && o->bands >= 1 && o->bands <= hashes / o->rows) return OK;
    return err_hint(ERR_USAGE("--hashes: %d are not enough for %d bands of %d rows", hashes,
                              MAX(o->bands, 1), MAX(o->rows, 1)),
                    "raise --hashes, or lower --bands or --rows");
}

static err paragraph_options(const dedup_args *a, dedup_options *o) {
    TRY(check_count("paragraph-words", a->paragraph_words, INT32_MAX, &o->paragraph_words));
    TRY(check_count("ngram", a->ngram, NGRAM_MAX, &o->paragraph_ngram));
    TRY(check_count("stride", a->stride, INT32_MAX, &o->stride));
    if (a->overlap >= 0) o->overlap = a->overlap;
    if (a->overlap == 0) return ERR_USAGE("--overlap: 0 would remove every paragraph");
    return OK;
}

static err dedup_options_of(const dedup_args *a, dedup_options *o) {
    int method = 0, keep = DEDUP_FIRST;
    TRY(choose_name("method", a->method, methods, &method));
    if (a->keep) TRY(choose_name("keep", a->keep, keeps, &keep));
    TRY(check_method(a, method, keep));
    if (method == DEDUP_PARAGRAPH)
        TRY(paragraph_options(a, o));
    else
        TRY(choose_bands(a, o));
    o->method = (dedup_method)method;
    o->index = a->index;
    o->save_index = a->save_index;
    if (a->index_error >= 0) o->index_error = a->index_error;
    o->keep = (dedup_keep)keep;
    o->words = a->words;
    o->lines = a->lines;
    o->pass.report = a->report;
    if (a->common.memory)
        o->pass.memory = (size_t)a->common.memory / 2; /* the other half is for reading */
    return OK;
}

/* ---- output -------------------------------------------------------------------------------- */

static void print_curve(const dedup_options *o, FILE *to) {
    static const double at[] = { 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1 };
    fprintf(to, "near-duplicates: %d-grams, %d bands x %d rows = %d hashes\n  similarity  ",
            o->ngram, o->bands, o->rows, o->bands * o->rows);
    for (size_t i = 0; i < COUNT_OF(at); i++) fprintf(to, " %6.2f", at[i]);
    fprintf(to, "\n  found       ");
    for (size_t i = 0; i < COUNT_OF(at); i++)
        fprintf(to, " %6.4f", minhash_match_probability(o->bands, o->rows, at[i]));
    fprintf(to, "\n");
}

/* How words are compared, since that decides what counts as a copy. */
static void print_words(const normalization *w, FILE *to) {
    fprintf(to, "words: %s, %s accents, %s punctuation, %s\n",
            w->keep_case ? "case kept" : "in lower case", w->keep_accents ? "with" : "without",
            w->keep_punctuation ? "with" : "without",
            w->zero_digits ? "every digit as 0" : "numbers kept");
}

static void print_dedup_summary(const dedup_summary *s, FILE *to) {
    if (s->paragraphs) {
        fprintf(to, "%lld of %lld paragraphs repeat an earlier one\n", (long long)s->copies,
                (long long)s->paragraphs);
        return;
    }
    fprintf(
        to,
        "%lld clusters of %lld documents in total, %lld in the largest; one document of each is kept\n",
        (long long)s->clusters, (long long)(s->clusters + s->copies), (long long)s->largest);
    for (int i = 1; i < DEDUP_SIZES; i++) {
        if (!s->sizes[i]) continue;
        char size[64];
        snprintf(size, sizeof size, "clusters of %lld to %lld", 1LL << i, (2LL << i) - 1);
        fprintf(to, "  %-34s %12lld\n", size, (long long)s->sizes[i]);
    }
}

static json_t *dedup_json(const dedup_options *o, const dedup_summary *s) {
    json_t *sizes = json_object();
    for (int i = 1; i < DEDUP_SIZES; i++) {
        char least[24];
        snprintf(least, sizeof least, "%lld", 1LL << i);
        if (s->sizes[i]) json_object_set_new(sizes, least, json_integer(s->sizes[i]));
    }
    json_t *all = json_pack(
        "{s:s, s:{s:b, s:b, s:b, s:b}, s:I, s:I, s:I, s:I, s:I, s:o}", "method", methods[o->method],
        "words", "keep_case", o->words.keep_case, "keep_accents", o->words.keep_accents,
        "keep_punctuation", o->words.keep_punctuation, "zero_digits", o->words.zero_digits,
        "documents", (json_int_t)s->documents, "paragraphs", (json_int_t)s->paragraphs, "copies",
        (json_int_t)s->copies, "clusters", (json_int_t)s->clusters, "largest",
        (json_int_t)s->largest, "clusters_of_at_least", sizes);
    BUG_IF(!all);
    return all;
}

/* ---- the command --------------------------------------------------------------------------- */

/* Inputs of the command: the documents, and with --against an earlier corpus before them. */
typedef struct dedup_inputs {
    text_inputs *in;  /* what the transform reads */
    text_inputs *all; /* what is compared: `in` itself, or with the earlier corpus */
    int first_segment;
} dedup_inputs;

static err open_against(const dedup_args *a, char **paths, int n, dedup_inputs *d) {
    char *list = strdup(a->against), *rest = list;
    char **all = mem_alloc(((size_t)n + strlen(list) + 1) * sizeof *all);
    int count = 0;
    for (char *name; (name = strsep(&rest, ",")) != NULL;)
        if (*name) all[count++] = name;
    err e = count ? OK : ERR_USAGE("--against: expected paths, separated by commas");
    memcpy(all + count, paths, (size_t)n * sizeof *all);
    if (!e) e = data_common_open(&a->common, all, count + n, &d->all);
    if (!e) d->first_segment = text_segments(d->all) - text_segments(d->in);
    free(all);
    free(list);
    return e;
}

static err run_substring(const dedup_args *a, substring_options *o, const dedup_inputs *d) {
    FILE *to = data_common_to(&a->common);
    text_transform_options so = data_common_transform(&a->common, o->pass.threads);
    substring *f = NULL;
    text_transform_report report = { 0 };
    err e = OK;
    o->pass.to = &so;
    o->pass.first_segment = d->first_segment;
    o->pass.transform_in = d->in;
    TRY_CLEAN(substring_find(o, d->all, &f));
    text_transform s = substring_transform(f);
    TRY_CLEAN(text_transform_run(&s, d->in, &so, &report));
    TRY_CLEAN(substring_finish(f));
    const substring_summary *found = substring_get_summary(f);
    if (data_common_prints(&a->common) && !a->common.json)
        fprintf(to, "repeats of %d %s: %lld windows of %lld that were compared\n", o->length,
                o->tokenizer ? "tokens" : "bytes", (long long)found->windows,
                (long long)found->candidates);
    data_common_print(&a->common, &s, &report,
                      json_pack("{s:s, s:i, s:s, s:I, s:I}", "method", methods[METHOD_SUBSTRING],
                                "length", o->length, "of", o->tokenizer ? "tokens" : "bytes",
                                "compared", (json_int_t)found->candidates, "windows",
                                (json_int_t)found->windows));
cleanup:
    text_transform_report_free(&report);
    substring_free(f);
    return e;
}

/* Takes the options of substrings from those that all methods share. */
static err find_substrings(const dedup_args *a, const dedup_options *shared,
                           const dedup_inputs *d) {
    tokenizer *t = NULL;
    substring_options o = { .length = a->tokenizer ? LENGTH_TOKENS : LENGTH_BYTES,
                            .keep_first = a->keep && strcmp(a->keep, "first") == 0,
                            .pass = shared->pass };
    TRY(check_count("length", a->length, LENGTH_MOST, &o.length));
    if (o.length < 2) return ERR_USAGE("--length: 1 would remove whatever occurs twice");
    if (a->tokenizer) TRY(tokenizer_open(a->tokenizer, NULL, &t));
    o.tokenizer = t;
    err e = run_substring(a, &o, d);
    tokenizer_free(t);
    return e;
}

static err run_dedup_transform(const dedup_args *a, dedup_options *o, const dedup_inputs *in) {
    FILE *to = data_common_to(&a->common);
    bool prints = data_common_prints(&a->common) && !a->common.json;
    text_transform_options so = data_common_transform(&a->common, o->pass.threads);
    dedup *d = NULL;
    text_transform_report report = { 0 };
    err e = OK;
    o->pass.to = &so;
    o->pass.first_segment = in->first_segment;
    o->pass.transform_in = in->in;
    if (o->method == DEDUP_NEAR && prints) print_curve(o, to);
    if (o->method != DEDUP_EXACT && prints) print_words(&o->words, to);
    TRY_CLEAN(dedup_find_copies(o, in->all, &d));
    text_transform s = dedup_transform(d);
    TRY_CLEAN(text_transform_run(&s, in->in, &so, &report));
    TRY_CLEAN(dedup_finish(d));
    if (prints) print_dedup_summary(dedup_get_summary(d), to);
    data_common_print(&a->common, &s, &report, dedup_json(o, dedup_get_summary(d)));
cleanup:
    text_transform_report_free(&report);
    dedup_free(d);
    return e;
}

static err run_dedup_rank(const cli_subcommand *self, int argc, char **argv, const data_job *job) {
    dedup_args a = { .common = { .comm = job->comm, .given = job->given },
                     .method = "near",
                     .threshold = NOT_GIVEN,
                     .ngram = NOT_GIVEN,
                     .hashes = NOT_GIVEN,
                     .bands = NOT_GIVEN,
                     .rows = NOT_GIVEN,
                     .paragraph_words = NOT_GIVEN,
                     .stride = NOT_GIVEN,
                     .length = NOT_GIVEN,
                     .overlap = NOT_GIVEN,
                     .index_error = NOT_GIVEN };
    dedup_options o = dedup_defaults();
    dedup_inputs in = { 0 };
    int n = 0;
    err e = OK;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(dedup_options_of(&a, &o));
    TRY(data_common_fit(&a.common, o.pass.memory, WORKER_PER_BYTE, &o.pass.threads));
    data_common_pass(&a.common, &o.pass);
    TRY_CLEAN(data_common_open(&a.common, argv, n, &in.in));
    in.all = in.in;
    if (a.against) TRY_CLEAN(open_against(&a, argv, n, &in));
    TRY_CLEAN((int)o.method == METHOD_SUBSTRING ? find_substrings(&a, &o, &in)
                                                : run_dedup_transform(&a, &o, &in));
cleanup:
    if (in.all != in.in) text_inputs_close(in.all);
    text_inputs_close(in.in);
    free((char *)o.pass.work);
    return e;
}

#define AT(member) offsetof(dedup_args, member)
/* clang-format off */
static const cli_arg args[] = {
    DATA_COMMON_ARGS,
    { "method", ARG_TEXT, AT(method), "near|exact|paragraph|substring", "what counts as a copy (default near)" },
    { "keep", ARG_TEXT, AT(keep), "first|last|longest|none", "which document of a cluster to keep (default first); substring: first or none (default none)" },
    { "against", ARG_TEXT, AT(against), "PATHS", "an earlier corpus, files or folders separated by commas: what it has too is removed; it is not written" },
    { "index", ARG_TEXT, AT(index), "FILE", "the same by an index that --save-index has written" },
    { "save-index", ARG_TEXT, AT(save_index), "FILE", "write an index of the documents, or paragraphs, for --index of later runs" },
    { "index-error", ARG_FRACTION, AT(index_error), "P", "save-index: probability that something new is taken for known (default 1e-6)" },
    { "threshold", ARG_FRACTION, AT(threshold), "S", "near: choose bands and rows that find pairs of similarity S or more" },
    { "ngram", ARG_COUNT, AT(ngram), "N", "near: compare sets of word N-grams (default 5); paragraph: compare N-grams, as Dolma does (default: whole paragraphs)" },
    { "hashes", ARG_COUNT, AT(hashes), "N", "near: maximum number of hash functions (default 112, or as many as --bands and --rows need)" },
    { "bands", ARG_COUNT, AT(bands), "N", "near: number of bands; documents that agree in one are copies (default: hashes / rows, 14)" },
    { "rows", ARG_COUNT, AT(rows), "N", "near: hashes per band (default 8, or hashes / bands)" },
    { "keep-case", ARG_FLAG, AT(words.keep_case), "", "words that differ in case are different (default: they are the same)" },
    { "keep-accents", ARG_FLAG, AT(words.keep_accents), "", "words that differ in accents are different (default: they are the same)" },
    { "keep-punctuation", ARG_FLAG, AT(words.keep_punctuation), "", "punctuation marks and symbols count as words (default: they are ignored)" },
    { "zero-digits", ARG_FLAG, AT(words.zero_digits), "", "numbers with the same number of digits are equal, as in FineWeb (default: they differ)" },
    { "lines", ARG_FLAG, AT(lines), "", "paragraph: every line is a paragraph (default: blank lines separate them)" },
    { "paragraph-words", ARG_COUNT, AT(paragraph_words), "N", "paragraph: never remove paragraphs of fewer words (default 10)" },
    { "stride", ARG_COUNT, AT(stride), "N", "paragraph with --ngram: words from one N-gram to the next (default 1)" },
    { "overlap", ARG_FRACTION, AT(overlap), "F", "paragraph with --ngram: remove those with at least this fraction of N-grams seen before (default 1)" },
    { "length", ARG_COUNT, AT(length), "N", "substring: remove repeats of at least N bytes (default 200), or with --tokenizer tokens (default 50)" },
    { "tokenizer", ARG_TEXT, AT(tokenizer), "PATH", "substring: count tokens of this byte-level tokenizer", 't' },
    { "report", ARG_TEXT, AT(report), "FILE", "write a JSON line for each cluster: its documents and the one kept" },
    DATA_WORK_ARGS,
};
/* clang-format on */

const cli_subcommand data_dedup = {
    .summary =
        "remove copies and near copies of documents, repeated paragraphs, or repeated substrings",
    .run_rank = run_dedup_rank,
    .spec = { "data dedup", "[options] INPUT...", CLI_ARGS(args), 1, true },
    .help =
        "By default words are compared in lower case, without accents and punctuation; numbers\n"
        "count, so reports that differ only in figures are not copies.\n"
        "Tables take up to 1Gi (half of --memory if given): about 12 bytes per document; the rest is\n"
        "on disk. The input is read twice.\n"
        "\n"
        "`ingot launch -n N -- data dedup ...`, mpirun and srun share the input among N ranks, which\n"
        "write the same parts; folders must be on a file system that all of them see, or below a URL (s3://).\n"
        "\n"
        "Examples\n"
        "  ingot data dedup clean/ --out unique/ --report clusters.jsonl\n"
        "  ingot data dedup clean/ --out unique/ --threshold 0.9 --hashes 256 --memory 512Mi\n"
        "  ingot data dedup clean/ --out unique.jsonl.zst --method paragraph --lines\n"
        "  ingot data dedup clean/ --out unique/ --method paragraph --ngram 13 --overlap 0.5\n"
        "  ingot data dedup clean/ --out unique/ --method substring -t gpt2/ --length 50\n"
        "  ingot data dedup july/ --against june/ --out new/\n"
        "  ingot data dedup july/ --index june.index --save-index until-july.index --out new/\n",
};
