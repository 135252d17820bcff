/* Saving as the tokenizer.json that Hugging Face's library reads. */
#include <stdlib.h>
#include <string.h>

#include "store/vfs.h"
#include "io/io.h"
#include "tokenizer/chars_internal.h"
#include "tokenizer/open_internal.h"

/* A token as the vocabulary writes it: special ones as they are, others in GPT-2's alphabet. */
static void token_name(const tokenizer *t, int32_t id, str *out) {
    out->len = 0;
    str_add(out, "%s", "");
    text_span s = t->bpe.tokens[id];
    if (t->is_special[id])
        str_add_bytes(out, s.at, s.len);
    else
        alphabet_from_bytes(s.at, s.len, out);
}

static json_t *vocabulary_json(const tokenizer *t) {
    json_t *all = json_object();
    str name = { 0 };
    for (int32_t i = 0; i < t->bpe.n; i++) {
        if (!t->bpe.tokens[i].len) continue;
        token_name(t, i, &name);
        json_object_set_new(all, name.text, json_integer(i));
    }
    str_free(&name);
    return all;
}

SORT_ORDER(by_rank, pair_slot, RISING(made));

static json_t *merges_json(const tokenizer *t) {
    const bpe *b = &t->bpe;
    pair_slot *pairs = mem_alloc(((size_t)b->n_pairs + 1) * sizeof *pairs);
    size_t n = 0;
    for (uint64_t i = 0; i <= b->pairs_mask; i++)
        if (b->pairs[i].pair != UINT64_MAX) pairs[n++] = b->pairs[i];
    sort_array(pairs, n, sizeof *pairs, by_rank);
    json_t *all = json_array();
    str left = { 0 }, right = { 0 };
    for (size_t i = 0; i < n; i++) {
        token_name(t, (int32_t)(pairs[i].pair >> 32), &left);
        token_name(t, (int32_t)(uint32_t)pairs[i].pair, &right);
        json_array_append_new(all, json_pack("[s, s]", left.text, right.text));
    }
    str_free(&left);
    str_free(&right);
    free(pairs);
    return all;
}

static json_t *added_tokens(const tokenizer *t) {
    json_t *all = json_array();
    for (int i = 0; i < t->n_added; i++) {
        const added_token *a = &t->added[i];
        json_array_append_new(all, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", a->id,
                                             "content", a->text, "single_word", a->single_word,
                                             "lstrip", a->lstrip, "rstrip", a->rstrip, "normalized",
                                             a->normalized, "special", a->special));
    }
    return all;
}

static json_t *byte_level(bool use_regex) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", use_regex);
}

static json_t *pre_tokenizer(const tokenizer *t) {
    if (t->n_splits == 0) return byte_level(false);
    const char *pattern = t->splits[0].find.source;
    if (strcmp(pattern, splitter_pattern("gpt2")) == 0) return byte_level(true);
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "invert",
                     0, byte_level(false));
}

json_t *norms_json(const norm_step *norms, int n) {
    if (n == 0) return json_null();
    json_t *steps = json_array();
    for (int i = 0; i < n; i++) {
        const norm_step *s = &norms[i];
        json_t *o = json_pack("{s:s}", "type", normalizer_type(s->kind));
        BUG_IF(!o);
        if (s->kind == NORM_STRIP)
            json_object_update_new(o, json_pack("{s:b, s:b}", "strip_left", s->strip_left,
                                                "strip_right", s->strip_right));
        json_array_append_new(steps, o);
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

err tokenizer_json(const tokenizer *t, json_t **out) {
    if (t->source) { /* the document it came from */
        TRY(io_json_parse(t->source, t->source_len, "the tokenizer's source", out));
        if (t->affixes_changed) json_object_set_new(*out, "post_processor", affixes_json(t));
        return OK;
    }
    if (t->n_splits && t->splits[0].find.re && t->splits[0].find.flavor == REGEX_RUST)
        return ERR("the tokenizer has no tokenizer.json: Hugging Face reads the pattern %s "
                   "otherwise",
                   t->splits[0].find.source);
    *out =
        json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:{s:s, s:n, s:n, s:n, s:n, "
                  "s:b, s:b, s:b, s:o, s:o}}",
                  "version", "1.0", "truncation", "padding", "added_tokens", added_tokens(t),
                  "normalizer", norms_json(t->norms, t->n_norms), "pre_tokenizer", pre_tokenizer(t),
                  "post_processor", affixes_json(t), "decoder", byte_level(true), "model", "type",
                  "BPE", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", t->bpe.whole_first, "vocab",
                  vocabulary_json(t), "merges", merges_json(t));
    BUG_IF(!*out);
    return OK;
}

err tokenizer_save(const tokenizer *t, const char *path) {
    json_t *doc = NULL;
    if (t->source && !t->affixes_changed) return vfs_write(NULL, path, t->source, t->source_len);
    TRY(tokenizer_json(t, &doc));
    err e = vfs_json_write(NULL, path, doc);
    json_decref(doc);
    return e;
}
