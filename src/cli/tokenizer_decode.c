/* ingot tokenizer decode: ids on standard input to bytes. */
#include "cli/tokenizer_common.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct decode_args {
    const char *tokenizer, *pattern;
    bool skip_special;
} decode_args;

static err parse_ids(const tokenizer *t, const str *text, token_ids *out) {
    static const char spaces[] = " \t\r\n,";
    const char *p = text->len ? text->text : "", *end = p + text->len;
    out->at = mem_alloc((text->len / 2 + 1) * sizeof *out->at);
    for (;;) {
        p += strspn(p, spaces);
        if (p >= end) return OK;
        char *after = NULL;
        errno = 0;
        long long id = strtoll(p, &after, 10);
        if (after == p || (*after && !strchr(spaces, *after)))
            return err_hint(
                ERR("\"%.*s\" on standard input is not an id", (int)strcspn(p, spaces), p),
                "give whole numbers with white space between them");
        if (errno || id < 0 || id >= tokenizer_vocab(t))
            return err_hint(ERR("the id %.*s is not in the vocabulary, 0 to %lld",
                                (int)strcspn(p, spaces), p, (long long)tokenizer_vocab(t) - 1),
                            "decode with the tokenizer that made the ids");
        out->at[out->n++] = (int32_t)id;
        p = after;
    }
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    decode_args a = { 0 };
    tokenizer *t = NULL;
    str text = { 0 }, out = { 0 };
    token_ids ids = { 0 };
    err e = OK;
    TRY(cli_parse(&self->spec, argc, argv, &a, NULL));
    TRY(cli_open_tokenizer(a.tokenizer, a.pattern, &t));
    TRY_CLEAN(cli_read_stdin("ids", &text));
    TRY_CLEAN(parse_ids(t, &text, &ids));
    tokenizer_decode(t, ids.at, ids.n, !a.skip_special, &out);
    bool good = !out.len || fwrite(out.text, 1, out.len, stdout) == out.len;
    if (!good || fflush(stdout) != 0)
        e = ERR("cannot write to standard output: %s", strerror(errno));
cleanup:
    token_ids_free(&ids);
    str_free(&text);
    str_free(&out);
    tokenizer_free(t);
    return e;
}

static const cli_arg args[] = {
    TOKENIZER_ARG(decode_args),
    { "skip-special", ARG_FLAG, offsetof(decode_args, skip_special), "", "omit special tokens" },
    PATTERN_ARG(decode_args),
};

const cli_subcommand tokenizer_decode_ids = {
    .summary = "turn ids on standard input back into text",
    .run = run,
    .spec = { "tokenizer decode", "-t FILE [options] < IDS", CLI_ARGS(args), 0, false },
    .help = "Example\n"
            "  ingot tokenizer decode -t tokenizer.json < notes.ids > notes.txt\n",
};
