/* Token files of others: llm.c, nanoGPT, Megatron. */
#include "shards/data_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- llm.c ----------------------------------------------------------------------------------- */

/* The two headers llm.c writes, and the id that parts documents in each. */
static const struct llmc_kind {
    int32_t magic, version;
    int width;
    int32_t eos;
    const char *format;
} LLMC_KINDS[] = {
    { 20240520, 1, 2, 50256, "llm.c tokens (GPT-2)" },
    { 20240801, 7, 4, 128000, "llm.c tokens (Llama 3)" },
};
enum { LLMC_HEADER = 256 * 4 };

static err parse_llmc(data_shard *s, data_info *info, bool *found) {
    int32_t head[3] = { 0 };
    if (s->file.size < 4) return OK;
    memcpy(head, s->file.data, MIN(s->file.size, sizeof head));
    for (size_t i = 0; i < COUNT_OF(LLMC_KINDS); i++) {
        const struct llmc_kind *kind = &LLMC_KINDS[i];
        if (head[0] != kind->magic) continue;
        *found = true;
        if (s->file.size < LLMC_HEADER)
            return shard_damaged(s,
                                 "an llm.c token file that ends inside its header of 1024 bytes");
        if (head[1] != kind->version)
            return ERR("%s: llm.c token file version %" PRId32 ", expected %" PRId32, s->path,
                       head[1], kind->version);
        if (head[2] < 0)
            return shard_damaged(s, "the llm.c header gives a negative number of tokens");
        *info = (data_info){ .format = kind->format, .tokenizer = TOKENIZER_BPE, .eos = kind->eos };
        s->width = kind->width;
        return shard_place_tokens(s, LLMC_HEADER, 0, (uint64_t)head[2]);
    }
    return OK;
}

/* ---- raw tokens ------------------------------------------------------------------------------
 * nanoGPT's files and what numpy's tofile writes: nothing but ids, and nothing to recognize them by
 * but the name .bin. Their type is guessed from the values. Seen as pairs of 16-bit halves:
 *
 *     uint16    both halves are ids
 *     uint32    the high halves are zero, or small where the vocabulary exceeds 65,536
 *     int64     as uint32, and every second pair is zero
 */
enum { RAW_SAMPLES = 1 << 14, RAW_ENOUGH = 32, RAW_HIGH_HALF = 31, RAW_LOW_HALF = 4096 };
enum { GPT2_EOS = 50256 };

/* One for each row of RAW_DTYPES (config/choices.h); RAW_GUESS is replaced by another. */
enum { RAW_GUESS_width = 0, RAW_UINT16_width = 2, RAW_UINT32_width = 4, RAW_INT64_width = 8 };
static const struct raw_kind {
    const char *name, *format;
    int width;
} RAW_KINDS[] = {
#define RAW_KIND(symbol, text, traits, help)                                                       \
    [symbol] = { text, "raw " text " tokens", symbol##_width },
    RAW_DTYPES(RAW_KIND)
};

err raw_dtype_parse(const char *name, raw_dtype *out) {
    *out = RAW_GUESS;
    for (int t = 0; t < raw_dtype_count; t++)
        if (strcmp(name, RAW_KINDS[t].name) == 0) *out = t;
    if (*out == RAW_GUESS)
        return err_hint(ERR_USAGE("--dtype: \"%.40s\" is not a type of tokens", name),
                        "raw .bin files hold uint16, uint32 or int64");
    return OK;
}

/* Statistics of a sample of 32-bit words, spread over the whole file. */
typedef struct raw_look {
    uint32_t largest_low, largest_high; /* halves of the even words */
    bool odd_zero;                      /* every second word is zero */
    int64_t words;
} raw_look;

static raw_look look_at_words(const io_mapping *m) {
    raw_look l = { .odd_zero = true };
    size_t pairs = m->size / 8, step = MAX(1, pairs / RAW_SAMPLES);
    for (size_t i = 0; i < pairs; i += step) {
        uint32_t pair[2];
        memcpy(pair, m->data + 8 * i, sizeof pair);
        l.largest_low = MAX(l.largest_low, pair[0] & 0xFFFF);
        l.largest_high = MAX(l.largest_high, pair[0] >> 16);
        l.odd_zero = l.odd_zero && pair[1] == 0;
        if (pair[1]) l.largest_high = MAX(l.largest_high, pair[1] >> 16);
        l.words += 2;
    }
    return l;
}

static raw_dtype guess_raw(const io_mapping *m, const raw_look *l) {
    bool small = l->largest_high == 0 ||
                 (l->largest_high <= RAW_HIGH_HALF && l->largest_low >= RAW_LOW_HALF);
    if (m->size % 4 || l->words < RAW_ENOUGH || !small) return RAW_UINT16;
    return l->odd_zero && m->size % 8 == 0 ? RAW_INT64 : RAW_UINT32;
}

/* 64-bit ids become 32-bit ones in memory: readers know those. */
static err narrow_tokens(data_shard *s) {
    size_t n = s->file.size / 8;
    uint32_t *ids = mem_alloc(n * sizeof *ids);
    s->made = ids;
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        memcpy(&id, s->file.data + 8 * i, sizeof id);
        if (id < 0 || id > INT32_MAX)
            return err_hint(
                ERR("%s: token %zu is %lld as int64, not a valid id", s->path, i, (long long)id),
                "the ids are of another type, or the file is damaged; of a raw .bin file, --dtype "
                "or data.raw_dtype names the type");
        ids[i] = (uint32_t)id;
    }
    s->tokens = ids;
    s->n = (int64_t)n;
    s->width = 4;
    return OK;
}

err raw_parse(data_shard *s, raw_dtype dtype, data_info *info) {
    raw_look l = look_at_words(&s->file);
    if (dtype == RAW_GUESS) dtype = guess_raw(&s->file, &l);
    const struct raw_kind *k = &RAW_KINDS[dtype];
    if (s->file.size % (size_t)k->width)
        return err_hint(ERR("%s: %zu bytes are not a whole number of %s tokens", s->path,
                            s->file.size, k->name),
                        "a .bin file is an llm.c or Megatron token file or raw uint16, uint32 or "
                        "int64 tokens; name a text .txt");
    /* Larger ids than GPT-2's are another tokenizer's, whose end of document is unknown. */
    *info =
        (data_info){ .format = k->format, .eos = k->width > 2 && l.largest_high ? -1 : GPT2_EOS };
    if (k->width == 8) return narrow_tokens(s);
    s->width = k->width;
    TRY(shard_place_tokens(s, 0, 0, s->file.size / (size_t)k->width));
    return OK;
}

err foreign_parse(data_shard *s, data_info *info, bool *found) {
    return parse_llmc(s, info, found);
}

/* ---- Megatron ----------------------------------------------------------------------------------
 * X.idx, packed: magic, u64 version, u8 type, u64 sequences N, u64 documents + 1 = D, i32[N]
 * lengths, i64[N] byte offsets, i64[D] the sequence each document begins with. X.bin: tokens. */
static const char MEGATRON_MAGIC[9] = "MMIDIDX\0"; /* and the NUL that ends the literal */
enum { MEGATRON_HEADER = 9 + 8 + 1 + 8 + 8 };

static const struct {
    const char *name;
    int width; /* 0: not read here */
} MEGATRON_TYPES[] = { { "none", 0 },    { "uint8", 0 },   { "int8", 0 },
                       { "int16", 2 },   { "int32", 4 },   { "int64", 8 },
                       { "float64", 0 }, { "float32", 0 }, { "uint16", 2 } };

/* @return "X" of X.bin, X.idx or X; owned. */
static char *megatron_stem(const char *path) {
    size_t n = strlen(path);
    if (str_ends(path, ".bin") || str_ends(path, ".idx")) n -= 4;
    return strndup(path, n);
}

static char *with_ending(const char *stem, const char *ending) {
    str s = { 0 };
    str_add(&s, "%s%s", stem, ending);
    return s.text;
}

/* A .bin that has an .idx beside it, either name, or what both names begin with. */
bool megatron_is(const char *path) {
    char *stem = megatron_stem(path), *idx = with_ending(stem, ".idx");
    bool bare = strlen(stem) == strlen(path);
    bool is = str_ends(path, ".idx") || (io_exists(idx) && !(bare && io_exists(path)));
    free(stem);
    free(idx);
    return is;
}

typedef struct idx_file {
    const uint8_t *lengths, *offsets, *documents; /* unaligned */
    uint64_t sequences, boundaries;
    int width;
} idx_file;

static uint64_t load_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static int64_t load_i64(const uint8_t *p, uint64_t i) { return (int64_t)load_u64(p + 8 * i); }
static int32_t load_i32(const uint8_t *p, uint64_t i) {
    int32_t v;
    memcpy(&v, p + 4 * i, sizeof v);
    return v;
}

static err idx_damaged(const char *path, const char *what) {
    return err_hint(ERR("%s: %s", path, what),
                    "the file was truncated or changed after it was written, or it does not belong "
                    "to its .bin file; make or copy both again");
}

static err read_idx_header(const char *path, const io_mapping *m, idx_file *x) {
    if (m->size < MEGATRON_HEADER || memcmp(m->data, MEGATRON_MAGIC, sizeof MEGATRON_MAGIC) != 0)
        return idx_damaged(path, "the file does not begin like a Megatron index");
    uint64_t version = load_u64(m->data + 9);
    if (version != 1)
        return ERR("%s: Megatron index version %" PRIu64 ", expected 1", path, version);
    unsigned type = m->data[17];
    if (type >= COUNT_OF(MEGATRON_TYPES) || MEGATRON_TYPES[type].width == 0)
        return err_hint(
            ERR("%s: tokens of type %u (%s), expected uint16, int16, int32 or int64", path, type,
                type < COUNT_OF(MEGATRON_TYPES) ? MEGATRON_TYPES[type].name : "unknown"),
            "write the tokens again with one of those types");
    x->width = MEGATRON_TYPES[type].width;
    x->sequences = load_u64(m->data + 18);
    x->boundaries = load_u64(m->data + 26);
    size_t rest = m->size - MEGATRON_HEADER;
    if (x->sequences > rest / 12 || x->boundaries > rest / 8 ||
        x->sequences * 12 + x->boundaries * 8 != rest)
        return idx_damaged(path, "the counts in the header do not add up to the file");
    x->lengths = m->data + MEGATRON_HEADER;
    x->offsets = x->lengths + 4 * x->sequences;
    x->documents = x->offsets + 8 * x->sequences;
    return OK;
}

/* Sequences must be contiguous from the file's beginning, as Megatron writes them.
 * @param ends owned: tokens up to the end of each document, empty ones left out. */
static err read_sequences(const char *path, const idx_file *x, size_t bin_bytes, uint64_t **ends,
                          int64_t *docs) {
    uint64_t at = 0, next = 0, last = 0, capacity = x->boundaries + 1;
    *ends = mem_alloc(capacity * sizeof **ends); /* no more than the file's own size */
    *docs = 0;
    for (uint64_t i = 0; i <= x->sequences; i++) {
        while (next < x->boundaries && load_i64(x->documents, next) == (int64_t)i) {
            if (at > last) (*ends)[(*docs)++] = last = at;
            next++;
        }
        if (i == x->sequences) break;
        int32_t length = load_i32(x->lengths, i);
        if (length < 0 || load_i64(x->offsets, i) != (int64_t)at * x->width)
            return idx_damaged(path, "a sequence does not begin where the one before it ends");
        at += (uint64_t)length;
        if (at > bin_bytes) return idx_damaged(path, "a sequence ends outside the .bin file");
    }
    if (next < x->boundaries)
        return idx_damaged(path, "a document begins with a sequence that is not there");
    if (at > last) (*ends)[(*docs)++] = at; /* sequences after the last boundary */
    if (at * (uint64_t)x->width != bin_bytes)
        return idx_damaged(path, "the sequences do not add up to the .bin file");
    return OK;
}

err megatron_open(data_shard *s, data_info *info) {
    char *stem = megatron_stem(s->path), *idx = with_ending(stem, ".idx");
    free(s->path);
    s->path = with_ending(stem, ".bin");
    free(stem);
    io_mapping m = { 0 };
    idx_file x = { 0 };
    err e = OK;
    TRY_CLEAN(io_map(idx, &m));
    TRY_CLEAN(read_idx_header(idx, &m, &x));
    TRY_CLEAN(io_map(s->path, &s->file));
    TRY_CLEAN(read_sequences(idx, &x, s->file.size, &s->made_ends, &s->docs));
    s->ends = s->made_ends;
    s->width = x.width;
    *info = (data_info){ .format = "Megatron tokens", .eos = -1 };
    if (x.width == 8)
        TRY_CLEAN(narrow_tokens(s));
    else
        TRY_CLEAN(shard_place_tokens(s, 0, 0, s->file.size / (size_t)x.width));
    if (s->n == 0) e = ERR("%s holds no tokens", s->path);
cleanup:
    io_unmap(&m);
    free(idx);
    return e;
}
