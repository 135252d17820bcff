/* SentencePiece .model files, read as the tokenizer.json that gives the same ids.
 *
 * The file is a protocol buffer: pieces with a score and a type, and the settings of the
 * trainer and the normalizer. Text is normalized and escaped (' ' as U+2581, one put in front). In a
 * BPE model it begins as characters, and neighbors are joined as long as they make a piece, the highest
 * score first, then the leftmost. A merge list has no equal ranks, so the list that is written out numbers
 * them, and the tokenizer in memory gets one rank for each score. In a Unigram model scores decide:
 * unigram.c.
 *
 * Hugging Face's library does some of this in its own way. The document has a mark that it ignores,
 * "sentencepiece": true, by which we read it as the .model again. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "tokenizer/chars_internal.h"
#include "tokenizer/open_internal.h"

static const size_t MAX_MODEL = (size_t)256 << 20; /* bytes */
#define SPACE_SYMBOL "\xE2\x96\x81"                /* U+2581 */

typedef enum {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE,
    PIECE_TYPES
} piece_type;
typedef enum { MODEL_UNIGRAM = 1, MODEL_BPE, MODEL_WORD, MODEL_CHAR, MODEL_TYPES } model_type;

typedef struct sp_piece {
    text_span text; /* in the file */
    float score;
    uint64_t type;
} sp_piece;

typedef struct sp_model {
    sp_piece *pieces;
    int n, cap;
    uint64_t type, eos, unknown, byte_fallback, as_suffix;  /* trainer */
    uint64_t dummy_prefix, remove_extra_whitespace, escape; /* normalizer */
    text_span charsmap, unknown_surface;                    /* in the file */
} sp_model;

/* ---- the protocol buffer ---------------------------------------------------------------------------- */

enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };
typedef struct wire_field {
    uint64_t number, value; /* value of a varint, bits of a fixed one */
    text_span bytes;
    int kind;
} wire_field;

static bool proto_read_varint(text_span *in, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && in->len; shift += 7) {
        uint8_t byte = (uint8_t)*in->at++;
        in->len--;
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

static bool read_fixed(text_span *in, size_t n, uint64_t *out) {
    if (in->len < n) return false;
    *out = 0;
    memcpy(out, in->at, n); /* little-endian, as every machine this runs on */
    in->at += n;
    in->len -= n;
    return true;
}

/* Takes the next field off a message. @return false: it is malformed. */
static bool read_wire_field(text_span *in, wire_field *f) {
    uint64_t key, n;
    if (!proto_read_varint(in, &key)) return false;
    *f = (wire_field){ .number = key >> 3, .kind = (int)(key & 7) };
    switch (f->kind) {
    case WIRE_VARINT: return proto_read_varint(in, &f->value);
    case WIRE_64: return read_fixed(in, 8, &f->value);
    case WIRE_32: return read_fixed(in, 4, &f->value);
    case WIRE_BYTES:
        if (!proto_read_varint(in, &n) || n > in->len) return false;
        f->bytes = (text_span){ in->at, (size_t)n };
        in->at += n;
        in->len -= (size_t)n;
        return true;
    default: return false;
    }
}

static bool read_piece(text_span in, sp_model *m) {
    sp_piece *p = &LIST_ADD(m->pieces, m->n, m->cap);
    *p = (sp_piece){ .type = PIECE_NORMAL };
    wire_field f;
    while (in.len) {
        if (!read_wire_field(&in, &f)) return false;
        if (f.number == 1 && f.kind == WIRE_BYTES) p->text = f.bytes;
        if (f.number == 2 && f.kind == WIRE_32) memcpy(&p->score, &f.value, sizeof p->score);
        if (f.number == 3 && f.kind == WIRE_VARINT) p->type = f.value;
    }
    return true;
}

/* Numbers of a message, by their field numbers. */
typedef struct wire_number {
    uint64_t number;
    uint64_t *to;
} wire_number;

/* @param text the field that holds bytes which are wanted too. */
static bool read_wire_numbers(text_span in, const wire_number *wanted, int n, uint64_t text,
                              text_span *to) {
    wire_field f;
    while (in.len) {
        if (!read_wire_field(&in, &f)) return false;
        for (int i = 0; i < n && f.kind == WIRE_VARINT; i++)
            if (wanted[i].number == f.number) *wanted[i].to = f.value;
        if (f.number == text && f.kind == WIRE_BYTES) *to = f.bytes;
    }
    return true;
}

static bool read_sp_model(text_span in, sp_model *m) {
    const wire_number trainer[] = { { 3, &m->type },
                                    { 24, &m->as_suffix },
                                    { 35, &m->byte_fallback },
                                    { 40, &m->unknown },
                                    { 42, &m->eos } };
    const wire_number normalizer[] = { { 3, &m->dummy_prefix },
                                       { 4, &m->remove_extra_whitespace },
                                       { 5, &m->escape } };
    wire_field f;
    while (in.len) {
        if (!read_wire_field(&in, &f)) return false;
        bool good = true;
        if (f.kind != WIRE_BYTES) continue;
        if (f.number == 1) good = read_piece(f.bytes, m);
        if (f.number == 2)
            good = read_wire_numbers(f.bytes, trainer, COUNT_OF(trainer), 44, &m->unknown_surface);
        if (f.number == 3)
            good = read_wire_numbers(f.bytes, normalizer, COUNT_OF(normalizer), 2, &m->charsmap);
        if (!good) return false;
    }
    return m->n > 0;
}

/* ---- what is not read --------------------------------------------------------------------------------- */

static err not_read(const char *path, const char *what) {
    return err_hint(ERR("%s: SentencePiece models %s are not read", path, what),
                    "give the tokenizer.json that comes with the same model");
}

/* Whether normalization changes text at all. */
static bool normalizes(const sp_model *m) {
    return m->charsmap.len || m->dummy_prefix || m->remove_extra_whitespace;
}

/* SentencePiece finds user-defined symbols before it normalizes the text, and leaves them as they are. We find
 * them in the normalized text, which is the same where normalization changes nothing in a symbol. */
static bool symbol_is_safe(const sp_model *m, text_span symbol) {
    if (memchr(symbol.at, ' ', symbol.len)) return false;
    if (m->type == MODEL_BPE && !normalizes(m)) return true;
    charsmap *map = NULL;
    str normal = { 0 };
    bool same = true;
    if (m->charsmap.len) {
        err e = charsmap_new(m->charsmap.at, m->charsmap.len, &map);
        if (!e) charsmap_normalize(map, true, symbol.at, symbol.len, &normal);
        same = !e && normal.len == symbol.len && memcmp(normal.text, symbol.at, symbol.len) == 0;
        err_free(e);
    }
    charsmap_free(map);
    str_free(&normal);
    return same;
}

static err symbol_not_read(const char *path, const sp_piece *p) {
    return err_hint(
        ERR("%s: the user-defined symbol \"%.*s\" holds a space or a character that the "
            "model's normalization changes; SentencePiece models with such symbols are "
            "not read",
            path, (int)p->text.len, p->text.at),
        "give the tokenizer.json that comes with the same model");
}

static err check_pieces(const char *path, const sp_model *m) {
    for (int i = 0; i < m->n; i++) {
        const sp_piece *p = &m->pieces[i];
        if (p->type == PIECE_USER_DEFINED && !symbol_is_safe(m, p->text))
            return symbol_not_read(path, p);
        if (p->type == PIECE_UNUSED) return not_read(path, "with unused pieces");
        if (p->type < PIECE_NORMAL || p->type >= PIECE_TYPES)
            return ERR("%s: piece %d has the unknown type %llu", path, i,
                       (unsigned long long)p->type);
        if (!p->text.len || utf8_valid(p->text.at, p->text.len) < p->text.len)
            return ERR("%s: piece %d is empty or not UTF-8", path, i);
    }
    return OK;
}

static err check_sp_model(const char *path, const sp_model *m) {
    static const char *const types[MODEL_TYPES] = {
        [MODEL_WORD] = "of the type word", [MODEL_CHAR] = "of the type char"
    };
    if (m->type < MODEL_TYPES && types[m->type]) return not_read(path, types[m->type]);
    if (m->type != MODEL_BPE && m->type != MODEL_UNIGRAM)
        return not_read(path, "of an unknown type");
    if (m->as_suffix || !m->escape) return not_read(path, "that mark spaces in another way");
    if (m->n > TOKEN_MAX_ID) return ERR("%s: %d pieces are too many", path, m->n);
    TRY(check_pieces(path, m));
    bool unknown = m->unknown < (uint64_t)m->n && m->pieces[m->unknown].type == PIECE_UNKNOWN;
    return unknown ? OK : ERR("%s: the model has no piece for unknown characters", path);
}

/* ---- merges ------------------------------------------------------------------------------------------- */

typedef struct sp_merge {
    float score;
    int left, right, made;
} sp_merge;
typedef struct sp_merges {
    sp_merge *at;
    int n, cap;
} sp_merges;

/* @return the id of a piece that merges may make; -1: none. */
static int find_piece(const sp_model *m, const json_t *vocab, const char *text, size_t n) {
    const json_t *id = json_object_getn(vocab, text, n);
    int i = id ? (int)json_integer_value(id) : -1;
    return i >= 0 && m->pieces[i].type == PIECE_NORMAL ? i : -1;
}

/* Every way to make each piece of two others. */
static void find_sp_merges(const sp_model *m, const json_t *vocab, sp_merges *out) {
    for (int i = 0; i < m->n; i++) {
        text_span p = m->pieces[i].text;
        uint32_t cp;
        if (m->pieces[i].type != PIECE_NORMAL) continue;
        for (size_t at = (size_t)utf8_decode(p.at, &cp); at < p.len;
             at += (size_t)utf8_decode(p.at + at, &cp)) {
            int left = find_piece(m, vocab, p.at, at);
            int right = find_piece(m, vocab, p.at + at, p.len - at);
            if (left < 0 || right < 0) continue;
            LIST_ADD(out->at, out->n, out->cap) = (sp_merge){ m->pieces[i].score, left, right, i };
        }
    }
}

static int compare_merges(const void *x, const void *y) {
    const sp_merge *a = x, *b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->left != b->left) return a->left < b->left ? -1 : 1;
    return (a->right > b->right) - (a->right < b->right);
}

/* ---- as a tokenizer.json -------------------------------------------------------------------------------- */

static json_t *piece_json(const sp_piece *p) { return json_stringn(p->text.at, p->text.len); }

static json_t *vocab_json(const sp_model *m) {
    json_t *vocab = json_object();
    for (int i = 0; i < m->n; i++)
        json_object_setn_new(vocab, m->pieces[i].text.at, m->pieces[i].text.len, json_integer(i));
    return vocab;
}

static json_t *added_json(const sp_model *m) {
    json_t *added = json_array();
    for (int i = 0; i < m->n; i++) {
        const sp_piece *p = &m->pieces[i];
        bool user = p->type == PIECE_USER_DEFINED;
        if (p->type != PIECE_CONTROL && p->type != PIECE_UNKNOWN && !user) continue;
        json_array_append_new(added,
                              json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", i, "content",
                                        piece_json(p), "single_word", 0, "lstrip", 0, "rstrip", 0,
                                        "normalized", user && normalizes(m), "special", !user));
    }
    return added;
}

static void add_replace(json_t *list, const char *kind, const char *pattern, const char *with) {
    json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind,
                                          pattern, "content", with));
}

static json_t *charsmap_json(text_span map) {
    str text = { 0 };
    base64_from_bytes(map.at, map.len, &text);
    json_t *o = json_pack("{s:s, s:s}", "type", "Precompiled", "precompiled_charsmap", text.text);
    str_free(&text);
    return o;
}

static json_t *normalizer_json(const sp_model *m) {
    json_t *steps = json_array();
    if (m->charsmap.len) json_array_append_new(steps, charsmap_json(m->charsmap));
    if (m->remove_extra_whitespace) {
        static const char *const squeeze[] = SQUEEZE_STEPS;
        for (size_t i = 0; i < COUNT_OF(squeeze); i++)
            add_replace(steps, "Regex", squeeze[i], i + 1 < COUNT_OF(squeeze) ? "" : " ");
    }
    if (m->dummy_prefix)
        json_array_append_new(steps,
                              json_pack("{s:s, s:s}", "type", "Prepend", "prepend", SPACE_SYMBOL));
    add_replace(steps, "String", " ", SPACE_SYMBOL);
    json_object_set_new(json_array_get(steps, json_array_size(steps) - 1), "sentencepiece",
                        json_true());
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *decoder_json(const sp_model *m) {
    enum { ALL = 1000 }; /* spaces at the beginning */
    int strip = m->remove_extra_whitespace ? ALL : m->dummy_prefix != 0;
    json_t *steps = json_array();
    add_replace(steps, "String", SPACE_SYMBOL, " ");
    if (m->byte_fallback) json_array_append_new(steps, json_pack("{s:s}", "type", "ByteFallback"));
    json_array_append_new(steps, json_pack("{s:s}", "type", "Fuse"));
    if (strip)
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                               " ", "start", strip, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

static json_t *unigram_json(const sp_model *m) {
    json_t *list = json_array();
    for (int i = 0; i < m->n; i++)
        json_array_append_new(
            list, json_pack("[o, f]", piece_json(&m->pieces[i]), (double)m->pieces[i].score));
    return json_pack("{s:s, s:I, s:o, s:b}", "type", "Unigram", "unk_id", (json_int_t)m->unknown,
                     "vocab", list, "byte_fallback", m->byte_fallback != 0);
}

static json_t *model_json(const sp_model *m, json_t *vocab, const sp_merges *merges) {
    json_t *list = json_array();
    for (int i = 0; i < merges->n; i++)
        json_array_append_new(list, json_pack("[o, o]", piece_json(&m->pieces[merges->at[i].left]),
                                              piece_json(&m->pieces[merges->at[i].right])));
    json_t *unknown =
        m->unknown < (uint64_t)m->n ? piece_json(&m->pieces[m->unknown]) : json_null();
    return json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:O, s:o}", "type", "BPE", "dropout",
                     "unk_token", unknown, "continuing_subword_prefix", "end_of_word_suffix",
                     "fuse_unk", 1, "byte_fallback", m->byte_fallback != 0, "ignore_merges", 0,
                     "vocab", vocab, "merges", list);
}

/* One rank for each score, so that of equals the leftmost is joined first. */
static void share_ranks(const sp_merges *merges, tokenizer *t) {
    uint32_t rank = 0;
    for (int i = 0; i < merges->n; i++) {
        const sp_merge *g = &merges->at[i];
        if (i > 0 && g->score != merges->at[i - 1].score) rank++;
        bpe_add_pair(&t->bpe, (bpe_pair){ g->left, g->right }, rank, g->made);
    }
}

/* The text that the unknown piece decodes to. */
static void set_unknown_surface(const sp_model *m, tokenizer *t) {
    text_span s = m->unknown_surface;
    if (utf8_valid(s.at, s.len) < s.len) return;
    t->unknown_surface = mem_alloc(s.len + 1);
    memcpy(t->unknown_surface, s.at, s.len);
}

static err build_tokenizer(const char *path, const sp_model *m, tokenizer **out) {
    json_t *vocab = vocab_json(m), *doc = NULL;
    sp_merges merges = { 0 };
    err e = OK;
    if ((int)json_object_size(vocab) != m->n) {
        e = ERR("%s: two pieces have the same text", path);
        goto cleanup;
    }
    if (m->type == MODEL_BPE) find_sp_merges(m, vocab, &merges);
    sort_array(merges.at, (size_t)merges.n, sizeof *merges.at, compare_merges);
    doc = json_pack("{s:s, s:n, s:n, s:o, s:o, s:n, s:n, s:o, s:o}", "version", "1.0", "truncation",
                    "padding", "added_tokens", added_json(m), "normalizer", normalizer_json(m),
                    "pre_tokenizer", "post_processor", "decoder", decoder_json(m), "model",
                    m->type == MODEL_BPE ? model_json(m, vocab, &merges) : unigram_json(m));
    BUG_IF(!doc);
    char *source = json_dumps(doc, JSON_INDENT(2));
    BUG_IF(!source);
    TRY_CLEAN(tokenizer_from_json(doc, path, source, strlen(source), out));
    share_ranks(&merges, *out);
    set_unknown_surface(m, *out);
    if (m->eos < (uint64_t)m->n && m->pieces[m->eos].type == PIECE_CONTROL)
        (*out)->eos = (int32_t)m->eos;
cleanup:
    json_decref(doc);
    json_decref(vocab);
    free(merges.at);
    return e;
}

err tokenizer_open_sentencepiece(const char *path, tokenizer **out) {
    io_mapping file = { 0 };
    sp_model m = { .type = MODEL_UNIGRAM,
                   .eos = 2,
                   .unknown_surface = { " \xE2\x81\x87 ", 5 },
                   .dummy_prefix = true,
                   .remove_extra_whitespace = true,
                   .escape = true };
    err e = OK;
    *out = NULL;
    TRY(io_map(path, &file));
    if (file.size == 0 || file.size > MAX_MODEL ||
        !read_sp_model((text_span){ (const char *)file.data, file.size }, &m))
        e = err_hint(ERR("%s is not a SentencePiece model, or it is damaged", path),
                     "copy the file again");
    if (!e) e = check_sp_model(path, &m);
    if (!e) e = build_tokenizer(path, &m, out);
    free(m.pieces);
    io_unmap(&file);
    return e;
}
