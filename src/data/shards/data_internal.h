/* Shared by the files of shards/: shards and sources (source.c), token files (tokfile.c, foreign_shards.c,
 * shards.c), texts (text.c), the mix (mix.c), packing (pack.c), the guard (guard*.c) and the rows of a
 * batch (token_batch.c). loader.c puts them together; data.h is what others see. */
#ifndef INGOT_DATA_INTERNAL_H
#define INGOT_DATA_INTERNAL_H

#include "shards/data.h"
#include "io/io.h"
#include "tokenizer/tokenizer.h"

/* ---- source.c: shards as one source ---------------------------------------------------------------- */
typedef struct data_shard {
    char *path;         /* owned */
    const void *tokens; /* n of `width` bytes: inside `file` or `made` */
    int width;
    int64_t first, n;        /* its first token, counted through the source, and how many */
    int64_t first_doc;       /* its first document, likewise; valid once documents are indexed */
    int64_t docs;            /* -1: not counted */
    const uint64_t *ends;    /* [docs] tokens up to each document's end; NULL: no index */
    const uint64_t *prompts; /* [docs] tokens of each document's prompt; NULL: none has one */
    io_mapping file;         /* zeroed for tokens made in memory */
    void *made;              /* owned: tokens made in memory */
    uint64_t *made_ends;     /* owned: an index made in memory */
    const char *provenance;
    size_t provenance_len;
    uint64_t checksum, index_checksum; /* of tokens, of index and provenance; has_checksum */
    bool has_checksum;
    const uint64_t *chunk_hash; /* of each TOKFILE_CHUNK bytes of the tokens; NULL: not known */
    int cached;                 /* its number in the source's cache; -1: it is local */
} data_shard;

typedef struct chunk_cache chunk_cache;
struct data_source {
    chunk_cache *cache; /* owned: of shards in an object store; NULL: none is */
    data_info info;     /* of all shards */
    char *path;         /* owned; info.path */
    char *tokenizer;    /* owned; info.tokenizer_path */
    data_shard *shard;  /* [n], owned */
    int n, capacity;
    bool indexed;        /* documents can be addressed */
    int64_t vocab_limit; /* of the model; 0: none */
    int64_t below;       /* every id was seen to be below this; 0: not all were looked at */
};

/* Appends an empty shard that is the caller's to fill. */
data_shard *source_add(data_source *s, const char *path);
/* Numbers the tokens of the last shard added, and checks that it matches those before it.
 * @param info of that shard alone. */
err source_join(data_source *s, const data_info *info) MUST_USE;
/* @return the shard that token i is in. */
const data_shard *source_shard(const data_source *s, int64_t i);
/* Asks for tokens that will be needed; returns at once. */
void source_request(const data_source *s, int64_t from, int64_t n);

/* Neighboring tokens as they are stored. */
typedef struct token_view {
    const void *at;
    int width;
    int64_t n;
} token_view;
static inline int32_t view_token(const token_view *v, int64_t i) {
    return v->width == 2 ? ((const uint16_t *)v->at)[i] : (int32_t)((const uint32_t *)v->at)[i];
}
/* Tokens [from, from + n): in place, or copied to `buffer` when two shards hold them. */
token_view source_view(const data_source *s, int64_t from, int64_t n, int32_t *buffer);
/* @return how many of v's tokens [from, to) are `id`. */
int64_t view_count(const token_view *v, int64_t from, int64_t to, int32_t id);
uint32_t view_largest(const token_view *v); /* unsigned: a negative id is the largest */

static inline int32_t shard_token(const data_shard *s, int64_t i) {
    return s->width == 2 ? ((const uint16_t *)s->tokens)[i]
                         : (int32_t)((const uint32_t *)s->tokens)[i];
}

/* ---- tokfile.c, foreign_shards.c: token files, recognized by their first bytes ----------------------------- */
/* A parser recognizes a file mapped at shard->file and fills in the shard and what is known of it.
 * @param found false when the file is not of this kind, which is not an error. */
typedef err (*file_parser)(data_shard *s, data_info *info, bool *found);
err tokfile_parse(data_shard *s, data_info *info, bool *found) MUST_USE;
err foreign_parse(data_shard *s, data_info *info, bool *found) MUST_USE;
/* Raw tokens, a .bin file without a header. */
err raw_parse(data_shard *s, raw_dtype dtype, data_info *info) MUST_USE;
/* Megatron's pair of files, by either name or by their common stem. */
bool megatron_is(const char *path);
err megatron_open(data_shard *s, data_info *info) MUST_USE;
/* The tokens are in the file between `before` and `after` bytes and must fill it exactly. */
err shard_place_tokens(data_shard *s, size_t before, size_t after, uint64_t count) MUST_USE;
err shard_damaged(const data_shard *s, const char *what) MUST_USE;
/* An error unless every end of the index is in order and inside the shard: readers rely on it. */
err shard_check_index(const data_shard *s) MUST_USE;

/* Tokens already of the width that the writer's vocabulary asks for, in whole documents. */
struct token_buffer;
err token_writer_add_buffer(token_writer *w, const struct token_buffer *t) MUST_USE;
int token_width(int64_t vocab); /* bytes of a stored token */

/* The fixed sizes of a token file of version 2 or later. */
enum { TOKFILE_HEADER = 32, TOKFILE_TRAILER = 48, TOKFILE_CHUNK = 1 << 20 };
/* Finds the tokens of a file of `bytes`, from its header and its last TOKFILE_TRAILER bytes alone; the
 * tokfile_parse verifies checksums. @param path for messages. */
err tokfile_tokens(const char *path, const uint8_t *header, const uint8_t *trailer, int64_t bytes,
                   int64_t *from, int64_t *to) MUST_USE;

/* ---- remote_shards.c: shards in an object store ------------------------------------------------------------- */
bool remote_is(const char *path);
struct store;
/* Maps a .tok file of a store with all but its tokens, whose bytes are zero. @param out owned: remote_unmap_frame. */
err remote_map_frame(struct store *s, const char *url, int64_t bytes, io_mapping *out) MUST_USE;
void remote_unmap_frame(io_mapping *m); /* takes a zeroed one */
/* Opens a URL into `s`, whose cache is made where need be. @param found false when the URL is neither a folder
 * of shards nor a .tok file. */
err remote_open(data_source *s, const char *url, const data_options *o, bool *found) MUST_USE;

/* ---- chunk_cache.c: their tokens, fetched by the chunk -------------------------------------------------- */
/* @param folders "a,b": shards are divided among them. @param bytes of chunks that are kept. */
err chunk_cache_new(const char *folders, int64_t bytes, chunk_cache **out) MUST_USE;
void chunk_cache_free(chunk_cache *c); /* takes NULL */
/* Adds a shard, all of them before chunk_cache_start. @param data its file, mapped until chunk_cache_free; nothing of
 * it has been fetched yet. @param shard its number. */
err chunk_cache_add(chunk_cache *c, const char *url, int64_t file_bytes, uint8_t **data,
                    int *shard) MUST_USE;
/* Fills in bytes that are not tokens. */
err chunk_cache_write(chunk_cache *c, int shard, int64_t offset, const void *bytes,
                      size_t n) MUST_USE;
/* Which of its bytes are tokens, and their checksums. @param hash one for each chunk, borrowed; NULL: there is one
 * chunk, whose checksum is `whole`. */
void chunk_cache_describe(chunk_cache *c, int shard, int64_t from, int64_t bytes,
                          int64_t chunk_bytes, const uint64_t *hash, uint64_t whole);
err chunk_cache_start(chunk_cache *c) MUST_USE;
/* Bytes [from, to) of a shard's tokens: will be needed; are needed now, and stay; are not needed any more. */
void chunk_cache_request(chunk_cache *c, int shard, int64_t from, int64_t to);
err chunk_cache_hold(chunk_cache *c, int shard, int64_t from, int64_t to) MUST_USE;
void chunk_cache_release(chunk_cache *c, int shard, int64_t from, int64_t to);
int64_t chunk_cache_limit(const chunk_cache *c);
chunk_cache_stats chunk_cache_statistics(chunk_cache *c);

/* ---- shards.c: folders ------------------------------------------------------------------------ */
#define SHARDS_INDEX     "index.json"
#define SHARDS_TOKENIZER "tokenizer.json"
/* @return whether the path is a folder that `ingot data tokenize` wrote. */
bool shards_are_in(const char *path);
/* An error unless a name from an index stays inside the folder. */
err shards_check_name(const char *index, const char *name) MUST_USE;
/* Lists the shards of one side that an index has. @param list borrowed from `doc`. */
err shards_list(const char *index, const json_t *doc, bool held_out, json_t **list) MUST_USE;
/* Opens every shard that a folder's index lists, one part of it. */
err shards_open(data_source *s, const char *folder, bool held_out) MUST_USE;

/* ---- text.c: texts, tokenized in memory ------------------------------------------------------- */
/* Tokens under construction, of `width` bytes. */
typedef struct token_buffer {
    void *at;
    size_t n, cap;
    int width;
    uint64_t *ends;    /* [docs] */
    uint64_t *prompts; /* [docs] tokens of each one's prompt */
    size_t docs, docs_cap;
} token_buffer;
/* Append a document and its end; an empty one adds nothing. @param eos -1: none. */
void token_buffer_add(token_buffer *t, const int32_t *ids, size_t n, int32_t eos);
void token_buffer_add_bytes(token_buffer *t, const char *text, size_t n);
/* Moves the tokens, which must not be empty, into a shard. */
void token_buffer_move(token_buffer *t, data_shard *s);
void token_buffer_free(token_buffer *t);
data_info byte_info(const char *format);
/* Reads the text that is mapped at s->file, as `o` says of texts. */
err text_tokenize(data_shard *s, const data_options *o, data_info *info) MUST_USE;

/* ---- document.c: the tokens of a document --------------------------------------------------------
 *     the tokenizer's prefix | text | the tokenizer's suffix | the end of the document, unless the suffix ends in it */
typedef struct document_layout {
    token_affixes affixes;
    int32_t append; /* after the suffix; -1: nothing */
    int32_t
        eos; /* what ends documents and occurs nowhere else; -1: none, they are known by their index */
} document_layout;
/* @param eos the id that ends documents, in place of the tokenizer's suffix; DOCUMENT_END_*.
 * @param prefix whether documents begin with the tokenizer's prefix.
 * @return an error when the tokenizer's end is wanted, and it has none. */
err document_layout_of(const tokenizer *t, int32_t eos, bool prefix, document_layout *out) MUST_USE;
/* Replaces what is in `out`; no ids for a text that gives none. Prompt and text are encoded apart, so that no token is of
 * both. @return the tokens before those of the text; 0: without a prompt */
size_t document_encode(encoder *e, const document_layout *d, const char *prompt, size_t n_prompt,
                       const char *text, size_t n, token_ids *out);

/* ---- mix.c: which source comes when ------------------------------------------------------------- */
typedef struct mix mix;
/* @param windows [n] in an epoch of each source. @param begin [phases] position at which each phase after the first begins,
 * ascending. A phase whose sources have all left ends where the next one begins. */
err mix_new(const mix_source *sources, int n, const int64_t *windows, int phases,
            const int64_t *begin, mix **out) MUST_USE;
int64_t mix_total(const mix *m); /* positions before every source has left; INT64_MAX: no end */
typedef struct mix_turn {
    int source;
    int64_t number; /* of the source's own windows, from 0 on through its epochs */
} mix_turn;
/* @param position below mix_total. */
mix_turn mix_at(const mix *m, int64_t position);
/* @return windows of a source among the first `positions`. */
int64_t mix_count(const mix *m, int source, int64_t positions);
/* @return the share of a source at a position. */
double mix_share(const mix *m, int source, int64_t position);
int64_t mix_most(const mix *m, int source);
void mix_free(mix *m); /* takes NULL */

/* ---- pack.c: windows of whole documents ------------------------------------------------------- */
/* Neighboring tokens that stand together in a window. */
typedef struct packed_piece {
    int64_t from; /* in the source */
    int32_t n;
    bool more; /* the document continues after it: the last token has a target */
} packed_piece;
typedef struct packing packing;
/* The documents of `s` are indexed. */
packing *packing_new(data_packing kind, const data_source *s, data_range range, int64_t seq_len);
int64_t packing_windows(const packing *p);
void packing_free(packing *p); /* takes NULL */
/* The pieces of one window. Zero-initialize. */
typedef struct packed {
    packed_piece *pieces; /* in the order they went in */
    int capacity;
} packed;
/* @return the pieces of window w, borrowed from `held` until the next call. */
const packed_piece *packing_window(const packing *p, int64_t w, packed *held, int *n);
void packed_free(packed *held);

/* ---- guard.c, guard_text.c ---------------------------------------------------------------------------------- */
/* The texts of a source's ids; read-only, shared by threads. */
typedef struct guard_text guard_text;
/* @param t of the run; may be NULL. @return NULL: the source's ids cannot be decoded. */
guard_text *guard_text_new(const data_info *info, const struct tokenizer *t);
void guard_text_free(guard_text *g); /* takes NULL */
/* Buffers of one thread. Zero-initialize. */
typedef struct guard_buffer {
    int32_t *ids; /* [capacity] */
    int64_t capacity;
    str bytes, text;
} guard_buffer;
void guard_buffer_free(guard_buffer *b);
/* @return whether a sample of ids may come from text with more than `share` malformed characters. */
bool guard_text_suspects(const guard_text *g, const int32_t *ids, int n, double share);
/* @return whether more than `share` of a window's characters are malformed. */
bool guard_text_is_malformed(const guard_text *g, const token_view *v, double share,
                             guard_buffer *b);
/* @param text NULL: the text is not looked at. */
guard_verdict guard_judge(const guard_options *g, const guard_text *text, const token_view *v,
                          guard_buffer *buffer);

/* ---- token_batch.c: one row of a batch -------------------------------------------------------------- */
/* The windows of one source of the mix. */
typedef struct window_source {
    const data_source *source;
    data_range range;
    packing *pack;   /* owned; NULL: contiguous windows */
    int64_t windows; /* per epoch */
    int64_t first;   /* id of the source's first token among all sources */
    uint64_t seed;
    guard_text *text; /* owned; NULL: not decoded */
    bool shifts;      /* each epoch after the first begins at an offset of its own */
    const char *name;
} window_source;
/* One window of a mix. */
typedef struct window_ref {
    int source;
    int64_t window; /* in its epoch; past the range for padding */
    int64_t epoch;  /* of its source */
} window_ref;
/* Buffers of a thread that makes rows. */
typedef struct row_maker {
    int32_t *ids;  /* [seq_len + 1] */
    int32_t *ends; /* [seq_len + 1] */
    packed *held;  /* [sources] */
    guard_buffer guard;
} row_maker;
/* Each takes the windows of the source that `w` names. */
/* Brings the tokens of a window into the cache. */
void window_prefetch(const window_source *s, const loader_options *o, window_ref w);
/* @param valid targets in a window; 0 for one that the guard rejects. */
err window_valid(const window_source *s, const loader_options *o, window_ref w, row_maker *m,
                 int64_t *valid) MUST_USE;
/* Asks for the tokens of a window that will be read; nothing for packed ones. */
void window_request(const window_source *s, const loader_options *o, window_ref w);
/* @return the first token of a window, counted in its source. */
int64_t window_first_token(const window_source *s, const loader_options *o, window_ref w);
/* Fills row `row` of `b` with a window; all of it is padding when the window is past the range's
 * end. @param limit longest piece of the curriculum. */
err window_fill(const window_source *s, const loader_options *o, window_ref w, int64_t limit,
                row_maker *m, int64_t row, data_batch *b) MUST_USE;

struct tokenizer;
/* Names of tokenizers in token files. */
token_kind token_kind_of(const struct tokenizer *t);

#endif
