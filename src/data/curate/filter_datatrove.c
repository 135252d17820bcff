/* The rule sets as datatrove measures them, unless --words is space: its words (datatrove_words.c), its lines, and
 * its order of checks, document by document. Lines are Python's:
 *
 *     splitlines    \n \r \r\n \v \f \x1c-\x1e U+0085 U+2028 U+2029
 *     white space   Unicode's, and \x1c-\x1f
 */
#include "curate/filter_internal.h"
#include "curate/word_hash.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- Python's text -------------------------------------------------------------------------------- */

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

/* Marks bytes that may begin a line end: controls of ASCII, 0xC2 and 0xE2. */
static uint64_t line_end_bytes(uint64_t eight) {
    uint64_t controls = ~((eight & ~HIGHS) + EACH_BYTE(0x80 - ' ')) & ~eight;
    uint64_t odd = (eight ^ EACH_BYTE(0xC2)) & ~EACH_BYTE(0x20); /* 0: 0xC2 or 0xE2 */
    uint64_t found = ~((odd & ~HIGHS) + EACH_BYTE(0x7F)) & ~odd;
    return (controls | found) & HIGHS;
}

/* Takes the next line off a text. @return false when none is left. */
static bool next_python_line(text_span *rest, text_span *line) {
    if (!rest->len) return false;
    size_t end = 0, gap = 0;
    while (end < rest->len) {
        bool none = rest->len - end >= 8 && !line_end_bytes(load_eight(rest->at + end));
        if (!none && (gap = line_end_length(rest->at + end, rest->len - end))) break;
        end += none ? 8 : 1;
    }
    *line = (text_span){ rest->at, end };
    rest->at += end + gap;
    rest->len -= end + gap;
    return true;
}

/* The next part between runs of at least `least` newlines, as Python's re.split gives them: the last one may be
 * empty. @param done set once the last was given. */
static bool next_part(text_span *rest, size_t least, bool *done, text_span *part) {
    if (*done) return false;
    const char *end = rest->at + rest->len;
    for (const char *p = rest->at; p < end && (p = memchr(p, '\n', (size_t)(end - p)));) {
        const char *from = p;
        while (p < end && *p == '\n') p++;
        if ((size_t)(p - from) < least) continue;
        *part = (text_span){ rest->at, (size_t)(from - rest->at) };
        *rest = (text_span){ p, (size_t)(end - p) };
        return true;
    }
    *part = *rest;
    *done = true;
    return true;
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

static element_repeats count_text_parts(filter_worker *w, text_span text, size_t least) {
    element_repeats r = { 0 };
    text_span part;
    bool done = false;
    int64_t lines = 1;
    for (size_t i = 0; i < text.len; i++) lines += text.at[i] == '\n';
    seen_clear(&w->seen, lines);
    while (next_part(&text, least, &done, &part)) count_element(w, part, &r);
    return r;
}

/* datatrove joins the words of longer n-grams without spaces and compares texts, so that grams of other words may be equal.
 * Two such texts of FINGERPRINT bytes or more begin with the same bytes: one pass counts these beginnings, and only the
 * words with a beginning that occurs twice, or with too short a gram, are looked at for each n. */
enum { FINGERPRINT = 16, FIRST_REPEAT = 5, LAST_REPEAT = 10 };

static word_runs begin_joined_runs(filter_worker *w, const datatrove_words *d) {
    word_runs r = { .run = runs_reserve(w, d->n), .words = FIRST_REPEAT };
    int64_t kept = 0;
    seen_clear(&w->seen, d->n);
    for (; r.n + FIRST_REPEAT <= d->n; r.n++) {
        const char *p = d->joined + d->at[r.n];
        bool brief = d->at[r.n + FIRST_REPEAT] - d->at[r.n] < FINGERPRINT;
        uint64_t key = brief ? 0 : mix_hash(mix_hash(1, load_eight(p)), load_eight(p + 8));
        r.run[r.n] = (repeat_run){ .hash = key, .at = (uint32_t)r.n };
        if (!brief) r.run[r.n].slot = seen_add(&w->seen, key);
    }
    for (int64_t i = 0; i < r.n; i++)
        if (!r.run[i].hash || w->seen.slots[r.run[i].slot].count > 1) r.run[kept++] = r.run[i];
    r.n = kept;
    return r;
}

/* Characters of n-grams that occurred before, none counted twice: the search continues after such a gram. */
static int64_t joined_run_chars(filter_worker *w, const word_runs *r, const datatrove_words *d,
                                int n) {
    run_words words = { .hash = d->hash, .chars = d->chars, .n = d->n };
    int64_t chars = 0, from = 0;
    seen_clear(&w->seen, r->n);
    for (int64_t i = 0; i < r->n && r->run[i].at + n <= d->n; i++) {
        uint32_t at = r->run[i].at, begin = d->at[at], end = d->at[at + (uint32_t)n];
        if (at < from) continue;
        if (seen_count(&w->seen, word_hash(d->joined + begin, end - begin)) == 1) continue;
        chars += run_chars(&words, at, n);
        from = at + n;
    }
    return chars;
}

static bool fails_word_runs(judgment *j, double chars) {
    enum { FIRST_TOP = 2 };
    const datatrove_words *d = datatrove_words_of(j);
    run_words words = { .hash = d->hash, .chars = d->chars, .n = d->n };
    seen_set *seen = &j->w->seen;
    word_runs r = runs_begin(j->w, &words);
    for (int n = FIRST_TOP; n < FIRST_REPEAT; n++) {
        runs_extend(&r, seen, &words);
        int64_t found = top_run_chars(&r, seen, &words);
        int rule = FILTER_top_2gram + n - FIRST_TOP;
        if (judgment_fails(j, rule, safe_ratio((double)found, chars))) return true;
        runs_narrow(&r, seen);
    }
    r = begin_joined_runs(j->w, d);
    for (int n = FIRST_REPEAT; n <= LAST_REPEAT; n++) {
        int64_t found = joined_run_chars(j->w, &r, d, n);
        int rule = FILTER_repeat_5gram + n - FIRST_REPEAT;
        if (judgment_fails(j, rule, safe_ratio((double)found, chars))) return true;
    }
    return false;
}

bool datatrove_gopher_repetition(judgment *j) {
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
    return fails_word_runs(j, chars);
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
    const datatrove_words *d = datatrove_words_of(j);
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
                          safe_ratio((double)newlines, (double)datatrove_words_of(j)->n));
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
    size_t from = 0;
    for (const char *p; (p = memchr(line.at + from, '[', line.len - from));) {
        size_t at = (size_t)(p - line.at), n = mark_length(line, at);
        str_add_bytes(out, line.at + from, at + !n - from);
        removed += n > 0;
        from = at + MAX(n, 1);
    }
    str_add_bytes(out, line.at + from, line.len - from);
    return removed;
}

static void measure_words(text_span line, int64_t *words, int64_t *longest) {
    *words = *longest = 0;
    for (size_t at = python_spaces_end(line, 0), end; at < line.len;
         at = python_spaces_end(line, end)) {
        end = python_chunk_end(line, at);
        if ((int64_t)(end - at) > *longest)
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
    bool ends = clean.len && strchr(".?!\"'", clean.at[clean.len - 1]) && !ends_in(clean, "...");
    if (rules->punctuated && !ends) return COUNTER_line_end;
    if ((double)words < j->f->o.setting[rules->line_words]) return COUNTER_line_words;
    c4_find_phrases(clean, found);
    c->lorem_ipsum += found[C4_LOREM_IPSUM];
    if ((*dropped = judgment_fails(j, FILTER_c4_lorem_ipsum, (double)c->lorem_ipsum))) return -1;
    if (found[C4_JAVASCRIPT]) return COUNTER_line_javascript;
    c->braces += found[C4_BRACE] > 0;
    if ((*dropped = judgment_fails(j, FILTER_c4_braces, (double)c->braces))) return -1;
    if (found[C4_POLICY]) return COUNTER_line_policy;
    /* a document that has enough sentences is not searched for more */
    if ((double)c->sentences < j->f->o.limit[rules->sentences])
        c->sentences += datatrove_sentences(j, clean);
    return -1;
}

bool datatrove_c4(judgment *j, const c4_rules *rules) {
    str *out = &j->w->edited;
    c4_counts c = { 0 };
    text_span text = j->v->text, rest = text, line;
    bool dropped = false;
    judgment_words(j); /* finds the language of the text, before it is edited */
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
