/* The tokenizer.json of trained models over words by Metaspace, BPE and Unigram. */
#include <string.h>

#include "tokenizer/open_internal.h"
#include "tokenizer/train_internal.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

bool is_reserved_text(const tokenizer_options *o, const char *text, size_t len) {
    for (int i = 0; i < o->n_special; i++)
        if (strlen(o->special[i]) == len && memcmp(o->special[i], text, len) == 0) return true;
    return o->byte_fallback && len == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
}

/* ---- the document -------------------------------------------------------------------------------------- */

static json_t *added_special(const tokenizer_options *o) {
    json_t *all = json_array();
    for (int i = 0; i < o->n_special; i++)
        json_array_append_new(all, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", i,
                                             "content", o->special[i], "single_word", 0, "lstrip",
                                             0, "rstrip", 0, "normalized", 0, "special", 1));
    return all;
}

const char *metaspace_name(metaspace_prepend p) {
    static const char *const names[] = { [METASPACE_OFF] = "off",
                                         [METASPACE_ALWAYS] = "always",
                                         [METASPACE_FIRST] = "first",
                                         [METASPACE_NEVER] = "never" };
    return names[p];
}

static json_t *metaspace_step(metaspace_prepend prepend) {
    return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", SPACE_MARK,
                     "prepend_scheme", metaspace_name(prepend), "split", 1);
}

/* Metaspace's own decoder does not join bytes to characters. */
static json_t *metaspace_decoder(const tokenizer_options *o) {
    if (!o->byte_fallback) return metaspace_step(o->metaspace);
    json_t *steps =
        json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                  SPACE_MARK, "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (o->metaspace != METASPACE_NEVER)
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                               " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

err metaspace_tokenizer(json_t *model, const tokenizer_options *o, tokenizer **out) {
    norm_step norms[MAX_STEPS] = { 0 };
    int n_norms = 0;
    err e = OK;
    char *source = NULL;
    json_t *doc = NULL;
    BUG_IF(!model);
    TRY_CLEAN(norms_parse(o->normalize, norms, &n_norms));
    doc = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:n, s:o, s:O}", "version", "1.0", "truncation",
                    "padding", "added_tokens", added_special(o), "normalizer",
                    norms_json(norms, n_norms), "pre_tokenizer", metaspace_step(o->metaspace),
                    "post_processor", "decoder", metaspace_decoder(o), "model", model);
    BUG_IF(!doc);
    source = json_dumps(doc, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    BUG_IF(!source);
    TRY_CLEAN(tokenizer_from_json(doc, "what was learned", source, strlen(source), out));
cleanup:
    json_decref(doc);
    json_decref(model);
    return e;
}

/* ---- BPE ------------------------------------------------------------------------------------------------ */

static json_t *token_text_json(const bpe_learned *l, int32_t id) {
    return json_stringn(l->tokens[id].at, l->tokens[id].len);
}

/* Characters without a token become one unknown token for each run of them, as in SentencePiece. */
err metaspace_bpe(const bpe_learned *l, const tokenizer_options *o, tokenizer **out) {
    json_t *vocab = json_object(), *merges = json_array();
    for (int64_t i = 0; i < l->n_tokens; i++)
        json_object_setn_new(vocab, l->tokens[i].at, l->tokens[i].len, json_integer(i));
    for (int64_t i = 0; i < l->n_merges; i++)
        json_array_append_new(merges, json_pack("[o, o]", token_text_json(l, l->merges[i].left),
                                                token_text_json(l, l->merges[i].right)));
    return metaspace_tokenizer(json_pack("{s:s, s:n, s:s, s:n, s:n, s:b, s:b, s:b, s:o, s:o}",
                                         "type", "BPE", "dropout", "unk_token", o->special[0],
                                         "continuing_subword_prefix", "end_of_word_suffix",
                                         "fuse_unk", 1, "byte_fallback", o->byte_fallback,
                                         "ignore_merges", 0, "vocab", vocab, "merges", merges),
                               o, out);
}
