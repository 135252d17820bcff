/* Opening: which kind of file is it? */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "tokenizer/open_internal.h"

/* The first of the names that the folder has. @return owned (free), NULL: none. */
static char *first_there(const char *folder, const char *const *names) {
    for (; *names; names++) {
        char *path = io_join(folder, *names);
        if (io_exists(path)) return path;
        free(path);
    }
    return NULL;
}

/* Llama 3's tokenizer.model is lines of base64 and ranks; SentencePiece's begins with a piece: a newline and
 * a length. */
static bool is_rank_list(const char *path) {
    char head[64];
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0, digits;
    if (f) fclose(f);
    head[n] = 0;
    digits = strspn(head, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=");
    return digits > 0 && head[digits] == ' ' && head[digits + 1] >= '0' && head[digits + 1] <= '9';
}

static err open_model(const char *path, tokenizer **out) {
    return is_rank_list(path) ? tokenizer_open_tiktoken(path, NULL, out)
                              : tokenizer_open_sentencepiece(path, out);
}

static err open_tokenizer_folder(const char *path, tokenizer **out) {
    static const char *const vocabs[] = { "vocab.json", "encoder.json", NULL };
    static const char *const lists[] = { "merges.txt", "vocab.bpe", NULL };
    static const char *const whole[] = { "tokenizer.json", NULL };
    static const char *const models[] = { "tokenizer.model", NULL };
    char *json = first_there(path, whole), *vocab = first_there(path, vocabs);
    char *merges = first_there(path, lists), *model = first_there(path, models);
    err e;
    if (json)
        e = tokenizer_open_json(json, out);
    else if (vocab && merges)
        e = tokenizer_open_gpt2(vocab, merges, out);
    else if (model)
        e = open_model(model, out);
    else
        e = err_hint(ERR("%s holds no tokenizer", path),
                     "expected tokenizer.json, vocab.json and merges.txt, or tokenizer.model");
    free(json);
    free(vocab);
    free(merges);
    free(model);
    return e;
}

static err open_any(const char *path, const char *pattern, tokenizer **out) {
    if (strcmp(path, "bytes") == 0) return tokenizer_bytes(out);
    if (str_ends(path, ".tiktoken") || (pattern && str_ends(path, ".model") && is_rank_list(path)))
        return tokenizer_open_tiktoken(path, pattern, out);
    if (pattern)
        return err_hint(ERR_USAGE("--pattern: %s defines itself how text is split", path),
                        "omit --pattern; it is for .tiktoken files");
    if (io_is_dir(path)) return open_tokenizer_folder(path, out);
    if (str_ends(path, ".json")) return tokenizer_open_json(path, out);
    if (str_ends(path, ".model")) return open_model(path, out);
    return err_hint(ERR("%s is not the name of a tokenizer", path),
                    "expected a tokenizer.json, a folder that holds one or GPT-2's two files, a "
                    "SentencePiece .model, a .tiktoken file, or \"bytes\"");
}

err tokenizer_open(const char *path, const char *pattern, tokenizer **out) {
    *out = NULL;
    TRY(open_any(path, pattern, out));
    err e = affixes_from_settings(path, *out);
    if (!e) return OK;
    tokenizer_free(*out);
    *out = NULL;
    return e;
}
