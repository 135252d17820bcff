/* data: from text to batches. The synthetic corpus, the byte tokenizer, token files and the
 * deterministic loader. Depends on io and util.
 *
 *     data_source *source = NULL;
 *     TRY(data_open("corpus.txt", model_vocab, &source));
 *     data_range train, held_out;
 *     TRY(data_split(source, 0.05, 256, &train, &held_out));
 *     loader *l = NULL;
 *     TRY(loader_new(source, &(loader_options){ .seq_len = 256, .rows = 8, .ranks = 1,
 *                                               .step_windows = 8, .range = train,
 *                                               .mask_documents = true, .prefetch = 2 }, &l));
 *     data_batch b;
 *     TRY(loader_next(l, &b));      // b.tokens ... borrowed until the next call
 *     loader_free(l);
 *     data_close(source);
 */
#ifndef INGOT_DATA_H
#define INGOT_DATA_H

#include "util/util.h"

/* ---- the byte tokenizer ------------------------------------------------------------------
 * Ids 0..255 are the bytes of UTF-8 text, 256 ends a document. Nothing to train, nothing to
 * load, every text can be written. */
enum { BYTE_EOS = 256, BYTE_VOCAB = 257 };
/* In plain text files a line that holds exactly this ends a document. The line break before it
 * belongs to the separator, not to the document. */
#define DATA_SEPARATOR "<|endoftext|>"

/* @param out room for n ids. */
void byte_encode(const char *text, size_t n, int32_t *out);
/* Appends the text of n ids; an end of document becomes a separator line. Bytes that are not
 * UTF-8 become U+FFFD. */
void byte_decode(const int32_t *ids, size_t n, str *out);

/* Decoding as ids arrive: a character is held back until its last byte is there, so a terminal
 * never sees half of one. Zero-initialise. */
typedef struct byte_decoder {
    unsigned char pending[4];
    int len;  /* bytes held back */
    int need; /* bytes the held character will have */
} byte_decoder;
enum { BYTE_DECODE_MAX = 8 };
/* Ids of no byte (end of document, padding of the vocabulary) only flush what is held back.
 * @return bytes written to out (not NUL-terminated), 0 while a character is incomplete. */
int byte_decoder_push(byte_decoder *d, int32_t id, char out[BYTE_DECODE_MAX]);
/* @return bytes written: U+FFFD when half a character was left. */
int byte_decoder_end(byte_decoder *d, char out[BYTE_DECODE_MAX]);

/* ---- the synthetic corpus ----------------------------------------------------------------
 * Small English stories and articles. Document i is a pure function of (seed, i, options), so any
 * range can be made by anyone, in any order. */
typedef enum {
    PLANT_NONE,
    PLANT_DUPLICATE,      /* the exact text of an earlier document */
    PLANT_NEAR_DUPLICATE, /* an earlier document with a few words changed */
    PLANT_BOILERPLATE,    /* menus, cookie notices and footers around the text */
    PLANT_MARKUP,         /* HTML left in */
    PLANT_GARBAGE,        /* not text at all */
    PLANT_COUNT,
} plant_kind;

typedef struct synth_options {
    double plant[PLANT_COUNT]; /* fraction of documents of each kind; [PLANT_NONE] is not read */
} synth_options;

typedef struct synth_info {
    plant_kind planted;
    int64_t of;         /* copies: index of the document copied, which is itself not planted */
    const char *source; /* "stories" or "articles"; static */
} synth_info;

const char *plant_name(plant_kind kind);
/* Fractions must be in [0, 1] and sum to at most 1. */
err synth_options_check(const synth_options *o);
/* Appends document `index`, without a final line break. @param o may be NULL: nothing planted.
 * Over any run of documents each kind comes within a few documents of its fraction. */
synth_info data_synth_document(uint64_t seed, int64_t index, const synth_options *o, str *out);

/* ---- token sources -----------------------------------------------------------------------
 * Read-only tokens, mapped from a file or made in memory; may be read by many threads. */
typedef enum { TOKENIZER_UNKNOWN, TOKENIZER_BYTES, TOKENIZER_BPE, TOKENIZER_KINDS } tokenizer_kind;
const char *tokenizer_kind_name(tokenizer_kind kind);

typedef struct data_info {
    const char *path;   /* owned by the source */
    const char *format; /* "ingot tokens", "llm.c tokens", "raw u16 tokens", "text", ...; static */
    tokenizer_kind tokenizer;
    uint64_t tokenizer_hash; /* identifies a trained vocabulary; 0: none */
    int64_t tokens;
    int64_t documents; /* -1: not counted */
    int64_t vocab;     /* ids are below this; 0: not stated by the file */
    int32_t eos;       /* the id that ends a document; -1: none */
    int width;         /* bytes per stored token: 2 or 4 */
} data_info;

typedef struct data_source data_source;

/* Opens a token file or a text, told apart by content:
 *   .tok              our own format, below; the checksum is verified up to DATA_VERIFY_BYTES
 *   llm.c .bin        by its header, u16 (GPT-2) or u32 (Llama 3)
 *   *.bin             without a header: raw u16 as nanoGPT writes it
 *   *.jsonl           the "text" member of each line, byte-tokenised
 *   anything else     UTF-8 text, byte-tokenised, documents split at DATA_SEPARATOR lines
 * @param vocab_limit ids must be below it (the model's vocabulary); 0: no limit. Files up to
 * DATA_VERIFY_BYTES are checked here, larger ones window by window as they are read. */
enum { DATA_VERIFY_BYTES = 512 << 20 };
err data_open(const char *path, int64_t vocab_limit, data_source **out) MUST_USE;
/* The first documents of the synthetic corpus, byte-tokenised in memory. */
err data_open_synth(uint64_t seed, int64_t documents, data_source **out) MUST_USE;
/* Copies tokens given by the caller; for tests and embedding. */
err data_open_memory(const int32_t *tokens, int64_t n, int64_t vocab, int32_t eos,
                     data_source **out) MUST_USE;
const data_info *data_source_info(const data_source *s);
/* Reads every token: checksum, ids. */
err data_verify(const data_source *s) MUST_USE;
/* @return token i, 0 <= i < info.tokens. */
int32_t data_token(const data_source *s, int64_t i);
/* Copies tokens [from, from + n). */
void data_read(const data_source *s, int64_t from, int64_t n, int32_t *out);
void data_close(data_source *s); /* takes NULL */

/* ---- writing token files -----------------------------------------------------------------
 * The .tok format, little-endian: a header, the tokens, a trailer. What is known last stands last,
 * so a file is written in one go and a file cut short shows it.
 *
 *      0  char[8]  "INGOTTOK"                      0  u64  tokens
 *      8  u32      version, 1                      8  u64  documents
 *     12  u16      bytes per token, 2 or 4        16  u64  xxHash64 of the tokens' bytes
 *     14  u16      tokenizer_kind                 24  u64  xxHash64 of the header and of the
 *     16  u32      vocabulary: ids are below it            trailer up to here
 *     20  u32      id that ends a document; ~0: none
 *     24  u64      tokenizer hash; 0: none
 */
typedef struct token_writer_options {
    int64_t vocab; /* decides the width: 2 bytes up to 65,536 */
    int32_t eos;   /* -1: none */
    tokenizer_kind tokenizer;
    uint64_t tokenizer_hash;
} token_writer_options;

typedef struct token_writer token_writer;
err token_writer_open(const char *path, const token_writer_options *o, token_writer **out) MUST_USE;
err token_writer_add(token_writer *w, const int32_t *ids, int64_t n) MUST_USE;
/* Completes the file under its name and frees the writer, also on error. */
err token_writer_close(token_writer *w) MUST_USE;
/* Frees the writer and leaves no file; takes NULL. */
void token_writer_abandon(token_writer *w);

/* ---- the loader --------------------------------------------------------------------------
 * The tokens of a range are cut into windows of seq_len tokens, each with one more as the last
 * target. An epoch visits every window once, in an order that is a keyed permutation: no index
 * is stored. The whole state is the number of windows consumed.
 *
 * A step consumes step_windows windows, whatever the number of ranks. Its microbatch m is windows
 * [m * ranks * rows, (m + 1) * ranks * rows) of the step, of which rank r takes `rows`:
 *
 *     step:   | microbatch 0                | microbatch 1                | ...
 *             | rank 0 | rank 1 | rank 2    | rank 0 | rank 1 | rank 2    |
 */
typedef struct data_range {
    int64_t from, to; /* tokens [from, to) */
} data_range;

/* Cuts off the last `fraction` of the tokens as held-out data, at the end of a document where one
 * is near. Both parts hold at least one window of seq_len, else an error. */
err data_split(const data_source *s, double fraction, int64_t seq_len, data_range *train,
               data_range *held_out) MUST_USE;

typedef struct loader_options {
    int64_t seq_len;      /* T: tokens in a window */
    int64_t rows;         /* B: windows in a microbatch of one rank */
    int64_t step_windows; /* in the global batch: a multiple of rows * ranks; 0: rows * ranks */
    int rank, ranks;      /* data-parallel place; ranks 0 means 1 */
    uint64_t seed;
    data_range range;    /* to == 0: the whole source */
    int64_t vocab_limit; /* ids must be below it; 0: no limit */
    bool mask_documents; /* attention stays inside a document, whose last token has no target */
    bool in_order;       /* windows as they lie in the file, in every epoch */
    bool evaluation;     /* in order, and the end padded instead of dropped: see loader_next */
    /* Sequence curriculum: documents (or windows, without mask_documents) are cut into pieces of
     * at most this many tokens; the limit grows linearly to seq_len over curriculum_windows. Cuts
     * keep their targets: only the context gets shorter. 0: off. */
    int64_t curriculum_start;
    int64_t curriculum_windows; /* 0: the limit stays */
    /* Batch ramp: the first steps take this many windows; the number grows linearly to step_windows
     * over ramp_windows, always rounded down to whole microbatches, at least one. 0: off. */
    int64_t ramp_start;
    int64_t ramp_windows;
    int prefetch; /* batches made ahead by a thread; 0: made by the caller */
} loader_options;

enum { DATA_NO_TARGET = -100 };

/* One microbatch of one rank; N = rows * seq_len. The arrays belong to the loader and hold until
 * the next call on it. */
typedef struct data_batch {
    int32_t *tokens;      /* [N] */
    int32_t *targets;     /* [N], DATA_NO_TARGET where nothing is predicted */
    int32_t *pos;         /* [N], restarts with each document and each window */
    int32_t *start;       /* [N], index in this batch of the first token attended to */
    int64_t *id;          /* [N], place of the token in the source: names it on every layout */
    int64_t *window;      /* [rows], -1 for padding */
    int64_t valid_here;   /* targets in this batch */
    int64_t valid;        /* targets in the whole step: every rank, every microbatch */
    int64_t microbatch;   /* of the step, from 0 */
    int64_t microbatches; /* in the step */
    int64_t epoch;        /* of the first row */
    int64_t consumed;     /* windows consumed once this microbatch is done on every rank */
} data_batch;

typedef struct loader loader;
err loader_new(const data_source *s, const loader_options *o, loader **out) MUST_USE;
/* @return an error when a window read holds an id at or above the limit. An evaluation pads: the
 * last window with tokens that have no target, the last batch with whole rows of them (window -1);
 * past loader_batches it starts again. */
err loader_next(loader *l, data_batch *out) MUST_USE;
/* Continues as if `consumed` windows had been consumed; a step begins there. */
void loader_seek(loader *l, int64_t consumed);
int64_t loader_windows(const loader *l); /* in an epoch */
/* @return microbatches of a rank in an epoch, rounded up: what an evaluation runs. */
int64_t loader_batches(const loader *l);
void loader_free(loader *l); /* takes NULL; the source stays open */

/* The order of windows: a bijection of [0, n) for each (seed, epoch), without memory.
 * @param i in [0, n). */
int64_t data_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t i);

#endif
