/* The references of decontamination: reading them, indexing their n-grams, searching a text.
 *
 * Every text of a reference is indexed by the rolling hash of each of its n-grams. A text shorter
 * than n words is indexed as a whole, under a key that includes its length, plus an entry for its
 * last `shortest` words that lists the lengths of such texts: while searching, that entry decides
 * which lengths are worth hashing. A bitmap over the top bits of all keys (`filter`) answers
 * almost every lookup of a document that contains no reference.
 *
 * A text of fewer than `shortest` words, such as "Who wrote Hamlet?", would be found inside of unrelated sentences. It
 * is indexed as a whole too, under keys of its own, and looked up only where a document has the same number of words
 * between two boundaries: line breaks and punctuation other than commas, hyphens and apostrophes. */
#include "curate/decontaminate_internal.h"
#include "io/io.h"

#include <stdlib.h>

enum { FIRST_BITS = 12, FILTER_BITS = 21, RING = NGRAM_MAX, CHUNK = 512 };
#define TAIL_SALT     0xC2B2AE3D27D4EB4Fu /* separates keys of short texts' ends from keys of n-grams */
#define SENTENCE_SALT 0x9FB21C651E98DF25u /* ... and keys of sentences */

static uint64_t gram_key(uint64_t sum, int words) { return hash_mix(sum + (uint64_t)words); }
static uint64_t tail_key(uint64_t sum) { return hash_mix(sum ^ TAIL_SALT); }
static uint64_t sentence_key(uint64_t sum, int words) {
    return hash_mix((sum + (uint64_t)words) ^ SENTENCE_SALT);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* @return the slot of the key, or the free slot where it belongs. */
static ref_slot *find_ref_slot(const refs *r, uint64_t key) {
    size_t mask = ((size_t)1 << r->bits) - 1, i = (size_t)key & mask;
    while (r->slots[i].value && r->slots[i].key != key) i = (i + 1) & mask;
    return &r->slots[i];
}

static inline bool may_have(const refs *r, uint64_t key) {
    uint64_t i = key >> (64 - FILTER_BITS);
    return r->filter[i / 64] >> i % 64 & 1;
}

static void grow_table(refs *r) {
    ref_slot *old = r->slots;
    size_t n = (size_t)1 << r->bits++;
    r->slots = mem_alloc(n * 2 * sizeof *r->slots);
    for (size_t i = 0; i < n; i++)
        if (old[i].value) *find_ref_slot(r, old[i].key) = old[i];
    free(old);
}

/* @return the slot for a key, inserted if it is new. */
static ref_slot *make_slot(refs *r, uint64_t key) {
    if (r->filled >= (size_t)1 << (r->bits - 1)) grow_table(r);
    ref_slot *s = find_ref_slot(r, key);
    if (s->value) return s;
    s->key = key;
    r->filled++;
    uint64_t bit = key >> (64 - FILTER_BITS);
    r->filter[bit / 64] |= (uint64_t)1 << bit % 64;
    return s;
}

static void add_gram(refs *r, uint64_t key, uint32_t text, const normalized_word *first,
                     const normalized_word *last) {
    ref_slot *s = make_slot(r, key);
    ref_ngram *head = s->value ? &r->grams[s->value - 1] : NULL;
    if (head && refs_find_occurrence(r, (uint32_t)(s->value - 1), text))
        return; /* the text repeats itself */
    uint32_t index = (uint32_t)r->n_grams;
    LIST_ADD(r->grams, r->n_grams, r->grams_cap) =
        (ref_ngram){ .text = text, .begin = first->begin, .end = last->end };
    r->texts[text].grams++;
    if (!s->value) {
        s->value = index + 1;
        r->n_distinct++;
        return;
    }
    head = &r->grams[s->value - 1];
    r->grams[index].next = head->next;
    head->next = index + 1;
}

/* Bounded, since a passage may occur in a great many references: beyond MAX_STEPS some are
 * missed. */
const ref_ngram *refs_find_occurrence(const refs *r, uint32_t number, uint32_t text) {
    enum { MAX_STEPS = 64 };
    const ref_ngram *g = &r->grams[number];
    for (int i = 0; i < MAX_STEPS; i++) {
        if (g->text == text) return g;
        if (!g->next) break;
        g = &r->grams[g->next - 1];
    }
    return NULL;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* The last words of a text, and the rolling hashes of the n-grams that end with them. */
typedef struct window {
    normalized_word ring[RING];
    bool begins[RING]; /* a boundary precedes the word */
    size_t n;          /* words so far */
    rolling_ngram whole, tail;
} window;

static window window_new(const refs *r) {
    return (window){ .whole = rolling_ngram_new(r->ngram), .tail = rolling_ngram_new(r->shortest) };
}

static inline void window_push(window *w, normalized_word word) {
    rolling_ngram_push(&w->whole, word.hash, w->ring[(w->n - (size_t)w->whole.n) % RING].hash);
    rolling_ngram_push(&w->tail, word.hash, w->ring[(w->n - (size_t)w->tail.n) % RING].hash);
    w->ring[w->n++ % RING] = word;
}

/* @return the i-th word from the end; 1 is the last. */
static inline const normalized_word *window_word(const window *w, int i) {
    return &w->ring[(w->n - (size_t)i) % RING];
}

static uint64_t window_sum(const window *w, int words) {
    uint64_t sum = 0;
    for (int i = words; i >= 1; i--) sum = sum * NGRAM_BASE + window_word(w, i)->hash;
    return sum;
}

static void add_last_gram(refs *r, const window *w, uint64_t sum, int words, uint32_t text) {
    add_gram(r, gram_key(sum, words), text, window_word(w, words), window_word(w, 1));
}

static void index_text(refs *r, uint32_t text) {
    normalized_word chunk[CHUNK];
    window w = window_new(r);
    size_t at = 0, got;
    while ((got = normalizer_next_words(r->words, r->texts[text].text, &at, chunk, CHUNK)) > 0)
        for (size_t k = 0; k < got; k++) {
            window_push(&w, chunk[k]);
            if (w.whole.have == r->ngram) add_last_gram(r, &w, w.whole.sum, r->ngram, text);
        }
    if (w.whole.have == r->ngram) return;
    int all = w.whole.have;
    if (r->texts[text].sentence) {
        r->sentence_lengths |= (uint64_t)1 << all;
        add_gram(r, sentence_key(w.whole.sum, all), text, window_word(&w, all), window_word(&w, 1));
        return;
    }
    add_last_gram(r, &w, w.whole.sum, all, text);
    make_slot(r, tail_key(w.tail.sum))->value |= (uint64_t)1 << all;
}

static err check_memory(const refs *r) {
    size_t all =
        r->bytes + (size_t)r->n_grams * sizeof *r->grams +
        ((size_t)3 << r->bits) * sizeof *r->slots; /* the old and the new one while it grows */
    if (all <= r->max_bytes) return OK;
    char cap[32];
    return err_hint(ERR("%s: the references do not fit into %s of memory",
                        r->files[r->n_files - 1].path,
                        str_bytes(cap, sizeof cap, (double)r->max_bytes)),
                    "raise --memory, or choose members with --fields");
}

static err add_ref_text(refs *r, int line, const char *member, const char *bytes, size_t n) {
    normalized_word chunk[CHUNK];
    size_t at = 0, words = 0, got;
    while ((got = normalizer_next_words(r->words, (text_span){ bytes, n }, &at, chunk, CHUNK)) > 0)
        words += got;
    bool sentence = words < (size_t)r->shortest;
    if (sentence && (!r->sentence || words < (size_t)r->sentence)) {
        r->files[r->n_files - 1].unsearched += words > 0;
        return OK;
    }
    char *copy = arena_alloc(r->memory, n + 1);
    memcpy(copy, bytes, n);
    r->texts = mem_reserve(r->texts, &r->texts_cap, r->n_texts, sizeof *r->texts);
    r->texts[r->n_texts] = (ref_text){ r->n_files - 1, line, arena_strdup(r->memory, member),
                                       { copy, n },    0,    sentence };
    r->bytes += n + sizeof *r->texts;
    r->files[r->n_files - 1].texts++;
    index_text(r, (uint32_t)r->n_texts++);
    return check_memory(r);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* @return whether the list contains the name or a parent of it: "a" includes "a.b". */
static bool in_fields(const char *fields, const char *name) {
    if (!fields) return true;
    for (const char *at = fields; *at;) {
        size_t n = strcspn(at, ",");
        if (n && strncmp(name, at, n) == 0 && (!name[n] || name[n] == '.')) return true;
        at += n;
        at += *at == ',';
    }
    return false;
}

typedef struct json_place {
    const char *fields;
    int line;
    str member; /* the path so far */
} json_place;

/* Adds every string of a value; elements of an array have the name of the array. */
static err add_strings(refs *r, json_t *value, json_place *p) {
    const char *member = p->member.len ? p->member.text : "";
    if (json_is_string(value)) {
        if (!in_fields(p->fields, member)) return OK;
        return add_ref_text(r, p->line, member, json_string_value(value),
                            json_string_length(value));
    }
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item) TRY(add_strings(r, item, p));
    const char *key;
    size_t before = p->member.len;
    json_object_foreach(value, key, item) {
        str_add(&p->member, "%s%s", before ? "." : "", key);
        TRY(add_strings(r, item, p));
        p->member.len = before;
        p->member.text[before] = '\0';
    }
    return OK;
}

static err read_lines(refs *r, const char *path, const char *fields, const char *text, size_t len) {
    json_place p = { .fields = fields };
    err e = OK;
    for (size_t at = 0; at < len && !e;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        p.line++;
        if (strspn(text + at, " \t\r") < n) {
            json_error_t problem;
            json_t *value = json_loadb(text + at, n, 0, &problem);
            e = value ? add_strings(r, value, &p)
                      : err_hint(ERR("%s:%d:%d: not valid JSON: %s", path, p.line, problem.column,
                                     problem.text),
                                 "references must be JSON lines files");
            json_decref(value);
            p.member.len = 0;
        }
        at += n + 1;
    }
    str_free(&p.member);
    return e;
}

static err read_ref_file(refs *r, const char *path, const char *fields) {
    char *text = NULL;
    size_t len = 0;
    TRY(io_read(path, r->max_bytes / 2, &text, &len));
    if (len >= 2 && (memcmp(text, "\x1f\x8b", 2) == 0 || memcmp(text, "\x28\xb5", 2) == 0)) {
        free(text);
        return err_hint(ERR("%s is compressed; references must be plain JSON lines", path),
                        "decompress it first");
    }
    LIST_ADD(r->files, r->n_files, r->files_cap) =
        (ref_file){ .path = arena_strdup(r->memory, path) };
    r->hash = hash_bytes(text, len, r->hash);
    err e = read_lines(r, path, fields, text, len);
    free(text);
    if (e) return e;
    if (r->files[r->n_files - 1].texts) return OK;
    return err_hint(ERR("%s: no %s of at least %d words to search for", path,
                        fields ? "member of --fields" : "string",
                        r->sentence ? r->sentence : r->shortest),
                    "give a JSON lines file of evaluation texts; --fields names the members, "
                    "--sentence the minimum of words");
}

static err read_path(refs *r, const char *path, const char *fields) {
    if (!io_is_dir(path)) return read_ref_file(r, path, fields);
    char **names = NULL;
    int n = 0, before = r->n_files;
    TRY(io_list(path, &names, &n));
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        if (str_ends(names[i], ".jsonl")) e = read_ref_file(r, PATH_IN(path, names[i]), fields);
    }
    io_list_free(names, n);
    if (!e && r->n_files == before) e = ERR("%s: no .jsonl file in this folder", path);
    return e;
}

err refs_read(const char *paths, const char *fields, ref_lengths lengths, size_t memory,
              refs **out) {
    *out = NULL;
    refs *r = mem_alloc(sizeof *r);
    *r = (refs){ .ngram = lengths.ngram,
                 .shortest = lengths.shortest,
                 .sentence = lengths.sentence,
                 .bits = FIRST_BITS,
                 .max_bytes = memory };
    r->memory = arena_new();
    r->words = normalizer_new((normalization){ 0 });
    r->slots = mem_alloc(((size_t)1 << r->bits) * sizeof *r->slots);
    r->filter = mem_alloc(((size_t)1 << FILTER_BITS) / 8);
    err e = OK;
    char *list = strdup(paths), *rest = NULL;
    for (char *path = strtok_r(list, ",", &rest); path && !e; path = strtok_r(NULL, ",", &rest))
        e = read_path(r, path, fields);
    free(list);
    if (!e && r->n_files == 0) e = ERR_USAGE("--against: no file is named");
    if (e)
        refs_free(r);
    else
        *out = r;
    return e;
}

void refs_free(refs *r) {
    if (!r) return;
    arena_free(r->memory);
    normalizer_free(r->words);
    free(r->files);
    free(r->texts);
    free(r->grams);
    free(r->slots);
    free(r->filter);
    free(r);
}

/* ---- finding --------------------------------------------------------------------------------- */

static void add_hit(ref_hits *out, uint32_t number, uint32_t begin, uint32_t end) {
    LIST_ADD(out->at, out->n, out->cap) = (ref_hit){ number, begin, end };
}

static void look_up_gram(const refs *r, const window *w, uint64_t sum, int words, ref_hits *out) {
    uint64_t key = gram_key(sum, words);
    if (!may_have(r, key)) return;
    uint64_t value = find_ref_slot(r, key)->value;
    if (value)
        add_hit(out, (uint32_t)(value - 1), window_word(w, words)->begin, window_word(w, 1)->end);
}

/* Finds short texts that end with the last word. */
static void look_up_short(const refs *r, const window *w, ref_hits *out) {
    uint64_t key = tail_key(w->tail.sum);
    if (!may_have(r, key)) return;
    uint64_t lengths = find_ref_slot(r, key)->value;
    for (int n = r->shortest; n < r->ngram && (size_t)n <= w->n; n++)
        if (lengths >> n & 1) look_up_gram(r, w, window_sum(w, n), n, out);
}

/* Finds texts that are sentences and end with the last word, which a boundary follows. */
static void look_up_sentences(const refs *r, const window *w, ref_hits *out) {
    for (int n = r->sentence; n < r->shortest && (size_t)n <= w->n; n++) {
        if (!(r->sentence_lengths >> n & 1) || !w->begins[(w->n - (size_t)n) % RING]) continue;
        uint64_t key = sentence_key(window_sum(w, n), n);
        uint64_t value = may_have(r, key) ? find_ref_slot(r, key)->value : 0;
        if (value)
            add_hit(out, (uint32_t)(value - 1), window_word(w, n)->begin, window_word(w, 1)->end);
    }
}

/* @return whether the text between two words separates sentences. */
static bool is_boundary(text_span gap) {
    if (gap.len == 1 && gap.at[0] == ' ') return false;
    for (size_t i = 0; i < gap.len;) {
        uint32_t cp;
        i += (size_t)utf8_decode(gap.at + i, &cp);
        if (cp == '\n' || cp == '\r') return true;
        bool joins = cp < 0x80 ? strchr(",'-_&/`", (int)cp) != NULL
                               : cp == 0x2019 || cp == 0x2010 || cp == 0x2011 || cp == 0x3001 ||
                                     cp == 0xFF0C;
        if (!joins && (unicode_class(cp) & (CLASS_PUNCTUATION | CLASS_SYMBOL))) return true;
    }
    return false;
}

void refs_find_in_text(const refs *r, text_span text, ref_hits *out) {
    normalized_word chunk[CHUNK];
    window w = window_new(r);
    size_t at = 0, got;
    while ((got = normalizer_next_words(r->words, text, &at, chunk, CHUNK)) > 0)
        for (size_t k = 0; k < got; k++) {
            if (r->sentence_lengths) {
                size_t end = w.n ? window_word(&w, 1)->end : 0;
                bool begins =
                    w.n == 0 || is_boundary((text_span){ text.at + end, chunk[k].begin - end });
                if (begins && w.n) look_up_sentences(r, &w, out);
                w.begins[w.n % RING] = begins;
            }
            window_push(&w, chunk[k]);
            if (w.whole.have == w.whole.n) look_up_gram(r, &w, w.whole.sum, r->ngram, out);
            if (w.tail.have == w.tail.n) look_up_short(r, &w, out);
        }
    if (r->sentence_lengths && w.n) look_up_sentences(r, &w, out);
}
