/* tokenizer: text to ids and back. Byte-level BPE with any split pattern, SentencePiece's BPE and
 * Unigram, plain bytes; the files people have; and the trainers. Depends on text, io, PCRE2.
 *
 * Given `const char *text` and `size_t n`:
 *
 *     tokenizer *t = NULL;
 *     TRY(tokenizer_open("tokenizer.json", NULL, &t));
 *     encoder *e = encoder_new(t);                  // one for each thread: holds a cache
 *     token_ids ids = { 0 };
 *     encoder_add(e, text, n, false, &ids);         // appends
 *     str back = { 0 };
 *     tokenizer_decode(t, ids.at, ids.n, true, &back);
 */
#ifndef INGOT_TOKENIZER_H
#define INGOT_TOKENIZER_H

#include <jansson.h>

#include "util/util.h"

typedef struct tokenizer tokenizer; /* read-only once open: shared by threads */

/* Opens a tokenizer, recognized by name and content:
 *   "bytes"           the built-in one: ids 0..255 are bytes, 256 ends a document
 *   *.json            Hugging Face tokenizer.json
 *   a folder          with tokenizer.json, with GPT-2's two files (vocab.json or encoder.json,
 *                     merges.txt or vocab.bpe), or with tokenizer.model
 *   *.model           SentencePiece's, of the type BPE or Unigram; or Llama 3's, a .tiktoken file
 *   *.tiktoken        base64 tokens and ranks
 * @param pattern of a .tiktoken file: "r50k" (or "gpt2"), "cl100k", "o200k" or a regular
 * expression; NULL: known from the file's name, else an error. */
err tokenizer_open(const char *path, const char *pattern, tokenizer **out) MUST_USE;
void tokenizer_free(tokenizer *t); /* takes NULL */

int64_t tokenizer_vocab(const tokenizer *t); /* ids are below it */
int32_t tokenizer_eos(const tokenizer *t);   /* the last id of its suffix, else the one that the
                                                 * files beside it name, else the token that is
                                                 * called the end of a document; -1: none known */
/* Names the id that ends documents, where data was made with another. */
void tokenizer_set_eos(tokenizer *t, int32_t id);
uint64_t tokenizer_hash(const tokenizer *t);    /* of everything that changes ids */
const char *tokenizer_kind(const tokenizer *t); /* "bytes", "byte-level BPE", ...; static */
/* @return the id whose text is exactly this, special or not; -1: none. */
int32_t tokenizer_find(const tokenizer *t, const char *text, size_t n);
/* Writes it as a tokenizer.json that Hugging Face loads and tokenizer_open reads the same. */
err tokenizer_save(const tokenizer *t, const char *path) MUST_USE;
err tokenizer_json(const tokenizer *t, json_t **out) MUST_USE; /* what it writes; owned */

/* The ids around every text, such as BOS and EOS: what the post_processor of a tokenizer.json adds, or
 * add_bos_token and add_eos_token of the tokenizer_config.json beside other files. No part of the hash. */
enum { AFFIX_MAX = 8 };
typedef struct token_affixes {
    int32_t prefix[AFFIX_MAX], suffix[AFFIX_MAX];
    int n_prefix, n_suffix;
} token_affixes;
const token_affixes *tokenizer_affixes(const tokenizer *t);
/* Replaces them, also in what tokenizer_save writes. Not while other threads use the tokenizer. */
void tokenizer_set_affixes(tokenizer *t, const token_affixes *a);

/* ---- encoding ------------------------------------------------------------------------------ */
typedef struct token_ids {
    int32_t *at; /* owned: token_ids_free */
    size_t n, cap;
} token_ids;
void token_ids_free(token_ids *ids);
void token_ids_add(token_ids *ids, const int32_t *more, size_t n); /* appends */

/* State of one encoding thread: buffers and a cache of pieces seen. */
typedef struct encoder encoder;
encoder *encoder_new(const tokenizer *t);
/* Appends the ids of any n bytes: of UTF-8 the same as the tokenizer's original gives. A byte that is
 * not part of a character counts as one of its own, not a letter, number or space; a tokenizer with a
 * token for every byte gives all of them back.
 * @param special whether special tokens written out in the text count as such. */
void encoder_add(encoder *e, const char *text, size_t n, bool special, token_ids *out);
/* The same between the tokenizer's prefix and suffix: Hugging Face's encode with add_special_tokens. */
void encoder_add_affixed(encoder *e, const char *text, size_t n, bool special, token_ids *out);
/* The beginning of a document that a model is to continue: after the tokenizer's prefix, unless the text
 * itself begins with it. @return ids of the prefix that were added. */
size_t encoder_add_prefixed(encoder *e, const char *text, size_t n, bool special, token_ids *out);
void encoder_free(encoder *e); /* takes NULL */

/* ---- decoding ------------------------------------------------------------------------------ */
/* Appends the bytes of n ids; ids outside the vocabulary become U+FFFD.
 * @param special whether special tokens are written out or omitted. */
void tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, bool special, str *out);

/* How far a text is decoded. Zero-initialize. */
typedef struct decode_state {
    bool begun;      /* an id has added text */
    bool unstripped; /* nothing is stripped any more */
    int left;        /* spaces that were stripped at the left */
    size_t held;     /* spaces at the end, which are stripped unless something follows */
} decode_state;
/* Appends the bytes that an id adds to the ids before it. */
void decode_id(const tokenizer *t, decode_state *s, int32_t id, bool special, str *out);

/* Decodes ids as they arrive, into the text that utf8_repair makes of all their bytes: a character is held
 * back until its last byte is there, so that a terminal never shows half of one, and bytes that cannot begin or
 * continue one become U+FFFD at once. Set `t`, zero the rest. */
typedef struct token_decoder {
    const tokenizer *t;
    decode_state state;
    str text; /* bytes of a character that is not whole yet */
} token_decoder;
/* Appends what this id adds; special tokens add nothing. */
void token_decoder_push(token_decoder *s, int32_t id, str *out);
/* Appends what was held back, as U+FFFD, and frees the decoder's buffers. */
void token_decoder_end(token_decoder *s, str *out);

/* ---- splitting ----------------------------------------------------------------------------- */
/* Splits text into the pieces that are tokenized one by one. Known patterns run on a scanner of our
 * own, any other on PCRE2. */
typedef struct splitter splitter;
err splitter_new(const char *pattern, splitter **out) MUST_USE;
/* The end of the piece that begins at `from`, which is the end of the piece before or 0.
 * @param text valid UTF-8, n bytes. */
size_t splitter_next(const splitter *s, const char *text, size_t n, size_t from);
void splitter_free(splitter *s);
/* "gpt2" (or "r50k"), "cl100k", "qwen2", "o200k" to their regular expressions; NULL: no known name. */
const char *splitter_pattern(const char *name);
/* Refuses a plain word that is not a known name: as an expression it would match only itself. */
err splitter_check(const char *pattern) MUST_USE;

/* ---- training ------------------------------------------------------------------------------ */
typedef enum { TRAIN_BPE, TRAIN_UNIGRAM } trained_model;
/* Words by Metaspace: spaces become U+2581, which begins a word, and one is put before a text. */
typedef enum {
    METASPACE_OFF,
    METASPACE_ALWAYS,
    METASPACE_FIRST,
    METASPACE_NEVER
} metaspace_prepend;
const char *metaspace_name(metaspace_prepend p); /* "always", ... */
typedef struct tokenizer_options {
    trained_model model;
    int64_t vocab;               /* ids wanted in all, special tokens and bytes included */
    int64_t min_frequency;       /* of a pair of BPE; 0 and 1: any */
    const char *pattern;         /* of byte-level BPE, name or regular expression; NULL: gpt2 */
    metaspace_prepend metaspace; /* OFF: byte-level BPE; else models of characters */
    double coverage; /* with Metaspace: share of the text whose characters get tokens; 0: 0.9995 */
    bool byte_fallback; /* with Metaspace: other characters become bytes, not the unknown token */
    const char *normalize;      /* comma-separated names, such as "nfkc,lowercase"; NULL: nothing */
    const char *const *special; /* [n_special]; with Metaspace the first is the unknown token */
    int n_special;
    int threads;   /* 0: one per core */
    size_t memory; /* cap on the word counts; 0: 1 GiB */
    bool quiet;    /* no progress */
} tokenizer_options;
struct text_inputs;
/* For messages and help. */
#define NORMALIZER_NAMES "nfc, nfd, nfkc, nfkd, lowercase, strip-accents, strip, nmt"
/* Learns a vocabulary from documents, the same whatever the number of threads. BPE: the vocabulary and merges of
 * Hugging Face's trainer for the same input. Unigram: expectation maximization as in SentencePiece. */
err tokenizer_learn(struct text_inputs *in, const tokenizer_options *o, tokenizer **out) MUST_USE;

#endif
