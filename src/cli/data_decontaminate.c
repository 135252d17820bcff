/* ingot data decontaminate: removes the texts of evaluations from training documents. */
#include "cli/data_common.h"

#include <stdlib.h>

typedef struct decontaminate_args {
    data_common common;
    const char *against, *fields, *report;
    int64_t ngram, shortest, sentence, common_in, margin, piece, pieces;
} decontaminate_args;

enum { WORKER_PER_BYTE = 16, NOT_GIVEN = -1 };

static err check_int_range(const char *option, int64_t value, int64_t least, int64_t most,
                           int *out) {
    if (value < least || value > most)
        return ERR_USAGE("--%s: %lld is not between %lld and %lld", option, (long long)value,
                         (long long)least, (long long)most);
    *out = (int)value;
    return OK;
}

static err decontaminate_options_of(const decontaminate_args *a, decontaminate_options *o) {
    if (!a->against)
        return err_hint(ERR_USAGE("--against: no reference given"),
                        "pass the evaluation files, as in --against gsm8k.jsonl,mmlu/");
    o->against = a->against;
    o->fields = a->fields;
    TRY(check_int_range("ngram", a->ngram, 2, NGRAM_MAX, &o->ngram));
    int64_t shortest = a->shortest == NOT_GIVEN ? MIN(o->shortest, a->ngram) : a->shortest;
    TRY(check_int_range("shortest", shortest, 1, a->ngram, &o->shortest));
    int64_t sentence = a->sentence == NOT_GIVEN ? MIN(o->sentence, shortest) : a->sentence;
    TRY(check_int_range("sentence", sentence, 0, shortest, &o->sentence));
    TRY(check_int_range("common", a->common_in, 0, INT32_MAX, &o->common));
    TRY(check_int_range("margin", a->margin, 0, INT32_MAX, &o->margin));
    TRY(check_int_range("piece", a->piece, 0, INT32_MAX, &o->piece));
    TRY(check_int_range("pieces", a->pieces, 1, INT32_MAX, &o->pieces));
    o->pass.report = a->report;
    if (a->common.memory)
        o->pass.memory = (size_t)a->common.memory / 2; /* the other half is for reading */
    return OK;
}

static void print_decontaminate_summary(const decontaminate_summary *s, FILE *to) {
    fprintf(to, "%lld n-grams from %lld reference file%s: %lld found in %lld document%s\n",
            (long long)s->grams, (long long)s->references, s->references == 1 ? "" : "s",
            (long long)s->found, (long long)s->documents, s->documents == 1 ? "" : "s");
    if (s->ignored)
        fprintf(to, "%lld n-grams are common and were ignored; %lld document%s such n-grams\n",
                (long long)s->common, (long long)s->ignored, s->ignored == 1 ? " keeps" : "s keep");
    if (s->unsearched)
        fprintf(to, "%lld texts of the references are too short to search for\n",
                (long long)s->unsearched);
    if (s->silent)
        fprintf(to, "%lld of %lld reference files have no match\n", (long long)s->silent,
                (long long)s->references);
}

static json_t *decontaminate_json(const decontaminate_summary *s) {
    json_t *all = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "references",
                            (json_int_t)s->references, "ngrams", (json_int_t)s->grams, "found",
                            (json_int_t)s->found, "common", (json_int_t)s->common, "documents",
                            (json_int_t)s->documents, "silent_references", (json_int_t)s->silent,
                            "documents_with_ignored", (json_int_t)s->ignored, "unsearched_texts",
                            (json_int_t)s->unsearched);
    BUG_IF(!all);
    return all;
}

static err run_decontaminate_transform(const decontaminate_args *a, decontaminate_options *o,
                                       text_inputs *in) {
    text_transform_options so = data_common_transform(&a->common, o->pass.threads);
    decontaminate *d = NULL;
    text_transform_report report = { 0 };
    err e = OK;
    o->pass.to = &so;
    TRY_CLEAN(decontaminate_find_matches(o, in, &d));
    text_transform s = decontaminate_transform(d);
    TRY_CLEAN(text_transform_run(&s, in, &so, &report));
    TRY_CLEAN(decontaminate_finish(d));
    if (data_common_prints(&a->common) && !a->common.json)
        print_decontaminate_summary(decontaminate_get_summary(d), data_common_to(&a->common));
    data_common_print(&a->common, &s, &report, decontaminate_json(decontaminate_get_summary(d)));
cleanup:
    text_transform_report_free(&report);
    decontaminate_free(d);
    return e;
}

static err run_decontaminate_rank(const cli_subcommand *self, int argc, char **argv,
                                  const data_job *job) {
    decontaminate_options o = decontaminate_defaults();
    decontaminate_args a = { .common = { .comm = job->comm, .given = job->given },
                             .ngram = o.ngram,
                             .shortest = NOT_GIVEN,
                             .sentence = NOT_GIVEN,
                             .common_in = o.common,
                             .margin = o.margin,
                             .piece = o.piece,
                             .pieces = o.pieces };
    text_inputs *in = NULL;
    int n = 0;
    err e = OK;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(decontaminate_options_of(&a, &o));
    TRY(data_common_fit(&a.common, o.pass.memory, WORKER_PER_BYTE, &o.pass.threads));
    data_common_pass(&a.common, &o.pass);
    TRY_CLEAN(data_common_open(&a.common, argv, n, &in));
    TRY_CLEAN(run_decontaminate_transform(&a, &o, in));
cleanup:
    text_inputs_close(in);
    free((char *)o.pass.work);
    return e;
}

#define AT(member) offsetof(decontaminate_args, member)
/* clang-format off */
static const cli_arg args[] = {
    DATA_COMMON_ARGS,
    { "against", ARG_TEXT, AT(against), "A,B", "references: JSON lines files, or folders of .jsonl files" },
    { "fields", ARG_TEXT, AT(fields), "A,B", "members of a reference to search for, such as question,answer (default: every string)" },
    { "ngram", ARG_COUNT, AT(ngram), "N", "a match is N consecutive words (default 13)" },
    { "shortest", ARG_COUNT, AT(shortest), "N", "shorter references of at least N words must match as a whole (default 8, at most --ngram)" },
    { "sentence", ARG_COUNT, AT(sentence), "N", "still shorter ones of at least N words must be a sentence or line of their own (default 3; 0: do not search for them)" },
    { "common", ARG_COUNT, AT(common_in), "N", "ignore n-grams in more than N documents where less than half of a reference is (default 10; 0: ignore none)" },
    { "margin", ARG_COUNT, AT(margin), "N", "characters to remove on either side of a match (default 200)" },
    { "piece", ARG_COUNT, AT(piece), "N", "remove remaining pieces of fewer characters (default 200)" },
    { "pieces", ARG_COUNT, AT(pieces), "N", "drop a document that falls into more pieces (default 10)" },
    { "report", ARG_TEXT, AT(report), "FILE", "write a JSON line for each match and each common n-gram" },
    DATA_WORK_ARGS,
};
/* clang-format on */

const cli_subcommand data_decontaminate = {
    .summary = "remove the texts of evaluations from documents",
    .run_rank = run_decontaminate_rank,
    .spec = { "data decontaminate", "[options] --against FILES INPUT...", CLI_ARGS(args), 1, true },
    .help =
        "Words are compared in lower case, without accents and punctuation. Each string of a\n"
        "reference is searched for separately. The pieces of a document that remain are joined by\n"
        "blank lines. A reference without any match causes a warning. The input is read twice, the\n"
        "first time to find which n-grams are common.\n"
        "\n"
        "`ingot launch -n N -- data decontaminate ...`, mpirun and srun share the input among N ranks, which\n"
        "write the same parts; folders must be on a file system that all of them see, or below a URL (s3://).\n"
        "\n"
        "Example\n"
        "  ingot data decontaminate unique/ --against gsm8k.jsonl,mmlu/ --fields question,answer \\\n"
        "      --out pretrain/ --report contamination.jsonl\n",
};
