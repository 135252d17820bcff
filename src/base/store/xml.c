/* The XML that S3 writes: a small strict parser in one pass, bounded in depth and length. */
#include <string.h>

#include "store/store_internal.h"

enum { MOST_DEPTH = 8, MOST_PATH = 256 };

typedef struct xml_state {
    const char *at, *end;
    char path[MOST_PATH]; /* names of the open elements, with slashes between */
    size_t path_len;
    int depth;
    bool parent[MOST_DEPTH + 1]; /* the open element has children */
    str text;                    /* of the innermost element */
    const xml_visitor *v;
} xml_state;

static bool is_xml_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':';
}
static void skip_space(xml_state *x) {
    while (x->at < x->end && is_xml_space(*x->at)) x->at++;
}
static bool take_word(xml_state *x, const char *word) {
    size_t n = strlen(word);
    if ((size_t)(x->end - x->at) < n || memcmp(x->at, word, n) != 0) return false;
    x->at += n;
    return true;
}

static const char *take_name(xml_state *x, const char **name, size_t *n) {
    *name = x->at;
    while (x->at < x->end && is_name(*x->at)) x->at++;
    *n = (size_t)(x->at - *name);
    return *n ? NULL : "an element without a name";
}

/* ---- text ----------------------------------------------------------------------------------------- */
static void add_code_point(str *s, uint32_t c) {
    char b[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    for (size_t i = n; i-- > 0; c >>= 6)
        b[i] = (char)(i ? 0x80 | (c & 0x3f) : n == 1 ? c : lead[n] | c);
    str_add_bytes(s, b, n);
}

/* "&#65;" or "&#x41;" behind its "&#". */
static const char *take_number(xml_state *x) {
    uint32_t value = 0, base = take_word(x, "x") ? 16 : 10;
    int digits = 0;
    for (; x->at < x->end && *x->at != ';' && digits < 8; x->at++, digits++) {
        char c = *x->at, low = (char)(c | 32);
        int d = c >= '0' && c <= '9'                     ? c - '0'
                : base == 16 && low >= 'a' && low <= 'f' ? low - 'a' + 10
                                                         : -1;
        if (d < 0) return "a character that is not a number";
        value = value * base + (uint32_t)d;
    }
    if (!digits || !take_word(x, ";")) return "a character by number that does not end";
    if (!value || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
        return "a number of no character";
    add_code_point(&x->text, value);
    return NULL;
}

static const char *take_entity(xml_state *x) {
    static const struct {
        const char *name;
        char c;
    } known[] = {
        { "&amp;", '&' }, { "&lt;", '<' }, { "&gt;", '>' }, { "&quot;", '"' }, { "&apos;", '\'' }
    };
    if (take_word(x, "&#")) return take_number(x);
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (take_word(x, known[i].name)) {
            str_add_bytes(&x->text, &known[i].c, 1);
            return NULL;
        }
    return "an unknown entity";
}

/* ---- elements ------------------------------------------------------------------------------------- */
/* Attributes are skipped: name="...". @param empty whether the element ends here. */
static const char *skip_attributes(xml_state *x, bool *empty) {
    const char *name;
    size_t n;
    for (;;) {
        skip_space(x);
        *empty = take_word(x, "/>");
        if (*empty || take_word(x, ">")) return NULL;
        const char *wrong = take_name(x, &name, &n);
        if (wrong) return wrong;
        char quote = take_word(x, "=\"") ? '"' : take_word(x, "='") ? '\'' : '\0';
        const char *close = quote ? memchr(x->at, quote, (size_t)(x->end - x->at)) : NULL;
        if (!close) return "an attribute without a value";
        x->at = close + 1;
    }
}

static const char *close_element(xml_state *x) {
    bool parent = x->parent[x->depth];
    if (parent) x->text.len = 0;
    if (!x->text.text) str_add(&x->text, "%s", "");
    x->text.text[x->text.len] = '\0';
    bool go_on = x->v->element(x->v->ctx, x->path, parent ? NULL : x->text.text, x->text.len);
    while (x->path_len && x->path[x->path_len - 1] != '/') x->path_len--;
    if (x->path_len) x->path_len--;
    x->path[x->path_len] = '\0';
    x->depth--;
    x->text.len = 0;
    return go_on ? NULL : "an element with a value that is not expected";
}

static const char *open_element(xml_state *x) {
    const char *name;
    size_t n;
    bool empty;
    const char *wrong = take_name(x, &name, &n);
    if (wrong) return wrong;
    if (x->depth == MOST_DEPTH || x->path_len + n + 2 > sizeof x->path) return "nested too deep";
    x->parent[x->depth] = true;
    x->parent[++x->depth] = false;
    if (x->path_len) x->path[x->path_len++] = '/';
    memcpy(x->path + x->path_len, name, n);
    x->path_len += n;
    x->path[x->path_len] = '\0';
    x->text.len = 0;
    wrong = skip_attributes(x, &empty);
    if (wrong) return wrong;
    return empty ? close_element(x) : NULL;
}

/* "</Name>" behind its "</". */
static const char *end_element(xml_state *x) {
    const char *name, *open = strrchr(x->path, '/');
    size_t n;
    const char *wrong = take_name(x, &name, &n);
    if (wrong) return wrong;
    open = open ? open + 1 : x->path;
    if (strlen(open) != n || memcmp(open, name, n) != 0) return "an element that another one ends";
    skip_space(x);
    if (!take_word(x, ">")) return "an end that does not end";
    return close_element(x);
}

static const char *take_content(xml_state *x) {
    if (take_word(x, "</")) return end_element(x);
    if (take_word(x, "<")) return open_element(x);
    if (*x->at == '&') return take_entity(x);
    if (*x->at == '\0') return "a NUL";
    str_add_bytes(&x->text, x->at++, 1);
    return NULL;
}

const char *xml_parse(const char *text, size_t n, const xml_visitor *v) {
    xml_state x = { .at = text, .end = text + n, .v = v };
    const char *wrong = NULL;
    skip_space(&x);
    if (take_word(&x, "<?xml")) {
        const char *close = memmem(x.at, (size_t)(x.end - x.at), "?>", 2);
        x.at = close ? close + 2 : x.end;
    }
    skip_space(&x);
    if (!take_word(&x, "<"))
        wrong = "it does not begin with an element";
    else
        wrong = open_element(&x);
    while (!wrong && x.depth > 0) wrong = x.at < x.end ? take_content(&x) : "it ends too early";
    skip_space(&x);
    if (!wrong && x.at < x.end) wrong = "something follows the last element";
    str_free(&x.text);
    return wrong;
}
