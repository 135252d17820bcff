/* ingot tokenizer encode: standard input to ids. */
#include "cli/tokenizer_common.h"
#include "text/text.h"

#include <errno.h>
#include <string.h>

typedef struct encode_args {
    const char *tokenizer, *pattern;
    bool ids, special, bare;
} encode_args;

/* A piece in quotes; what is not printable as \n or \xNN. */
static void add_quoted_text(const char *s, size_t n, str *out) {
    str_add(out, "\"");
    for (size_t i = 0; i < n;) {
        size_t valid = utf8_valid(s + i, MIN(n - i, 4)), len = 1;
        uint32_t cp = 0;
        if (valid) len = (size_t)utf8_decode(s + i, &cp);
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            str_add(out, "\\%c", c);
        else if (c == '\n' || c == '\r' || c == '\t')
            str_add(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!valid || c < ' ' || c == 127)
            str_add(out, "\\x%02x", c);
        else
            str_add_bytes(out, s + i, len);
        i += len;
    }
    str_add(out, "\"");
}

/* One line of ids, or one id and its text a line. */
static err print_token_ids(const tokenizer *t, const token_ids *ids, bool plain) {
    str out = { 0 }, piece = { 0 };
    bool good = true;
    for (size_t i = 0; i < ids->n && good; i++) {
        if (plain) {
            str_add(&out, "%s%d", i ? " " : "", ids->at[i]);
        } else {
            piece.len = 0;
            tokenizer_decode(t, &ids->at[i], 1, true, &piece);
            str_add(&out, "%7d  ", ids->at[i]);
            add_quoted_text(piece.text, piece.len, &out);
            str_add(&out, "\n");
        }
        if (out.len < 65536) continue;
        good = fwrite(out.text, 1, out.len, stdout) == out.len;
        out.len = 0;
    }
    if (plain) str_add(&out, "\n");
    good = good && (!out.len || fwrite(out.text, 1, out.len, stdout) == out.len);
    good = good && fflush(stdout) == 0;
    str_free(&out);
    str_free(&piece);
    return good ? OK : ERR("cannot write to standard output: %s", strerror(errno));
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    encode_args a = { 0 };
    tokenizer *t = NULL;
    encoder *encode = NULL;
    str text = { 0 };
    token_ids ids = { 0 };
    err e = OK;
    TRY(cli_parse(&self->spec, argc, argv, &a, NULL));
    TRY(cli_open_tokenizer(a.tokenizer, a.pattern, &t));
    TRY_CLEAN(cli_read_stdin("text", &text));
    encode = encoder_new(t);
    cli_encode(encode, text.len ? text.text : "", text.len, a.special, a.bare, &ids);
    TRY_CLEAN(print_token_ids(t, &ids, a.ids));
cleanup:
    token_ids_free(&ids);
    str_free(&text);
    encoder_free(encode);
    tokenizer_free(t);
    return e;
}

static const cli_arg args[] = {
    TOKENIZER_ARG(encode_args),
    { "ids", ARG_FLAG, offsetof(encode_args, ids), "", "only the ids, on one line" },
    SPECIAL_ARG(encode_args),
    BARE_ARG(encode_args),
    PATTERN_ARG(encode_args),
};

const cli_subcommand tokenizer_encode = {
    .summary = "turn standard input into ids",
    .run = run,
    .spec = { "tokenizer encode", "-t FILE [--ids] [options] < TEXT", CLI_ARGS(args), 0, false },
    .help =
        "Without --ids each id is shown with its text, one per line. As in Hugging Face's encode, BOS and\n"
        "EOS are added where the tokenizer's post-processor adds them; --bare leaves them out.\n"
        "\n"
        "Examples\n"
        "  echo -n \"Once upon a time\" | ingot tokenizer encode -t tokenizer.json\n"
        "  ingot tokenizer encode -t cl100k_base.tiktoken --ids < notes.txt > notes.ids\n",
};
