/* data: from text to batches. The synthetic corpus, the byte tokenizer, token files and shards,
 * mixtures and the deterministic loader. Depends on tokenizer, text, io and util.
 *
 * Given `int64_t vocab` of the model:
 *
 *     data_source *source = NULL;
 *     TRY(data_open("corpus.txt", vocab, &source));
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

#include "config/choices.h"
#include "text/text.h"

/* ---- the byte tokenizer ------------------------------------------------------------------
 * Ids 0..255 are the bytes of UTF-8 text, 256 ends a document. Nothing to train, nothing to
 * load, every text can be written. */
enum { BYTE_EOS = 256, BYTE_VOCAB = 257 };

/* Appends the text of n ids; an end of document becomes a separator line. Bytes that are not
 * UTF-8 become U+FFFD. */
void byte_decode(const int32_t *ids, size_t n, str *out);

/* Decodes ids as they arrive: a character is held back until its last byte is there, so a terminal
 * never shows half of one. Zero-initialize. */
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
err synth_options_check(const synth_options *o) MUST_USE;
/* Appends document `index`, without a final line break. @param o may be NULL: nothing planted.
 * Over any run of documents each kind comes within a few documents of its fraction. */
synth_info data_synth_document(uint64_t seed, int64_t index, const synth_options *o, str *out);

/* ---- token sources -----------------------------------------------------------------------
 * Read-only tokens in one or many shards, mapped from files or made in memory; may be read by many
 * threads. Tokens and documents of a source are numbered through all its shards. */
typedef enum {
    TOKENIZER_UNKNOWN,
    TOKENIZER_BYTES,
    TOKENIZER_BPE,
    TOKENIZER_UNIGRAM,
    TOKENIZER_KINDS
} token_kind;
const char *token_kind_name(token_kind kind);

typedef struct data_info {
    const char *path; /* owned by the source */
    const char
        *format; /* "ingot tokens", "llm.c tokens", "raw uint16 tokens", "text", ...; static */
    token_kind tokenizer;
    uint64_t tokenizer_hash;    /* identifies a trained vocabulary; 0: none */
    const char *tokenizer_path; /* the file that writes these ids out as text; NULL: none known */
    int64_t tokens;
    int64_t documents; /* -1: not counted */
    int64_t vocab;     /* ids are below this; 0: not stated by the file */
    int32_t eos; /* the id that ends a document; -1: none, documents are known by the index alone */
    int width;   /* bytes per stored token: 2 or 4 */
    bool prompts; /* documents may begin with a prompt, whose tokens are not targets */
} data_info;

typedef struct data_source data_source;

/* Ids in a .bin file without a header. RAW_GUESS: by their values, which a file of 256 bytes shows;
 * what was guessed is in data_info.format. */
err raw_dtype_parse(const char *name, raw_dtype *out) MUST_USE; /* "uint16", ... */

/* Opens token files or texts, recognized by content:
 *   a folder          shards written by data_tokenize_text, by its index.json
 *   .tok              our own format, below; checksums are verified up to DATA_VERIFY_BYTES
 *   X.bin + X.idx     Megatron's, by either name or by X alone
 *   llm.c .bin        by its header, u16 (GPT-2) or u32 (Llama 3)
 *   *.bin             without a header: raw ids, uint16 as nanoGPT writes them, uint32 or int64
 *   s3://...          such a folder or .tok file in an object store, whose chunks are fetched into a bounded
 *                     cache as they are needed (data_hold), each verified; or text, as below
 *   anything else     UTF-8 text, JSON lines and what else text/ reads, plain or compressed:
 *                     tokenized in memory, to the tokens that data_tokenize_text makes of it
 * @param vocab_limit ids must be below it (the model's vocabulary); 0: no limit. Files up to
 * DATA_VERIFY_BYTES are checked here, larger ones window by window as they are read. */
enum { DATA_VERIFY_BYTES = 512 << 20 };
err data_open(const char *path, int64_t vocab_limit, data_source **out) MUST_USE;

typedef struct data_options {
    int64_t vocab_limit;
    const char *tokenizer; /* of texts, as tokenizer_open takes it; NULL: "bytes" */
    bool no_prefix; /* documents of texts begin without the tokenizer's prefix, such as BOS */
    bool held_out;  /* of folders, the shards held out instead of those to train on */
    raw_dtype raw_dtype;
    const char
        *cache_dirs; /* of shards in an object store: folders for the cache, "a,b"; NULL: TMPDIR */
    int64_t cache_bytes; /* its bound; 0: 1 GiB */
} data_options;
/* Several paths as one source, one after the other: shards may be on several disks.
 * @param out NULL without an error when `held_out` is asked for and nothing was held out. */
err data_open_paths(const char *const *paths, int n, const data_options *o,
                    data_source **out) MUST_USE;
/* Opens the first documents of the synthetic corpus, byte-tokenized in memory. */
err data_open_synth(uint64_t seed, int64_t documents, data_source **out) MUST_USE;
/* Copies tokens given by the caller; for tests and embedding. */
err data_open_memory(const int32_t *tokens, int64_t n, int64_t vocab, int32_t eos,
                     data_source **out) MUST_USE;
const data_info *data_source_info(const data_source *s);
/* Reads every token: checksums, ids, document index. */
err data_verify(const data_source *s) MUST_USE;
/* An error if a file that does not state its vocabulary has ids of `vocab` or more. Of files above
 * DATA_VERIFY_BYTES only samples, evenly spread, are read. */
err data_check_ids(const data_source *s, int64_t vocab) MUST_USE;
/* @return a hash that identifies the content: of every token, from the files' checksums where they have
 * them. Of other files above DATA_VERIFY_BYTES only samples, evenly spread, are read. */
uint64_t data_hash(const data_source *s);
/* @return token i, 0 <= i < info.tokens. */
int32_t data_token(const data_source *s, int64_t i);
/* Brings tokens [from, from + n) here, and keeps them, if the source is in an object store; does nothing for
 * others. They may be read until as many releases as holds. The loader does this by itself. */
err data_hold(const data_source *s, int64_t from, int64_t n) MUST_USE;
void data_release(const data_source *s, int64_t from, int64_t n);
/* Counters of such a source's cache; zeros without one. */
typedef struct chunk_cache_stats {
    int64_t fetched, evicted; /* chunks */
    int64_t waited;           /* times that a reader found a chunk not there yet */
    int64_t resident;         /* bytes, now */
} chunk_cache_stats;
chunk_cache_stats data_cache_stats(const data_source *s);
/* Copies tokens [from, from + n). */
void data_read(const data_source *s, int64_t from, int64_t n, int32_t *out);
void data_close(data_source *s); /* takes NULL */

typedef struct data_range {
    int64_t from, to; /* [from, to) */
} data_range;

/* Describes one shard and its origin; all borrowed from the source. */
typedef struct data_shard_info {
    const char *path;
    int64_t tokens, documents; /* documents -1: not counted */
    const char *provenance;    /* JSON, see below; NULL: the format has none */
    size_t provenance_len;
} data_shard_info;
int data_shards(const data_source *s);
data_shard_info data_shard_at(const data_source *s, int i);

/* Makes documents addressable: takes the index of the files, or finds the ends by reading. */
void data_index_documents(data_source *s);
/* Whether the first document begins with these ids, and so all of them. */
err data_begins_with(const data_source *s, const int32_t *ids, int n, bool *out) MUST_USE;
/* The tokens of document d, 0 <= d < info.documents, its end included; after the above. */
data_range data_document(const data_source *s, int64_t d);
/* @return how many of its first tokens are its prompt. */
int64_t data_document_prompt(const data_source *s, int64_t d);
/* @return the document that token i is in; after the above. */
int64_t data_document_of(const data_source *s, int64_t i);
/* The document of token i, for a message: by the files' index, else by the ids around it that end documents,
 * within a bounded distance. @param number -1: not known. */
data_range data_look_up_document(const data_source *s, int64_t i, int64_t *number);

/* ---- token files -------------------------------------------------------------------------
 * The .tok format, little-endian: a header, the tokens, an index and a trailer. What is known last
 * comes last, so a file is written in one pass and a truncated file is recognized.
 *
 *   header  0  char[8]  "INGOTTOK"                trailer  0  u64  tokens
 *           8  u32      version, 3                         8  u64  documents
 *          12  u16      bytes per token, 2 or 4           16  u64  xxHash64 of the tokens' bytes
 *          14  u16      token_kind                        24  u64  bytes of provenance
 *          16  u32      vocabulary: ids are below it      32  u64  xxHash64 of index, provenance
 *          20  u32      id that ends documents; ~0: none  40  u64  xxHash64 of the trailer up to
 *          24  u64      tokenizer hash; 0: none                    here, seeded with the header's
 *
 *   index, at the next multiple of 8 bytes after the tokens: for each document a u64, the number of
 *   tokens in the file up to its end; in version 4 for each document another u64, the number of its first tokens that
 *   are its prompt, whose tokens are not targets; then for each MiB of the tokens a u64, its xxHash64, so that a part of
 *   them can be verified without the rest; then provenance, an object of JSON that describes what the tokens
 *   were made from, padded with spaces to a multiple of 8 bytes.
 *
 * Version 2, still read, has no checksums by the MiB. Version 1, still read, has no index, and a trailer of tokens, documents and two checksums. */
typedef struct token_writer_options {
    int64_t vocab; /* decides the width: 2 bytes up to 65,536 */
    int32_t eos;   /* -1: none */
    token_kind tokenizer;
    uint64_t tokenizer_hash;
    bool prompts; /* documents have prompts: version 4 */
} token_writer_options;

typedef struct token_writer token_writer;
err token_writer_open(const char *path, const token_writer_options *o, token_writer **out) MUST_USE;
/* Adds tokens; an eos among them ends a document. */
err token_writer_add(token_writer *w, const int32_t *ids, int64_t n) MUST_USE;
/* Completes the file under its name and frees the writer, also on error.
 * @param provenance JSON text; NULL: "{}". */
err token_writer_close(token_writer *w, const char *provenance) MUST_USE;
/* Frees the writer and leaves no file; takes NULL. */
void token_writer_abandon(token_writer *w);

/* ---- token files of other systems, out --------------------------------------------------------- */
#define DATA_EXPORT_FORMATS "megatron, llm.c, nanogpt or arrow"
typedef struct data_export_options {
    const char *format;   /* one of these */
    const char *out;      /* a prefix, a file or a folder: see export.c */
    int64_t shard_tokens; /* of formats with several files; 0: 100 M */
} data_export_options;
/* Files appear when they are complete. Indexes the documents of the source. */
err data_export(data_source *s, const data_export_options *o) MUST_USE;

/* ---- text to shards ------------------------------------------------------------------------
 * FOLDER/train-00000.tok ...        a shard for each segment of the input
 *        validation-00000.tok ...   its held-out documents
 *        tokenizer.json             what made the ids
 *        index.json                 all of the above with sums and checksums; "complete" when done
 *
 * A document is held out when the hash of its text is below the fraction, so the same text is on
 * the same side in every corpus and copies never fall on both. Each shard appears complete or not
 * at all; a rerun keeps those that are there. Nothing depends on the number of threads. */
struct text_inputs;
struct tokenizer;
enum {
    DOCUMENT_END_OWN = -1,
    DOCUMENT_END_NONE = -2
}; /* the tokenizer's suffix and its end; nothing */
typedef struct tokenize_options {
    const struct tokenizer *tokenizer; /* its prefix begins every document */
    int32_t eos;                       /* the id that ends documents, or DOCUMENT_END_* */
    double held_out;                   /* fraction of the documents */
    int threads;                       /* 0: one per core */
    bool fresh;                        /* start over, whatever is there */
    bool quiet;                        /* no progress */
    /* The member that holds a document's prompt, which is put before its text: a name, or a path such as "chat.user".
     * NULL: documents have none. */
    const char *prompt_field;
    struct comm *comm; /* the ranks that share the work, and call this together; NULL: alone */
} tokenize_options;
typedef struct tokenize_report {
    int64_t documents, tokens;                   /* to train on */
    int64_t held_out_documents, held_out_tokens; /* to validate on */
    int64_t prompts; /* documents of both that this run read with a prompt */
    int64_t bytes;   /* of text that this run read */
    int64_t repaired, invalid, unreadable, empty, excluded; /* as in text_counts */
    int shards, resumed; /* in the folder; found there by this run */
    double seconds;
    int64_t peak_memory; /* of one rank, the largest */
    int ranks;
} tokenize_report;
/* @param out a folder, or a name that ends in .tok: one file, nothing held out. */
err data_tokenize_text(struct text_inputs *in, const char *out, const tokenize_options *o,
                       tokenize_report *report) MUST_USE;

/* ---- mixtures ------------------------------------------------------------------------------
 * Sources and their shares. In a run of windows as long as the sum of the sources' counts, each source
 * comes exactly as often as its count, evenly spread; which one comes at a position, and how often
 * each came before it, is computed, not stored. A source that has been through its epochs leaves the
 * mix, and the others share its windows in their own proportions from then on. */
typedef struct mix_source {
    const char *name; /* borrowed */
    const data_source *source;
    data_range range; /* tokens of the source; to == 0: all */
    double weight;    /* share of the windows, in any unit; 0 in every source: by size */
    double epochs;    /* limit; 0: none */
    /* [phases of the loader] weights in the phases after the first; 0: not in the phase. Borrowed while the loader is
     * made */
    const double *phase_weights;
} mix_source;

/* A mix file: sources by name, with paths, weights and limits. Weights are those of the sources, or follow from one of
 *
 *     preset: slimpajama            # weights by the sources' names
 *     temperature: 3.3              # weights by tokens to the power 1 / 3.3: 1 is by size, large is equal shares
 *     unimax: { tokens: 1e12, epochs: 4 }   # equal shares of this many tokens, but at most 4 epochs of a source
 *
 *     sources:
 *       - name: c4
 *         path: /disk1/c4           # or a list of paths
 *         weight: 0.15              # over the preset's
 *         epochs: 2                 # at most; default: no limit
 *
 *     phases:                       # the mix changes after this many tokens of the run
 *       - { from: 9e11, weights: { c4: 0.3, books: 0.7 } }
 */
typedef struct mix_entry {
    const char *name, *const *paths;
    int n_paths;
    double weight, epochs;
} mix_entry;
typedef struct mix_phase {
    double from;     /* tokens of the run */
    double *weights; /* [sources] 0: not in the phase */
} mix_phase;
typedef struct mix_file {
    mix_entry *entries;
    int n;
    mix_phase *phases; /* ascending */
    int n_phases;
    const char *preset;                  /* NULL: none */
    double temperature;                  /* 0: none */
    double unimax_tokens, unimax_epochs; /* 0: none */
    arena *memory;                       /* owned: all of the above */
} mix_file;
/* @return whether a path names a mix file: by its ending, .yaml or .yml. */
bool mix_file_is(const char *path);
err mix_file_read(const char *path, mix_file *out) MUST_USE;
void mix_file_free(mix_file *m);
/* Sets the weights that follow from the sizes of the sources, by temperature or UniMax. Without either nothing changes.
 * @param tokens [n] of each source; below 0: it is not there. */
void mix_file_weigh(mix_file *m, const int64_t *tokens);
/* Published mixes. @return the i-th preset's name, NULL past the last. */
const char *mix_preset_name(int i);
/* @return the weight of a source in a preset, by name, whatever its case and punctuation; 0: none. */
double mix_preset_weight(const char *preset, const char *source);

/* ---- the loader --------------------------------------------------------------------------
 * The tokens of a part are split into windows. An epoch of a part visits each of its windows once,
 * in an order that is a keyed permutation, another in every epoch: no index is stored. With
 * epoch_offset, each epoch after the first also splits the tokens at an offset of its own, so that
 * documents are truncated elsewhere and no window is seen twice. The state is (seed, epoch_offset,
 * windows consumed, skipped ranges), and any window is reached directly:
 *
 *     windows consumed -> position in the mix, past what is skipped -> part and its own count
 *                      -> epoch and position in it -> window -> tokens
 *
 * A step consumes step_windows windows, whatever the number of ranks. Its microbatch m is windows
 * [m * ranks * rows, (m + 1) * ranks * rows) of the step; rank r takes `rows` windows:
 *
 *     step:   | microbatch 0                | microbatch 1                | ...
 *             | rank 0 | rank 1 | rank 2    | rank 0 | rank 1 | rank 2    |
 */

/* Splits off the last `fraction` of the tokens as held-out data, at the end of a document where one
 * is near. Both parts hold at least one window of seq_len, else an error. */
err data_split(const data_source *s, double fraction, int64_t seq_len, data_range *train,
               data_range *held_out) MUST_USE;

/* How documents fill windows.
 *   concat     back to back, a window every seq_len tokens: splits most documents
 *   best fit   groups of documents, the longest first, each into the fullest window that still
 *              holds it: splits only what is longer than a window; the rest of a window is padding.
 *              The sources' documents must be indexed */

/* Windows to skip, as ranges of positions in the mix: sorted and disjoint. */
enum { DATA_MAX_SKIPS = 64 };
typedef struct data_skips {
    int n;
    data_range at[DATA_MAX_SKIPS];
} data_skips;
/* Adds a range. Only its part at or after `now` counts: the past is fixed. */
err data_skips_add(data_skips *s, data_range r, int64_t now) MUST_USE;
/* Reads "1000-2000, 5000-5100". */
err data_skips_parse(const char *text, data_skips *out) MUST_USE;
/* @return how many of the positions before `position` are in the ranges. */
int64_t data_skips_before(const data_skips *s, int64_t position);
bool data_skips_holds(const data_skips *s, int64_t position);
/* @return the position of the window that comes after `consumed` others. */
int64_t data_skips_position(const data_skips *s, int64_t consumed);

/* Windows that teach nothing keep their position and lose their targets. */
typedef enum {
    GUARD_FINE,
    GUARD_VOCABULARY, /* ids the model does not have */
    GUARD_REPEATED,   /* one id over and over */
    GUARD_FEW_IDS,    /* hardly any different ids */
    GUARD_LOOPED,     /* one phrase over and over */
    GUARD_MALFORMED,  /* text that is not UTF-8, or was decoded with the wrong character set */
    GUARD_VERDICTS,
} guard_verdict;
const char *guard_verdict_name(guard_verdict v);
typedef struct guard_options {
    bool on;          /* else ids outside the vocabulary are an error, and nothing else matters */
    double repeated;  /* reject when one id, or one phrase, is more than this part of the window; 0:
                      * do not */
    int64_t few_ids;  /* reject when fewer ids differ; 0: do not */
    double malformed; /* reject when a larger part of the characters is malformed; 0: do not */
    const struct tokenizer *tokenizer; /* borrowed: of the sources that are not bytes; NULL: their
                                        * text is not looked at */
} guard_options;

/* A part of the run whose steps take `size` windows: those that begin before `until` windows. */
typedef struct batch_phase {
    int64_t size, until;
} batch_phase;
enum { BATCH_MAX_PHASES = 16 };
/* Batch ramp: the first steps take `start` windows, and every `windows` / n windows the number grows by
 * `increment`, until it is `full` after n increments; the last one may be smaller. Sizes do not depend on how
 * many ranks and microbatches share them, but where they are not a multiple of `unit` they are rounded up. Phases, if
 * there are any, stand for the ramp: steps are full after the last one. */
typedef struct batch_ramp {
    int64_t unit;      /* windows of the fewest microbatches that a step may have, over all ranks */
    int64_t start;     /* 0: every step is full */
    int64_t increment; /* 0: as start */
    int64_t full;      /* windows in a step */
    int64_t windows;   /* length of the ramp */
    int64_t end;       /* no step crosses it: the one that ends there may be smaller; 0: none */
    int n_phases;
    batch_phase phases[BATCH_MAX_PHASES]; /* in the order of `until` */
} batch_ramp;
/* @return the windows in a step that begins after `consumed` others. */
int64_t batch_ramp_size(const batch_ramp *r, int64_t consumed);
/* @return the steps it takes from `from` windows consumed to at least `to`. */
int64_t batch_ramp_steps(const batch_ramp *r, int64_t from, int64_t to);
/* @return the windows consumed by the first `steps` steps; INT64_MAX where it overflows. */
int64_t batch_ramp_windows(const batch_ramp *r, int64_t steps);

typedef struct loader_options {
    int64_t seq_len;      /* T: tokens in a window */
    int64_t rows;         /* B: windows in a microbatch of one rank */
    int64_t step_windows; /* in the global batch: a multiple of rows * ranks; 0: rows * ranks */
    int rank, ranks;      /* of the data-parallel axis; ranks 0 means 1 */
    uint64_t seed;
    data_range range;    /* of loader_new's source; to == 0: all of it */
    int64_t vocab_limit; /* ids must be below it; 0: no limit */
    bool mask_documents; /* attention stays inside a document, whose last token has no target */
    bool in_order;       /* windows in the order of the file, in every epoch */
    bool epoch_offset;   /* split each epoch after the first at an offset drawn from the seed; not
                          * with in_order, and not with best-fit packing, which splits at documents */
    bool evaluation;     /* in order, and the end padded instead of dropped: see loader_next */
    data_packing packing;
    guard_options guard;
    /* Phases of the mix after the first: tokens of the run, padding included, with which each begins; ascending.
     * Borrowed while the loader is made. */
    const double *phases;
    int n_phases;
    data_skips skips;
    /* Positions whose windows come from `clean` instead, one after the other; of a position that is
     * skipped too nothing is read. */
    data_skips replaced;
    const mix_source *clean; /* weight and epochs are not read; NULL: nothing is replaced */
    /* Sequence curriculum: documents (or windows, without mask_documents) are split into pieces of
     * at most this many tokens; the limit grows linearly to seq_len over curriculum_windows. The
     * last token of a piece keeps its target: only the context gets shorter. 0: off. */
    int64_t curriculum_start;
    int64_t curriculum_windows; /* 0: the limit stays */
    batch_ramp
        ramp; /* how steps grow, and where they end; unit and full 0: rows * ranks, step_windows */
    int prefetch; /* batches made ahead; 0: made by the caller */
    int workers;  /* threads that make them; 0 means 1 */
} loader_options;

enum { DATA_NO_TARGET = -100 };

/* One microbatch of one rank; N = rows * seq_len. The arrays belong to the loader and hold until
 * the next call on it. */
typedef struct data_batch {
    int32_t *tokens;    /* [N] */
    int32_t *targets;   /* [N], DATA_NO_TARGET where nothing is predicted */
    int32_t *pos;       /* [N], restarts with each document and each window */
    int32_t *start;     /* [N], index in this batch of the first token attended to */
    int64_t *id;        /* [N], position of the token in the data: identifies it on every layout */
    int64_t *window;    /* [rows], in its source's epoch; -1 for padding */
    int32_t *source;    /* [rows] */
    int64_t *row_valid; /* [rows], targets */
    uint8_t *guard;     /* [rows], guard_verdict */
    int64_t valid_here; /* targets in this batch */
    int64_t valid;      /* targets of this rank in the step: every microbatch */
    int64_t microbatch; /* of the step, from 0 */
    int64_t microbatches; /* in the step */
    int64_t epoch;        /* of the first row, in its source */
    int64_t consumed;     /* windows consumed once this microbatch is done on every rank */
} data_batch;

typedef struct loader loader;
err loader_new(const data_source *s, const loader_options *o, loader **out) MUST_USE;
/* The same over several sources, which stay open as long as the loader; options.range is not read. */
err loader_new_mix(const mix_source *sources, int n, const loader_options *o,
                   loader **out) MUST_USE;
/* A rank may have no target at all in a step (valid is 0) when the guard rejects everything in it.
 * @return an error when a window holds an id at or above the limit and no guard is on, or when every
 * source has been through its epochs. An evaluation pads: the last
 * window with tokens that have no target, the last batch with whole rows of them (window -1); past
 * loader_batches it starts again. */
err loader_next(loader *l, data_batch *out) MUST_USE;
/* Continues as if `consumed` windows had been consumed; a step begins there. */
void loader_seek(loader *l, int64_t consumed);
/* Replace what is skipped, what is read from the clean source instead, and whether epochs have offsets; a
 * seek must follow. */
void loader_set_skips(loader *l, const data_skips *skips);
void loader_set_replaced(loader *l, const data_skips *replaced);
void loader_set_epoch_offset(loader *l, bool on);
int64_t loader_windows(const loader *l); /* in one epoch of every source */
/* @return windows there are before every source has been through its epochs; INT64_MAX: no end. */
int64_t loader_total(const loader *l);
/* @return microbatches of a rank in an epoch, rounded up: what an evaluation runs. */
int64_t loader_batches(const loader *l);
/* A source's share of the windows, and when it leaves the mix. */
typedef struct loader_source {
    double
        share; /* of the windows at the beginning, while all sources are in; the shares' sum is 1 */
    int64_t windows; /* in an epoch */
    int64_t most;    /* windows until it leaves; INT64_MAX: never */
} loader_source;
loader_source loader_source_at(const loader *l, int source);
/* @return the share of a source in the window that follows `consumed` others. */
double loader_source_share(const loader *l, int source, int64_t consumed);
/* @return windows of this source among the first `consumed`. */
int64_t loader_source_consumed(const loader *l, int source, int64_t consumed);
/* Where the window is that is read after `consumed` others, which are fewer than loader_total. */
typedef struct loader_place {
    int source;                   /* the number of sources: the clean one */
    int64_t window, epoch, token; /* the first token, counted in its source's tokens */
} loader_place;
loader_place loader_find(const loader *l, int64_t consumed);
/* @return the first token of a batch's row, counted in its source's tokens: where to look. */
int64_t loader_row_token(const loader *l, const data_batch *b, int64_t row);
void loader_free(loader *l); /* takes NULL; the sources stay open */

/* Defines the order of windows: a bijection of [0, n) for each (seed, epoch), without memory. @param i in [0, n). */
int64_t data_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t i);

#endif
