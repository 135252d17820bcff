/* The tokenizer object: built from its parts, queried, hashed, freed. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

/* ---- questions --------------------------------------------------------------------------------- */

int64_t tokenizer_vocab(const tokenizer *t) { return t->vocab; }
int32_t tokenizer_eos(const tokenizer *t) { return t->eos; }
uint64_t tokenizer_hash(const tokenizer *t) { return t->hash; }
const char *tokenizer_kind(const tokenizer *t) { return t->kind; }

int32_t tokenizer_find(const tokenizer *t, const char *text, size_t n) {
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].len == n && memcmp(t->added[i].text, text, n) == 0) return t->added[i].id;
    return bpe_find(&t->bpe, text, n);
}

void tokenizer_free(tokenizer *t) {
    if (!t) return;
    for (int i = 0; i < t->n_norms; i++) {
        finder_free(&t->norms[i].find);
        free(t->norms[i].with);
        charsmap_free(t->norms[i].map);
    }
    for (int i = 0; i < t->n_splits; i++) {
        finder_free(&t->splits[i].find);
        free(t->splits[i].space);
        free(t->splits[i].prepend);
    }
    for (int i = 0; i < t->n_added; i++) {
        free(t->added[i].text);
        free(t->added[i].match);
    }
    free(t->added);
    free(t->raw.by_match);
    free(t->normal.by_match);
    free(t->decoded);
    free(t->decoded_bytes);
    free(t->decoded_first);
    free(t->decoded_first_bytes);
    free(t->is_special);
    free(t->unknown_surface);
    free(t->source);
    unigram_free(t->unigram);
    adjacency_free(&t->adjacency);
    bpe_free(&t->bpe);
    free(t);
}

/* ---- hash: of everything that changes ids ---------------------------------------------------------- */

static uint64_t mix_bytes(uint64_t h, const void *bytes, size_t n) {
    return hash_bytes(bytes, n, h + n);
}
static uint64_t mix_int(uint64_t h, int64_t x) { return mix_bytes(h, &x, sizeof x); }
static uint64_t mix_text(uint64_t h, const char *s) {
    return s ? mix_bytes(h, s, strlen(s)) : mix_int(h, -1);
}

static uint64_t mix_finder(uint64_t h, const finder *f) {
    return mix_text(mix_text(h, f->literal), f->source);
}

static uint64_t mix_bpe(uint64_t h, const bpe *b) {
    for (int64_t i = 0; i < b->n; i++) h = mix_bytes(h, b->tokens[i].at, b->tokens[i].len);
    uint64_t pairs = 0; /* a sum: the order they lie in does not matter */
    for (uint64_t i = 0; b->pairs && i <= b->pairs_mask; i++)
        pairs += hash_bytes(&b->pairs[i], sizeof b->pairs[i], 0) * (b->pairs[i].pair != UINT64_MAX);
    h = mix_int(h, (int64_t)pairs);
    h = mix_bytes(h, b->byte_id, sizeof b->byte_id);
    h = mix_int(h, b->chars | b->whole_first << 1 | b->fuse_unknown << 2);
    return mix_int(h, b->unknown);
}

static uint64_t hash_of(const tokenizer *t) {
    uint64_t h = mix_bpe(0, &t->bpe);
    if (t->unigram) h = mix_int(h, (int64_t)unigram_hash(t->unigram, t->bpe.n));
    for (int i = 0; i < t->n_norms; i++) {
        const norm_step *s = &t->norms[i];
        h = mix_text(mix_finder(mix_int(h, s->kind), &s->find), s->with);
        if (s->map) h = mix_int(h, (int64_t)charsmap_hash(s->map) + s->longest);
        if (s->kind == NORM_STRIP) h = mix_int(h, s->strip_left * 2 + s->strip_right);
    }
    for (int i = 0; i < t->n_splits; i++) {
        const split_step *s = &t->splits[i];
        h = mix_finder(mix_int(h, s->behavior * 8 + s->scheme * 2 + s->invert), &s->find);
        h = mix_text(mix_text(h, s->space), s->prepend);
    }
    for (int i = 0; i < t->n_added; i++) {
        const added_token *a = &t->added[i];
        h = mix_bytes(mix_int(h, a->id), a->text, a->len);
        h = mix_int(h, a->special | a->normalized << 1 | a->lstrip << 2 | a->rstrip << 3 |
                           a->single_word << 4);
    }
    return h;
}

/* ---- putting together ------------------------------------------------------------------------------- */

#define BAR  "\xEF\xBD\x9C" /* U+FF5C */
#define MARK "\xE2\x96\x81" /* U+2581 */
/* By what people call the end of a document, the likeliest first. */
int32_t tokenizer_find_eos(const tokenizer *t) {
    if (t->affixes.n_suffix) return t->affixes.suffix[t->affixes.n_suffix - 1];
    static const char *const names[] = { "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>",
                                         ("<" BAR "end" MARK "of" MARK "sentence" BAR ">") };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        int32_t id = tokenizer_find(t, names[i], strlen(names[i]));
        if (id >= 0) return id;
    }
    return -1;
}

void added_token_set(const tokenizer *t, added_token *a, const char *text, size_t n) {
    regex_work *w = regex_work_new(false);
    str scratch[2] = { { 0 }, { 0 } };
    text_span match = { text, n };
    /* a symbol of a SentencePiece model is left as it is by the normalization of a text */
    if (a->normalized && !t->sentencepiece)
        match = normalize_text(t->norms, t->n_norms, w, match, scratch);
    a->text = mem_alloc(n + 1);
    memcpy(a->text, text, n);
    a->len = n;
    a->match = mem_alloc(match.len + 1);
    memcpy(a->match, match.at, match.len);
    a->match_len = match.len;
    str_free(&scratch[0]);
    str_free(&scratch[1]);
    regex_work_free(w);
}

static scan_fn only_scanner(const tokenizer *t) {
    if (t->n_norms) return NULL;
    if (t->n_splits == 0) return scan_whole;
    const split_step *c = &t->splits[0];
    bool plain = !c->space && !c->prepend && !c->invert && c->behavior == SPLIT_ISOLATED;
    return t->n_splits == 1 && plain ? c->find.scan : NULL;
}

text_span *tokenizer_texts(const tokenizer *t) {
    text_span *texts = mem_alloc((size_t)(t->vocab + 1) * sizeof *texts);
    for (int64_t i = 0; i < t->bpe.n; i++) texts[i] = t->bpe.tokens[i];
    for (int i = 0; i < t->n_added; i++)
        texts[t->added[i].id] = (text_span){ t->added[i].match, t->added[i].match_len };
    return texts;
}

void tokenizer_finish(tokenizer *t, const text_span *decoded) {
    static const text_span missing = { "\xEF\xBF\xBD", 3 };
    text_span *texts = decoded ? NULL : tokenizer_texts(t);
    for (int64_t i = 0; texts && i < t->vocab; i++)
        if (!texts[i].len) texts[i] = missing;
    t->decoded = spans_copy(decoded ? decoded : texts, t->vocab, &t->decoded_bytes);
    free(texts);
    t->is_special = mem_alloc((size_t)t->vocab + 1);
    for (int i = 0; i < t->n_added; i++) t->is_special[t->added[i].id] |= t->added[i].special;
    added_set_build(&t->raw, t->added, t->n_added, false);
    added_set_build(&t->normal, t->added, t->n_added, true);
    t->scan = only_scanner(t);
    bpe_walk_build(&t->bpe);
    bpe_units_build(&t->bpe);
    adjacency_build(&t->bpe, &t->adjacency);
    t->eos = tokenizer_find_eos(t);
    t->hash = hash_of(t);
}

/* ---- from parts ------------------------------------------------------------------------------------- */

err finder_of(const char *pattern, regex_flavor flavor, finder *out) {
    const char *known = splitter_pattern(pattern);
    *out = (finder){ .scan = scanner_of(pattern) };
    if (!out->scan) TRY(regex_new(pattern, flavor, &out->re));
    out->source = strdup(known ? known : pattern);
    out->flavor = flavor;
    return OK;
}

static err add_merge(bpe *b, const bpe_parts *p, int64_t rank, str *joint) {
    bpe_pair m = p->merges[rank];
    if (m.left < 0 || m.right < 0 || m.left >= b->n || m.right >= b->n)
        return ERR("merge %lld joins %d and %d, of %lld tokens", (long long)rank, m.left, m.right,
                   (long long)b->n);
    const text_span *l = &b->tokens[m.left], *r = &b->tokens[m.right];
    joint->len = 0;
    str_add_bytes(joint, l->at, l->len);
    str_add_bytes(joint, r->at, r->len);
    int32_t made = bpe_find(b, joint->text, joint->len);
    if (made < 0)
        return ERR("merge %lld joins tokens %d and %d to a text that is not a token",
                   (long long)rank, m.left, m.right);
    bpe_add_pair(b, m, (uint32_t)rank, made);
    return OK;
}

static void index_special(tokenizer *t, const bpe_parts *p, bool *indexed) {
    t->added = mem_alloc(((size_t)p->n_special + 1) * sizeof *t->added);
    for (int i = 0; i < p->n_special; i++) {
        const text_span *s = &p->tokens[p->special[i]];
        indexed[p->special[i]] = false;
        added_token *a = &t->added[t->n_added++];
        *a = (added_token){ .id = p->special[i], .special = true };
        added_token_set(t, a, s->at, s->len);
    }
}

static err fill_tokenizer(tokenizer *t, const bpe_parts *p) {
    if (p->n_tokens > TOKEN_MAX_ID || p->n_merges > TOKEN_MAX_ID)
        return ERR("%lld tokens and %lld merges: at most %d are supported", (long long)p->n_tokens,
                   (long long)p->n_merges, TOKEN_MAX_ID);
    for (int i = 0; i < p->n_special; i++)
        BUG_IF(p->special[i] < 0 || p->special[i] >= p->n_tokens);
    TRY(norms_parse(p->normalize, t->norms, &t->n_norms));
    if (p->pattern) {
        TRY(finder_of(p->pattern, p->flavor, &t->splits[0].find));
        t->n_splits = 1;
    }
    bool *indexed = mem_alloc((size_t)p->n_tokens + 1);
    memset(indexed, true, (size_t)p->n_tokens);
    index_special(t, p, indexed);
    bpe_set_tokens(&t->bpe, p->tokens, p->n_tokens, indexed);
    free(indexed);
    bpe_reserve_pairs(&t->bpe, p->n_merges);
    str joint = { 0 };
    err e = OK;
    for (int64_t i = 0; i < p->n_merges && !e; i++) e = add_merge(&t->bpe, p, i, &joint);
    str_free(&joint);
    return e;
}

err tokenizer_from_bpe(const bpe_parts *p, tokenizer **out) {
    tokenizer *t = mem_alloc(sizeof *t);
    *out = NULL;
    t->kind = "byte-level BPE";
    t->bpe.whole_first = p->whole_first;
    t->bpe.unknown = -1;
    t->vocab = p->n_tokens;
    err e = fill_tokenizer(t, p);
    if (e) {
        tokenizer_free(t);
        return e;
    }
    for (int b = 0; b < 256; b++) t->bpe.byte_id[b] = bpe_find(&t->bpe, &(char){ (char)b }, 1);
    tokenizer_finish(t, NULL);
    *out = t;
    return OK;
}

/* The built-in one: its ids are what shards/bytes.c makes. */
err tokenizer_bytes(tokenizer **out) {
    char bytes[256];
    text_span tokens[257];
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (text_span){ &bytes[i], 1 };
    }
    tokens[256] = (text_span){ TEXT_SEPARATOR, strlen(TEXT_SEPARATOR) };
    bpe_parts p = {
        .tokens = tokens, .n_tokens = 257, .special = (int32_t[]){ 256 }, .n_special = 1
    };
    TRY(tokenizer_from_bpe(&p, out));
    (*out)->kind = "bytes";
    return OK;
}
