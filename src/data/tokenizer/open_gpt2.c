/* GPT-2's two files, read as the equivalent tokenizer.json. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "tokenizer/open_internal.h"

static const size_t MAX_MERGES = (size_t)64 << 20; /* bytes */

/* One pair of texts a line, after a line with the version. */
static err read_merges_file(const char *path, json_t *merges) {
    char *text = NULL;
    TRY(io_read(path, MAX_MERGES, &text, NULL));
    err e = OK;
    char *rest = text;
    for (int line = 1; rest && !e; line++) {
        char *s = strsep(&rest, "\n");
        size_t n = strlen(s);
        if (n && s[n - 1] == '\r') s[n - 1] = 0;
        if (!s[0] || str_starts(s, "#version")) continue;
        if (json_array_append_new(merges, json_string(s)) != 0)
            e = ERR("%s:%d: the line is not UTF-8", path, line);
    }
    free(text);
    return e;
}

static err add_end_of_text(const json_t *vocab, json_t *added) {
    const json_t *id = json_object_get(vocab, TEXT_SEPARATOR);
    if (!json_is_integer(id)) return OK;
    json_t *token = json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", json_integer_value(id),
                              "content", TEXT_SEPARATOR, "single_word", 0, "lstrip", 0, "rstrip", 0,
                              "normalized", 0, "special", 1);
    BUG_IF(!token);
    json_array_append_new(added, token);
    return OK;
}

err tokenizer_open_gpt2(const char *vocab_path, const char *merges_path, tokenizer **out) {
    json_t *vocab = NULL, *merges = json_array(), *added = json_array(), *doc = NULL;
    err e = OK;
    *out = NULL;
    TRY_CLEAN(io_json_read(vocab_path, &vocab));
    TRY_CLEAN(read_merges_file(merges_path, merges));
    TRY_CLEAN(add_end_of_text(vocab, added));
    doc = json_pack("{s:s, s:O, s:n, s:{s:s, s:b, s:b, s:b}, s:n, s:{s:s}, s:{s:s, s:O, s:O}}",
                    "version", "1.0", "added_tokens", added, "normalizer", "pre_tokenizer", "type",
                    "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 1,
                    "post_processor", "decoder", "type", "ByteLevel", "model", "type", "BPE",
                    "vocab", vocab, "merges", merges);
    BUG_IF(!doc);
    char *source = json_dumps(doc, JSON_INDENT(2));
    BUG_IF(!source);
    TRY_CLEAN(tokenizer_from_json(doc, vocab_path, source, strlen(source), out));
cleanup:
    json_decref(doc);
    json_decref(vocab);
    json_decref(merges);
    json_decref(added);
    return e;
}
