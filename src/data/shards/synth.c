/* The synthetic corpus: expands frames into text. The notation is in synth_internal.h. */
#include "shards/synth_internal.h"

#include <ctype.h>
#include <string.h>

enum { SLOTS = 64, NAME = 16, VALUE = 192 };

typedef struct template_slot {
    char name[NAME], value[VALUE];
} template_slot;

typedef struct writer {
    synth_draw draw;
    int slots;
    template_slot slot[SLOTS];
    str raw; /* before capitals and articles */
} writer;

static void expand_template(writer *w, const char *from, const char *end, str *out);

uint64_t synth_below(synth_draw *d, uint64_t n) { return rng_below(d->key, d->count++, n); }

/* ---- slots --------------------------------------------------------------------------------- */

static const char *slot_value(const writer *w, const char *name, size_t n) {
    for (int i = w->slots - 1; i >= 0; i--)
        if (strlen(w->slot[i].name) == n && memcmp(w->slot[i].name, name, n) == 0)
            return w->slot[i].value;
    BUG_IF("a template names a slot that its frame does not bind");
    return NULL;
}

static void slot_bind(writer *w, const char *name, size_t n, const char *value, size_t value_n) {
    BUG_IF(w->slots == SLOTS || n >= NAME);
    template_slot *s = &w->slot[w->slots++];
    memcpy(s->name, name, n);
    s->name[n] = 0;
    str expanded = { 0 };
    expand_template(w, value, value + value_n, &expanded);
    BUG_IF(expanded.len >= VALUE);
    memcpy(s->value, expanded.len ? expanded.text : "", expanded.len + 1);
    str_free(&expanded);
}

/* Finds the next field of a row: text up to ';', without the blanks around it. @return the rest. */
static const char *next_template_field(const char *row, const char **begin, size_t *n) {
    while (*row == ' ') row++;
    size_t len = strcspn(row, ";");
    *begin = row;
    *n = len;
    while (*n > 0 && row[*n - 1] == ' ') --*n;
    return row[len] ? row + len + 1 : row + len;
}

/* Binds each column to its value in `row`; `prefix` goes before the names. */
static void bind_row(writer *w, const char *prefix, const char *columns, const char *row) {
    const char *value = NULL, *column = NULL;
    size_t value_n, column_n;
    while (*columns) {
        char name[NAME];
        columns = next_template_field(columns, &column, &column_n);
        row = next_template_field(row, &value, &value_n);
        BUG_IF(value_n == 0);
        int n = snprintf(name, sizeof name, "%s%.*s", prefix, (int)column_n, column);
        BUG_IF(n >= NAME);
        slot_bind(w, name, (size_t)n, value, value_n);
    }
    BUG_IF(*row); /* more values than columns */
}

static const char *draw_row(writer *w, const char *const *rows) {
    uint64_t n = 0;
    while (rows[n]) n++;
    return rows[synth_below(&w->draw, n)];
}

/* ---- expansion ----------------------------------------------------------------------------- */

/* @return the end of the alternative that begins at p: its '|' or the closing ']'. */
static const char *alternative_end(const char *p, const char *end) {
    for (int depth = 0; p < end; p++) {
        if (depth == 0 && (*p == '|' || *p == ']')) return p;
        depth += (*p == '[') - (*p == ']');
    }
    BUG_IF("a template has an open bracket");
    return NULL;
}

/* Expands one of the alternatives after '['. @return what follows the ']'. */
static const char *expand_choice(writer *w, const char *p, const char *end, str *out) {
    const char *begin[16], *stop[16];
    int n = 0;
    for (;; p++) {
        BUG_IF(n == 16);
        begin[n] = p;
        p = stop[n++] = alternative_end(p, end);
        if (*p == ']') break;
    }
    uint64_t i = synth_below(&w->draw, (uint64_t)n);
    expand_template(w, begin[i], stop[i], out);
    return p + 1;
}

static void expand_list(writer *w, const char *name, size_t n, str *out) {
    for (const synth_list *l = SYNTH_LISTS; l->name; l++) {
        if (strlen(l->name) != n || memcmp(l->name, name, n) != 0) continue;
        const char *entry = draw_row(w, l->entries);
        expand_template(w, entry, entry + strlen(entry), out);
        return;
    }
    BUG_IF("a template names a list that does not exist");
}

static void expand_template(writer *w, const char *p, const char *end, str *out) {
    while (p < end) {
        if (*p == '[') {
            p = expand_choice(w, p + 1, end, out);
        } else if (*p == '{') {
            const char *close = memchr(p, '}', (size_t)(end - p));
            BUG_IF(close == NULL);
            if (p[1] == ':') {
                expand_list(w, p + 2, (size_t)(close - p - 2), out);
            } else {
                const char *value = slot_value(w, p + 1, (size_t)(close - p - 1));
                str_add_bytes(out, value, strlen(value));
            }
            p = close + 1;
        } else {
            const char *plain = p;
            while (p < end && *p != '[' && *p != '{') p++;
            str_add_bytes(out, plain, (size_t)(p - plain));
        }
    }
}

/* ---- capitals and articles ------------------------------------------------------------------- */

/* Whether "an" goes before this word. */
static bool takes_an(const char *word) {
    return *word && strchr("aeiouAEIOU", *word) && strncmp(word, "use", 3) != 0;
}

/* Copies raw text, starting sentences and quotations with a capital. A question or exclamation
 * inside quotation marks does not end the sentence around it: `Why?` asked Tom. */
static void finish_text(const str *raw, str *out) {
    bool capital = true;
    for (size_t i = 0; i < raw->len; i++) {
        const char *p = raw->text + i;
        char c = *p, before = i ? p[-1] : ' ';
        /* Blanks that an empty choice left behind: before another, or at the end of a paragraph. */
        if (c == ' ' && (p[1] == ' ' || p[1] == '\n' || p[1] == 0)) continue;
        if (c == '`') {
            bool opens = before == ' ' || before == '\n';
            capital = opens || before == '.';
            str_add_bytes(out, "\"", 1);
            continue;
        }
        if (c == '.' || c == '?' || c == '!' || c == '\n') capital = true;
        bool article =
            c == 'a' && !isalpha((unsigned char)before) && p[1] == ' ' && takes_an(p + 2);
        if (isalnum((unsigned char)c)) {
            if (capital) c = (char)toupper((unsigned char)c);
            capital = false;
        }
        str_add_bytes(out, &c, 1);
        if (article) str_add_bytes(out, "n", 1);
    }
}

/* ---- documents ------------------------------------------------------------------------------- */

/* Hero and friend differ in pronoun, so that "he" and "she" are never in doubt. */
static void bind_cast(writer *w, int cast) {
    if (cast == CAST_NONE) return;
    int who = cast == CAST_ANY ? (int)synth_below(&w->draw, 2) : cast == CAST_ANIMALS;
    const char *const *of[2] = { SYNTH_HE[who], SYNTH_SHE[who] };
    bool she = synth_below(&w->draw, 2);
    bind_row(w, "A", SYNTH_PERSON, draw_row(w, of[she]));
    bind_row(w, "B", SYNTH_PERSON, draw_row(w, of[!she]));
    bind_row(w, "C", SYNTH_PERSON, draw_row(w, SYNTH_OLD[who]));
    bind_row(w, "", "home; place", draw_row(w, SYNTH_HOMES[who]));
    bind_row(w, "", "trait; habit", draw_row(w, SYNTH_TRAITS));
    bind_row(w, "", "keep", draw_row(w, SYNTH_KEEPSAKES));
}

static void write_frame(writer *w, const synth_frame *f) {
    bind_cast(w, f->cast);
    for (int i = 0; i < FRAME_TABLES && f->tables[i].columns; i++)
        bind_row(w, "", f->tables[i].columns, draw_row(w, f->tables[i].rows));
    for (int i = 0; i < FRAME_PARAGRAPHS && f->paragraphs[i]; i++) {
        const char *p = f->paragraphs[i];
        if (w->raw.len) str_add(&w->raw, "\n\n");
        expand_template(w, p, p + strlen(p), &w->raw);
    }
}

/* Separates these draws from those of other users of the seed. */
static const uint64_t DRAWS_TEXT = (uint64_t)0x73746f7279 << 20; /* "story" */

const char *synth_write(uint64_t seed, int64_t index, str *out) {
    writer w = { .draw.key = rng_key_of(seed, DRAWS_TEXT + (uint64_t)index) };
    bool story = synth_below(&w.draw, 3) > 0;
    const synth_frame *frames = story ? SYNTH_STORIES : SYNTH_ARTICLES;
    int n = story ? SYNTH_STORY_COUNT : SYNTH_ARTICLE_COUNT;
    write_frame(&w, &frames[synth_below(&w.draw, (uint64_t)n)]);
    finish_text(&w.raw, out);
    str_free(&w.raw);
    return story ? "stories" : "articles";
}
