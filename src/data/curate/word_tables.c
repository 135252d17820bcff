/* The word rules of languages, compiled in from tables/words.txt. Which language has which rules is datatrove's
 * assignment, and the rules are those of its tokenizers, as far as these are rules. A line is one of
 *
 *     # comment
 *     punctuation RANGES        hexadecimal code points and ranges of them, ascending: words of such characters alone
 *     sentence_ends RANGES      do not count; a word of one such character ends a sentence
 *     class N RANGES            what [{N}] in a pattern stands for
 *     pattern N TEXT            of PCRE2 for UTF-8; @2,3@ stands for {2,3}
 *     group NAME                begins the rules of a name; those of "common" have exceptions alone
 *     prefix N, suffix, infix, match, url, sentence    the pattern of a kind
 *     letters                   affixes or infixes may be in letters of ASCII alone
 *     blanks                    spaces and tabs alone separate chunks; other white space counts inside a word, not around it
 *     common                    the exceptions of the group "common" hold too
 *     for LANGUAGE ...          en, eng or eng_Latn: a language, in its usual script or in the one given
 *      TOKEN ...                (after a space) an exception: a text and the tokens it has
 *
 * The groups "unicode" and "hangul" have no patterns: their languages are split by Unicode's word breaks, Korean with pairs of
 * syllables in addition. Rules are compiled when they are
 * first needed, by any thread. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "curate/word_rules_internal.h"
#include "text/text.h"

extern const embedded_file word_files[];

enum { MAX_CLASSES = 256, MAX_PATTERNS = 256, MAX_GROUPS = 128 };

typedef struct table_line {
    const char *at; /* without its line end */
    size_t len;
} table_line;

typedef struct word_group {
    table_line name;
    const char *rules; /* its first line */
} word_group;

struct word_tables {
    table_line class[MAX_CLASSES], pattern[MAX_PATTERNS];
    word_group group[MAX_GROUPS];
    int n_groups;
    table_line punctuation, sentence_ends;
    pthread_mutex_t lock;
    word_rules *open[MAX_GROUPS]; /* NULL: not needed yet */
};

static bool next_table_line(const char **at, table_line *line) {
    if (!**at) return false;
    const char *end = strchr(*at, '\n');
    if (!end) end = *at + strlen(*at);
    *line = (table_line){ *at, (size_t)(end - *at) };
    *at = end + (*end == '\n');
    return true;
}

/* Takes a word and the space after it off a line if the line begins with it. */
static bool take_table_word(table_line *line, const char *word) {
    size_t n = strlen(word);
    if (line->len < n || memcmp(line->at, word, n) != 0) return false;
    if (line->len > n && line->at[n] != ' ') return false;
    n = MIN(n + 1, line->len);
    line->at += n;
    line->len -= n;
    return true;
}

static size_t take_table_number(table_line *line, size_t below) {
    char *end;
    size_t n = strtoul(line->at, &end, 10);
    BUG_IF(end == line->at || n >= below);
    size_t taken = MIN((size_t)(end - line->at) + 1, line->len);
    line->at += taken;
    line->len -= taken;
    return n;
}

word_tables *word_tables_new(void) {
    word_tables *t = mem_alloc(sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    const char *at = word_files[0].text;
    for (table_line line; next_table_line(&at, &line);) {
        if (line.len == 0 || line.at[0] == ' ' || line.at[0] == '#') continue;
        if (take_table_word(&line, "class")) {
            size_t n = take_table_number(&line, MAX_CLASSES);
            t->class[n] = line;
        } else if (take_table_word(&line, "pattern")) {
            size_t n = take_table_number(&line, MAX_PATTERNS);
            t->pattern[n] = line;
        } else if (take_table_word(&line, "punctuation")) {
            t->punctuation = line;
        } else if (take_table_word(&line, "sentence_ends")) {
            t->sentence_ends = line;
        } else if (take_table_word(&line, "group")) {
            BUG_IF(t->n_groups == MAX_GROUPS);
            t->group[t->n_groups++] = (word_group){ line, at };
        }
    }
    return t;
}

void word_tables_free(word_tables *t) {
    if (!t) return;
    for (int i = 0; i < t->n_groups; i++) word_rules_free(t->open[i]);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

/* ---- which rules a language has ---------------------------------------------------------------------- */

static bool is_table_text(table_line l, const char *text) {
    return strlen(text) == l.len && memcmp(l.at, text, l.len) == 0;
}

/* Takes the next of the words of a line, which spaces separate. */
static bool next_table_word(table_line *rest, table_line *word) {
    if (!rest->len) return false;
    const char *end = memchr(rest->at, ' ', rest->len);
    *word = (table_line){ rest->at, end ? (size_t)(end - rest->at) : rest->len };
    size_t taken = MIN(word->len + 1, rest->len);
    rest->at += taken;
    rest->len -= taken;
    return true;
}

static bool group_is_for(const word_group *g, const char *language) {
    const char *at = g->rules;
    for (table_line line, word; next_table_line(&at, &line) && !take_table_word(&line, "group");) {
        if (!take_table_word(&line, "for")) continue;
        while (next_table_word(&line, &word))
            if (is_table_text(word, language)) return true;
        return false;
    }
    return false;
}

int word_tables_find(const word_tables *t, const char *language) {
    /* Labels of fastText's lid.176 that are not codes of ISO 639. */
    static const char *const others[][2] = { { "no", "nb" },   { "bh", "bho" }, { "als", "gsw" },
                                             { "eml", "egl" }, { "wuu", "zh" }, { "yue", "zh" },
                                             { "nah", "nhn" } };
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (strcmp(others[i][0], language) == 0) language = others[i][1];
    for (int i = 0; i < t->n_groups; i++)
        if (group_is_for(&t->group[i], language)) return i;
    return -1;
}

int word_tables_any(const word_tables *t) {
    for (int i = 0; i < t->n_groups; i++)
        if (is_table_text(t->group[i].name, "xx")) return i;
    BUG_IF(true);
    return -1;
}

/* ---- reading the rules of a group ----------------------------------------------------------------------- */

static void read_table_ranges(arena *a, table_line line, point_ranges *out) {
    table_line word, rest = line;
    while (next_table_word(&rest, &word)) out->n++;
    out->at = arena_alloc(a, out->n * sizeof *out->at);
    out->n = 0;
    while (next_table_word(&line, &word)) {
        char *end;
        uint32_t from = (uint32_t)strtoul(word.at, &end, 16);
        out->at[out->n][0] = from;
        out->at[out->n++][1] = *end == '-' ? (uint32_t)strtoul(end + 1, NULL, 16) : from;
    }
}

static void add_table_class(str *out, table_line line) {
    for (table_line word; next_table_word(&line, &word);) {
        const char *dash = memchr(word.at, '-', word.len);
        int from = (int)(dash ? dash - word.at : (ptrdiff_t)word.len);
        str_add(out, "\\x{%.*s}", from, word.at);
        if (dash) str_add(out, "-\\x{%.*s}", (int)word.len - from - 1, dash + 1);
    }
}

/* @return whether a class stands alone at p, as [{N}], and its number. */
static bool is_lone_class(const char *p, size_t n, size_t *class) {
    if (n < 5 || p[0] != '[' || p[1] != '{') return false;
    char *end;
    *class = strtoul(p + 2, &end, 10);
    return end[0] == '}' && end[1] == ']';
}

/* Appends definitions of the classes that stand alone in a pattern. */
static void define_table_classes(const word_tables *t, table_line line, str *out) {
    bool defined[MAX_CLASSES] = { 0 };
    for (size_t i = 0, class; i < line.len; i++) {
        if (!is_lone_class(line.at + i, line.len - i, &class) || defined[class]) continue;
        defined[class] = true;
        str_add(out, "(?(DEFINE)(?<c%zu>[", class);
        add_table_class(out, t->class[class]);
        str_add(out, "]))");
    }
}

/* Appends a pattern with its classes and bounds as PCRE2 writes them. @param shared classes that stand alone are defined
 * once: a pattern that has one a hundred times is too large otherwise. */
static void expand_table_pattern(const word_tables *t, table_line line, bool shared, str *out) {
    bool bounds = false;
    if (shared && line.len > 4 && memcmp(line.at, "(?i)", 4) == 0) {
        str_add(out, "(?i)");
        line = (table_line){ line.at + 4, line.len - 4 };
    }
    if (shared) define_table_classes(t, line, out);
    for (size_t i = 0, class; i < line.len; i++) {
        const char *p = line.at + i;
        if (*p == '\\') {
            bool braced = strchr("xpP", p[1]) && p[2] == '{';
            size_t n = braced ? (size_t)(strchr(p, '}') - p) + 1 : 2;
            str_add_bytes(out, p, n);
            i += n - 1;
        } else if (shared && is_lone_class(p, line.len - i, &class)) {
            str_add(out, "(?&c%zu)", class);
            i = (size_t)(strchr(p, ']') - line.at);
        } else if (*p == '{') {
            table_line rest = { p + 1, line.len - i - 1 };
            add_table_class(out, t->class[take_table_number(&rest, MAX_CLASSES)]);
            i = (size_t)(strchr(p, '}') - line.at);
        } else if (*p == '@') {
            bounds = !bounds;
            str_add_bytes(out, bounds ? "{" : "}", 1);
        } else {
            str_add_bytes(out, p, 1);
        }
    }
}

static void add_table_exception(word_rules *w, table_line line, size_t *cap) {
    if (w->n_exceptions == *cap) {
        size_t more = MAX(256, 2 * *cap);
        word_exception *at = arena_alloc(w->arena, more * sizeof *at);
        if (w->n_exceptions) memcpy(at, w->exceptions, w->n_exceptions * sizeof *at);
        w->exceptions = at;
        *cap = more;
    }
    word_exception *e = &w->exceptions[w->n_exceptions++];
    char *text = arena_alloc(w->arena, line.len + 1);
    size_t n = 0;
    e->n = 0;
    for (table_line word; next_table_word(&line, &word); n += word.len) {
        BUG_IF(e->n == MAX_EXCEPTION_TOKENS || n + word.len > MAX_EXCEPTION_BYTES);
        memcpy(text + n, word.at, word.len);
        e->bytes[e->n++] = (uint8_t)word.len;
    }
    text[n] = 0;
    e->text = text;
}

static void read_word_group(const word_tables *t, const word_group *g, word_rules *w, size_t *cap) {
    static const char *const kinds[PATTERNS] = { "prefix", "suffix", "infix",
                                                 "match",  "url",    "sentence" };
    const char *at = g->rules;
    for (table_line line; next_table_line(&at, &line) && !take_table_word(&line, "group");) {
        if (line.at[0] == ' ') {
            add_table_exception(w, (table_line){ line.at + 1, line.len - 1 }, cap);
        } else if (take_table_word(&line, "letters")) {
            w->splits_letters = true;
        } else if (take_table_word(&line, "blanks")) {
            w->blanks = true;
        } else if (take_table_word(&line, "common")) {
            read_word_group(t, &t->group[0], w, cap);
        }
        for (int k = 0; k < PATTERNS; k++) {
            str text = { 0 };
            if (line.at[0] == ' ' || !take_table_word(&line, kinds[k])) continue;
            expand_table_pattern(t, t->pattern[take_table_number(&line, MAX_PATTERNS)], k == WHOLE,
                                 &text);
            err e = word_rules_compile(text.text, (pattern_kind)k, "words.txt", kinds[k],
                                       &w->pattern[k]);
            if (e) log_warn("%s", err_message(e));
            BUG_IF(e);
            str_free(&text);
            break;
        }
    }
}

static word_rules *open_group(const word_tables *t, int group) {
    word_rules *w = mem_alloc(sizeof *w);
    size_t cap = 0;
    w->arena = arena_new();
    w->number = (uint8_t)(group + 1);
    w->pairs = is_table_text(t->group[group].name, "hangul");
    w->breaks = w->pairs || is_table_text(t->group[group].name, "unicode");
    read_word_group(t, &t->group[group], w, &cap);
    read_table_ranges(w->arena, t->punctuation, &w->punctuation);
    read_table_ranges(w->arena, t->sentence_ends, &w->sentence_ends);
    word_rules_prepare(w);
    return w;
}

const word_rules *word_tables_get(word_tables *t, int group) {
    BUG_IF(group < 0 || group >= t->n_groups);
    pthread_mutex_lock(&t->lock);
    if (!t->open[group]) t->open[group] = open_group(t, group);
    const word_rules *w = t->open[group];
    pthread_mutex_unlock(&t->lock);
    return w;
}

uint64_t word_tables_hash(void) {
    return hash_bytes(word_files[0].text, strlen(word_files[0].text), 0);
}
