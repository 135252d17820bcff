/* Lists of words and phrases, and searching a text for them. Text is read in units: a run of
 * letters, digits, marks and _, or a single other character. A phrase can only begin where a
 * unit does, and that unit must be the first unit of the phrase, so one lookup per unit finds
 * the few phrases to compare in full. Characters of scripts that do not separate words are units
 * of their own. */
#include "curate/filter_internal.h"
#include "io/io.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_BYTES = 1 << 30, MAX_PHRASE_BYTES = 4096 };

typedef struct phrase_entry {
    uint32_t at, len; /* in `text` */
    uint32_t next;    /* another phrase with the same first unit, index plus one; 0: none */
} phrase_entry;

typedef struct phrase_table {
    uint32_t *slots; /* [mask + 1] index of the entry plus one; 0: free */
    uint32_t mask;
} phrase_table;

struct phrase_list {
    str text; /* all phrases in lower case, back to back */
    phrase_entry *entries;
    int n, capacity;
    phrase_table whole, first; /* by the phrase, and by its first unit */
    int lengths[MAX_PHRASE_BYTES];
    int n_lengths;
    uint64_t hash;
};

/* ---- characters ------------------------------------------------------------------------------ */

static uint32_t fold_code_point(uint32_t cp) {
    if (cp < 0x80) return cp >= 'A' && cp <= 'Z' ? cp | 32 : cp;
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

void fold_text(text_span text, str *out) {
    out->len = 0;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        i += (size_t)utf8_decode(text.at + i, &cp);
        char bytes[4];
        str_add_bytes(out, bytes, (size_t)utf8_encode(fold_code_point(cp), bytes));
    }
}

/* Scripts written without spaces between words. */
static bool in_unspaced_script(uint32_t cp) {
    static const uint32_t ranges[][2] = {
        { 0x0E00, 0x0EFF }, { 0x1000, 0x109F },   { 0x1780, 0x17FF }, { 0x3040, 0x30FF },
        { 0x31F0, 0x31FF }, { 0x3400, 0x4DBF },   { 0x4E00, 0x9FFF }, { 0xF900, 0xFAFF },
        { 0xFF66, 0xFF9F }, { 0x20000, 0x3FFFF },
    };
    if (cp < ranges[0][0]) return false;
    for (size_t i = 0; i < COUNT_OF(ranges); i++)
        if (cp >= ranges[i][0] && cp <= ranges[i][1]) return true;
    return false;
}

/* Whether the character is part of a word. */
static bool is_word_char(uint32_t cp) {
    if (cp < 0x80)
        return (cp >= 'a' && cp <= 'z') || (cp >= 'A' && cp <= 'Z') || (cp >= '0' && cp <= '9') ||
               cp == '_';
    return (unicode_class(cp) & (CLASS_LETTER | CLASS_NUMBER | CLASS_MARK)) &&
           !in_unspaced_script(cp);
}

/* Reads the unit at `at`. @return its end. *hash: of the unit in lower case. */
static size_t next_phrase_unit(text_span text, size_t at, uint64_t *hash) {
    uint64_t h = 0xCBF29CE484222325u;
    bool joined = true;
    for (size_t n, begin = at; at < text.len && joined; at += n) {
        uint32_t cp;
        n = (size_t)utf8_decode(text.at + at, &cp);
        joined = is_word_char(cp);
        if (!joined && at > begin) break;
        h = (h ^ fold_code_point(cp)) * 0x100000001B3u;
    }
    *hash = h ^ h >> 32;
    return at;
}

/* ---- reading a list -------------------------------------------------------------------------- */

static void table_make(phrase_table *t, int n) {
    t->mask = 63;
    while (t->mask < (uint32_t)n * 2u) t->mask = t->mask * 2 + 1;
    t->slots = mem_alloc(((size_t)t->mask + 1) * sizeof *t->slots);
}

static text_span phrase_text(const phrase_list *l, uint32_t number) {
    const phrase_entry *e = &l->entries[number - 1];
    return (text_span){ l->text.text + e->at, e->len };
}

/* @return the slot of the phrase, or the free slot where it belongs. */
static uint32_t *find_phrase(const phrase_list *l, text_span phrase) {
    uint32_t i = (uint32_t)hash_bytes(phrase.at, phrase.len, 0) & l->whole.mask;
    while (l->whole.slots[i] && !text_spans_equal(phrase_text(l, l->whole.slots[i]), phrase))
        i = (i + 1) & l->whole.mask;
    return &l->whole.slots[i];
}

static text_span first_unit(const phrase_list *l, uint32_t number, uint64_t *hash) {
    text_span phrase = phrase_text(l, number);
    return (text_span){ phrase.at, next_phrase_unit(phrase, 0, hash) };
}

/* Chains the phrase to those with the same first unit. */
static void chain_phrase(phrase_list *l, uint32_t number) {
    uint64_t hash, other;
    text_span unit = first_unit(l, number, &hash);
    uint32_t i = (uint32_t)hash & l->first.mask;
    while (l->first.slots[i] && !text_spans_equal(first_unit(l, l->first.slots[i], &other), unit))
        i = (i + 1) & l->first.mask;
    l->entries[number - 1].next = l->first.slots[i];
    l->first.slots[i] = number;
}

static void build_tables(phrase_list *l) {
    int lines = l->n;
    l->n = 0;
    table_make(&l->whole, lines);
    table_make(&l->first, lines);
    for (int i = 0; i < lines; i++) { /* duplicates are left out */
        phrase_entry e = l->entries[i];
        uint32_t *slot = find_phrase(l, (text_span){ l->text.text + e.at, e.len });
        if (*slot) continue;
        l->entries[l->n++] = e;
        *slot = (uint32_t)l->n;
        chain_phrase(l, (uint32_t)l->n);
    }
    bool has[MAX_PHRASE_BYTES] = { 0 };
    for (int i = 0; i < l->n; i++) has[l->entries[i].len] = true;
    for (int n = 0; n < MAX_PHRASE_BYTES; n++)
        if (has[n]) l->lengths[l->n_lengths++] = n;
    l->hash = hash_bytes(l->text.text, l->text.len, (uint64_t)l->n);
}

static text_span trim_ascii(text_span s) {
    while (s.len && (unsigned char)s.at[s.len - 1] <= ' ') s.len--;
    while (s.len && (unsigned char)s.at[0] <= ' ') s.at++, s.len--;
    return s;
}

static err add_phrase(phrase_list *l, const char *path, int64_t number, text_span line) {
    line = trim_ascii(line);
    if (line.len == 0 || line.at[0] == '#') return OK;
    if (utf8_valid(line.at, line.len) != line.len)
        return err_hint(ERR("%s:%lld: the line is not UTF-8", path, (long long)number),
                        "convert the list, for instance with iconv");
    str folded = { 0 };
    fold_text(line, &folded);
    bool too_long = folded.len >= MAX_PHRASE_BYTES;
    LIST_ADD(l->entries, l->n, l->capacity) =
        (phrase_entry){ .at = (uint32_t)l->text.len, .len = (uint32_t)folded.len };
    str_add_bytes(&l->text, folded.text, folded.len);
    str_free(&folded);
    if (too_long)
        return err_hint(ERR("%s:%lld: the line has %zu bytes; at most %d are allowed", path,
                            (long long)number, line.len, MAX_PHRASE_BYTES - 1),
                        "write one word or phrase per line");
    return OK;
}

err phrase_list_read(const char *path, phrase_list **out) {
    *out = NULL;
    char *bytes = NULL;
    size_t n = 0;
    TRY(io_read(path, MAX_BYTES, &bytes, &n));
    phrase_list *l = mem_alloc(sizeof *l);
    err e = OK;
    int64_t number = 0;
    const char *bom = "\xEF\xBB\xBF";
    for (size_t at = n >= 3 && memcmp(bytes, bom, 3) == 0 ? 3 : 0, end; at < n; at = end + 1) {
        const char *newline = memchr(bytes + at, '\n', n - at);
        end = newline ? (size_t)(newline - bytes) : n;
        TRY_CLEAN(add_phrase(l, path, ++number, (text_span){ bytes + at, end - at }));
    }
    if (l->n == 0) {
        e = err_hint(ERR("%s: the list is empty", path), "write one word or phrase per line");
        goto cleanup;
    }
    build_tables(l);
    *out = l;
    l = NULL;
cleanup:
    phrase_list_free(l);
    free(bytes);
    return e;
}

void phrase_list_free(phrase_list *l) {
    if (!l) return;
    str_free(&l->text);
    free(l->entries);
    free(l->whole.slots);
    free(l->first.slots);
    free(l);
}

int phrase_list_size(const phrase_list *l) { return l->n; }
uint64_t phrase_list_hash(const phrase_list *l) { return l->hash; }
size_t phrase_list_bytes(const phrase_list *l) {
    return sizeof *l + l->text.cap + (size_t)l->capacity * sizeof *l->entries +
           ((size_t)l->whole.mask + l->first.mask + 2) * sizeof *l->whole.slots;
}

/* ---- looking --------------------------------------------------------------------------------- */

bool phrase_list_has(const phrase_list *l, text_span phrase) {
    return *find_phrase(l, phrase) != 0;
}

int64_t phrase_list_parts(const phrase_list *l, text_span text) {
    int64_t places = 0;
    for (size_t at = 0; at < text.len; at++)
        for (int i = 0; i < l->n_lengths; i++) {
            size_t n = (size_t)l->lengths[i];
            if (n > text.len - at) break;
            if (!phrase_list_has(l, (text_span){ text.at + at, n })) continue;
            places++;
            break;
        }
    return places;
}

/* Whether the phrase, in any case, is at `at` and not part of a longer word. */
static bool phrase_is_at(text_span phrase, text_span text, size_t at) {
    uint32_t want = 0, cp = 0;
    for (size_t i = 0; i < phrase.len;) {
        if (at == text.len) return false;
        i += (size_t)utf8_decode(phrase.at + i, &want);
        at += (size_t)utf8_decode(text.at + at, &cp);
        if (fold_code_point(cp) != want) return false;
    }
    if (at == text.len || !is_word_char(want)) return true;
    utf8_decode(text.at + at, &cp);
    return !is_word_char(cp);
}

/* @return the number of phrases that begin at `at`, at a unit with this hash. */
static int64_t count_at(const phrase_list *l, text_span text, size_t at, uint64_t hash) {
    int64_t count = 0;
    for (uint32_t i = (uint32_t)hash & l->first.mask; l->first.slots[i];
         i = (i + 1) & l->first.mask)
        for (uint32_t e = l->first.slots[i]; e; e = l->entries[e - 1].next)
            count += phrase_is_at(phrase_text(l, e), text, at);
    return count;
}

int64_t phrase_list_count(const phrase_list *l, text_span text) {
    int64_t count = 0;
    for (size_t at = 0; at < text.len;) {
        if (text.at[at] == ' ' || text.at[at] == '\n') {
            at++;
            continue;
        }
        uint64_t hash;
        size_t end = next_phrase_unit(text, at, &hash);
        if (l->first.slots[hash & l->first.mask]) count += count_at(l, text, at, hash);
        at = end;
    }
    return count;
}
