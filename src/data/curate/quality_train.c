/* Trains a fastText classifier of documents: labelled documents in, a .bin file out that fastText and
 * language_open read.
 *
 *     a document -> rows of a matrix: its words, and word or character n-grams by hash -> their mean, `hidden`
 *                -> softmax over labels
 *
 * One pass counts words; some documents, by a hash of their text, are held out. Then stochastic gradient
 * descent, one document after another in a new order each epoch, with a rate that falls to 0. One thread, and
 * so the same model every time.
 *
 * For languages, each document is followed by some random pieces of it. Documents alone teach a model nothing about short
 * texts: the mean of a few rows is far from the means that it has seen, and its probabilities are arbitrary there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "curate/language_internal.h"

enum { FT_MAGIC = 793712314, FT_VERSION = 12, FT_SUPERVISED = 3 };

/* ---- documents ------------------------------------------------------------------------------------ */

typedef struct labelled {
    char *text; /* owned */
    size_t len;
    int label;
} labelled;
typedef struct trained_label {
    char *name; /* owned, with __label__ */
    int64_t count;
} trained_label;

typedef struct counted_word {
    text_span text; /* into `bytes` of the quality_trainer */
    int64_t count;
} counted_word;

typedef struct quality_trainer {
    const quality_options *o;
    const char *of_input; /* the label of the documents being read; NULL: each has its own */
    labelled *docs;
    int n, cap;
    int *training, *held_out; /* indices of documents */
    int n_training, n_held_out;
    trained_label label[QUALITY_LABELS];
    int n_labels;
    int64_t unlabelled;
    language_model *m;
    float *in, *out;        /* [rows][dim], [labels][dim] */
    ft_quantized quantized; /* what an .ftz file has instead of `in` */
    char *word_bytes;
    int64_t *word_count;
    size_t *starts, cap_starts; /* of the words of a document */
    float end_step;             /* steps of the row of "</s>", over those of other rows */
} quality_trainer;

static err find_label(quality_trainer *t, text_span name, int *out) {
    static const char prefix[] = "__label__";
    for (*out = 0; *out < t->n_labels; ++*out)
        if (strlen(t->label[*out].name) == name.len + sizeof prefix - 1 &&
            memcmp(t->label[*out].name + sizeof prefix - 1, name.at, name.len) == 0)
            return OK;
    if (t->n_labels == QUALITY_LABELS)
        return err_hint(ERR("more than %d different labels", QUALITY_LABELS),
                        "check that --label-field names the member with the label");
    for (size_t i = 0; i < name.len; i++)
        if (name.at[i] == ' ' || name.at[i] == '\n' || name.at[i] == '\t')
            return ERR("the label \"%.*s\" has white space", (int)MIN(name.len, 80), name.at);
    char *copy = mem_alloc(name.len + sizeof prefix);
    memcpy(copy, prefix, sizeof prefix - 1);
    memcpy(copy + sizeof prefix - 1, name.at, name.len);
    t->label[t->n_labels++] = (trained_label){ .name = copy };
    return OK;
}

static err keep_block(void *ctx, const text_block *b, void *result) {
    quality_trainer *t = ctx;
    for (int i = 0; i < b->n; i++) {
        const text_doc *d = &b->docs[i];
        int label;
        text_span name = t->of_input ? (text_span){ t->of_input, strlen(t->of_input) } : d->source;
        if (!name.len) {
            t->unlabelled++;
            continue;
        }
        TRY(find_label(t, name, &label));
        labelled *l = &LIST_ADD(t->docs, t->n, t->cap);
        *l = (labelled){ mem_alloc(d->text.len + 1), d->text.len, label };
        memcpy(l->text, d->text.at, d->text.len);
    }
    return OK;
}

static err pass_block(void *ctx, int worker, const text_block *b, void *result) { return OK; }

static err read_labelled(quality_trainer *t, const quality_input *inputs, int n) {
    text_pipeline flow = { .ctx = t, .result_size = 1, .work = pass_block, .merge = keep_block };
    text_counts read = { 0 };
    for (int i = 0; i < n; i++) {
        t->of_input = inputs[i].label;
        for (int s = 0; s < text_segments(inputs[i].in); s++)
            TRY(text_pipeline_run(inputs[i].in, s, &flow, 1, &read));
    }
    if (t->n_labels < 2)
        return err_hint(
            ERR("%d documents with %d different label%s, %lld without one: there must be two", t->n,
                t->n_labels, t->n_labels == 1 ? "" : "s", (long long)t->unlabelled),
            "--label-field names the member, a string, that holds the label");
    return OK;
}

/* ---- held out documents ------------------------------------------------------------------------------ */

static err split_documents(quality_trainer *t) {
    uint64_t below = (uint64_t)(t->o->held_out * 0x1p64);
    t->training = mem_alloc(((size_t)t->n + 1) * sizeof *t->training);
    t->held_out = mem_alloc(((size_t)t->n + 1) * sizeof *t->held_out);
    for (int i = 0; i < t->n; i++) {
        bool out = hash_bytes(t->docs[i].text, t->docs[i].len, 1) < below;
        *(out ? &t->held_out[t->n_held_out++] : &t->training[t->n_training++]) = i;
        if (!out) t->label[t->docs[i].label].count++;
    }
    for (int i = 0; i < t->n_labels; i++)
        if (t->label[i].count == 0)
            return err_hint(
                ERR("the label \"%s\" has no document to train on", t->label[i].name + 9),
                "pass a smaller --held-out, or more documents");
    return OK;
}

/* ---- the dictionary ------------------------------------------------------------------------------------ */

static bool is_ft_space(char c) { return (c >= '\t' && c <= '\r') || c == ' ' || c == 0; }

static int compare_spans(const void *a, const void *b) {
    const text_span *x = a, *y = b;
    int order = memcmp(x->at, y->at, MIN(x->len, y->len));
    return order ? order : (x->len > y->len) - (x->len < y->len);
}
static int by_falling_count(const void *a, const void *b) {
    const counted_word *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return compare_spans(&x->text, &y->text);
}

/* All words of the documents to train on, in their order. */
static text_span *list_words(const quality_trainer *t, int64_t *n) {
    int64_t cap = 0;
    text_span *words = NULL;
    *n = 0;
    for (int k = 0; k < t->n_training; k++) {
        const labelled *d = &t->docs[t->training[k]];
        for (size_t at = 0, end; at < d->len; at = end + 1) {
            for (end = at; end < d->len && !is_ft_space(d->text[end]);) end++;
            if (end == at) continue;
            if (*n == cap)
                words = mem_grow(words, (size_t)(cap = MAX(4096, 2 * cap)) * sizeof *words);
            words[(*n)++] = (text_span){ d->text + at, end - at };
        }
    }
    return words;
}

/* The frequent words, "</s>" first, which fastText puts at the end of every text. */
static counted_word *count_words(const quality_trainer *t, int64_t *n) {
    int64_t all;
    text_span *words = list_words(t, &all);
    sort_array(words, (size_t)all, sizeof *words, compare_spans);
    counted_word *kept = mem_alloc(((size_t)all + 1) * sizeof *kept);
    kept[0] = (counted_word){ { "</s>", 4 }, t->n_training };
    *n = 1;
    for (int64_t i = 0, next; i < all; i = next) {
        for (next = i + 1; next < all && compare_spans(&words[i], &words[next]) == 0;) next++;
        bool end = words[i].len == 4 && memcmp(words[i].at, "</s>", 4) == 0;
        bool label = words[i].len >= 9 && memcmp(words[i].at, "__label__", 9) == 0;
        if (next - i >= t->o->min_count && !end && !label)
            kept[(*n)++] = (counted_word){ words[i], next - i };
    }
    free(words);
    sort_array(kept + 1, (size_t)(*n - 1), sizeof *kept, by_falling_count);
    *n = MIN(*n, MAX(1, t->o->max_words));
    return kept;
}

static void make_model(quality_trainer *t) {
    int64_t n;
    size_t bytes = 0, at = 0;
    counted_word *words = count_words(t, &n);
    language_model *m = t->m = mem_alloc(sizeof *m);
    *m = (language_model){ .dim = (int32_t)t->o->dim,
                           .word_ngrams = (int32_t)t->o->ngrams,
                           .minn = t->o->max_chars ? (int32_t)t->o->min_chars : 0,
                           .maxn = (int32_t)t->o->max_chars,
                           .bucket =
                               t->o->ngrams > 1 || t->o->max_chars ? (int32_t)t->o->buckets : 0,
                           .loss = FT_SOFTMAX,
                           .zero_rows = (int32_t)t->o->zero_rows / 2,
                           .words = (int32_t)n,
                           .labels = t->n_labels };
    for (int64_t i = 0; i < n; i++) bytes += words[i].text.len + 1;
    t->word_bytes = mem_alloc(bytes);
    t->word_count = mem_alloc((size_t)n * sizeof *t->word_count);
    m->word = mem_alloc((size_t)n * sizeof *m->word);
    for (int64_t i = 0; i < n; i++) {
        m->word[i] = (ft_word){ t->word_bytes + at, (uint32_t)words[i].text.len };
        memcpy(t->word_bytes + at, words[i].text.at, words[i].text.len);
        at += words[i].text.len + 1;
        t->word_count[i] = words[i].count;
    }
    free(words);
    ft_index_words(m);
    /* "</s>" is in each text once, so that its share of the mean reflects the length. As small as that share is, its gradient is
     * too: the mean length makes up for it. */
    double known = 0;
    for (int64_t i = 0; i < n; i++) known += (double)t->word_count[i] / t->n_training;
    t->end_step = t->o->length_rate > 0 ? (float)MAX(1, t->o->length_rate * known) : 1;
    m->bucket_rows = m->bucket;
    int64_t rows = n + m->bucket;
    t->in = mem_alloc((size_t)rows * (size_t)m->dim * sizeof *t->in);
    t->out = mem_alloc((size_t)m->labels * (size_t)m->dim * sizeof *t->out);
    rng_key key = rng_key_of(t->o->seed, 0);
    if (t->o->rows_from_zero)
        for (int64_t i = 0; i < (int64_t)m->labels * m->dim; i++)
            t->out[i] = 2 * rng_uniform(key, (uint64_t)i) - 1;
    else
        for (int64_t i = 0; i < rows * m->dim; i++)
            t->in[i] = (2 * rng_uniform(key, (uint64_t)i) - 1) / (float)m->dim;
    m->in = (ft_matrix){ .rows = rows, .columns = m->dim, .data = (const uint8_t *)t->in };
    m->out = (ft_matrix){ .rows = m->labels, .columns = m->dim, .data = (const uint8_t *)t->out };
}

/* ---- learning --------------------------------------------------------------------------------------------- */

/* One step on one text. @param grad [dim] scratch. @return the loss. */
static double learn_text(quality_trainer *t, language_scratch *s, text_span text, int label,
                         float rate, float *grad) {
    int64_t n;
    const int64_t *rows = language_rows(t->m, s, text, &n);
    const float *p = language_predict_rows(t->m, s, rows, n);
    const float *hidden = language_hidden(s);
    int32_t dim = t->m->dim;
    if (n == 0) return 0;
    double loss = -log(MAX((double)p[label], 1e-10));
    memset(grad, 0, (size_t)dim * sizeof *grad);
    for (int32_t k = 0; k < t->m->labels; k++) {
        float step = rate * ((k == label) - p[k]);
        float *out = t->out + (int64_t)k * dim;
        for (int32_t i = 0; i < dim; i++) grad[i] += step * out[i];
        for (int32_t i = 0; i < dim; i++) out[i] += step * hidden[i];
    }
    for (int32_t i = 0; i < dim; i++) grad[i] /= (float)(n + t->m->zero_rows);
    for (int64_t r = 0; r < n; r++) {
        float scale = rows[r] == 0 ? t->end_step : 1;
        for (int32_t i = 0; i < dim; i++) t->in[rows[r] * dim + i] += scale * grad[i];
    }
    return loss;
}

/* Fills t->starts with the offsets of words; of letters, in a text with few spaces. @return their number. */
static size_t find_starts(quality_trainer *t, const labelled *d) {
    enum { LONG_WORD = 32 }; /* mean bytes of a word in a text whose words are not separated */
    size_t n = 0;
    for (int letters = 0; letters < 2; letters++) {
        n = 0;
        for (size_t i = 0; i < d->len; i++) {
            bool space = is_ft_space(d->text[i]), after = i == 0 || is_ft_space(d->text[i - 1]);
            bool letter = ((unsigned char)d->text[i] & 0xC0) != 0x80;
            if (space || !(letters ? letter : after)) continue;
            if (n == t->cap_starts) {
                t->cap_starts = MAX(1024, 2 * n);
                t->starts = mem_grow(t->starts, t->cap_starts * sizeof *t->starts);
            }
            t->starts[n++] = i;
        }
        if (d->len <= LONG_WORD * n) break;
    }
    return n;
}

/* Cuts a piece of 1 to PIECE words (or letters) at random: its length is uniform on a logarithmic scale. @param starts the
 * number of entries of t->starts. @param draw a number that no other piece of the document has. */
static text_span cut_piece(const quality_trainer *t, const labelled *d, size_t starts, rng_key key,
                           uint64_t draw) {
    enum { PIECE = 20 };
    size_t words = (size_t)exp(rng_uniform(key, 2 * draw) * log(PIECE + 1));
    words = MIN(MAX(words, 1), starts);
    size_t first = (size_t)rng_below(key, 2 * draw + 1, starts - words + 1);
    size_t from = t->starts[first], to = first + words < starts ? t->starts[first + words] : d->len;
    return (text_span){ d->text + from, to - from };
}

/* Learns from a document, and from pieces of it. */
static double learn_document(quality_trainer *t, language_scratch *s, int doc, int64_t epoch,
                             float rate, float *grad) {
    const labelled *d = &t->docs[doc];
    double loss = learn_text(t, s, (text_span){ d->text, d->len }, d->label, rate, grad);
    size_t starts = t->o->pieces ? find_starts(t, d) : 0;
    rng_key key = rng_key_of(t->o->seed ^ UINT64_C(0x7069656365), (uint64_t)doc);
    for (int64_t i = 0; i < t->o->pieces && starts; i++) {
        text_span piece = cut_piece(t, d, starts, key, (uint64_t)(epoch * t->o->pieces + i));
        learn_text(t, s, piece, d->label, rate, grad);
    }
    return loss;
}

static void learn(quality_trainer *t) {
    language_scratch *s = language_scratch_new(t->m);
    float *grad = mem_alloc((size_t)t->m->dim * sizeof *grad);
    int64_t done = 0, all = t->o->epochs * t->n_training;
    for (int64_t epoch = 0; epoch < t->o->epochs; epoch++) {
        rng_key key = rng_key_of(t->o->seed, (uint64_t)epoch + 1);
        double loss = 0;
        for (int i = t->n_training - 1; i > 0; i--) {
            int k = (int)rng_below(key, (uint64_t)i, (uint64_t)i + 1), last = t->training[i];
            t->training[i] = t->training[k];
            t->training[k] = last;
        }
        for (int i = 0; i < t->n_training; i++, done++) {
            float rate = (float)(t->o->rate * (1 - (double)done / (double)all));
            loss += learn_document(t, s, t->training[i], epoch, rate, grad);
        }
        if (!t->o->quiet)
            log_info("epoch %lld: loss %.4f", (long long)epoch + 1, loss / t->n_training);
    }
    free(grad);
    language_scratch_free(s);
}

/* ---- measuring ---------------------------------------------------------------------------------------------- */

typedef struct scored {
    float score;
    bool positive;
} scored;
SORT_ORDER(by_rising_score, scored, RISING(score));

double quality_auc(const float *scores, const bool *positive, int64_t n) {
    scored *all = mem_alloc(((size_t)n + 1) * sizeof *all);
    double ranks = 0, positives = 0;
    for (int64_t i = 0; i < n; i++) all[i] = (scored){ scores[i], positive[i] };
    sort_array(all, (size_t)n, sizeof *all, by_rising_score);
    for (int64_t i = 0, next; i < n; i = next) { /* equal scores share their mean rank */
        for (next = i; next < n && all[next].score == all[i].score;) next++;
        double rank = (double)(i + 1 + next) / 2;
        for (int64_t k = i; k < next; k++) {
            positives += all[k].positive;
            ranks += all[k].positive ? rank : 0;
        }
    }
    free(all);
    double negatives = (double)n - positives;
    if (positives == 0 || negatives == 0) return NAN;
    return (ranks - positives * (positives + 1) / 2) / (positives * negatives);
}

static void measure(quality_trainer *t, quality_report *r) {
    language_scratch *s = language_scratch_new(t->m);
    size_t n = (size_t)t->n_held_out;
    float *scores = mem_alloc((n * (size_t)t->n_labels + 1) * sizeof *scores);
    bool *positive = mem_alloc(n + 1);
    for (size_t i = 0; i < n; i++) {
        const labelled *d = &t->docs[t->held_out[i]];
        const float *p = language_predict(t->m, s, (text_span){ d->text, d->len });
        int best = 0;
        for (int k = 0; k < t->n_labels; k++) {
            scores[(size_t)k * n + i] = p[k];
            if (p[k] > p[best]) best = k;
        }
        r->correct += best == d->label;
        r->label[d->label].correct += best == d->label;
    }
    for (int k = 0; k < t->n_labels; k++) {
        quality_label *l = &r->label[k];
        snprintf(l->name, sizeof l->name, "%s", t->label[k].name + 9);
        l->training = t->label[k].count;
        for (size_t i = 0; i < n; i++) {
            positive[i] = t->docs[t->held_out[i]].label == k;
            l->held_out += positive[i];
        }
        l->auc = quality_auc(scores + (size_t)k * n, positive, (int64_t)n);
    }
    r->labels = t->n_labels;
    r->held_out = t->n_held_out;
    r->words = t->m->words;
    free(scores);
    free(positive);
    language_scratch_free(s);
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static void add_i32(str *out, int32_t v) { str_add_bytes(out, (const char *)&v, sizeof v); }
static void add_i64(str *out, int64_t v) { str_add_bytes(out, (const char *)&v, sizeof v); }

static void add_entry(str *out, const char *text, int64_t count, char type) {
    str_add_bytes(out, text, strlen(text) + 1);
    add_i64(out, count);
    str_add_bytes(out, &type, 1);
}

static void add_matrix(str *out, const ft_matrix *m) {
    str_add_bytes(out, "", 1); /* not quantized */
    add_i64(out, m->rows);
    add_i64(out, m->columns);
    str_add_bytes(out, (const char *)m->data, (size_t)(m->rows * m->columns) * sizeof(float));
}

static void add_quantizer(str *out, const ft_quantizer *q) {
    const int32_t sizes[] = { q->dim, q->parts, q->part, q->last_part };
    for (size_t i = 0; i < COUNT_OF(sizes); i++) add_i32(out, sizes[i]);
    str_add_bytes(out, (const char *)q->centroids, (size_t)q->dim * 256 * sizeof(float));
}

static void add_quantized_matrix(str *out, const ft_matrix *m) {
    str_add_bytes(out, "\1\1", 2); /* quantized, with norms */
    add_i64(out, m->rows);
    add_i64(out, m->columns);
    add_i32(out, (int32_t)(m->rows * m->q.parts));
    str_add_bytes(out, (const char *)m->data, (size_t)(m->rows * m->q.parts));
    add_quantizer(out, &m->q);
    str_add_bytes(out, (const char *)m->norms, (size_t)m->rows);
    add_quantizer(out, &m->norm);
}

static err save_model(const quality_trainer *t, const char *path) {
    const language_model *m = t->m;
    const int32_t settings[] = { FT_MAGIC,
                                 FT_VERSION,
                                 m->dim,
                                 5,
                                 (int32_t)t->o->epochs,
                                 (int32_t)t->o->min_count,
                                 5,
                                 m->word_ngrams,
                                 m->loss,
                                 FT_SUPERVISED,
                                 m->bucket,
                                 m->minn,
                                 m->maxn,
                                 100 };
    double sampling = 1e-4;
    int64_t tokens = 0;
    str out = { 0 };
    for (size_t i = 0; i < COUNT_OF(settings); i++) add_i32(&out, settings[i]);
    str_add_bytes(&out, (const char *)&sampling, sizeof sampling);
    for (int32_t i = 0; i < m->words; i++) tokens += t->word_count[i];
    add_i32(&out, m->words + m->labels);
    add_i32(&out, m->words);
    add_i32(&out, m->labels);
    add_i64(&out, tokens);
    add_i64(&out, -1); /* not pruned */
    for (int32_t i = 0; i < m->words; i++) add_entry(&out, m->word[i].text, t->word_count[i], 0);
    for (int i = 0; i < t->n_labels; i++) add_entry(&out, t->label[i].name, t->label[i].count, 1);
    (m->in.quantized ? add_quantized_matrix : add_matrix)(&out, &m->in);
    add_matrix(&out, &m->out);
    if (m->zero_rows) {
        add_i32(&out, FT_ZERO_ROWS_MAGIC);
        add_i32(&out, m->zero_rows);
    }
    err e = io_write(path, out.text, out.len);
    str_free(&out);
    return e;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void quality_trainer_free(quality_trainer *t) {
    for (int i = 0; i < t->n; i++) free(t->docs[i].text);
    for (int i = 0; i < t->n_labels; i++) free(t->label[i].name);
    free(t->docs);
    free(t->training);
    free(t->held_out);
    free(t->in);
    free(t->out);
    free(t->word_bytes);
    free(t->word_count);
    free(t->starts);
    ft_quantized_free(&t->quantized);
    language_close(t->m);
}

err quality_train(const quality_input *inputs, int n, const quality_options *o, const char *path,
                  quality_report *r) {
    quality_trainer t = { .o = o };
    err e = OK;
    *r = (quality_report){ 0 };
    TRY_CLEAN(read_labelled(&t, inputs, n));
    TRY_CLEAN(split_documents(&t));
    make_model(&t);
    learn(&t);
    /* Half of them while learning: n-grams of texts of another origin say less than those of the training texts, on which the
     * probabilities are right. */
    t.m->zero_rows = (int32_t)o->zero_rows;
    if (o->quantize) ft_quantize(&t.m->in, o->seed, &t.m->in, &t.quantized);
    measure(&t, r);
    r->documents = t.n;
    r->unlabelled = t.unlabelled;
    TRY_CLEAN(save_model(&t, path));
cleanup:
    quality_trainer_free(&t);
    return e;
}
