/* The rule sets as datatrove measures them, unless --words is space: its words (word_rules.c), its lines, and
 * its order of checks, document by document. Lines are Python's:
 *
 *     splitlines    \n \r \r\n \v \f \x1c-\x1e U+0085 U+2028 U+2029
 *     white space   Unicode's, and \x1c-\x1f
 */
#include "curate/filter_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Python's text -------------------------------------------------------------------------------- */

static bool is_python_space(uint32_t cp) {
    return (unicode_class(cp) & CLASS_SPACE) || (cp >= 0x1C && cp <= 0x1F);
}

static text_span strip_span(text_span s) {
    uint32_t cp;
    for (int n; s.len && (n = utf8_decode(s.at, &cp), is_python_space(cp)); s.len -= (size_t)n)
        s.at += n;
    while (s.len && is_python_space(last_code_point(s))) {
        s.len--;
        while (((unsigned char)s.at[s.len] & 0xC0) == 0x80) s.len--;
    }
    return s;
}

/* Bytes of the line end at p; 0: none. */
static size_t line_end_length(const char *p, size_t n) {
    unsigned char c = (unsigned char)p[0];
    if (c == '\r') return n > 1 && p[1] == '\n' ? 2 : 1;
    if ((c >= '\n' && c <= '\f') || (c >= 0x1C && c <= 0x1E)) return 1;
    if (c == 0xC2) return p[1] == '\x85' ? 2 : 0;
    return c == 0xE2 && p[1] == '\x80' && (p[2] == '\xA8' || p[2] == '\xA9') ? 3 : 0;
}

/* Takes the next line off a text. @return false when none is left. */
static bool next_python_line(text_span *rest, text_span *line) {
    if (!rest->len) return false;
    size_t end = 0, gap = 0;
    while (end < rest->len && !(gap = line_end_length(rest->at + end, rest->len - end))) end++;
    *line = (text_span){ rest->at, end };
    rest->at += end + gap;
    rest->len -= end + gap;
    return true;
}

/* The next part between runs of at least `least` newlines, as Python's re.split gives them: the last one may be
 * empty. @param done set once the last was given. */
static bool next_part(text_span *rest, size_t least, bool *done, text_span *part) {
    if (*done) return false;
    for (size_t at = 0; at < rest->len; at++) {
        size_t run = 0;
        while (at + run < rest->len && rest->at[at + run] == '\n') run++;
        if (run >= least && run > 0) {
            *part = (text_span){ rest->at, at };
            rest->at += at + run;
            rest->len -= at + run;
            return true;
        }
        at += run ? run - 1 : 0;
    }
    *part = *rest;
    *done = true;
    return true;
}

/* ---- words -------------------------------------------------------------------------------------------- */

/* A polynomial of the bytes, modulo 2^61 - 1: that of two texts follows from theirs, so that n-grams compare as
 * the texts that their words are joined to. */
static const uint64_t PRIME = (UINT64_C(1) << 61) - 1, BASE = UINT64_C(0x0F3A5C6E91B7D245);
static uint64_t multiply_mod(uint64_t a, uint64_t b) {
    unsigned __int128 p = (unsigned __int128)a * b;
    uint64_t sum = (uint64_t)(p & PRIME) + (uint64_t)(p >> 61);
    return sum >= PRIME ? sum - PRIME : sum;
}

static void append_hash(uint64_t *hash, uint64_t part, uint64_t power) {
    *hash = multiply_mod(*hash, power) + part;
    if (*hash >= PRIME) *hash -= PRIME;
}

typedef struct word_facts {
    uint64_t hash, power; /* of its bytes; BASE to their number */
    uint32_t chars;
} word_facts;

struct datatrove_words {
    word_scratch *scratch;
    text_span of; /* the text that was split last */
    word_facts *at;
    int64_t n, cap;
    int64_t solid, solid_chars,
        letters; /* words: not all punctuation; their characters; with a letter */
    unsigned stop_words;
};

static unsigned stop_bit(const char *s, size_t n) {
    static const char *const words[] = { "the", "be", "to", "of", "and", "that", "have", "with" };
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strlen(words[i]) == n && memcmp(words[i], s, n) == 0) return 1u << i;
    return 0;
}

static void add_datatrove_word(const word_rules *w, datatrove_words *d, const char *s, size_t n) {
    if (d->n == d->cap) {
        d->cap = MAX(1024, 2 * d->cap);
        d->at = mem_grow(d->at, (size_t)d->cap * sizeof *d->at);
    }
    word_facts f = { .power = 1 };
    bool solid = false, letter = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(s + i, &cp);
        for (int k = 0; k < len; k++, i++) {
            append_hash(&f.hash, (uint8_t)s[i] + 1u, BASE);
            f.power = multiply_mod(f.power, BASE);
        }
        solid = solid || !word_is_punctuation(w, cp);
        letter = letter || (unicode_class(cp) & CLASS_LETTER);
        f.chars++;
    }
    d->at[d->n++] = f;
    d->solid += solid;
    d->solid_chars += solid ? f.chars : 0;
    d->letters += letter;
    if (n <= 4) d->stop_words |= stop_bit(s, n);
}

/* The end of the run at `from` of characters that are white space, or that are not. */
static size_t run_end(text_span t, size_t from, bool space) {
    while (from < t.len) {
        uint32_t cp;
        int n = utf8_decode(t.at + from, &cp);
        if (is_python_space(cp) != space) break;
        from += (size_t)n;
    }
    return from;
}

/* The end of the run at `from` of spaces and tabs, or of other characters. */
static size_t blank_run_end(text_span t, size_t from, bool blank) {
    while (from < t.len && (t.at[from] == ' ' || t.at[from] == '\t') == blank) from++;
    return from;
}

/* Removes Python's white space from both ends. */
static text_span strip_python_space(text_span t) {
    size_t begin = run_end(t, 0, true), end = begin;
    for (size_t at = begin; at < t.len; at = run_end(t, end, true)) end = run_end(t, at, false);
    return (text_span){ t.at + begin, end - begin };
}

static datatrove_words *words_of(judgment *j) {
    if (!j->w->datatrove) {
        j->w->datatrove = mem_alloc(sizeof *j->w->datatrove);
        j->w->datatrove->scratch = word_scratch_new();
    }
    datatrove_words *d = j->w->datatrove;
    const word_rules *rules = judgment_words(j);
    text_span t = j->v->text;
    if (j->split && d->of.at == t.at && d->of.len == t.len) return d;
    j->split = true;
    d->of = t;
    d->n = d->solid = d->solid_chars = d->letters = 0;
    d->stop_words = 0;
    bool blanks = word_rules_only_blanks(rules);
    size_t (*next)(text_span, size_t, bool) = blanks ? blank_run_end : run_end;
    for (size_t at = next(t, 0, true), end; at < t.len; at = next(t, end, true)) {
        end = next(t, at, false);
        size_t n, from = at;
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
    free(d->at);
    free(d);
}

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

static int64_t count_sentences(judgment *j, text_span line) {
    sentence_count c = { .n = 1 };
    word_scratch *scratch = j->w->datatrove->scratch;
    const word_rules *rules = judgment_words(j);
    if (word_rules_have_sentences(rules))
        return word_rules_sentences(rules, scratch, line.at, line.len);
    for (size_t at = 0, end; at < line.len; at = end) {
        end = run_end(line, at, true);
        size_t space = end - at;
        if (space && at > 0 && line.at[at] == ' ') space--; /* it belongs to the word before */
        if (space) count_token(rules, &c, line.at + end - space, space, true);
        size_t from = end, n;
        end = run_end(line, from, false);
        if (end == from) break;
        const uint32_t *bytes = word_rules_split(rules, scratch, line.at + from, end - from, &n);
        for (size_t i = 0; i < n; from += bytes[i++])
            count_token(rules, &c, line.at + from, bytes[i], false);
    }
    return c.n;
}

/* ---- repeated elements ------------------------------------------------------------------------------------ */

typedef struct element_repeats {
    int64_t n, repeated, chars;
} element_repeats;

static void count_element(filter_worker *w, text_span s, element_repeats *r) {
    r->n++;
    if (seen_count(&w->seen, hash_bytes(s.at, s.len, 0)) == 1) return;
    r->repeated++;
    r->chars += utf8_length(s.at, s.len);
}

static int64_t count_line_feeds(text_span text) {
    int64_t n = 0;
    for (size_t i = 0; i < text.len; i++) n += text.at[i] == '\n';
    return n;
}

static element_repeats count_text_parts(filter_worker *w, text_span text, size_t least) {
    element_repeats r = { 0 };
    text_span part;
    bool done = false;
    seen_clear(&w->seen, count_line_feeds(text) + 1);
    while (next_part(&text, least, &done, &part)) count_element(w, part, &r);
    return r;
}

static uint64_t joined_gram_hash(const word_facts *at, int n) {
    uint64_t h = 0;
    for (int i = 0; i < n; i++) append_hash(&h, at[i].hash, at[i].power);
    return h;
}

/* For n-grams that are joined by spaces: no word has one, so that equal grams have equal words. */
static uint64_t spaced_hash(const word_facts *at, int n) {
    uint64_t h = 0;
    for (int i = 0; i < n; i++) {
        append_hash(&h, at[i].hash, at[i].power);
        append_hash(&h, ' ' + 1u, BASE);
    }
    return h;
}

static int64_t gram_chars(const word_facts *at, int n) {
    int64_t chars = 0;
    for (int i = 0; i < n; i++) chars += at[i].chars;
    return chars;
}

/* Characters of the most frequent n-gram, the first of equals, times its count. */
static int64_t top_gram_chars(filter_worker *w, const datatrove_words *d, int n) {
    uint32_t most = 0;
    seen_clear(&w->seen, d->n);
    for (int64_t i = 0; i + n <= d->n; i++) {
        uint32_t count = seen_count(&w->seen, spaced_hash(d->at + i, n));
        most = MAX(most, count);
    }
    for (int64_t i = 0; i + n <= d->n; i++)
        if (seen_find(&w->seen, spaced_hash(d->at + i, n)) == most)
            return (gram_chars(d->at + i, n) + n - 1) * most;
    return 0;
}

static int64_t repeated_gram_chars(filter_worker *w, const datatrove_words *d, int n) {
    int64_t chars = 0;
    seen_clear(&w->seen, d->n);
    for (int64_t i = 0; i + n <= d->n;) {
        bool repeated = seen_count(&w->seen, joined_gram_hash(d->at + i, n)) > 1;
        if (repeated) chars += gram_chars(d->at + i, n);
        i += repeated ? n : 1;
    }
    return chars;
}

bool datatrove_gopher_repetition(judgment *j) {
    enum { FIRST_TOP = 2, FIRST_REPEAT = 5, LAST = 10 };
    text_span text = j->v->text;
    double chars = (double)utf8_length(text.at, text.len);
    element_repeats p = count_text_parts(j->w, strip_span(text), 2);
    if (judgment_fails(j, FILTER_repeat_paragraphs, safe_ratio((double)p.repeated, (double)p.n)) ||
        judgment_fails(j, FILTER_repeat_paragraph_chars, safe_ratio((double)p.chars, chars)))
        return true;
    element_repeats l = count_text_parts(j->w, text, 1);
    if (judgment_fails(j, FILTER_repeat_lines, safe_ratio((double)l.repeated, (double)l.n)) ||
        judgment_fails(j, FILTER_repeat_line_chars, safe_ratio((double)l.chars, chars)))
        return true;
    const datatrove_words *d = words_of(j);
    for (int n = FIRST_TOP; n <= LAST; n++) {
        bool top = n < FIRST_REPEAT;
        int rule = top ? FILTER_top_2gram + n - FIRST_TOP : FILTER_repeat_5gram + n - FIRST_REPEAT;
        int64_t found = top ? top_gram_chars(j->w, d, n) : repeated_gram_chars(j->w, d, n);
        if (judgment_fails(j, rule, safe_ratio((double)found, chars))) return true;
    }
    return false;
}

/* ---- the other sets ------------------------------------------------------------------------------------------ */

static int64_t count_text(text_span t, const char *what) {
    int64_t n = 0;
    size_t len = strlen(what);
    for (const char *p = t.at, *end = p + t.len; (p = memmem(p, (size_t)(end - p), what, len));
         p += len)
        n++;
    return n;
}

static bool ends_in(text_span s, const char *what) {
    size_t n = strlen(what);
    return s.len >= n && memcmp(s.at + s.len - n, what, n) == 0;
}

static bool fails_lines(judgment *j) {
    text_span rest = j->v->text, line;
    double lines = 0, bullets = 0, ellipses = 0;
    while (next_python_line(&rest, &line)) {
        text_span s = strip_span(line);
        lines++;
        bullets += s.len && (s.at[0] == '-' || (s.len > 2 && memcmp(s.at, "\xE2\x80\xA2", 3) == 0));
        ellipses += ends_in(s, "...") || ends_in(s, "\xE2\x80\xA6");
    }
    return judgment_fails(j, FILTER_gopher_bullets, safe_ratio(bullets, lines)) ||
           judgment_fails(j, FILTER_gopher_line_ellipses, safe_ratio(ellipses, lines));
}

bool datatrove_gopher_quality(judgment *j) {
    const datatrove_words *d = words_of(j);
    text_span t = j->v->text;
    double words = (double)d->n, solid = (double)d->solid;
    double length = safe_ratio((double)d->solid_chars, solid);
    int64_t ellipses = count_text(t, "...") + count_text(t, "\xE2\x80\xA6");
    int stop_words = 0;
    for (unsigned bits = d->stop_words; bits; bits &= bits - 1) stop_words++;
    return judgment_fails(j, FILTER_gopher_min_words, solid) ||
           judgment_fails(j, FILTER_gopher_max_words, solid) ||
           judgment_fails(j, FILTER_gopher_min_length, length) ||
           judgment_fails(j, FILTER_gopher_max_length, length) ||
           judgment_fails(j, FILTER_gopher_hashes, safe_ratio((double)count_text(t, "#"), words)) ||
           judgment_fails(j, FILTER_gopher_ellipses, safe_ratio((double)ellipses, words)) ||
           fails_lines(j) ||
           judgment_fails(j, FILTER_gopher_letters, safe_ratio((double)d->letters, words)) ||
           judgment_fails(j, FILTER_gopher_stop_words, stop_words);
}

bool datatrove_fineweb(judgment *j) {
    element_repeats r = { 0 };
    double lines = 0, ends = 0, few = 0;
    text_span rest = j->v->text;
    int64_t newlines = count_text(rest, "\n"), chars = utf8_length(rest.at, rest.len) - newlines;
    seen_clear(&j->w->seen, newlines + 1);
    for (bool last = false; !last;) {
        const char *end = rest.len ? memchr(rest.at, '\n', rest.len) : NULL;
        text_span line = { rest.at, end ? (size_t)(end - rest.at) : rest.len };
        last = !end;
        rest.at += line.len + !last;
        rest.len -= line.len + !last;
        if (!strip_span(line).len) continue;
        lines++;
        ends += filter_is_terminal(last_code_point(line));
        few += (double)utf8_length(line.at, line.len) <= j->f->o.setting[SETTING_short_line];
        count_element(j->w, line, &r);
    }
    if (judgment_fails(j, FILTER_fineweb_ends, safe_ratio(ends, lines)) ||
        judgment_fails(j, FILTER_fineweb_short, safe_ratio(few, lines)) ||
        judgment_fails(j, FILTER_fineweb_repeats, safe_ratio((double)r.chars, (double)chars)))
        return true;
    return judgment_fails(j, FILTER_fineweb_newlines,
                          safe_ratio((double)newlines, (double)words_of(j)->n));
}

/* ---- C4 ---------------------------------------------------------------------------------------------------------- */

static bool is_decimal_digit(uint32_t cp) {
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}

/* Bytes of the citation mark that begins here; 0: none. */
static size_t mark_length(text_span line, size_t at) {
    static const char *const marks[] = { "[edit]", "[citation needed]" };
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        size_t n = strlen(marks[i]);
        if (n <= line.len - at && memcmp(line.at + at, marks[i], n) == 0) return n;
    }
    size_t end = at + 1;
    uint32_t cp = 0;
    for (int n; end < line.len && (n = utf8_decode(line.at + end, &cp), is_decimal_digit(cp));)
        end += (size_t)n;
    return end < line.len && cp == ']' ? end + 1 - at : 0;
}

static int64_t add_without_citations(text_span line, str *out) {
    int64_t removed = 0;
    for (size_t i = 0; i < line.len;) {
        size_t n = line.at[i] == '[' ? mark_length(line, i) : 0;
        if (!n) str_add_bytes(out, line.at + i, 1);
        removed += n > 0;
        i += MAX(n, 1);
    }
    return removed;
}

static bool ends_line(text_span line) {
    return line.len && strchr(".?!\"'", line.at[line.len - 1]) && !ends_in(line, "...");
}

static void measure_words(text_span line, int64_t *words, int64_t *longest) {
    *words = *longest = 0;
    for (size_t at = run_end(line, 0, true), end; at < line.len; at = run_end(line, end, true)) {
        end = run_end(line, at, false);
        *longest = MAX(*longest, utf8_length(line.at + at, end - at));
        ++*words;
    }
}

/* Judges a line as datatrove does. @return the counter of the rule that removes it, or -1. @param dropped set if the
 * document goes with it. */
static int judge_c4_line(judgment *j, const c4_rules *rules, text_span line, text_span clean,
                         c4_counts *c, bool *dropped) {
    int64_t words, longest;
    int found[C4_FOUND_KINDS] = { 0 };
    measure_words(line, &words, &longest);
    if ((double)longest > j->f->o.setting[SETTING_c4_word_length]) return COUNTER_line_length;
    if (rules->punctuated && !ends_line(clean)) return COUNTER_line_end;
    if ((double)words < j->f->o.setting[rules->line_words]) return COUNTER_line_words;
    c4_find_phrases(clean, found);
    c->lorem_ipsum += found[C4_LOREM_IPSUM];
    if ((*dropped = judgment_fails(j, FILTER_c4_lorem_ipsum, (double)c->lorem_ipsum))) return -1;
    if (found[C4_JAVASCRIPT]) return COUNTER_line_javascript;
    c->braces += found[C4_BRACE] > 0;
    if ((*dropped = judgment_fails(j, FILTER_c4_braces, (double)c->braces))) return -1;
    if (found[C4_POLICY]) return COUNTER_line_policy;
    c->sentences += count_sentences(j, clean);
    return -1;
}

bool datatrove_c4(judgment *j, const c4_rules *rules) {
    str *out = &j->w->edited;
    c4_counts c = { 0 };
    text_span text = j->v->text, rest = text, line;
    bool dropped = false;
    words_of(j); /* what sentences are counted with */
    out->len = 0;
    str_add_bytes(out, "", 0);
    for (bool first = true; next_python_line(&rest, &line);) {
        size_t before = out->len;
        line = strip_span(line);
        if (!first) str_add_bytes(out, "\n", 1);
        size_t begin = out->len;
        int64_t citations = add_without_citations(line, out);
        text_span clean = { out->text + begin, out->len - begin };
        int counter = judge_c4_line(j, rules, line, clean, &c, &dropped);
        if (dropped) return true;
        if (counter >= 0) {
            out->len = before;
            j->count[counter]++;
        } else {
            j->count[COUNTER_citations] += citations;
            first = false;
        }
    }
    if (judgment_fails(j, rules->sentences, (double)c.sentences)) return true;
    text_span made = strip_span((text_span){ out->text, out->len });
    if (made.len != text.len || memcmp(made.at, text.at, made.len) != 0) {
        j->v->text = made;
        j->w->scanned = false;
    }
    return false;
}
