/* Prediction with a fastText model: the mean of the rows of a text's words, their character
 * n-grams and its word n-grams, multiplied by the output matrix. */
#include "curate/language_internal.h"
#include "curate/word_hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NGRAMS = 64 };

/* Words come again and again, and what a word adds, its row and those of its character n-grams, does not depend on its
 * place. Sums of recent words are kept in a table of one entry per slot. They are added as a whole, kept or not, so that
 * the result does not depend on what came before. */
enum { CACHED_WORD = 24, CACHE_BITS = 16, CACHED_WORDS = 1 << CACHE_BITS, CACHED_DIM = 64 };
typedef struct cached_word {
    char text[CACHED_WORD];
    uint32_t len; /* 0: free */
    uint32_t rows;
    float sum[]; /* [dim] */
} cached_word;

/* Rows of a word that are gathered before they are added. */
enum { ROWS_AT_ONCE = 256 };

struct language_scratch {
    float *hidden;           /* [dim] */
    float *probability;      /* [labels] */
    uint64_t bucket_inverse; /* 2^64 / buckets, rounded up */
    int32_t *path;           /* stack of nodes to visit */
    float *path_log;         /* log probability of reaching each */
    /* State while reading a text: */
    int64_t rows;               /* rows added to `hidden` */
    int32_t recent[MAX_NGRAMS]; /* hashes of the last words, the newest at words % MAX_NGRAMS */
    int64_t words;
    str word; /* the current word, with its < and > */
    char *
        cache; /* [CACHED_WORDS] of cached_word; NULL: the model has no character n-grams, or too many columns */
    size_t cache_stride;             /* bytes of a cached_word with its sum */
    float *sum;                      /* [dim] of the current word, or r->hidden */
    bool listing;                    /* rows of the text are listed, not added */
    int64_t *list, listed, cap_list; /* rows of the word, or of the text */
};

language_scratch *language_scratch_new(const language_model *m) {
    language_scratch *r = mem_alloc(sizeof *r);
    r->hidden = mem_alloc((size_t)m->dim * sizeof *r->hidden);
    r->probability = mem_alloc((size_t)m->labels * sizeof *r->probability);
    r->bucket_inverse = m->bucket ? UINT64_MAX / (uint64_t)m->bucket + 1 : 0;
    r->sum = mem_alloc((size_t)m->dim * sizeof *r->sum);
    if (m->maxn > 0 && m->dim <= CACHED_DIM) {
        r->cache_stride = sizeof(cached_word) + (size_t)m->dim * sizeof(float);
        r->cache = mem_alloc_large(CACHED_WORDS * r->cache_stride);
        memset(r->cache, 0, CACHED_WORDS * r->cache_stride);
    }
    r->cap_list = 2 * ROWS_AT_ONCE;
    r->list = mem_alloc((size_t)r->cap_list * sizeof *r->list);
    r->path = mem_alloc(((size_t)m->labels + 1) * sizeof *r->path);
    r->path_log = mem_alloc(((size_t)m->labels + 1) * sizeof *r->path_log);
    return r;
}

void language_scratch_free(language_scratch *r) {
    if (!r) return;
    free(r->hidden);
    free(r->sum);
    free(r->cache);
    free(r->probability);
    free(r->path);
    free(r->path_log);
    str_free(&r->word);
    free(r->list);
    free(r);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static float load_float(const uint8_t *floats, int64_t i) {
    float v;
    memcpy(&v, floats + i * (int64_t)sizeof v, sizeof v);
    return v;
}

/* @return the offset, in floats, of the centroid `code` of a part. */
static int64_t centroid_offset(const ft_quantizer *q, int32_t part, uint8_t code) {
    int32_t width = part == q->parts - 1 ? q->last_part : q->part;
    return (int64_t)part * 256 * q->part + (int64_t)code * width;
}

static float row_norm(const ft_matrix *m, int64_t row) {
    return m->norms ? load_float(m->norm.centroids, m->norms[row]) : 1;
}

/* Runs body with `v`, the value of column `at`, for each column of the row in order. */
#define FOR_ROW(m, row, body)                                                                      \
    if (!(m)->quantized) {                                                                         \
        const uint8_t *from = (m)->data + (row) * (m)->columns * (int64_t)sizeof(float);           \
        for (int64_t at = 0; at < (m)->columns; at++) {                                            \
            float v = load_float(from, at);                                                        \
            body;                                                                                  \
        }                                                                                          \
    } else {                                                                                       \
        const ft_quantizer *q = &(m)->q;                                                           \
        const uint8_t *code = (m)->data + (row)*q->parts;                                          \
        float norm = row_norm((m), (row));                                                         \
        int64_t at = 0;                                                                            \
        for (int32_t part = 0; part < q->parts; part++) {                                          \
            int64_t from = centroid_offset(q, part, code[part]);                                   \
            int32_t width = part == q->parts - 1 ? q->last_part : q->part;                         \
            for (int32_t i = 0; i < width; i++, at++) {                                            \
                float v = norm * load_float(q->centroids, from + i);                               \
                body;                                                                              \
            }                                                                                      \
        }                                                                                          \
    }

/* Adds quantized rows whose parts are pairs, as in all small models, with the sums of PARTS_AT_ONCE parts in registers. Each sum
 * adds the rows in order. */
enum { PARTS_AT_ONCE = 8 };
static void add_rows_of_pairs(const ft_matrix *m, const int64_t *rows, int64_t n, float *sum) {
    typedef double two_pairs __attribute__((vector_size(16)));
    typedef float four __attribute__((vector_size(16)));
    enum {
        PARTS = PARTS_AT_ONCE,
        TABLE = 256 * 2 * sizeof(float)
    }; /* bytes of a part's centroids */
    for (int32_t part = 0; part < m->q.parts; part += PARTS) {
        four at[PARTS / 2];
        memcpy(at, sum + 2 * part, sizeof at);
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *code = m->data + rows[i] * m->q.parts + part;
            const uint8_t *from = m->q.centroids + (int64_t)part * TABLE;
            float norm = row_norm(m, rows[i]);
            for (int k = 0; k < PARTS / 2; k++) {
                double pair[2];
                memcpy(&pair[0], from + 2 * k * TABLE + code[2 * k] * sizeof *pair, sizeof *pair);
                memcpy(&pair[1], from + (2 * k + 1) * TABLE + code[2 * k + 1] * sizeof *pair,
                       sizeof *pair);
                at[k] += norm * (four)(two_pairs){ pair[0], pair[1] };
            }
        }
        memcpy(sum + 2 * part, at, sizeof at);
    }
}

/* Adds the rows, in order, to `sum`. */
static void add_rows(const ft_matrix *m, const int64_t *rows, int64_t n, float *sum) {
    bool pairs = m->quantized && m->q.part == 2 && m->q.last_part == 2;
    if (pairs && m->q.parts % PARTS_AT_ONCE == 0) {
        add_rows_of_pairs(m, rows, n, sum);
        return;
    }
    for (int64_t k = 0; k < n; k++) FOR_ROW(m, rows[k], sum[at] += v);
}

static void add_gathered(const language_model *m, language_scratch *r, float *sum) {
    add_rows(&m->in, r->list, r->listed, sum);
    r->rows += r->listed;
    r->listed = 0;
}

/* Adds a row to the list of those that the word or text has. @param fits the list is known to have a free entry. */
static inline void list_row(const language_model *m, language_scratch *r, int64_t row, float *sum,
                            bool fits) {
    if (!fits && !r->listing && r->listed == ROWS_AT_ONCE) add_gathered(m, r, sum);
    if (!fits && r->listed == r->cap_list) {
        r->cap_list *= 2;
        r->list = mem_grow(r->list, (size_t)r->cap_list * sizeof *r->list);
    }
    r->list[r->listed++] = row;
    if (!m->in.quantized) return;
    __builtin_prefetch(m->in.data + row * m->in.q.parts);
    if (m->in.norms) __builtin_prefetch(m->in.norms + row);
}

static float dot_row(const language_model *m, const float *hidden, int64_t row) {
    float sum = 0;
    FOR_ROW(&m->out, row, sum += hidden[at] * v);
    return sum;
}

/* ---- reading a text -------------------------------------------------------------------------- */

/* hash % m->bucket, without a division. */
static int64_t ngram_bucket(const language_model *m, const language_scratch *r, uint32_t hash) {
    return (int64_t)((unsigned __int128)(r->bucket_inverse * hash) * (uint32_t)m->bucket >> 64);
}

static inline void list_bucket(const language_model *m, language_scratch *r, int64_t bucket,
                               float *sum, bool fits) {
    if (m->kept) {
        const ft_kept *k = ft_kept_slot(m, bucket);
        if (k->bucket < 0) return;
        bucket = k->row;
    }
    list_row(m, r, m->words + bucket, sum, fits);
}

/* Adds the n-grams of minn to maxn characters of r->word, including < and > but not these alone.
 * @param fits the list is known to have an entry for each. */
static inline __attribute__((always_inline)) void add_ngrams(const language_model *m,
                                                             language_scratch *r, bool fits) {
    const char *w = r->word.text;
    size_t len = r->word.len;
    for (size_t i = 0; i < len; i++) {
        if (((unsigned char)w[i] & 0xC0) == 0x80) continue;
        uint32_t h = (uint32_t)FT_HASH_SEED;
        size_t end = i;
        for (int n = 1; end < len && n <= m->maxn; n++) {
            h = ft_hash(h, w[end++]);
            while (end < len && ((unsigned char)w[end] & 0xC0) == 0x80) h = ft_hash(h, w[end++]);
            bool edge = n == 1 && (i == 0 || end == len);
            if (n >= m->minn && !edge) list_bucket(m, r, ngram_bucket(m, r, h), r->sum, fits);
        }
    }
}

/* Adds the word n-grams of up to word_ngrams words that end with the newest word. */
static void add_word_ngrams(const language_model *m, language_scratch *r) {
    int64_t most = MIN((int64_t)m->word_ngrams, r->words);
    for (int64_t n = 2; n <= most; n++) {
        uint64_t h = 0;
        for (int64_t k = r->words - n; k < r->words; k++) {
            uint64_t word = (uint64_t)(int64_t)r->recent[k % MAX_NGRAMS];
            h = k == r->words - n ? word : h * 116049371u + word;
        }
        list_bucket(m, r, (int64_t)(h % (uint64_t)m->bucket), r->hidden, false);
    }
    if (!r->listing) add_gathered(m, r, r->hidden);
}

static uint32_t hash_word(const char *w, size_t len) {
    uint32_t h = (uint32_t)FT_HASH_SEED;
    for (size_t i = 0; i < len; i++) h = ft_hash(h, w[i]);
    return h;
}

static const char end_of_text[] = "</s>";

/* Sums up the rows of a word in r->sum. */
static void sum_word(const language_model *m, language_scratch *r, const char *w, size_t len,
                     int32_t index) {
    memset(r->sum, 0, (size_t)m->dim * sizeof *r->sum);
    if (index >= 0) list_row(m, r, index, r->sum, false);
    bool end = len == sizeof end_of_text - 1 && memcmp(w, end_of_text, len) == 0;
    if (m->maxn > 0 && !end) {
        r->word.len = 0;
        str_add_bytes(&r->word, "<", 1);
        str_add_bytes(&r->word, w, len);
        str_add_bytes(&r->word, ">", 1);
        bool fits = !r->listing && r->word.len * (size_t)m->maxn < ROWS_AT_ONCE;
        if (fits)
            add_ngrams(m, r, true); /* after the row of the word, at most */
        else
            add_ngrams(m, r, false);
    }
    if (!r->listing) add_gathered(m, r, r->sum);
}

/* Prefetches the sum of a word. @return where it is kept; NULL: it is not kept. */
static cached_word *find_cached_sum(const language_scratch *r, const char *w, size_t len) {
    enum { LINE = 64 };
    if (!r->cache || r->listing || len > CACHED_WORD) return NULL;
    char *slot = r->cache + (word_hash(w, len) & (CACHED_WORDS - 1)) * r->cache_stride;
    __builtin_prefetch(slot);
    __builtin_prefetch(slot + LINE);
    return (cached_word *)slot;
}

/* Adds the sum of a word to r->hidden. Sums of words that are not in the table are computed and put there. */
static void add_word_rows(const language_model *m, language_scratch *r, const char *w, size_t len,
                          cached_word *c) {
    const float *sum = c ? c->sum : r->sum;
    if (c && c->len == len && same_bytes(c->text, w, len)) {
        r->rows += c->rows;
    } else {
        int64_t before = r->rows;
        sum_word(m, r, w, len, ft_find_word(m, w, len, hash_word(w, len)));
        if (c) {
            memcpy(c->text, w, len);
            c->len = (uint32_t)len;
            c->rows = (uint32_t)(r->rows - before);
            memcpy(c->sum, r->sum, (size_t)m->dim * sizeof *c->sum);
        }
    }
    for (int32_t i = 0; i < m->dim; i++) r->hidden[i] += sum[i];
}

static void embed_word(const language_model *m, language_scratch *r, const char *w, size_t len,
                       cached_word *c) {
    static const char label[] = "__label__"; /* fastText does not treat such a text as a word */
    if (len >= sizeof label - 1 && memcmp(w, label, sizeof label - 1) == 0 &&
        ft_find_word(m, w, len, hash_word(w, len)) < 0)
        return;
    add_word_rows(m, r, w, len, c);
    if (m->word_ngrams < 2) return;
    r->recent[r->words++ % MAX_NGRAMS] = (int32_t)hash_word(w, len);
    add_word_ngrams(m, r);
}

static bool ends_word(char c) { return (c >= '\t' && c <= '\r') || c == ' ' || c == 0; }

static size_t find_word_end(text_span text, size_t at) {
    while (at < text.len) {
        uint64_t stop = text.len - at >= 8 ? ascii_end_bytes(load_eight(text.at + at)) : 1;
        at += stop ? (size_t)__builtin_ctzll(stop) / 8 : 8;
        if (!stop) continue;
        if (ends_word(text.at[at])) break;
        at++;
    }
    return at;
}

static void embed_text(const language_model *m, language_scratch *r, text_span text) {
    memset(r->hidden, 0, (size_t)m->dim * sizeof *r->hidden);
    r->rows = r->words = r->listed = 0;
    /* Takes sixteen words at a time: the sums of all are prefetched before the first is used. */
    struct {
        text_span word;
        cached_word *cached;
    } ahead[16];
    for (size_t at = 0; at < text.len;) {
        size_t n = 0;
        for (size_t end; n < COUNT_OF(ahead) && at < text.len; at = end + 1) {
            end = find_word_end(text, at);
            if (end == at) continue;
            ahead[n].word = (text_span){ text.at + at, end - at };
            ahead[n++].cached = find_cached_sum(r, text.at + at, end - at);
        }
        for (size_t i = 0; i < n; i++)
            embed_word(m, r, ahead[i].word.at, ahead[i].word.len, ahead[i].cached);
    }
    size_t len = sizeof end_of_text - 1;
    embed_word(m, r, end_of_text, len, find_cached_sum(r, end_of_text, len));
}

/* ---- probabilities --------------------------------------------------------------------------- */

static float sigmoid_of(float x) { return 1 / (1 + expf(-x)); }

static void predict_softmax(const language_model *m, language_scratch *r) {
    float most = -INFINITY, sum = 0, *p = r->probability;
    for (int32_t i = 0; i < m->labels; i++) {
        p[i] = dot_row(m, r->hidden, i);
        most = MAX(most, p[i]);
    }
    for (int32_t i = 0; i < m->labels; i++) sum += p[i] = expf(p[i] - most);
    for (int32_t i = 0; i < m->labels; i++) p[i] /= sum;
}

/* fastText reads this from a table with steps of 1/32 up to 8; its thresholds depend on that. */
static float stepped_sigmoid(float x) {
    if (x < -8) return 0;
    return x > 8 ? 1 : sigmoid_of(floorf((x + 8) * 32) / 32 - 8);
}

static void predict_independent(const language_model *m, language_scratch *r) {
    for (int32_t i = 0; i < m->labels; i++)
        r->probability[i] = stepped_sigmoid(dot_row(m, r->hidden, i));
}

/* As in fastText: never the logarithm of 0. */
static float safe_log(float x) { return logf(x + 1e-5f); }

/* Traverses the tree: at each inner node a row gives the probability of the right branch.
 * Visiting a node removes one entry from the stack and adds two, and each leaf is pushed once,
 * so `labels` entries suffice. */
static void predict_tree(const language_model *m, language_scratch *r) {
    int32_t depth = 0;
    r->path[depth] = 2 * m->labels - 2;
    r->path_log[depth++] = 0;
    while (depth > 0) {
        int32_t node = r->path[--depth];
        float p = r->path_log[depth];
        if (node < m->labels) {
            r->probability[node] = MIN(1.0f, expf(p));
            continue;
        }
        float right = sigmoid_of(dot_row(m, r->hidden, node - m->labels));
        const ft_node *t = &m->tree[node];
        r->path[depth] = t->left, r->path_log[depth++] = p + safe_log(1 - right);
        r->path[depth] = t->right, r->path_log[depth++] = p + safe_log(right);
    }
}

static const float *predict_hidden(const language_model *m, language_scratch *r) {
    static void (*const by_loss[])(const language_model *, language_scratch *) = {
        [FT_HIERARCHICAL] = predict_tree,
        [FT_NEGATIVE] = predict_independent,
        [FT_SOFTMAX] = predict_softmax,
        [FT_ONE_VS_ALL] = predict_independent,
    };
    for (int32_t i = 0; i < m->dim && r->rows; i++) r->hidden[i] /= (float)(r->rows + m->zero_rows);
    if (r->rows == 0)
        memset(r->probability, 0, (size_t)m->labels * sizeof *r->probability);
    else
        by_loss[m->loss](m, r);
    return r->probability;
}

const float *language_predict(const language_model *m, language_scratch *r, text_span text) {
    r->listing = false;
    embed_text(m, r, text);
    return predict_hidden(m, r);
}

const int64_t *language_rows(const language_model *m, language_scratch *r, text_span text,
                             int64_t *n) {
    r->listing = true;
    embed_text(m, r, text);
    *n = r->listed;
    return r->list;
}

const float *language_predict_rows(const language_model *m, language_scratch *r,
                                   const int64_t *rows, int64_t n) {
    r->rows = n;
    memset(r->hidden, 0, (size_t)m->dim * sizeof *r->hidden);
    add_rows(&m->in, rows, n, r->hidden);
    return predict_hidden(m, r);
}

const float *language_hidden(const language_scratch *r) { return r->hidden; }
