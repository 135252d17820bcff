/* ingot data: make, tokenize and look at training data. */
#include "cli/cli.h"
#include "data/data.h"
#include "io/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct data_args {
    int64_t documents, bytes, seed, first;
    const char *out, *format, *input;
    synth_options synth;
    bool json, verify;
} data_args;

typedef struct subcommand {
    const char *summary;
    err (*run)(const data_args *a);
    cli_spec spec;
} subcommand;

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
static const cli_arg synth_args[] = {
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
    { "garbage", ARG_FRACTION, PLANTED(PLANT_GARBAGE), "F", "... that are no text at all" },
};
static const cli_arg tokenize_args[] = {
    { "out", ARG_TEXT, AT(out), "FILE", "the token file to write" },
};
static const cli_arg inspect_args[] = {
    { "verify", ARG_FLAG, AT(verify), "", "read all of it: checksum and ids, however large" },
    { "json", ARG_FLAG, AT(json), "", "print JSON" },
};
#define ARGS(table) table, (int)COUNT_OF(table)
static const subcommand subcommands[] = {
    { "write small English stories and articles, as many as you like", run_synth,
      { "data synth", "[options]", ARGS(synth_args), 0 } },
    { "turn text or JSON lines into a token file", run_tokenize,
      { "data tokenize", "FILE --out FILE.tok", ARGS(tokenize_args), 1 } },
    { "say what a token file or a text holds", run_inspect,
      { "data inspect", "FILE [options]", ARGS(inspect_args), 1 } },
};
/* clang-format on */

/* The word after "data". */
static const char *name_of(const subcommand *s) { return s->spec.command + strlen("data "); }

static void print_subcommand(const subcommand *s) {
    printf("ingot %s: %s\n\nusage: ingot %s %s\n\n", s->spec.command, s->summary, s->spec.command,
           s->spec.usage);
    cli_print_args(&s->spec);
}

static const char *subcommand_name(const void *ctx, int i) { return name_of(&subcommands[i]); }

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
        if (strcmp(name_of(&subcommands[i]), argv[1]) == 0) s = &subcommands[i];
    if (!s) return unknown_subcommand(argv[1]);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        print_subcommand(s);
        return OK;
    }
    data_args a = { .format = "text" };
    TRY(cli_parse(&s->spec, argc - 2, argv + 2, &a, &a.input));
    return s->run(&a);
}
