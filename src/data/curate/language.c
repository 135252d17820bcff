/* Reads fastText's model files. Nothing in them is trusted: every size is checked against what
 * is left of the file before anything is allocated. */
#include "curate/language_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAGIC = 793712314, OLDEST = 11, NEWEST = 12, SUPERVISED = 3, MAX_DIM = 1 << 16 };

/* ---- reading the file ------------------------------------------------------------------------ */

typedef struct model_reader {
    const char *path;
    const uint8_t *p;
    size_t left;
    err e; /* the first error; after it everything reads as 0 */
} model_reader;

static void model_fault(model_reader *r, const char *what) {
    if (r->e) return;
    r->e = err_hint(ERR("%s: not a complete fastText model: %s", r->path, what),
                    "download the file again, or pass another");
}

/* @return the next n bytes; NULL, and an error, if there are fewer. */
static const uint8_t *take_bytes(model_reader *r, size_t n, const char *what) {
    if (r->e || n > r->left) return model_fault(r, what), NULL;
    const uint8_t *p = r->p;
    r->p += n;
    r->left -= n;
    return p;
}

static void take_into(model_reader *r, void *to, size_t n, const char *what) {
    const uint8_t *p = take_bytes(r, n, what);
    memset(to, 0, n);
    if (p) memcpy(to, p, n);
}

static int32_t take_i32(model_reader *r, const char *what) {
    int32_t v;
    take_into(r, &v, sizeof v, what);
    return v;
}

static int64_t take_i64(model_reader *r, const char *what) {
    int64_t v;
    take_into(r, &v, sizeof v, what);
    return v;
}

static uint8_t take_u8(model_reader *r, const char *what) {
    uint8_t v;
    take_into(r, &v, sizeof v, what);
    return v;
}

/* ---- settings -------------------------------------------------------------------------------- */

static void read_model_settings(model_reader *r, language_model *m) {
    enum { DIM, NGRAMS = 5, LOSS, MODEL, BUCKET, MINN, MAXN, N = 12 };
    if (take_i32(r, "the beginning is missing") != MAGIC) model_fault(r, "wrong magic number");
    int32_t version = take_i32(r, "the version is missing");
    if (version < OLDEST || version > NEWEST) model_fault(r, "its version is neither 11 nor 12");
    int32_t v[N];
    for (int i = 0; i < N; i++) v[i] = take_i32(r, "its settings are truncated");
    take_bytes(r, sizeof(double), "its settings are truncated");
    m->dim = v[DIM], m->word_ngrams = v[NGRAMS], m->bucket = v[BUCKET];
    m->minn = v[MINN], m->maxn = version == OLDEST ? 0 : v[MAXN];
    m->loss = (ft_loss)v[LOSS];
    if (v[MODEL] != SUPERVISED) model_fault(r, "it was not trained on labels (supervised)");
    if (m->dim < 1 || m->dim > MAX_DIM) model_fault(r, "its vectors have an impossible size");
    if (v[LOSS] < FT_HIERARCHICAL || v[LOSS] > FT_ONE_VS_ALL) model_fault(r, "its loss is unknown");
    bool negative = m->bucket < 0 || m->word_ngrams < 0 || m->minn < 0 || m->maxn < 0;
    if (negative || m->maxn > 64 || m->word_ngrams > 64)
        model_fault(r, "its n-gram settings are out of range");
    if (m->bucket == 0 && (m->maxn > 0 || m->word_ngrams > 1))
        model_fault(r, "it has n-grams but no buckets");
}

/* ---- the dictionary -------------------------------------------------------------------------- */

int32_t ft_find_word(const language_model *m, const char *text, size_t len, uint32_t hash) {
    for (uint32_t i = hash & m->word_mask; m->word_table[i] >= 0; i = (i + 1) & m->word_mask) {
        const ft_word *w = &m->word[m->word_table[i]];
        if (w->len == len && memcmp(w->text, text, len) == 0) return m->word_table[i];
    }
    return -1;
}

void ft_index_words(language_model *m) {
    m->word_mask = 63;
    while (m->word_mask < (uint32_t)m->words * 2u) m->word_mask = m->word_mask * 2 + 1;
    size_t bytes = ((size_t)m->word_mask + 1) * sizeof *m->word_table;
    m->word_table = mem_alloc(bytes);
    memset(m->word_table, 0xFF, bytes);
    for (int32_t index = 0; index < m->words; index++) {
        uint32_t h = (uint32_t)FT_HASH_SEED;
        for (uint32_t i = 0; i < m->word[index].len; i++) h = ft_hash(h, m->word[index].text[i]);
        uint32_t at = h & m->word_mask;
        while (m->word_table[at] >= 0) at = (at + 1) & m->word_mask;
        m->word_table[at] = index;
    }
}

static void read_word(model_reader *r, ft_word *w, int64_t *count, int8_t *type) {
    const uint8_t *end = r->e ? NULL : memchr(r->p, 0, r->left);
    if (!end) {
        model_fault(r, "its dictionary is truncated");
        return;
    }
    w->text = (const char *)r->p;
    w->len = (uint32_t)(end - r->p);
    take_bytes(r, (size_t)w->len + 1, "its dictionary is truncated");
    *count = take_i64(r, "its dictionary is truncated");
    *type = (int8_t)take_u8(r, "its dictionary is truncated");
}

static char *label_of(const ft_word *w) {
    static const char prefix[] = "__label__";
    const char *text = str_starts(w->text, prefix) ? w->text + sizeof prefix - 1 : w->text;
    char *copy = mem_alloc(strlen(text) + 1);
    return strcpy(copy, text);
}

/* Reads which buckets a pruned model has kept, and their rows. */
static void read_pruned(model_reader *r, language_model *m, int64_t pruned) {
    const char *what = "its list of n-grams is truncated";
    m->bucket_rows = pruned < 0 ? m->bucket : pruned;
    if (pruned < 0) return;
    if ((uint64_t)pruned > MIN(r->left / 8, INT32_MAX / 4)) return model_fault(r, what);
    m->kept_mask = 63;
    while (m->kept_mask < (uint64_t)pruned * 2) m->kept_mask = m->kept_mask * 2 + 1;
    size_t bytes = ((size_t)m->kept_mask + 1) * sizeof *m->kept;
    m->kept = mem_alloc(bytes);
    memset(m->kept, 0xFF, bytes);
    for (int64_t i = 0; i < pruned; i++) {
        ft_kept k = { .bucket = take_i32(r, what) };
        k.row = take_i32(r, what);
        if (k.bucket < 0 || k.row < 0 || k.row >= pruned)
            return model_fault(r, "an n-gram is outside its matrix");
        *ft_kept_slot(m, k.bucket) = k;
    }
}

static void read_word_dictionary(model_reader *r, language_model *m) {
    enum { ENTRY = 10 }; /* bytes of the shortest entry */
    const char *what = "its dictionary is truncated";
    int32_t size = take_i32(r, what);
    m->words = take_i32(r, what), m->labels = take_i32(r, what);
    take_i64(r, what);
    int64_t pruned = take_i64(r, what);
    if (r->e) return;
    if (m->words < 0 || m->labels < 1 || size < 1 || (int64_t)m->words + m->labels != size ||
        (size_t)size > r->left / ENTRY)
        return model_fault(r, "its dictionary has an impossible size");
    m->word = mem_alloc((size_t)MAX(m->words, 1) * sizeof *m->word);
    m->label = mem_alloc((size_t)m->labels * sizeof *m->label);
    m->tree = mem_alloc((size_t)m->labels * 2 * sizeof *m->tree);
    for (int32_t i = 0; i < size && !r->e; i++) {
        ft_word w = { 0 };
        int64_t count = 0;
        int8_t type = 0;
        read_word(r, &w, &count, &type);
        if (r->e) return;
        if (type != (i >= m->words)) return model_fault(r, "labels and words are mixed");
        if (type == 0) {
            m->word[i] = w;
            continue;
        }
        m->label[i - m->words] = label_of(&w);
        m->tree[i - m->words].count = count;
    }
    ft_index_words(m);
    read_pruned(r, m, pruned);
}

/* ---- matrices -------------------------------------------------------------------------------- */

static void read_quantizer(model_reader *r, ft_quantizer *q, int64_t columns) {
    const char *what = "its quantizer is truncated";
    q->dim = take_i32(r, what), q->parts = take_i32(r, what);
    q->part = take_i32(r, what), q->last_part = take_i32(r, what);
    bool fits = q->dim == columns && q->parts >= 1 && q->part >= 1 && q->last_part >= 1 &&
                q->last_part <= q->part &&
                (int64_t)(q->parts - 1) * q->part + q->last_part == q->dim;
    if (!fits) return model_fault(r, "its quantizer does not fit its vectors");
    q->centroids = take_bytes(r, (size_t)q->dim * 256 * sizeof(float), what);
}

static void read_quantized_matrix(model_reader *r, ft_matrix *m) {
    const char *what = "a matrix is truncated";
    m->quantized = true;
    bool norms = take_u8(r, what) != 0;
    m->rows = take_i64(r, what), m->columns = take_i64(r, what);
    int32_t codes = take_i32(r, what);
    if (codes < 0 || m->rows < 0 || m->rows > codes) return model_fault(r, "a matrix has no size");
    m->data = take_bytes(r, (size_t)codes, what);
    read_quantizer(r, &m->q, m->columns);
    if (!r->e && m->rows * m->q.parts != codes) return model_fault(r, "a matrix has too few codes");
    if (!norms) return;
    m->norms = take_bytes(r, (size_t)m->rows, what);
    read_quantizer(r, &m->norm, 1);
}

static void read_matrix(model_reader *r, ft_matrix *m, bool quantized, int64_t rows,
                        int64_t columns) {
    if (quantized) {
        read_quantized_matrix(r, m);
    } else {
        m->rows = take_i64(r, "a matrix is truncated");
        m->columns = take_i64(r, "a matrix is truncated");
    }
    if (r->e) return;
    if (m->rows != rows || m->columns != columns)
        return model_fault(r, "a matrix does not fit the dictionary");
    size_t bytes;
    if (quantized) return;
    if (!mul_size((size_t)rows, (size_t)columns * sizeof(float), &bytes))
        return model_fault(r, "a matrix has an impossible size");
    m->data = take_bytes(r, bytes, "a matrix is truncated");
}

/* ---- the tree -------------------------------------------------------------------------------- */

/* Builds the Huffman tree: joins the two nodes with the smallest counts until one is left.
 * Labels are sorted by decreasing frequency, so the smallest leaf is the last one, and inner
 * nodes are created in the order of their counts. */
static void build_tree(language_model *m) {
    int32_t leaf = m->labels - 1, node = m->labels, all = 2 * m->labels - 1;
    for (int32_t i = m->labels; i < all; i++) m->tree[i].count = INT64_C(1000000000000000);
    for (int32_t i = m->labels; i < all; i++) {
        int32_t pick[2];
        for (int k = 0; k < 2; k++) {
            bool take_leaf = leaf >= 0 && (node >= i || m->tree[leaf].count < m->tree[node].count);
            pick[k] = take_leaf ? leaf-- : node++;
        }
        m->tree[i].left = pick[0], m->tree[i].right = pick[1];
        uint64_t sum = (uint64_t)m->tree[pick[0]].count + (uint64_t)m->tree[pick[1]].count;
        m->tree[i].count = (int64_t)sum;
    }
}

/* Reads the number of zero rows, which follows the matrices in a file that this program wrote and which fastText ignores.
 *
 * A text's vector is the mean of its rows, so that three n-grams have logits as large as three thousand, and a model that is
 * right about documents is too sure of words. With z zero rows in the mean of n rows the logits are n / (n + z) of what they
 * were: less than half for a short word, the same for a page. All logits of a text have the same factor, so the likeliest language
 * is the one that fastText finds. */
static void read_zero_rows(model_reader *r, language_model *m) {
    if (r->left < 2 * sizeof(int32_t) || take_i32(r, "") != FT_ZERO_ROWS_MAGIC) return;
    m->zero_rows = take_i32(r, "");
    if (m->zero_rows < 0 || m->zero_rows > FT_MOST_ZERO_ROWS)
        model_fault(r, "its number of zero rows is out of range");
}

/* ---- opening --------------------------------------------------------------------------------- */

static void read_language_model(model_reader *r, language_model *m) {
    read_model_settings(r, m);
    if (!r->e) read_word_dictionary(r, m);
    if (r->e) return;
    bool quantized = take_u8(r, "its matrices are missing") != 0;
    read_matrix(r, &m->in, quantized, m->words + m->bucket_rows, m->dim);
    bool quantized_out = take_u8(r, "its output matrix is missing") != 0;
    read_matrix(r, &m->out, quantized && quantized_out, m->labels, m->dim);
    if (!r->e && m->loss == FT_HIERARCHICAL) build_tree(m);
    if (!r->e) read_zero_rows(r, m);
}

/* Reads a model from m's bytes, mapped or borrowed, and takes it over. */
static err finish_open(const char *path, err e, language_model *m, language_model **out) {
    if (!e) {
        model_reader r = { .path = path, .p = m->bytes, .left = m->size };
        read_language_model(&r, m);
        e = r.e;
    }
    *out = e ? NULL : m;
    if (e) language_close(m);
    return e ? err_trail(e, __FILE__, __LINE__) : OK;
}

err language_open(const char *path, language_model **out) {
    language_model *m = mem_alloc(sizeof *m);
    err e = io_map(path, &m->file);
    m->bytes = m->file.data;
    m->size = m->file.size;
    return finish_open(path, e, m, out);
}

err language_read(const char *name, const uint8_t *bytes, size_t n, language_model **out) {
    language_model *m = mem_alloc(sizeof *m);
    m->bytes = bytes;
    m->size = n;
    return finish_open(name, OK, m, out);
}

void language_close(language_model *m) {
    if (!m) return;
    for (int32_t i = 0; m->label && i < m->labels; i++) free(m->label[i]);
    free(m->label);
    free(m->word);
    free(m->word_table);
    free(m->kept);
    free(m->tree);
    io_unmap(&m->file);
    free(m);
}

int language_count(const language_model *m) { return m->labels; }
const char *language_name(const language_model *m, int i) { return m->label[i]; }
uint64_t language_hash(const language_model *m) { return hash_bytes(m->bytes, m->size, 0); }
size_t language_bytes(const language_model *m) {
    size_t tables = ((size_t)m->word_mask + 1) * sizeof *m->word_table +
                    (m->kept ? ((size_t)m->kept_mask + 1) * sizeof *m->kept : 0);
    return sizeof *m + m->size + tables + (size_t)m->words * sizeof *m->word +
           (size_t)m->labels * (sizeof *m->label + 2 * sizeof *m->tree);
}
