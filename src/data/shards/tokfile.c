/* Our own token files, read and written. data.h draws the format. */
#include "store/vfs.h"
#include "shards/data_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Tokens are used in place, as the file has them. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read without conversion"
#endif

static const char MAGIC[8] = { 'I', 'N', 'G', 'O', 'T', 'T', 'O', 'K' };
enum { VERSION_1 = 1, VERSION_2 = 2, VERSION = 3, VERSION_PROMPTS = 4, ALIGN = 8 };
static const uint32_t NO_EOS = UINT32_MAX;

typedef struct tok_header {
    char magic[8];
    uint32_t version;
    uint16_t width, kind;
    uint32_t vocab, eos;
    uint64_t tokenizer_hash;
} tok_header;
typedef struct tok_trailer {
    uint64_t tokens, documents;
    uint64_t checksum; /* of the tokens */
    uint64_t provenance_bytes;
    uint64_t index_checksum; /* of all between the tokens and this trailer */
    uint64_t frame;          /* of the header and of this trailer before it */
} tok_trailer;
typedef struct tok_trailer_1 {
    uint64_t tokens, documents;
    uint64_t checksum;
    uint64_t frame;
} tok_trailer_1;
_Static_assert(sizeof(tok_header) == TOKFILE_HEADER && sizeof(tok_trailer) == TOKFILE_TRAILER &&
                   sizeof(tok_trailer_1) == 32,
               "they are the file's layout");

static uint64_t frame_checksum(const tok_header *h, const void *trailer, size_t before_frame) {
    return hash_bytes(trailer, before_frame, hash_bytes(h, sizeof *h, 0));
}

int token_width(int64_t vocab) { return vocab <= UINT16_MAX + 1 ? 2 : 4; }

/* ---- reading ------------------------------------------------------------------------------- */

err shard_damaged(const data_shard *s, const char *what) {
    return err_hint(ERR("%s: %s", s->path, what),
                    "the file was truncated or changed after it was written; make it again with "
                    "`ingot data tokenize`, or copy it again");
}

err shard_place_tokens(data_shard *s, size_t before, size_t after, uint64_t count) {
    size_t bytes = s->file.size - before - after, width = (size_t)s->width;
    if (bytes % width || bytes / width != count)
        return err_hint(ERR("%s: the header states %" PRIu64 " tokens of %zu bytes, it has %zu "
                            "bytes of tokens",
                            s->path, count, width, bytes),
                        "the file was truncated or changed after it was written; make it or copy "
                        "it again");
    s->n = (int64_t)count;
    s->tokens = s->file.data + before;
    return OK;
}

static err check_token_header(const data_shard *s, const tok_header *h) {
    if (h->version < VERSION_1 || h->version > VERSION_PROMPTS)
        return err_hint(ERR("%s: token file version %" PRIu32 ", this program reads versions %d "
                            "to %d",
                            s->path, h->version, VERSION_1, VERSION_PROMPTS),
                        "make it again with this program's `ingot data tokenize`");
    if ((h->width != 2 && h->width != 4) || h->kind >= TOKENIZER_KINDS || h->vocab == 0 ||
        h->vocab > INT32_MAX || (h->eos != NO_EOS && h->eos >= h->vocab))
        return shard_damaged(s, "the header holds values this program never writes");
    return OK;
}

static err read_trailer(const data_shard *s, const tok_header *h, void *t, size_t size) {
    if (s->file.size < sizeof *h + size)
        return shard_damaged(s, "the file is shorter than a token file's header and trailer");
    memcpy(t, s->file.data + s->file.size - size, size);
    uint64_t frame, before = size - sizeof frame;
    memcpy(&frame, (char *)t + before, sizeof frame);
    if (frame != frame_checksum(h, t, before))
        return shard_damaged(s, "the file does not end in the trailer that belongs to its header");
    return OK;
}

static err parse_1(data_shard *s, const tok_header *h) {
    tok_trailer_1 t;
    TRY(read_trailer(s, h, &t, sizeof t));
    s->docs = t.documents > INT64_MAX ? -1 : (int64_t)t.documents;
    s->checksum = t.checksum;
    return shard_place_tokens(s, sizeof *h, sizeof t, t.tokens);
}

/* The trailer is whole, so its sizes are the writer's; they still must add up to this file. Version 2 has no
 * checksums of chunks. */
static err parse_2(data_shard *s, const tok_header *h) {
    tok_trailer t;
    TRY(read_trailer(s, h, &t, sizeof t));
    size_t rest = s->file.size - sizeof *h - sizeof t;
    if (t.tokens > rest / h->width || t.documents > rest / sizeof(uint64_t) ||
        t.provenance_bytes > rest)
        return shard_damaged(s, "the trailer describes more than the file holds");
    size_t tokens_end = sizeof *h + (size_t)t.tokens * h->width;
    size_t index = align_up(tokens_end, ALIGN);
    size_t prompts = index + (size_t)t.documents * sizeof(uint64_t), chunk_hashes = prompts;
    if (h->version == VERSION_PROMPTS) chunk_hashes += (size_t)t.documents * sizeof(uint64_t);
    size_t chunks = h->version == VERSION_2
                        ? 0
                        : ((size_t)t.tokens * h->width + TOKFILE_CHUNK - 1) / TOKFILE_CHUNK;
    size_t provenance = chunk_hashes + chunks * sizeof(uint64_t);
    size_t end = provenance + align_up((size_t)t.provenance_bytes, ALIGN);
    if (end + sizeof t != s->file.size)
        return shard_damaged(s, "tokens, index and trailer do not add up to the file");
    if (hash_bytes(s->file.data + tokens_end, end - tokens_end, 0) != t.index_checksum)
        return shard_damaged(s, "the document index does not match its checksum");
    s->n = (int64_t)t.tokens;
    s->tokens = s->file.data + sizeof *h;
    s->docs = (int64_t)t.documents;
    s->ends = (const uint64_t *)(const void *)(s->file.data + index);
    if (h->version == VERSION_PROMPTS)
        s->prompts = (const uint64_t *)(const void *)(s->file.data + prompts);
    if (chunks) s->chunk_hash = (const uint64_t *)(const void *)(s->file.data + chunk_hashes);
    s->provenance = (const char *)s->file.data + provenance;
    s->provenance_len = (size_t)t.provenance_bytes;
    s->checksum = t.checksum;
    s->index_checksum = t.index_checksum;
    return OK;
}

err tokfile_parse(data_shard *s, data_info *info, bool *found) {
    tok_header h;
    bool magic = s->file.size >= sizeof MAGIC && !memcmp(s->file.data, MAGIC, sizeof MAGIC);
    *found = magic || str_ends(s->path, ".tok");
    if (!*found) return OK;
    if (!magic) return shard_damaged(s, "the file does not begin like a token file");
    if (s->file.size < sizeof h)
        return shard_damaged(s, "the file is shorter than a token file's header and trailer");
    memcpy(&h, s->file.data, sizeof h);
    TRY(check_token_header(s, &h));
    s->width = h.width;
    TRY(h.version == VERSION_1 ? parse_1(s, &h) : parse_2(s, &h));
    s->has_checksum = true;
    *info = (data_info){ .format = "ingot tokens",
                         .vocab = h.vocab,
                         .eos = h.eos == NO_EOS ? -1 : (int32_t)h.eos,
                         .tokenizer = (token_kind)h.kind,
                         .tokenizer_hash = h.tokenizer_hash };
    return OK;
}

err tokfile_tokens(const char *path, const uint8_t *header, const uint8_t *trailer, int64_t bytes,
                   int64_t *from, int64_t *to) {
    tok_header h;
    tok_trailer t;
    data_shard s = { .path = (char *)(uintptr_t)path };
    memcpy(&h, header, sizeof h);
    memcpy(&t, trailer, sizeof t);
    if (memcmp(h.magic, MAGIC, sizeof MAGIC) != 0)
        return shard_damaged(&s, "the file does not begin like a token file");
    TRY(check_token_header(&s, &h));
    int64_t rest = bytes - TOKFILE_HEADER - TOKFILE_TRAILER;
    if (rest < 0 || t.tokens > (uint64_t)rest / h.width)
        return shard_damaged(&s, "the trailer describes more than the file holds");
    *from = TOKFILE_HEADER;
    *to = TOKFILE_HEADER + (int64_t)t.tokens * h.width;
    return OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

enum { BUFFER_TOKENS = 1 << 15 };

struct token_writer {
    vfs_writer *file;
    tok_header header;
    tok_trailer trailer;
    XXH64_state_t *hash, *chunk_hash; /* of all tokens, and of the chunk they are in */
    uint64_t *ends, *prompts;         /* [trailer.documents] */
    uint64_t *chunks;                 /* [n_chunks] hashes of whole chunks */
    size_t ends_cap, chunks_cap, n_chunks,
        in_chunk; /* in_chunk: bytes of the one that is not whole */
    int buffered;
    union {
        uint16_t narrow[BUFFER_TOKENS];
        uint32_t wide[BUFFER_TOKENS];
    } buffer; /* of header.width bytes each */
};

err token_writer_open(const char *path, const token_writer_options *o, token_writer **out) {
    BUG_IF(o->vocab < 1 || o->vocab > INT32_MAX || o->eos >= o->vocab);
    token_writer *w = mem_alloc(sizeof *w);
    w->hash = XXH64_createState();
    w->chunk_hash = XXH64_createState();
    BUG_IF(!w->hash || !w->chunk_hash);
    XXH64_reset(w->hash, 0);
    XXH64_reset(w->chunk_hash, 0);
    w->header = (tok_header){ .version = o->prompts ? VERSION_PROMPTS : VERSION,
                              .width = (uint16_t)token_width(o->vocab),
                              .kind = (uint16_t)o->tokenizer,
                              .vocab = (uint32_t)o->vocab,
                              .eos = o->eos < 0 ? NO_EOS : (uint32_t)o->eos,
                              .tokenizer_hash = o->tokenizer_hash };
    memcpy(w->header.magic, MAGIC, sizeof MAGIC);
    err e = OK;
    TRY_CLEAN(vfs_writer_open(path, &w->file));
    TRY_CLEAN(vfs_writer_write(w->file, &w->header, sizeof w->header));
    *out = w;
    w = NULL;
cleanup:
    token_writer_abandon(w);
    return e;
}

static void add_end(token_writer *w, uint64_t end, uint64_t prompt) {
    size_t n = (size_t)w->trailer.documents++;
    if (n == w->ends_cap) {
        w->ends_cap = MAX(1024, 2 * n);
        w->ends = mem_grow(w->ends, w->ends_cap * sizeof *w->ends);
        w->prompts = mem_grow(w->prompts, w->ends_cap * sizeof *w->prompts);
    }
    w->ends[n] = end;
    w->prompts[n] = prompt;
}

static void end_chunk(token_writer *w) {
    if (w->n_chunks == w->chunks_cap) {
        w->chunks_cap = MAX(64, 2 * w->chunks_cap);
        w->chunks = mem_grow(w->chunks, w->chunks_cap * sizeof *w->chunks);
    }
    w->chunks[w->n_chunks++] = XXH64_digest(w->chunk_hash);
    XXH64_reset(w->chunk_hash, 0);
    w->in_chunk = 0;
}

static void hash_chunks(token_writer *w, const char *bytes, size_t n) {
    while (n > 0) {
        size_t now = MIN(n, TOKFILE_CHUNK - w->in_chunk);
        XXH64_update(w->chunk_hash, bytes, now);
        w->in_chunk += now;
        if (w->in_chunk == TOKFILE_CHUNK) end_chunk(w);
        bytes += now, n -= now;
    }
}

static err write_tokens(token_writer *w, const void *tokens, size_t n) {
    XXH64_update(w->hash, tokens, n * w->header.width);
    hash_chunks(w, tokens, n * w->header.width);
    return vfs_writer_write(w->file, tokens, n * w->header.width);
}

static err flush_tokens(token_writer *w) {
    size_t n = (size_t)w->buffered;
    w->buffered = 0;
    return write_tokens(w, &w->buffer, n);
}

err token_writer_add(token_writer *w, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)ids[i];
        BUG_IF(id >= w->header.vocab);
        if (w->header.width == 2)
            w->buffer.narrow[w->buffered] = (uint16_t)id;
        else
            w->buffer.wide[w->buffered] = id;
        w->trailer.tokens++;
        if (id == w->header.eos) add_end(w, w->trailer.tokens, 0);
        if (++w->buffered == BUFFER_TOKENS) TRY(flush_tokens(w));
    }
    return OK;
}

err token_writer_add_buffer(token_writer *w, const token_buffer *t) {
    BUG_IF(t->width != w->header.width);
    TRY(flush_tokens(w));
    for (size_t d = 0; d < t->docs; d++) add_end(w, w->trailer.tokens + t->ends[d], t->prompts[d]);
    w->trailer.tokens += t->n;
    return write_tokens(w, t->at, t->n);
}

/* Writes and hashes what stands between the tokens and the trailer. */
static err write_document_index(token_writer *w, const char *provenance) {
    static const char zeros[ALIGN], spaces[ALIGN] = { ' ', ' ', ' ', ' ', ' ', ' ', ' ', ' ' };
    size_t tokens_end = sizeof w->header + (size_t)w->trailer.tokens * w->header.width;
    size_t len = strlen(provenance), documents = (size_t)w->trailer.documents;
    const struct {
        const void *at;
        size_t n;
    } parts[] = { { zeros, align_up(tokens_end, ALIGN) - tokens_end },
                  { w->ends, documents * sizeof *w->ends },
                  { w->prompts,
                    w->header.version == VERSION_PROMPTS ? documents * sizeof *w->prompts : 0 },
                  { w->chunks, w->n_chunks * sizeof *w->chunks },
                  { provenance, len },
                  { spaces, align_up(len, ALIGN) - len } };
    XXH64_reset(w->hash, 0);
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (parts[i].n == 0) continue;
        XXH64_update(w->hash, parts[i].at, parts[i].n);
        TRY(vfs_writer_write(w->file, parts[i].at, parts[i].n));
    }
    w->trailer.provenance_bytes = len;
    w->trailer.index_checksum = XXH64_digest(w->hash);
    return OK;
}

err token_writer_close(token_writer *w, const char *provenance) {
    err e = OK;
    tok_trailer *t = &w->trailer;
    TRY_CLEAN(flush_tokens(w));
    bool open = t->tokens > (t->documents ? w->ends[t->documents - 1] : 0);
    if (open) add_end(w, t->tokens, 0); /* a last document without an end */
    t->checksum = XXH64_digest(w->hash);
    if (w->in_chunk) end_chunk(w);
    TRY_CLEAN(write_document_index(w, provenance ? provenance : "{}"));
    t->frame = frame_checksum(&w->header, t, offsetof(tok_trailer, frame));
    TRY_CLEAN(vfs_writer_write(w->file, t, sizeof *t));
    vfs_writer *file = w->file;
    w->file = NULL; /* commit frees it, also when it fails */
    TRY_CLEAN(vfs_writer_commit(file));
cleanup:
    token_writer_abandon(w);
    return e;
}

void token_writer_abandon(token_writer *w) {
    if (!w) return;
    vfs_writer_abort(w->file);
    XXH64_freeState(w->hash);
    XXH64_freeState(w->chunk_hash);
    free(w->ends);
    free(w->prompts);
    free(w->chunks);
    free(w);
}
