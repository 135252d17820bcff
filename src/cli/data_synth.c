/* ingot data synth: small English stories and articles, as many as wanted. */
#include "cli/cli.h"
#include "shards/data.h"
#include "io/io.h"

#include <errno.h>
#include <string.h>

typedef struct synth_args {
    int64_t documents, bytes, seed, first;
    const char *out, *format;
    synth_options synth;
} synth_args;

/* ---- output: standard output, or a file that appears when it is complete -------------------- */

typedef struct synth_output {
    io_writer *file; /* NULL: standard output */
} synth_output;

static err write_synth_text(synth_output *to, const str *text) {
    if (to->file) return io_writer_write(to->file, text->text, text->len);
    if (fwrite(text->text, 1, text->len, stdout) != text->len)
        return ERR("cannot write to standard output: %s", strerror(errno));
    return OK;
}

static err sink_close(synth_output *to) {
    io_writer *file = to->file;
    to->file = NULL;
    if (file) return io_writer_commit(file);
    if (fflush(stdout) != 0) return ERR("cannot write to standard output: %s", strerror(errno));
    return OK;
}

/* ---- the documents ------------------------------------------------------------------------- */

static void add_jsonl(int64_t index, const synth_info *info, const str *text, str *out) {
    json_t *o = json_pack("{s:I, s:s, s:s%}", "id", (json_int_t)index, "source", info->source,
                          "text", text->text, text->len);
    BUG_IF(o == NULL);
    if (info->planted != PLANT_NONE)
        json_object_set_new(o, "planted", json_string(plant_name(info->planted)));
    if (info->of >= 0) json_object_set_new(o, "of", json_integer(info->of));
    io_json_add(out, o, JSON_COMPACT);
    str_add(out, "\n");
}

static err synth_write_all(const synth_args *a, bool jsonl, synth_output *to) {
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
            str_add(&line, "%s\n%s\n", text.text, TEXT_SEPARATOR);
        bytes += (int64_t)text.len;
        TRY_CLEAN(write_synth_text(to, &line));
    }
    TRY_CLEAN(sink_close(to));
cleanup:
    io_writer_abort(to->file);
    str_free(&text);
    str_free(&line);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    synth_args a = { .format = "text" };
    TRY(cli_parse(&self->spec, argc, argv, &a, NULL));
    bool jsonl = strcmp(a.format, "jsonl") == 0;
    if (!jsonl && strcmp(a.format, "text") != 0)
        return ERR_USAGE("--format: \"%s\" is neither text nor jsonl", a.format);
    TRY(synth_options_check(&a.synth));
    synth_output to = { NULL };
    if (a.out) TRY(io_writer_open(a.out, &to.file));
    return synth_write_all(&a, jsonl, &to);
}

#define AT(member)     offsetof(synth_args, member)
#define PLANTED(kind_) offsetof(synth_args, synth.plant[kind_])
/* clang-format off */
static const cli_arg args[] = {
    { "documents", ARG_COUNT, AT(documents), "N", "number of documents (default 1000, or as many as --bytes needs)" },
    { "bytes", ARG_COUNT, AT(bytes), "N", "stop once this much text is written" },
    { "seed", ARG_COUNT, AT(seed), "N", "a different seed gives a different corpus (default 0)" },
    { "first", ARG_COUNT, AT(first), "I", "begin with document I (default 0): ranges can be written separately" },
    { "out", ARG_TEXT, AT(out), "FILE", "output file (default: standard output)" },
    { "format", ARG_TEXT, AT(format), "text|jsonl", "documents between " TEXT_SEPARATOR " lines, or JSON lines (default text)" },
    { "duplicates", ARG_FRACTION, PLANTED(PLANT_DUPLICATE), "F", "fraction of the documents that repeat an earlier one" },
    { "near-duplicates", ARG_FRACTION, PLANTED(PLANT_NEAR_DUPLICATE), "F", "... that repeat one with a few words changed" },
    { "boilerplate", ARG_FRACTION, PLANTED(PLANT_BOILERPLATE), "F", "... with menus, notices and footers" },
    { "markup", ARG_FRACTION, PLANTED(PLANT_MARKUP), "F", "... with HTML left in" },
    { "garbage", ARG_FRACTION, PLANTED(PLANT_GARBAGE), "F", "... that are not text at all" },
};
/* clang-format on */

const cli_subcommand data_synth = {
    .summary = "generate short English stories and articles",
    .run = run,
    .spec = { "data synth", "[options]", CLI_ARGS(args), 0, false },
    .help = "Example\n"
            "  ingot data synth --bytes 10M --out stories.txt\n",
};
