/* A fastText model as stored in its file. Numbers in it are not aligned, so rows are read by
 * memcpy; the matrices are not copied.
 *
 *     i32 magic, i32 version
 *     i32 dim, ws, epoch, minCount, neg, wordNgrams, loss, model, bucket, minn, maxn, lrUpdateRate
 *     f64 t
 *     i32 size, nwords, nlabels; i64 ntokens, pruned
 *     size x { text, NUL, i64 count, i8 type }       words first, then labels
 *     pruned x { i32 bucket, i32 row }
 *     u8 quantized; the input matrix: nwords + buckets rows of dim
 *     u8 quantized; the output matrix: nlabels rows of dim
 *     i32 FT_ZERO_ROWS_MAGIC, zero rows              ours, and optional: fastText ignores what follows the matrices
 *
 *     dense matrix      i64 rows, columns; f32[rows x columns]
 *     quantized matrix  u8 norms; i64 rows, columns; i32 n; u8 codes[n]; quantizer;
 *                       with norms: u8[rows]; quantizer of dimension 1
 *     quantizer         i32 dim, parts, part size, last part's size; f32 centroids[dim x 256]
 */
#ifndef INGOT_LANGUAGE_INTERNAL_H
#define INGOT_LANGUAGE_INTERNAL_H

#include "curate/curate.h"
#include "io/io.h"

typedef struct ft_quantizer {
    int32_t dim, parts, part, last_part;
    const uint8_t *centroids; /* f32[parts][256][part], the last part narrower */
} ft_quantizer;

typedef struct ft_matrix {
    int64_t rows, columns;
    const uint8_t *data; /* f32[rows][columns]; or codes, u8[rows][q.parts] */
    bool quantized;
    ft_quantizer q, norm;
    const uint8_t *norms; /* u8[rows]; NULL: none */
} ft_matrix;

typedef enum { FT_HIERARCHICAL = 1, FT_NEGATIVE, FT_SOFTMAX, FT_ONE_VS_ALL } ft_loss;

enum { FT_ZERO_ROWS_MAGIC = 0x7A65726F, FT_MOST_ZERO_ROWS = 1 << 20 };

typedef struct ft_word {
    const char *text; /* in the file, NUL-terminated */
    uint32_t len;
} ft_word;

/* A bucket kept by pruning. */
typedef struct ft_kept {
    int32_t bucket, row; /* bucket -1: a free slot */
} ft_kept;

/* A node of the Huffman tree over labels; indices below `labels` are leaves. */
typedef struct ft_node {
    int32_t left, right;
    int64_t count;
} ft_node;

struct language_model {
    io_mapping file;      /* zeroed: none is mapped */
    const uint8_t *bytes; /* [size] of the file, or borrowed */
    size_t size;
    int32_t dim, word_ngrams, bucket, minn, maxn;
    ft_loss loss;
    int32_t zero_rows; /* rows of zeros that are counted in the mean of a text */
    int32_t words, labels;
    ft_word *word;       /* [words] */
    int32_t *word_table; /* [word_mask + 1] indices; -1: free */
    uint32_t word_mask;
    char **label; /* [labels], owned */
    /* rows of buckets in the input matrix; fewer than `bucket` in a pruned model */
    int64_t bucket_rows;
    ft_kept *kept; /* buckets that have rows; NULL: all */
    uint32_t kept_mask;
    ft_matrix in, out;
    ft_node *tree; /* [2 x labels - 1], of a hierarchical model */
};

/* FNV-1a over signed bytes, as fastText defines it. */
static inline uint32_t ft_hash(uint32_t h, char c) { return (h ^ (uint32_t)(int8_t)c) * 16777619u; }
enum { FT_HASH_SEED = (int)2166136261u };

/* @return the slot of a bucket, or the free slot where it belongs. */
static inline ft_kept *ft_kept_slot(const language_model *m, int64_t bucket) {
    uint32_t i = ((uint32_t)bucket * 0x9E3779B1u >> 7) & m->kept_mask;
    while (m->kept[i].bucket >= 0 && m->kept[i].bucket != bucket) i = (i + 1) & m->kept_mask;
    return &m->kept[i];
}

/* Opens a model from n bytes, which are borrowed. @param name for errors. */
err language_read(const char *name, const uint8_t *bytes, size_t n, language_model **out) MUST_USE;

/* ---- for training: quality_train.c ---- */
/* Fills word_table from `word`. */
void ft_index_words(language_model *m);
/* @return the rows of the input matrix whose mean stands for a text, borrowed until the next call. */
const int64_t *language_rows(const language_model *m, language_scratch *r, text_span text,
                             int64_t *n);
/* Predicts from rows. @return as language_predict. */
const float *language_predict_rows(const language_model *m, language_scratch *r,
                                   const int64_t *rows, int64_t n);
/* @return [dim] the mean of the rows of the last prediction. */
const float *language_hidden(const language_scratch *r);

/* ---- quantizing: language_quantize.c ---- */
typedef struct ft_quantized {
    uint8_t *codes, *norms;
    float *centroids, *norm_centroids;
} ft_quantized;
/* Quantizes a dense matrix. @param memory what the result points to. */
void ft_quantize(const ft_matrix *m, uint64_t seed, ft_matrix *out, ft_quantized *memory);
void ft_quantized_free(ft_quantized *memory);

/* @return the index of a word; -1: not in the vocabulary. */
int32_t ft_find_word(const language_model *m, const char *text, size_t len, uint32_t hash);

#endif
