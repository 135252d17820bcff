/* C4's rules. They go through the lines of a document, remove some, strip citation marks from
 * the others, and drop documents by what the remaining lines contain. */
#include "curate/filter_internal.h"

#include <string.h>

/* ---- phrases --------------------------------------------------------------------------------- */

/* In lower case. Searched by a letter that is rare in English, `at` bytes into the phrase. */
typedef struct phrase {
    const char *text;
    int at;
    int kind; /* C4_LOREM_IPSUM ... */
} phrase;
static const phrase phrases[] = {
    /* grouped by the letter that they are searched by */
    { "lorem ipsum", 7, C4_LOREM_IPSUM },
    { "javascript", 0, C4_JAVASCRIPT },
    { "terms of use", 7, C4_POLICY },
    { "privacy policy", 3, C4_POLICY },
    { "cookie policy", 3, C4_POLICY },
    { "uses cookies", 8, C4_POLICY },
    { "use of cookies", 10, C4_POLICY },
    { "use cookies", 7, C4_POLICY },
    { "{", 0, C4_BRACE },
    { "[", 0, C4_CITATION },
};

static bool matches_at(text_span line, size_t at, const char *word) {
    for (; *word; word++, at++)
        if (at >= line.len || lower_ascii(line.at[at]) != *word) return false;
    return true;
}

/* Index plus one of the first phrase searched by a byte; 0: none. */
#define BOTH_CASES(c, C, first) [c] = first, [C] = first
static const uint8_t first_phrase[256] = {
    BOTH_CASES('p', 'P', 1),
    BOTH_CASES('j', 'J', 2),
    BOTH_CASES('f', 'F', 3),
    BOTH_CASES('v', 'V', 4),
    BOTH_CASES('k', 'K', 5),
    ['{'] = 9,
    ['['] = 10,
};

void c4_find_phrases(text_span line, int *found) {
    for (size_t i = 0; i < line.len; i++) {
        size_t k = first_phrase[(unsigned char)line.at[i]];
        if (k == 0) continue;
        char c = lower_ascii(line.at[i]);
        for (const phrase *f = &phrases[k - 1]; f < phrases + COUNT_OF(phrases); f++) {
            if (f->text[f->at] != c) break;
            if (i >= (size_t)f->at && matches_at(line, i - (size_t)f->at, f->text))
                found[f->kind]++;
        }
    }
}

/* @return bytes of the citation mark that begins here: [12], [], [edit], [citation needed]; 0:
 * none. */
static size_t citation_length(text_span line, size_t at) {
    static const char *const marks[] = { "[edit]", "[citation needed]" };
    for (size_t i = 0; i < COUNT_OF(marks); i++) {
        size_t n = strlen(marks[i]);
        if (n <= line.len - at && memcmp(line.at + at, marks[i], n) == 0) return n;
    }
    size_t end = at + 1;
    while (end < line.len && line.at[end] >= '0' && line.at[end] <= '9') end++;
    return end < line.len && line.at[end] == ']' ? end + 1 - at : 0;
}

/* Appends the line without citation marks and the white space they leave at its ends. @return
 * the number of marks removed. */
static int64_t add_line_uncited(str *out, text_span line, bool brackets) {
    size_t begin = out->len;
    int64_t removed = 0;
    size_t from = 0;
    for (size_t i = 0; brackets && i < line.len; i++) {
        size_t n = line.at[i] == '[' ? citation_length(line, i) : 0;
        if (!n) continue;
        str_add_bytes(out, line.at + from, i - from);
        i += n - 1;
        from = i + 1;
        removed++;
    }
    str_add_bytes(out, line.at + from, line.len - from);
    if (removed == 0) return 0;
    while (out->len > begin && out->text[out->len - 1] == ' ') out->len--;
    size_t spaces = 0;
    while (begin + spaces < out->len && out->text[begin + spaces] == ' ') spaces++;
    memmove(out->text + begin, out->text + begin + spaces, out->len - begin - spaces);
    out->len -= spaces;
    return removed;
}

/* ---- sentences ------------------------------------------------------------------------------- */

/* Quotation marks and brackets that may follow the end of a sentence. */
static bool is_closing(uint32_t cp) {
    return cp == '"' || cp == '\'' || cp == ')' || cp == ']' || cp == 0x201D || cp == 0x2019 ||
           cp == 0xBB || cp == 0x300D || cp == 0x300F || cp == 0xFF09;
}

/* Whether the dot at `at` follows an initial: a single letter that is a word of its own. */
static bool is_initial(text_span line, size_t at) {
    if (at == 0 || line.at[at] != '.') return false;
    char c = line.at[at - 1];
    bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    return letter && (at == 1 || line.at[at - 2] == ' ' || line.at[at - 2] == '.');
}

/* Whether a sentence that ends before `i` is followed by the start of another, or by nothing. */
static bool is_break(text_span line, size_t i, bool spaced) {
    size_t from = i;
    uint32_t cp = 0;
    for (int n; i < line.len; i += (size_t)n) {
        n = utf8_decode(line.at + i, &cp);
        if (!(unicode_class(cp) & CLASS_SPACE)) break;
    }
    if (i == line.len) return true;
    return (i > from || !spaced) && !(unicode_class(cp) & CLASS_LOWER);
}

int64_t filter_sentences(text_span line) {
    int64_t sentences = 0;
    bool open = false; /* text since the last sentence end */
    for (size_t i = 0, next; i < line.len; i = next) {
        unsigned char c = (unsigned char)line.at[i];
        next = i + 1;
        if (c < 0x80 && c != '.' && c != '?' && c != '!') {
            open |= c > ' ';
            continue;
        }
        uint32_t cp;
        next = i + (size_t)utf8_decode(line.at + i, &cp);
        if (!filter_is_terminal(cp)) {
            open = true;
            continue;
        }
        for (uint32_t after; next < line.len;) {
            size_t n = (size_t)utf8_decode(line.at + next, &after);
            if (!filter_is_terminal(after) && !is_closing(after)) break;
            next += n;
        }
        if (is_initial(line, i) || !is_break(line, next, cp < 0x3000)) continue;
        sentences += open;
        open = false;
    }
    return sentences + open;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* C4's line ends, . ? ! " and ', and the sentence terminals of other scripts. A closing quotation mark that is
 * not ASCII ends no line in C4. */
static bool ends_sentence(text_span line) {
    enum { OTHER_SCRIPTS = 0x500 };
    if (line.len == 0 || filter_ends_in_ellipsis(line)) return false;
    uint32_t last = last_code_point(line);
    return last < 0x80 ? strchr(".?!\"'", (int)last) != NULL
                       : last >= OTHER_SCRIPTS && filter_is_terminal(last);
}

/* Judges a line without its citation marks. @return the counter of the rule that removes it, or -1. */
static int judge_line(judgment *j, const c4_rules *rules, const scan_line *l, text_span line,
                      const int *found, c4_counts *c) {
    const double *setting = j->f->o.setting;
    if (l->longest_word > setting[SETTING_c4_word_length]) return COUNTER_line_length;
    if (rules->punctuated && !ends_sentence(line)) return COUNTER_line_end;
    if (l->words < setting[rules->line_words]) return COUNTER_line_words;
    c->lorem_ipsum += found[C4_LOREM_IPSUM];
    if (found[C4_JAVASCRIPT]) return COUNTER_line_javascript;
    c->braces += found[C4_BRACE] > 0;
    if (found[C4_POLICY]) return COUNTER_line_policy;
    c->sentences += filter_sentences(line);
    return -1;
}

static bool judge_lines(judgment *j, const c4_rules *rules) {
    if (j->f->datatrove) return datatrove_c4(j, rules);
    const scan *s = judgment_scan(j);
    str *out = &j->w->edited;
    c4_counts c = { 0 };
    out->len = 0;
    str_add_bytes(out, "", 0);
    for (int64_t i = 0; i < s->n_lines; i++) {
        text_span line = { s->text.at + s->lines[i].at, s->lines[i].bytes };
        int found[C4_FOUND_KINDS] = { 0 };
        c4_find_phrases(line, found);
        size_t before = out->len;
        if (before) str_add_bytes(out, "\n", 1);
        size_t begin = out->len;
        int64_t citations = add_line_uncited(out, line, found[C4_CITATION] > 0);
        text_span clean = { out->text + begin, out->len - begin };
        int counter = judge_line(j, rules, &s->lines[i], clean, found, &c);
        if (counter >= 0) {
            out->len = before;
            j->count[counter]++;
        } else {
            j->count[COUNTER_citations] += citations;
        }
    }
    if (judgment_fails(j, FILTER_c4_lorem_ipsum, (double)c.lorem_ipsum) ||
        judgment_fails(j, FILTER_c4_braces, (double)c.braces) ||
        judgment_fails(j, rules->sentences, (double)c.sentences))
        return true;
    if (out->len != s->text.len || memcmp(out->text, s->text.at, out->len) != 0) {
        j->v->text = (text_span){ out->text, out->len };
        j->w->scanned = false;
    }
    return false;
}

bool filter_c4(judgment *j) {
    static const c4_rules rules = { true, SETTING_c4_line_words, FILTER_c4_sentences };
    return judge_lines(j, &rules);
}
bool filter_c4_no_punct(judgment *j) {
    static const c4_rules rules = { false, SETTING_c4_line_words, FILTER_c4_sentences };
    return judge_lines(j, &rules);
}
bool filter_c4_paper(judgment *j) {
    static const c4_rules rules = { true, SETTING_c4_paper_line_words, FILTER_c4_paper_sentences };
    return judge_lines(j, &rules);
}
