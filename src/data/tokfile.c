/* Token files: our own .tok, the headers of llm.c, and nanoGPT's raw u16. */
#include "data/data_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Tokens are used in place, as they lie in the file. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read without conversion"
#endif

static const char MAGIC[8] = { 'I', 'N', 'G', 'O', 'T', 'T', 'O', 'K' };
enum { VERSION = 1 };
static const uint32_t NO_EOS = UINT32_MAX;

typedef struct tok_header {
    char magic[8];
    uint32_t version;
    uint16_t width, tokenizer;
    uint32_t vocab, eos;
    uint64_t tokenizer_hash;
} tok_header;
typedef struct tok_trailer {
    uint64_t tokens, documents;
    uint64_t checksum; /* of the tokens */
    uint64_t frame;    /* checksum of the header and of this trailer before it */
} tok_trailer;
_Static_assert(sizeof(tok_header) == 32 && sizeof(tok_trailer) == 32, "they are the file's layout");

static uint64_t frame_checksum(const tok_header *h, const tok_trailer *t) {
    return hash_bytes(t, offsetof(tok_trailer, frame), hash_bytes(h, sizeof *h, 0));
}

/* ---- reading ------------------------------------------------------------------------------- */

static err damaged(const data_source *s, const char *what) {
    return err_hint(ERR("%s: %s", s->info.path, what),
                    "the file was cut short or changed after it was written; make it again with "
                    "`ingot data tokenize`, or copy it again");
}

/* The tokens lie in the file between `before` and `after` bytes and must fill it exactly. */
static err place_tokens(data_source *s, size_t before, size_t after, uint64_t count) {
    size_t bytes = s->file.size - before - after, width = (size_t)s->info.width;
    if (bytes % width || bytes / width != count)
        return err_hint(ERR("%s: the file says it holds %" PRIu64
                            " tokens of %zu bytes, it has %zu "
                            "bytes of tokens",
                            s->info.path, count, width, bytes),
                        "the file was cut short or changed after it was written; make it or copy "
                        "it again");
    if (count == 0) return damaged(s, "the file holds no tokens");
    s->info.tokens = (int64_t)count;
    s->tokens = s->file.data + before;
    return OK;
}

static err check_tok_header(const data_source *s, const tok_header *h) {
    if (h->version != VERSION)
        return err_hint(ERR("%s: token file version %" PRIu32 ", this program reads version %d",
                            s->info.path, h->version, VERSION),
                        "make it again with this program's `ingot data tokenize`");
    if ((h->width != 2 && h->width != 4) || h->tokenizer >= TOKENIZER_KINDS || h->vocab == 0 ||
        h->vocab > INT32_MAX || (h->eos != NO_EOS && h->eos >= h->vocab))
        return damaged(s, "the header holds values this program never writes");
    return OK;
}

static err parse_tok(data_source *s, bool *found) {
    tok_header h;
    tok_trailer t;
    bool magic = s->file.size >= sizeof MAGIC && !memcmp(s->file.data, MAGIC, sizeof MAGIC);
    *found = magic || str_ends(s->info.path, ".tok");
    if (!*found) return OK;
    if (!magic) return damaged(s, "the file does not begin like a token file of this program");
    if (s->file.size < sizeof h + sizeof t)
        return damaged(s, "the file is shorter than a token file's header and trailer");
    memcpy(&h, s->file.data, sizeof h);
    memcpy(&t, s->file.data + s->file.size - sizeof t, sizeof t);
    TRY(check_tok_header(s, &h));
    if (t.frame != frame_checksum(&h, &t))
        return damaged(s, "the file does not end in the trailer that belongs to its header");
    s->info.format = "ingot tokens";
    s->info.width = h.width;
    s->info.vocab = h.vocab;
    s->info.eos = h.eos == NO_EOS ? -1 : (int32_t)h.eos;
    s->info.documents = t.documents > INT64_MAX ? -1 : (int64_t)t.documents;
    s->info.tokenizer = (tokenizer_kind)h.tokenizer;
    s->info.tokenizer_hash = h.tokenizer_hash;
    s->checksum = t.checksum;
    s->has_checksum = true;
    return place_tokens(s, sizeof h, sizeof t, t.tokens);
}

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

static err parse_llmc(data_source *s, bool *found) {
    int32_t head[3] = { 0 };
    if (s->file.size < 4) return OK;
    memcpy(head, s->file.data, MIN(s->file.size, sizeof head));
    for (size_t i = 0; i < COUNT_OF(LLMC_KINDS); i++) {
        const struct llmc_kind *kind = &LLMC_KINDS[i];
        if (head[0] != kind->magic) continue;
        *found = true;
        if (s->file.size < LLMC_HEADER)
            return damaged(s, "an llm.c token file that ends inside its header of 1024 bytes");
        if (head[1] != kind->version)
            return ERR("%s: llm.c token file version %" PRId32 ", expected %" PRId32, s->info.path,
                       head[1], kind->version);
        if (head[2] < 0) return damaged(s, "the llm.c header says a negative number of tokens");
        s->info.format = kind->format;
        s->info.tokenizer = TOKENIZER_BPE;
        s->info.width = kind->width;
        s->info.eos = kind->eos;
        return place_tokens(s, LLMC_HEADER, 0, (uint64_t)head[2]);
    }
    return OK;
}

/* Raw u16 has nothing to be told by but its name. Its ids are GPT-2's where they reach 50256. */
static err parse_raw(data_source *s, bool *found) {
    if (!str_ends(s->info.path, ".bin")) return OK;
    *found = true;
    if (s->file.size % 2)
        return err_hint(
            ERR("%s: %zu bytes, an odd number, cannot be 16-bit tokens", s->info.path,
                s->file.size),
            "a .bin file is an llm.c token file or raw 16-bit tokens; name a text .txt");
    s->info.format = "raw u16 tokens";
    s->info.width = 2;
    s->info.eos = 50256;
    return place_tokens(s, 0, 0, s->file.size / 2);
}

err tokfile_parse(data_source *s, bool *found) {
    err (*const parsers[])(data_source *, bool *) = { parse_tok, parse_llmc, parse_raw };
    *found = false;
    for (size_t i = 0; i < COUNT_OF(parsers) && !*found; i++) TRY(parsers[i](s, found));
    return OK;
}

/* ---- writing ------------------------------------------------------------------------------- */

enum { BUFFER_TOKENS = 1 << 15 };

struct token_writer {
    io_writer *file;
    tok_header header;
    tok_trailer trailer;
    XXH64_state_t *hash;
    bool document_open; /* the last token written did not end a document */
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
    BUG_IF(w->hash == NULL);
    XXH64_reset(w->hash, 0);
    w->header = (tok_header){ .version = VERSION,
                              .width = o->vocab <= UINT16_MAX + 1 ? 2 : 4,
                              .tokenizer = (uint16_t)o->tokenizer,
                              .vocab = (uint32_t)o->vocab,
                              .eos = o->eos < 0 ? NO_EOS : (uint32_t)o->eos,
                              .tokenizer_hash = o->tokenizer_hash };
    memcpy(w->header.magic, MAGIC, sizeof MAGIC);
    err e = OK;
    TRY_CLEAN(io_writer_open(path, &w->file));
    TRY_CLEAN(io_writer_write(w->file, &w->header, sizeof w->header));
    *out = w;
    w = NULL;
cleanup:
    token_writer_abandon(w);
    return e;
}

static err flush_tokens(token_writer *w) {
    size_t bytes = (size_t)w->buffered * w->header.width;
    XXH64_update(w->hash, &w->buffer, bytes);
    w->buffered = 0;
    return io_writer_write(w->file, &w->buffer, bytes);
}

err token_writer_add(token_writer *w, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)ids[i];
        BUG_IF(id >= w->header.vocab);
        if (w->header.width == 2)
            w->buffer.narrow[w->buffered] = (uint16_t)id;
        else
            w->buffer.wide[w->buffered] = id;
        w->document_open = id != w->header.eos;
        w->trailer.documents += !w->document_open;
        if (++w->buffered == BUFFER_TOKENS) TRY(flush_tokens(w));
    }
    w->trailer.tokens += (uint64_t)n;
    return OK;
}

err token_writer_close(token_writer *w) {
    err e = OK;
    TRY_CLEAN(flush_tokens(w));
    w->trailer.documents += w->document_open;
    w->trailer.checksum = XXH64_digest(w->hash);
    w->trailer.frame = frame_checksum(&w->header, &w->trailer);
    TRY_CLEAN(io_writer_write(w->file, &w->trailer, sizeof w->trailer));
    io_writer *file = w->file;
    w->file = NULL; /* commit frees it, also when it fails */
    TRY_CLEAN(io_writer_commit(file));
cleanup:
    token_writer_abandon(w);
    return e;
}

void token_writer_abandon(token_writer *w) {
    if (!w) return;
    io_writer_abort(w->file);
    XXH64_freeState(w->hash);
    free(w);
}
