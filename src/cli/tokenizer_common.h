/* Shared by the subcommands of `ingot tokenizer`. */
#ifndef INGOT_CLI_TOKENIZER_COMMON_H
#define INGOT_CLI_TOKENIZER_COMMON_H

#include "cli/cli.h"
#include "tokenizer/tokenizer.h"

/* clang-format off */
#define TOKENIZER_ARG(type) \
    { "tokenizer", ARG_TEXT, offsetof(type, tokenizer), "FILE", "a tokenizer.json, a folder with one or with GPT-2's two files, a SentencePiece .model, a .tiktoken file, or \"bytes\"", 't' }
#define PATTERN_ARG(type) \
    { "pattern", ARG_TEXT, offsetof(type, pattern), "NAME|REGEX", "how a .tiktoken file's text is split: gpt2, cl100k, qwen2, o200k or an expression (default: by its name)" }
#define SPECIAL_ARG(type) \
    { "special", ARG_FLAG, offsetof(type, special), "", "special tokens written out in the text count as such" }
#define BARE_ARG(type) \
    { "bare", ARG_FLAG, offsetof(type, bare), "", "without the tokens, such as BOS and EOS, that the tokenizer's post-processor puts around a text" }
/* clang-format on */

/* Opens what --tokenizer names. */
err cli_open_tokenizer(const char *path, const char *pattern, tokenizer **out) MUST_USE;
/* Encodes a text, with what the tokenizer puts around it unless it is to be bare. */
static inline void cli_encode(encoder *e, const char *text, size_t n, bool special, bool bare,
                              token_ids *out) {
    (bare ? encoder_add : encoder_add_affixed)(e, text, n, special, out);
}
/* All of standard input. @param what for messages: "text". */
err cli_read_stdin(const char *what, str *out) MUST_USE;

#endif
