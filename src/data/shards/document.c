/* The tokens of a document: what is put around its text, and what ends it. One function makes them for
 * shards and for texts that are trained on directly. */
#include "shards/data_internal.h"

#include "tokenizer/tokenizer.h"

static bool holds_id(const int32_t *ids, int n, int32_t id) {
    for (int i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

err document_layout_of(const tokenizer *t, int32_t eos, bool prefix, document_layout *out) {
    token_affixes *a = &out->affixes;
    *out = (document_layout){ *tokenizer_affixes(t), -1, -1 };
    if (!prefix) a->n_prefix = 0;
    if (eos != DOCUMENT_END_OWN) a->n_suffix = 0;
    if (eos == DOCUMENT_END_NONE) return OK;
    if (eos == DOCUMENT_END_OWN) eos = tokenizer_eos(t);
    if (eos < 0 || eos >= tokenizer_vocab(t))
        return err_hint(
            ERR_USAGE("--eos: the tokenizer does not name a token that ends a document"),
            "name it, for example --eos \"<|endoftext|>\"");
    bool ends = a->n_suffix && a->suffix[a->n_suffix - 1] == eos;
    /* Readers find documents by an end that occurs once; BOS and EOS may be the same token. */
    bool once =
        !holds_id(a->prefix, a->n_prefix, eos) && !holds_id(a->suffix, a->n_suffix - ends, eos);
    out->append = ends ? -1 : eos;
    out->eos = once ? eos : -1;
    return OK;
}

size_t document_encode(encoder *e, const document_layout *d, const char *prompt, size_t n_prompt,
                       const char *text, size_t n, token_ids *out) {
    out->n = 0;
    token_ids_add(out, d->affixes.prefix, (size_t)d->affixes.n_prefix);
    if (n_prompt) encoder_add(e, prompt, n_prompt, false, out);
    size_t before = out->n;
    encoder_add(e, text, n, false, out);
    if (out->n == before)
        out->n = 0;
    else
        token_ids_add(out, d->affixes.suffix, (size_t)d->affixes.n_suffix);
    return n_prompt && out->n ? before : 0;
}
