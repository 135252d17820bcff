/* The merges, one after another: Hugging Face's order of ids and of pairs.
 *
 * Special tokens come first, then the 256 bytes in the order of the code points that stand for them
 * in a tokenizer.json, then what merges make. With Metaspace, the 256 bytes are there for byte fallback
 * only, and are followed by the characters in the order of their code points. The most frequent pair is
 * merged everywhere, from the left; of equals, the one with the smaller left id, then the smaller right
 * id. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/train_internal.h"

enum {
    FIXED_BYTES = 3 << 20, /* that learning takes for anything */
    CHAR_BYTES = 16 << 20, /* ... for tables over all characters */
    BYTES_PER_ID = 128,    /* ... and for each id */
};

/* One merged position: what is to the left and right of it, CELL_NONE at the ends of a word. */
typedef struct merged {
    uint32_t at, left, right;
    int run;
} merged;

typedef struct neighbor {
    int64_t weight; /* how often it is there */
    uint32_t n;     /* in how many positions */
    uint32_t *to;   /* where the pair's next position goes; NULL: too rare */
} neighbor;

/* The neighbors of a new token on one side. */
typedef struct token_side {
    neighbor *by_id;
    uint32_t *seen; /* [n_seen] ids whose n is not 0 */
    uint32_t n_seen;
} token_side;

typedef struct learner {
    const tokenizer_options *o;
    bpe_learned *out;
    bpe_symbols symbols;
    bpe_cells cells;
    bpe_pairs pairs;
    text_span *bytes; /* by id: what a token is in the words; not so for special tokens */
    uint32_t *length; /* by id: its symbols, in a table of its own as it is read all the time */
    text_span *twins; /* [n_special] bytes that a special token's text stands for; empty: none */
    merged *merged;
    uint32_t n_merged, cap_merged;
    token_side left, right;
} learner;

/* ---- ids ----------------------------------------------------------------------------------------- */

static bool is_same_text(text_span a, text_span b) {
    return a.len == b.len && memcmp(a.at, b.at, a.len) == 0;
}

static uint32_t add_token(learner *l, text_span text) {
    l->out->tokens[l->out->n_tokens] = text;
    return (uint32_t)l->out->n_tokens++;
}

/* @return the id of a token of these bytes: a special token's when it has just this text.
 * @param length in symbols. */
static uint32_t id_of_bytes(learner *l, text_span bytes, uint32_t length) {
    int i = 0;
    while (i < l->out->n_special && !is_same_text(l->twins[i], bytes)) i++;
    bool special = i < l->out->n_special;
    uint32_t id = special ? (uint32_t)l->out->special[i] : add_token(l, bytes);
    if (special) l->out->twin = (int32_t)id;
    l->bytes[id] = bytes;
    l->length[id] = length;
    return id;
}

/* The bytes that a special token's text stands for; empty when it stands for none. */
static text_span twin_of(text_span text, arena *memory) {
    str bytes = { 0 };
    text_span twin = { 0 };
    if (alphabet_to_bytes(text.at, text.len, &bytes)) {
        char *copy = arena_alloc(memory, bytes.len);
        memcpy(copy, bytes.text, bytes.len);
        twin = (text_span){ copy, bytes.len };
    }
    str_free(&bytes);
    return twin;
}

static void add_special_tokens(learner *l) {
    bpe_learned *out = l->out;
    for (int i = 0; i < l->o->n_special; i++) {
        text_span text = { arena_strdup(out->memory, l->o->special[i]), strlen(l->o->special[i]) };
        bool known = false;
        for (int k = 0; k < out->n_special; k++) known |= is_same_text(out->tokens[k], text);
        if (known) continue;
        l->twins[out->n_special] = l->symbols.chars ? text : twin_of(text, out->memory);
        out->special[out->n_special++] = (int32_t)add_token(l, text);
    }
}

static int by_character(const void *a, const void *b) {
    return (int)byte_to_char(*(const uint8_t *)a) - (int)byte_to_char(*(const uint8_t *)b);
}

static void add_byte_tokens(learner *l) {
    uint8_t *bytes = arena_alloc(l->out->memory, 256);
    l->symbols.ids = mem_alloc(256 * sizeof *l->symbols.ids);
    for (int i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
    sort_array(bytes, 256, 1, by_character);
    for (int i = 0; i < 256; i++)
        l->symbols.ids[bytes[i]] = id_of_bytes(l, (text_span){ (const char *)bytes + i, 1 }, 1);
}

/* Adds the tokens of single bytes, which characters without a token are written as. No merge makes these. */
static void add_fallback_tokens(learner *l) {
    enum { NAME = 6 };
    for (int i = 0; i < 256; i++) {
        char *name = arena_alloc(l->out->memory, NAME + 1);
        snprintf(name, NAME + 1, "<0x%02X>", (unsigned)i);
        id_of_bytes(l, (text_span){ name, NAME }, 1);
    }
}

static void count_word_chars(void *ctx, const char *word, size_t len, uint64_t count) {
    chars_count(ctx, word, len, count);
}

static err choose_symbols(learner *l, word_counts *counts, bool *covered) {
    uint64_t *seen = mem_alloc(CODE_POINTS * sizeof *seen);
    err e = word_counts_each(counts, false, count_word_chars, seen);
    seen[0] = 0; /* a tokenizer.json cannot hold it as a name */
    if (!e) l->out->uncovered = chars_choose(seen, l->o->coverage, covered);
    free(seen);
    return e;
}

static err add_char_tokens(learner *l, word_counts *counts) {
    bool *covered = mem_alloc(CODE_POINTS);
    int64_t chars = 0, most = l->o->vocab - l->out->n_tokens;
    err e = OK;
    TRY_CLEAN(choose_symbols(l, counts, covered));
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++) chars += covered[cp];
    if (chars > most) TRY_CLEAN(too_many_chars(l->o, chars));
    l->symbols.ids = mem_alloc(CODE_POINTS * sizeof *l->symbols.ids);
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++) {
        char *bytes = covered[cp] ? arena_alloc(l->out->memory, 4) : NULL;
        l->symbols.ids[cp] =
            bytes ? id_of_bytes(l, (text_span){ bytes, (size_t)utf8_encode(cp, bytes) }, 1)
                  : CELL_NONE;
    }
cleanup:
    free(covered);
    return e;
}

/* ---- one merge ------------------------------------------------------------------------------------ */

static void note_merged(learner *l, merged m) {
    if (l->n_merged == l->cap_merged) {
        l->cap_merged = MAX(1024, l->cap_merged * 2);
        l->merged = mem_grow(l->merged, l->cap_merged * sizeof *l->merged);
    }
    l->merged[l->n_merged++] = m;
}

/* Writes the new token where the pair still is, and notes what its neighbors are. Positions ascend, so
 * a run of one token pairs up from the left. */
static void replace_pair(learner *l, const pair_entry *pair, const uint32_t *positions,
                         uint32_t id) {
    uint32_t a = (uint32_t)(pair->key >> 32), b = (uint32_t)pair->key;
    uint32_t to_b = l->length[a], size = to_b + l->length[b];
    int run = 0;
    l->n_merged = 0;
    for (uint32_t i = 0; i < pair->n; i++) {
        uint32_t *cell = l->cells.at + positions[i];
        if (cell[0] != a || cell[to_b] != b) continue;
        run = bpe_cells_run(&l->cells, run, positions[i]);
        note_merged(l, (merged){ positions[i], cell[-1], cell[size], run });
        cell[to_b - 1] = cell[to_b] = CELL_NONE;
        cell[0] = cell[size - 1] = id;
        if (cell[-1] == id) l->merged[l->n_merged - 2].right = id; /* was the first of this pair */
    }
}

static void side_add(token_side *s, uint32_t id, int64_t weight) {
    if (s->by_id[id].n++ == 0) s->seen[s->n_seen++] = id;
    s->by_id[id].weight += weight;
}

/* Two new tokens side by side are a pair on the right of the first only. */
static void collect_sides(learner *l, uint32_t id) {
    for (uint32_t i = 0; i < l->n_merged; i++) {
        const merged *m = &l->merged[i];
        int64_t weight = l->cells.runs[m->run].weight;
        if (m->left != CELL_NONE && m->left != id) side_add(&l->left, m->left, weight);
        if (m->right != CELL_NONE) side_add(&l->right, m->right, weight);
    }
}

/* The pairs that went, and those that came: (x a) and (x id), (b y) and (id y). */
static void change_pairs(learner *l, uint32_t a, uint32_t b, uint32_t id) {
    bpe_pairs_reserve(&l->pairs, (size_t)l->n_merged * 2);
    for (uint32_t i = 0; i < l->left.n_seen; i++) {
        uint32_t x = l->left.seen[i];
        neighbor *n = &l->left.by_id[x];
        bpe_pairs_subtract(&l->pairs, x, a, n->weight);
        n->to = bpe_pairs_add(&l->pairs, x, id, n->weight, n->n);
    }
    for (uint32_t i = 0; i < l->right.n_seen; i++) {
        uint32_t y = l->right.seen[i];
        neighbor *n = &l->right.by_id[y];
        bpe_pairs_subtract(&l->pairs, b, y == id ? a : y, n->weight);
        n->to = bpe_pairs_add(&l->pairs, id, y, n->weight, n->n);
    }
}

static void place_pairs(learner *l, uint32_t id) {
    for (uint32_t i = 0; i < l->n_merged; i++) {
        const merged *m = &l->merged[i];
        if (m->left != CELL_NONE && m->left != id && l->left.by_id[m->left].to)
            *l->left.by_id[m->left].to++ = m->at - l->length[m->left];
        if (m->right != CELL_NONE && l->right.by_id[m->right].to)
            *l->right.by_id[m->right].to++ = m->at;
    }
}

static void side_clear(token_side *s) {
    for (uint32_t i = 0; i < s->n_seen; i++) s->by_id[s->seen[i]] = (neighbor){ 0 };
    s->n_seen = 0;
}

static text_span join_tokens(arena *memory, text_span a, text_span b) {
    char *bytes = arena_alloc(memory, a.len + b.len);
    memcpy(bytes, a.at, a.len);
    memcpy(bytes + a.len, b.at, b.len);
    return (text_span){ bytes, a.len + b.len };
}

static void merge_pair(learner *l, const pair_entry *pair, const uint32_t *positions) {
    uint32_t a = (uint32_t)(pair->key >> 32), b = (uint32_t)pair->key;
    text_span text = join_tokens(l->out->memory, l->bytes[a], l->bytes[b]);
    /* Text that spells the name of a special token or of a byte must not get its id. */
    if (l->symbols.chars && is_reserved_text(l->o, text.at, text.len)) return;
    uint32_t id = id_of_bytes(l, text, l->length[a] + l->length[b]);
    l->out->merges[l->out->n_merges++] = (bpe_pair){ (int32_t)a, (int32_t)b };
    replace_pair(l, pair, positions, id);
    collect_sides(l, id);
    change_pairs(l, a, b, id);
    place_pairs(l, id);
    side_clear(&l->left);
    side_clear(&l->right);
}

/* ---- all of them ----------------------------------------------------------------------------------- */

static void side_init(token_side *s, size_t ids) {
    s->by_id = mem_alloc(ids * sizeof *s->by_id);
    s->seen = mem_alloc(ids * sizeof *s->seen);
}

static void learner_init(learner *l, const tokenizer_options *o, bpe_learned *out) {
    size_t ids = (size_t)o->vocab, special = (size_t)o->n_special;
    *l = (learner){ .o = o, .out = out, .symbols.chars = o->metaspace != METASPACE_OFF };
    *out = (bpe_learned){ .memory = arena_new(), .twin = -1 };
    out->tokens = mem_alloc(ids * sizeof *out->tokens);
    /* A merge that makes a special token's text makes no id: one more merge than there are ids. */
    out->merges = mem_alloc((ids + special) * sizeof *out->merges);
    out->special = mem_alloc(special * sizeof *out->special);
    l->bytes = mem_alloc(ids * sizeof *l->bytes);
    l->length = mem_alloc(ids * sizeof *l->length);
    l->twins = mem_alloc(special * sizeof *l->twins);
    side_init(&l->left, ids);
    side_init(&l->right, ids);
}

static void learner_free(learner *l) {
    token_side *const sides[] = { &l->left, &l->right };
    for (size_t i = 0; i < COUNT_OF(sides); i++) {
        free(sides[i]->by_id);
        free(sides[i]->seen);
    }
    free(l->merged);
    free(l->twins);
    free(l->length);
    free(l->bytes);
    bpe_pairs_free(&l->pairs);
    bpe_cells_free(&l->cells);
    free(l->symbols.ids);
}

static size_t fixed_bytes(const tokenizer_options *o) {
    return FIXED_BYTES + (o->metaspace ? CHAR_BYTES : 0) + (size_t)o->vocab * BYTES_PER_ID;
}

static void warn_left_out(const bpe_cells *c) {
    char left[32], all[32], need[32];
    if (c->left_out == 0) return;
    log_warn("%s of %s distinct words, those seen less than %lld times, do not fit into the memory "
             "cap and are left out; with %s all would be learned from",
             str_count(left, sizeof left, (double)c->left_out),
             str_count(all, sizeof all, (double)c->words), (long long)c->least,
             str_bytes(need, sizeof need, (double)c->wanted));
}

err bpe_learn(word_counts *counts, const tokenizer_options *o, train_progress *progress,
              bpe_learned *out) {
    learner l;
    pair_entry pair;
    const uint32_t *positions = NULL;
    err e = OK;
    learner_init(&l, o, out);
    add_special_tokens(&l);
    if (l.symbols.chars && o->byte_fallback) add_fallback_tokens(&l);
    if (l.symbols.chars)
        TRY_CLEAN(add_char_tokens(&l, counts));
    else
        add_byte_tokens(&l);
    BUG_IF(out->n_tokens > o->vocab);
    TRY_CLEAN(bpe_cells_fill(&l.cells, &l.symbols, counts, o->memory, fixed_bytes(o)));
    warn_left_out(&l.cells);
    TRY_CLEAN(bpe_pairs_init(&l.pairs, &l.cells, l.length, o->min_frequency));
    while (out->n_tokens < o->vocab && bpe_pairs_pop(&l.pairs, &pair, &positions)) {
        merge_pair(&l, &pair, positions);
        train_progress_show(progress, "learning: %lld of %lld ids", (long long)out->n_tokens,
                            (long long)o->vocab);
    }
cleanup:
    learner_free(&l);
    return e;
}

void bpe_learned_free(bpe_learned *l) {
    free(l->tokens);
    free(l->merges);
    free(l->special);
    arena_free(l->memory);
    *l = (bpe_learned){ 0 };
}
