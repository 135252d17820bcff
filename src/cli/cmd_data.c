/* ingot data: make, tokenize and look at training data. */
#include "cli/cli.h"
#include "data/data.h"
#include "io/io.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- arguments: one table a subcommand parses, checks and documents its options ------------ */

typedef struct data_args {
    int64_t documents, bytes, seed, first;
    const char *out, *format, *input;
    synth_options synth;
    bool json, verify;
} data_args;

typedef enum { ARG_COUNT, ARG_FRACTION, ARG_TEXT, ARG_FLAG } arg_type;
typedef struct arg {
    const char *name;
    arg_type type;
    size_t offset; /* in data_args */
    const char *holder, *help;
} arg;

typedef struct subcommand {
    const char *name, *usage, *summary;
    err (*run)(const data_args *a);
    bool takes_input;
    arg args[12]; /* the rest has no name */
} subcommand;

/* Whole numbers, also as 10k, 5M or 2G (thousands, millions, thousand millions). */
static err parse_count(const arg *o, const char *text, int64_t *out) {
    static const struct {
        char letter;
        int64_t by;
    } units[] = { { 'k', 1000 }, { 'K', 1000 }, { 'M', 1000000 }, { 'G', 1000000000 } };
    char *end = NULL;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    int64_t by = 1;
    for (size_t i = 0; i < COUNT_OF(units); i++)
        if (*end == units[i].letter && end[1] == 0) by = units[i].by;
    if (end == text || (*end && by == 1) || errno || n < 0 || n > INT64_MAX / by)
        return err_hint(ERR("--%s: \"%s\" is not a whole number", o->name, text),
                        "write it like 5000, 10k, 5M or 2G");
    *out = n * by;
    return OK;
}

static err parse_fraction(const arg *o, const char *text, double *out) {
    char *end = NULL;
    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out) || *out < 0 || *out > 1)
        return err_hint(ERR("--%s: \"%s\" is not a fraction", o->name, text),
                        "write a number from 0 to 1, such as 0.05");
    return OK;
}

static err parse_value(const arg *o, const char *text, data_args *a) {
    char *at = (char *)a + o->offset;
    switch (o->type) {
    case ARG_COUNT: return parse_count(o, text, (int64_t *)(void *)at);
    case ARG_FRACTION: return parse_fraction(o, text, (double *)(void *)at);
    case ARG_TEXT: *(const char **)(void *)at = text; return OK;
    case ARG_FLAG: break;
    }
    BUG_IF("a flag takes no value");
    return OK;
}

static const char *arg_name(const void *ctx, int i) {
    return ((const subcommand *)ctx)->args[i].name;
}

static err unknown_option(const subcommand *s, const char *word, size_t n) {
    char name[64] = "";
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    int count = 0;
    while (s->args[count].name) count++;
    err e = ERR("--%s: no such option of \"ingot data %s\"", name, s->name);
    const char *near = str_nearest(name, arg_name, s, count);
    if (near) return err_hint(e, "did you mean --%s?", near);
    return err_hint(e, "\"ingot data %s --help\" lists them", s->name);
}

/* Parses one option and its value. @param i moves to the last word used. */
static err parse_option(const subcommand *s, int argc, char **argv, int *i, data_args *a) {
    const char *word = argv[*i] + 2, *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    const arg *o = s->args;
    while (o->name && (strlen(o->name) != n || memcmp(o->name, word, n) != 0)) o++;
    if (!o->name) return unknown_option(s, word, n);
    if (o->type == ARG_FLAG) {
        if (equals) return ERR("--%s: takes no value", o->name);
        *(bool *)((char *)a + o->offset) = true;
        return OK;
    }
    if (!equals && *i + 1 == argc) return ERR("--%s: needs a value: %s", o->name, o->holder);
    return parse_value(o, equals ? equals + 1 : argv[++*i], a);
}

static err parse_args(const subcommand *s, int argc, char **argv, data_args *a) {
    for (int i = 0; i < argc; i++) {
        if (str_starts(argv[i], "--"))
            TRY(parse_option(s, argc, argv, &i, a));
        else if (s->takes_input && !a->input)
            a->input = argv[i];
        else
            return err_hint(ERR("usage: \"%s\" is one argument too many", argv[i]),
                            "ingot data %s %s", s->name, s->usage);
    }
    if (s->takes_input && !a->input)
        return err_hint(ERR("usage: no file given"), "ingot data %s %s", s->name, s->usage);
    return OK;
}

/* ---- output: standard output, or a file that appears when it is complete -------------------- */

typedef struct sink {
    io_writer *file; /* NULL: standard output */
} sink;

static err sink_write(sink *to, const str *text) {
    if (to->file) return io_writer_write(to->file, text->text, text->len);
    if (fwrite(text->text, 1, text->len, stdout) != text->len)
        return ERR("cannot write to standard output: %s", strerror(errno));
    return OK;
}

static err sink_close(sink *to) {
    io_writer *file = to->file;
    to->file = NULL;
    if (file) return io_writer_commit(file);
    if (fflush(stdout) != 0) return ERR("cannot write to standard output: %s", strerror(errno));
    return OK;
}

/* ---- synth --------------------------------------------------------------------------------- */

static void add_jsonl(int64_t index, const synth_info *info, const str *text, str *out) {
    json_t *o = json_pack("{s:I, s:s, s:s%}", "id", (json_int_t)index, "source", info->source,
                          "text", text->text, text->len);
    BUG_IF(o == NULL);
    if (info->planted != PLANT_NONE)
        json_object_set_new(o, "planted", json_string(plant_name(info->planted)));
    if (info->of >= 0) json_object_set_new(o, "of", json_integer(info->of));
    char *line = json_dumps(o, JSON_COMPACT);
    BUG_IF(line == NULL);
    str_add(out, "%s\n", line);
    free(line);
    json_decref(o);
}

static err synth_write_all(const data_args *a, bool jsonl, sink *to) {
    str text = { 0 }, line = { 0 };
    err e = OK;
    int64_t documents = a->documents, bytes = 0;
    if (documents == 0) documents = a->bytes ? INT64_MAX : 1000;
    for (int64_t i = 0; i < documents && (a->bytes == 0 || bytes < a->bytes); i++) {
        text.len = line.len = 0;
        synth_info info = data_synth_document((uint64_t)a->seed, a->first + i, &a->synth, &text);
        if (jsonl)
            add_jsonl(a->first + i, &info, &text, &line);
        else
            str_add(&line, "%s\n%s\n", text.text, DATA_SEPARATOR);
        bytes += (int64_t)text.len;
        TRY_CLEAN(sink_write(to, &line));
    }
    TRY_CLEAN(sink_close(to));
cleanup:
    io_writer_abort(to->file);
    str_free(&text);
    str_free(&line);
    return e;
}

static err run_synth(const data_args *a) {
    bool jsonl = strcmp(a->format, "jsonl") == 0;
    if (!jsonl && strcmp(a->format, "text") != 0)
        return ERR("--format: \"%s\" is neither text nor jsonl", a->format);
    TRY(synth_options_check(&a->synth));
    sink to = { NULL };
    if (a->out) TRY(io_writer_open(a->out, &to.file));
    return synth_write_all(a, jsonl, &to);
}

/* ---- tokenize ---------------------------------------------------------------------------------- */

static err copy_tokens(const data_source *from, token_writer *to) {
    int32_t ids[4096];
    int64_t total = data_source_info(from)->tokens;
    for (int64_t at = 0; at < total; at += (int64_t)COUNT_OF(ids)) {
        int64_t n = MIN((int64_t)COUNT_OF(ids), total - at);
        data_read(from, at, n, ids);
        TRY(token_writer_add(to, ids, n));
    }
    return OK;
}

static err run_tokenize(const data_args *a) {
    if (!a->out) return ERR("--out: needs a file to write the tokens to");
    data_source *source = NULL;
    token_writer *w = NULL;
    err e = OK;
    TRY_CLEAN(data_open(a->input, 0, &source));
    const data_info *info = data_source_info(source);
    if (info->vocab == 0) {
        e = err_hint(ERR("%s: %s do not say how large their vocabulary is", a->input, info->format),
                     "train on the file as it is");
        goto cleanup;
    }
    TRY_CLEAN(token_writer_open(a->out,
                                &(token_writer_options){ .vocab = info->vocab,
                                                         .eos = info->eos,
                                                         .tokenizer = info->tokenizer,
                                                         .tokenizer_hash = info->tokenizer_hash },
                                &w));
    TRY_CLEAN(copy_tokens(source, w));
    token_writer *done = w;
    w = NULL; /* close frees it */
    TRY_CLEAN(token_writer_close(done));
    fprintf(stderr, "%s: %lld documents, %lld tokens\n", a->out, (long long)info->documents,
            (long long)info->tokens);
cleanup:
    token_writer_abandon(w);
    data_close(source);
    return e;
}

/* ---- inspect ----------------------------------------------------------------------------------- */

static void print_info(const data_info *info) {
    printf("file        %s\nformat      %s\ntokenizer   %s\ntokens      %lld\n", info->path,
           info->format, tokenizer_kind_name(info->tokenizer), (long long)info->tokens);
    if (info->documents >= 0) printf("documents   %lld\n", (long long)info->documents);
    if (info->vocab > 0) printf("vocabulary  %lld\n", (long long)info->vocab);
    if (info->eos >= 0) printf("end id      %lld\n", (long long)info->eos);
    printf("bytes each  %d\n", info->width);
}

static void print_beginning(const data_source *s) {
    int32_t ids[400];
    const data_info *info = data_source_info(s);
    int64_t n = MIN((int64_t)COUNT_OF(ids), info->tokens);
    data_read(s, 0, n, ids);
    str text = { 0 };
    if (info->tokenizer == TOKENIZER_BYTES)
        byte_decode(ids, (size_t)n, &text);
    else
        for (int64_t i = 0; i < MIN(n, 32); i++) str_add(&text, "%lld ", (long long)ids[i]);
    printf("\nIt begins:\n%s%s\n", text.text, n < info->tokens ? " ..." : "");
    str_free(&text);
}

static void print_json(const data_info *info) {
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:i, s:i}", "file", info->path, "format",
                  info->format, "tokenizer", tokenizer_kind_name(info->tokenizer), "tokens",
                  (json_int_t)info->tokens, "documents", (json_int_t)info->documents, "vocabulary",
                  (json_int_t)info->vocab, "end_id", (int)info->eos, "token_bytes", info->width);
    BUG_IF(o == NULL);
    json_dumpf(o, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(o);
}

static err run_inspect(const data_args *a) {
    data_source *s = NULL;
    err e = OK;
    TRY_CLEAN(data_open(a->input, 0, &s));
    if (a->verify) TRY_CLEAN(data_verify(s));
    if (a->json) {
        print_json(data_source_info(s));
    } else {
        print_info(data_source_info(s));
        print_beginning(s);
    }
    if (fflush(stdout) != 0) e = ERR("cannot write to standard output: %s", strerror(errno));
cleanup:
    data_close(s);
    return e;
}

/* ---- the table --------------------------------------------------------------------------------- */

#define AT(member)     offsetof(data_args, member)
#define PLANTED(kind_) offsetof(data_args, synth.plant[kind_])
/* clang-format off */
static const subcommand subcommands[] = {
    { "synth", "[options]", "write small English stories and articles, as many as you like", run_synth, false, {
        { "documents", ARG_COUNT, AT(documents), "N", "how many (default 1000, or as many as --bytes needs)" },
        { "bytes", ARG_COUNT, AT(bytes), "N", "stop once this much text is written" },
        { "seed", ARG_COUNT, AT(seed), "N", "another seed, another corpus (default 0)" },
        { "first", ARG_COUNT, AT(first), "I", "begin with document I (default 0): ranges can be made apart" },
        { "out", ARG_TEXT, AT(out), "FILE", "where to (default: standard output)" },
        { "format", ARG_TEXT, AT(format), "text|jsonl", "documents between " DATA_SEPARATOR " lines, or JSON lines (default text)" },
        { "duplicates", ARG_FRACTION, PLANTED(PLANT_DUPLICATE), "F", "part of the documents that repeat an earlier one" },
        { "near-duplicates", ARG_FRACTION, PLANTED(PLANT_NEAR_DUPLICATE), "F", "... that repeat one with a few words changed" },
        { "boilerplate", ARG_FRACTION, PLANTED(PLANT_BOILERPLATE), "F", "... with menus, notices and footers" },
        { "markup", ARG_FRACTION, PLANTED(PLANT_MARKUP), "F", "... with HTML left in" },
        { "garbage", ARG_FRACTION, PLANTED(PLANT_GARBAGE), "F", "... that are no text at all" } } },
    { "tokenize", "FILE --out FILE.tok", "turn text or JSON lines into a token file", run_tokenize, true, {
        { "out", ARG_TEXT, AT(out), "FILE", "the token file to write" } } },
    { "inspect", "FILE [options]", "say what a token file or a text holds", run_inspect, true, {
        { "verify", ARG_FLAG, AT(verify), "", "read all of it: checksum and ids, however large" },
        { "json", ARG_FLAG, AT(json), "", "print JSON" } } },
};
/* clang-format on */

static void print_subcommand(const subcommand *s) {
    printf("ingot data %s: %s\n\nusage: ingot data %s %s\n\n", s->name, s->summary, s->name,
           s->usage);
    for (const arg *o = s->args; o->name; o++) {
        char left[48];
        snprintf(left, sizeof left, "--%s %s", o->name, o->holder);
        printf("  %-24s %s\n", left, o->help);
    }
}

static const char *subcommand_name(const void *ctx, int i) { return subcommands[i].name; }

static err unknown_subcommand(const char *name) {
    err e = ERR("usage: \"%s\" is no subcommand of data", name);
    const char *near = str_nearest(name, subcommand_name, NULL, (int)COUNT_OF(subcommands));
    if (near) return err_hint(e, "did you mean \"ingot data %s\"?", near);
    return err_hint(e, "\"ingot data --help\" lists them");
}

err cmd_data(int argc, char **argv) {
    if (argc < 2)
        return err_hint(ERR("usage: ingot data synth|tokenize|inspect ..."),
                        "\"ingot data --help\" tells more");
    const subcommand *s = NULL;
    for (size_t i = 0; i < COUNT_OF(subcommands); i++)
        if (strcmp(subcommands[i].name, argv[1]) == 0) s = &subcommands[i];
    if (!s) return unknown_subcommand(argv[1]);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        print_subcommand(s);
        return OK;
    }
    data_args a = { .format = "text" };
    TRY(parse_args(s, argc - 2, argv + 2, &a));
    return s->run(&a);
}
