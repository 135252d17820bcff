/* ingot data filter: keeps the documents that are worth training on. */
#include "cli/data_common.h"
#include "cli/data_explain.h"

#include <stdlib.h>
#include <string.h>

typedef struct filter_args {
    data_common common;
    filter_options filter;
    char *keeps; /* text that options point into, owned; NULL: argv has it */
} filter_args;

/* An output without a document is never what was meant. */
static err refuse_nothing_kept(const text_transform *s, const text_inputs *in,
                               const text_transform_report *r) {
    int worst = 0;
    if (!r->kept && r->read.excluded && !r->read.documents)
        return err_hint(ERR("filter: nothing is kept: all %lld documents are excluded by their "
                            "sources or licenses",
                            (long long)r->read.excluded),
                        "see --sources, --not-sources, --licenses and --not-licenses");
    if (r->kept || !r->read.documents) return OK;
    for (int i = 1; i < s->n_rules; i++)
        if (r->dropped[i] > r->dropped[worst]) worst = i;
    err e =
        ERR("filter: nothing is kept: all %lld documents were dropped, %lld of them by the rule %s",
            (long long)r->read.documents, (long long)r->dropped[worst], s->rules[worst]);
    if (r->read.documents > text_inputs_files(in))
        return err_hint(e, "change its limit, or see what --dropped PATH writes");
    return err_hint(e,
                    "a file of plain text is one document: where it holds many, write them as JSON "
                    "lines, such as one per line with jq -cR '{text: .}' FILE > FILE.jsonl");
}

static err run_filter_transform(const filter_args *a, char **paths, int n) {
    filter *f = NULL;
    text_inputs *in = NULL;
    text_transform_report report = { 0 };
    err e = OK;
    int threads = 1;
    TRY_CLEAN(data_common_fit(&a->common, 0, FILTER_BYTES_PER_TEXT_BYTE, &threads));
    TRY_CLEAN(filter_new(&a->filter, threads, &f));
    TRY_CLEAN(data_common_fit(&a->common, filter_bytes(f), FILTER_BYTES_PER_TEXT_BYTE, &threads));
    TRY_CLEAN(data_common_open(&a->common, paths, n, &in));
    text_transform transform = filter_transform(f);
    text_transform_options o = data_common_transform(&a->common, threads);
    TRY_CLEAN(text_transform_run(&transform, in, &o, &report));
    data_common_print(&a->common, &transform, &report, NULL);
    e = refuse_nothing_kept(&transform, in, &report);
cleanup:
    text_transform_report_free(&report);
    text_inputs_close(in);
    filter_free(f);
    return e;
}

static err run_filter_rank(const cli_subcommand *self, int argc, char **argv, const data_job *job) {
    filter_args a = { .common = { .comm = job->comm, .given = job->given },
                      .filter = filter_defaults() };
    int n = 0;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(filter_check(&a.filter));
    return run_filter_transform(&a, argv, n);
}

#define AT(member) offsetof(filter_args, filter.member)
#define LEAST      "at least"
#define MOST       "at most"
/* clang-format off */
#define RULE_ARG(id, name, limit_, direction, what, of) \
    { name, ARG_REAL, AT(limit[FILTER_##id]), "N", direction " (default " #limit_ "): " what },
#define SETTING_ARG(id, name, value, what, of) \
    { name, ARG_REAL, AT(setting[SETTING_##id]), "N", what " (default " #value ")" },
#define MASK_ARG(id, name, mask_) \
    { "mask-" name, ARG_TEXT, AT(mask[PII_##id]), "TEXT", "replacement text (default " mask_ ")" },
static const cli_arg args[] = {
    DATA_COMMON_ARGS,
    { "rules", ARG_TEXT, AT(sets), "A,B", "rule sets in the order they apply, or none (default " FILTER_DEFAULT_SETS ")" },
    { "words", ARG_TEXT, AT(words), "auto|space|LANGUAGE|FILE", "what rule sets count as words and lines. auto: as datatrove does in the language of the document, by the language model; LANGUAGE: in this one, such as de; FILE: by these rules; space: runs without white space (default auto)" },
    { "bad-words", ARG_TEXT, AT(bad_words), "FILE", "drop documents with these words or phrases, one per line" },
    { "url-domains", ARG_TEXT, AT(url_domains), "FILE", "drop documents from these domains and their subdomains, one per line" },
    { "url-words", ARG_TEXT, AT(url_words), "FILE", "drop documents with these words in the URL" },
    { "url-parts", ARG_TEXT, AT(url_parts), "FILE", "drop documents with any of these strings in the URL, also inside a word" },
    { "language-model", ARG_TEXT, AT(language_model), "FILE", "a fastText language model, .bin or .ftz (default: the one that is compiled in)" },
    { "language", ARG_TEXT, AT(languages), "A,B", "keep documents in these languages, by label of the model, such as en,de (default: any; of a --language-model, any label that is likely enough)" },
    { "quality", ARG_TEXT, AT(quality), "[NAME=]FILE,...", "fastText models of quality or toxicity, .bin or .ftz; of several, each with a name" },
    { "keep", ARG_TEXT, AT(keep), "A,B", "keep documents with these labels of the models of --quality; each model that has one must find it likely enough" },
    { "annotate", ARG_FLAG, AT(annotate), "", "write language, language_score, quality and quality_score onto documents, from the models given" },
    { "where", ARG_TEXT, AT(where), "A,B", "keep documents whose members meet these conditions: NAME>=X, NAME<=X, NAME=TEXT, NAME!=TEXT" },
    { "pii", ARG_TEXT, AT(pii), "A,B", "mask " PII_ALL_KINDS " in documents that are kept (default: none)" },
    PII_KINDS(MASK_ARG)
    FILTER_RULES(RULE_ARG)
    FILTER_SETTINGS(SETTING_ARG)
};
/* clang-format on */

/* ---- one document again ---------------------------------------------------------------------- */
/* Reads options from their JSON. @param words [2 * options] scratch. */
static err parse_given(const json_t *options, char **words, filter_args *a) {
    const char *name;
    json_t *value;
    int n = 0, inputs = 0;
    err e = OK;
    str all = { 0 };
    json_object_foreach((json_t *)(uintptr_t)options, name, value) {
        str_add(&all, "--%s%c", name, 0);
        if (json_is_string(value)) str_add(&all, "%s%c", json_string_value(value), 0);
    }
    for (size_t at = 0; at < all.len; at += strlen(all.text + at) + 1) words[n++] = all.text + at;
    cli_spec spec = data_filter.spec;
    spec.inputs = 0;
    a->keeps = all.text;
    e = cli_parse_many(&spec, n, words, a, &inputs);
    return e;
}

static json_t *describe_verdict(const text_transform *s, const text_verdict *v,
                                const filter_options *o) {
    json_t *out = json_object(), *changes = json_object();
    char text[64];
    if (v->rule != TEXT_KEEP) {
        const filter_rule *r = &filter_rules[v->rule];
        snprintf(text, sizeof text, "%.6g", v->value);
        json_object_set_new(out, "rule", json_string(r->name));
        json_object_set_new(out, "value", json_string(text));
        snprintf(text, sizeof text, "at %s %g", r->direction == FILTER_LEAST ? "least" : "most",
                 o->limit[v->rule]);
        json_object_set_new(out, "limit", json_string(text));
    }
    for (int i = 0; i < s->n_counters; i++)
        if (v->count[i]) json_object_set_new(changes, s->counters[i], json_integer(v->count[i]));
    json_object_set_new(out, "changes", changes);
    return out;
}

err data_filter_explain(const json_t *options, const text_doc *d, json_t **out) {
    filter_args a = { .filter = filter_defaults() };
    char **words = mem_alloc((2 * json_object_size(options) + 1) * sizeof *words);
    int64_t count[FILTER_COUNTER_COUNT] = { 0 };
    filter *f = NULL;
    text_verdict v = { .rule = TEXT_KEEP, .text = d->text, .count = count };
    err e = parse_given(options, words, &a);
    if (!e) e = filter_new(&a.filter, 1, &f);
    if (!e) e = filter_judge(f, 0, 0, d, &v);
    if (!e) {
        text_transform s = filter_transform(f);
        *out = describe_verdict(&s, &v, &a.filter);
    }
    filter_free(f);
    free(words);
    free(a.keeps);
    return e;
}

const cli_subcommand data_filter = {
    .summary = "keep the documents that are worth training on",
    .run_rank = run_filter_rank,
    .spec = { "data filter", "INPUT... [options]", CLI_ARGS(args), 1, true },
    .help =
        "A document passes the URL lists, the language model, the rule sets, the bad words and the\n"
        "masks, in this order; the first rule that fails drops it. A rule has the name of the\n"
        "option that sets its limit; the report and the dropped documents show that name. A\n"
        "minimum of 0 or a huge maximum turns a rule off.\n"
        "\n"
        "Rule sets: " FILTER_ALL_SETS ".\n"
        "c4 also edits documents: it removes citation marks, and lines that do not end a sentence,\n"
        "have few words, or mention javascript or cookies; c4-no-punct, which FineWeb uses, is c4\n"
        "without the rule about sentence ends, c4-paper is c4 with the limits of its paper. Words are\n"
        "those of datatrove in the document's language; lengths are in code points.\n"
        "\n"
        "`ingot launch -n N -- data filter ...`, mpirun and srun share the input among N ranks, which\n"
        "write the same parts; folders must be on a file system that all of them see, or below a URL (s3://).\n"
        "\n"
        "Examples\n"
        "  ingot data filter crawl/ --out clean --dropped dropped\n"
        "  ingot data filter wet/*.wet.gz --language en --out clean\n"
        "  ingot data filter scored/ --rules none --where 'quality_score>=0.8,language=en' --out best\n"
        "  ingot data filter a.jsonl --rules gopher-quality --gopher-min-words 20 > kept.jsonl\n"
        "  ingot data filter a.jsonl --rules none --pii email,ip,phone --out masked.jsonl\n",
};
