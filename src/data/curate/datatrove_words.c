/* The words and sentences of a document as datatrove counts them, by the rules of its language (word_rules.c). One pass over
 * the text finds white space, splits what is between, and keeps for each word its hash, its length and its bytes:
 *
 *     text     It's   here.          joined   It'shere.
 *     words    It 's here .          at       0 2 4 8 9
 *
 * Runs of words are compared by the hashes of their words, or, where datatrove joins them first, by bytes of `joined`. */
#include "curate/filter_internal.h"
#include "curate/word_hash.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that may be read after the last word of `joined`. */
enum { SLACK = 16 };

/* ---- white space ------------------------------------------------------------------------------------- */

size_t python_spaces_end(text_span t, size_t from) {
    if (t.len - from > 1 && t.at[from] == ' ' && t.at[from + 1] > ' ') return from + 1;
    while (from < t.len) {
        unsigned char c = (unsigned char)t.at[from];
        if (c > ' ' && c < 0x80) break;
        uint32_t cp;
        int n = utf8_decode(t.at + from, &cp);
        if (!is_python_space(cp)) break;
        from += (size_t)n;
    }
    return from;
}

size_t python_chunk_end(text_span t, size_t from) {
    while (from < t.len) {
        if (t.len - from >= 8) {
            uint64_t stop = word_end_bytes(load_eight(t.at + from));
            from += stop ? (size_t)__builtin_ctzll(stop) / 8 : 8;
            if (!stop) continue;
        }
        do { /* a run of non-ASCII characters is decoded as a whole */
            uint32_t cp;
            int n = utf8_decode(t.at + from, &cp);
            if (is_python_space(cp)) return from;
            from += (size_t)n;
        } while (from < t.len && (signed char)t.at[from] < 0);
    }
    return from;
}

/* The end of the run at `from` of spaces and tabs, or of other characters. */
static size_t blanks_end(text_span t, size_t from) {
    while (from < t.len && (t.at[from] == ' ' || t.at[from] == '\t')) from++;
    return from;
}
static size_t blank_chunk_end(text_span t, size_t from) {
    while (from < t.len && t.at[from] != ' ' && t.at[from] != '\t') from++;
    return from;
}

/* Removes Python's white space from both ends. */
static text_span strip_python_space(text_span t) {
    size_t begin = python_spaces_end(t, 0), end = begin;
    for (size_t at = begin; at < t.len; at = python_spaces_end(t, end))
        end = python_chunk_end(t, at);
    return (text_span){ t.at + begin, end - begin };
}

/* ---- words -------------------------------------------------------------------------------------------- */

static bool is_solid(const word_rules *w, const char *s, size_t n) {
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        i += (size_t)utf8_decode(s + i, &cp);
        if (!word_is_punctuation(w, cp)) return true;
    }
    return false;
}

static bool has_letter(const char *s, size_t n) {
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        i += (size_t)utf8_decode(s + i, &cp);
        if (unicode_class(cp) & CLASS_LETTER) return true;
    }
    return false;
}

static uint32_t count_chars(const char *s, size_t n) {
    if (n > 16) return (uint32_t)utf8_length(s, n);
    uint32_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += (signed char)s[i] >= -64;
    return chars;
}

static void reserve_datatrove_words(datatrove_words *d, text_span t) {
    if (d->joined_cap < t.len + SLACK) {
        d->joined_cap = MAX(4096, t.len + t.len / 2 + SLACK);
        free(d->joined);
        d->joined = mem_alloc(d->joined_cap);
    }
    d->of = t;
    d->n = d->solid = d->solid_chars = d->letters = 0;
    d->stop_words = 0;
}

static void reserve_word(datatrove_words *d) {
    if (d->n + 1 >= d->cap) {
        d->cap = MAX(1024, 2 * d->cap);
        d->hash = mem_grow(d->hash, (size_t)d->cap * sizeof *d->hash);
        d->chars = mem_grow(d->chars, (size_t)d->cap * sizeof *d->chars);
        d->at = mem_grow(d->at, (size_t)d->cap * sizeof *d->at);
        d->chars[0] = d->at[0] = 0;
    }
}

/* Adds a word of letters of ASCII, none of which is punctuation. Reads SLACK bytes. */
static void add_letters(datatrove_words *d, const char *s, size_t n, uint64_t hash) {
    reserve_word(d);
    int64_t i = d->n++;
    d->solid++;
    d->solid_chars += (int64_t)n;
    d->letters++;
    d->hash[i] = hash;
    memcpy(d->joined + d->at[i], s, SLACK);
    d->at[i + 1] = d->at[i] + (uint32_t)n;
    d->chars[i + 1] = d->chars[i] + (uint32_t)n;
}

static void add_datatrove_word(const word_rules *w, datatrove_words *d, const char *s, size_t n) {
    reserve_word(d);
    uint32_t chars = count_chars(s, n);
    bool solid = is_solid(w, s, n);
    d->solid += solid;
    d->solid_chars += solid ? chars : 0;
    d->letters += has_letter(s, n);
    if (n >= 2 && n <= 4) d->stop_words |= stop_bit(load_short(s, n));
    int64_t i = d->n++;
    d->hash[i] = word_hash(s, n);
    memcpy(d->joined + d->at[i], s, n);
    d->at[i + 1] = d->at[i] + (uint32_t)n;
    d->chars[i + 1] = d->chars[i] + chars;
}

/* Takes a chunk of fewer than sixteen letters of ASCII that is one word, with few branches: most chunks of English.
 * @return its bytes; 0: it is something else. */
static size_t take_letters(const word_rules *w, datatrove_words *d, const char *s, size_t left) {
    if (left < SLACK) return 0;
    uint64_t eight = load_eight(s), stop = ~letters_in(eight) & HIGHS;
    size_t n = stop ? (size_t)__builtin_ctzll(stop) / 8 : 8;
    if (!stop) {
        stop = ~letters_in(load_eight(s + 8)) & HIGHS;
        if (!stop) return 0;
        n = 8 + (size_t)__builtin_ctzll(stop) / 8;
    }
    bool space = s[n] == ' ' || s[n] == '\n';
    if (n == 0 || !space || !word_rules_keep_letters(w, s[0], s[n - 1], n)) return 0;
    if (n < 8) {
        uint64_t bytes = eight & ((UINT64_C(1) << 8 * n) - 1);
        d->stop_words |= stop_bit(bytes);
        add_letters(d, s, n, short_hash(bytes, n));
    } else {
        add_letters(d, s, n, word_hash(s, n));
    }
    return n;
}

static datatrove_words *worker_words(judgment *j) {
    if (!j->w->datatrove) {
        j->w->datatrove = mem_alloc(sizeof *j->w->datatrove);
        j->w->datatrove->scratch = word_scratch_new();
    }
    return j->w->datatrove;
}

const datatrove_words *datatrove_words_of(judgment *j) {
    datatrove_words *d = worker_words(j);
    const word_rules *rules = judgment_words(j);
    text_span t = j->v->text;
    if (j->split && d->of.at == t.at && d->of.len == t.len) return d;
    j->split = true;
    reserve_datatrove_words(d, t);
    bool blanks = word_rules_only_blanks(rules);
    size_t (*skip)(text_span, size_t) = blanks ? blanks_end : python_spaces_end;
    size_t (*chunk_end)(text_span, size_t) = blanks ? blank_chunk_end : python_chunk_end;
    for (size_t at = skip(t, 0), end; at < t.len; at = skip(t, end)) {
        size_t n, from = at;
        end = at + (blanks ? 0 : take_letters(rules, d, t.at + at, t.len - at));
        if (end > at) continue;
        end = chunk_end(t, at);
        const uint32_t *bytes = word_rules_split(rules, d->scratch, t.at + at, end - at, &n);
        for (size_t i = 0; i < n; from += bytes[i++]) {
            text_span word = { t.at + from, bytes[i] };
            if (blanks) word = strip_python_space(word);
            if (word.len) add_datatrove_word(rules, d, word.at, word.len);
        }
    }
    return d;
}

void datatrove_words_free(datatrove_words *d) {
    if (!d) return;
    word_scratch_free(d->scratch);
    free(d->hash);
    free(d->chars);
    free(d->at);
    free(d->joined);
    free(d);
}

/* ---- sentences ------------------------------------------------------------------------------------------ */

/* spaCy's sentencizer: a sentence begins after an end and the punctuation that follows it. White space beyond a
 * space after a word is a token too. */
typedef struct sentence_count {
    int64_t n;
    bool ended;
} sentence_count;

static void count_token(const word_rules *w, sentence_count *c, const char *s, size_t n,
                        bool space) {
    bool punctuation = !space;
    uint32_t cp = 0;
    int len = 0;
    for (size_t i = 0; i < n; i += (size_t)len) {
        len = utf8_decode(s + i, &cp);
        punctuation = punctuation && (unicode_class(cp) & CLASS_PUNCTUATION);
    }
    bool end = !space && (size_t)len == n && word_ends_sentence(w, cp);
    if (c->ended && !punctuation && !end)
        c->n++, c->ended = false;
    else if (end)
        c->ended = true;
}

int64_t datatrove_sentences(judgment *j, text_span line) {
    sentence_count c = { .n = 1 };
    word_scratch *scratch = worker_words(j)->scratch;
    const word_rules *rules = judgment_words(j);
    if (word_rules_have_sentences(rules))
        return word_rules_sentences(rules, scratch, line.at, line.len);
    for (size_t at = 0, end; at < line.len; at = end) {
        end = python_spaces_end(line, at);
        size_t space = end - at;
        if (space && at > 0 && line.at[at] == ' ') space--; /* it belongs to the word before */
        if (space) count_token(rules, &c, line.at + end - space, space, true);
        size_t from = end, n;
        end = python_chunk_end(line, from);
        if (end == from) break;
        const uint32_t *bytes = word_rules_split(rules, scratch, line.at + from, end - from, &n);
        for (size_t i = 0; i < n; from += bytes[i++])
            count_token(rules, &c, line.at + from, bytes[i], false);
    }
    return c.n;
}
