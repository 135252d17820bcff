/* ingot data inspect: what a token file or a text holds. */
#include "cli/cli.h"
#include "data/data.h"
#include "io/io.h"

#include <errno.h>
#include <string.h>

typedef struct inspect_args {
    const char *input;
    bool json, verify;
} inspect_args;

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

static err inspect(const inspect_args *a) {
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

static err run(const cli_subcommand *self, int argc, char **argv) {
    inspect_args a = { 0 };
    TRY(cli_parse(&self->spec, argc, argv, &a, &a.input));
    return inspect(&a);
}

#define AT(member) offsetof(inspect_args, member)
/* clang-format off */
static const cli_arg args[] = {
    { "verify", ARG_FLAG, AT(verify), "", "read all of it: checksum and ids, however large" },
    { "json", ARG_FLAG, AT(json), "", "print JSON" },
};
/* clang-format on */

const cli_subcommand data_inspect = {
    .summary = "say what a token file or a text holds",
    .run = run,
    .spec = { "data inspect", "FILE [options]", args, (int)COUNT_OF(args), 1, false },
};
