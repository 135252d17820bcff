/* Converts the tree that libxml2 parses into blocks of text. The tree is traversed without
 * recursion, since pages nest arbitrarily deep. Runs twice over the tree: once to measure how
 * much text is below each element, once to collect blocks. */
#include <libxml/HTMLparser.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "text/html.h"
#include "text/text.h"

/* ---- elements -------------------------------------------------------------------------------- */
typedef enum {
    INLINE,
    BLOCK,
    BREAK,
    CODE,
    DROP,
    HEADER,
    HEADING,
    ITEM,
    LINK,
    MAIN,
    CELL,
    ROW
} role;
static const struct element {
    const char *name;
    role role;
} elements[] = {
    /* sorted by name */
    { "a", LINK },        { "address", BLOCK },    { "article", MAIN },     { "aside", DROP },
    { "audio", DROP },    { "blockquote", BLOCK }, { "body", BLOCK },       { "br", BREAK },
    { "button", DROP },   { "canvas", DROP },      { "caption", BLOCK },    { "center", BLOCK },
    { "datalist", DROP }, { "dd", BLOCK },         { "details", BLOCK },    { "dialog", DROP },
    { "dir", BLOCK },     { "div", BLOCK },        { "dl", BLOCK },         { "dt", BLOCK },
    { "embed", DROP },    { "fieldset", BLOCK },   { "figcaption", BLOCK }, { "figure", BLOCK },
    { "footer", DROP },   { "form", BLOCK },       { "frameset", DROP },    { "h1", HEADING },
    { "h2", HEADING },    { "h3", HEADING },       { "h4", HEADING },       { "h5", HEADING },
    { "h6", HEADING },    { "head", DROP },        { "header", HEADER },    { "hr", BLOCK },
    { "iframe", DROP },   { "input", DROP },       { "label", DROP },       { "legend", DROP },
    { "li", ITEM },       { "main", MAIN },        { "map", DROP },         { "menu", DROP },
    { "nav", DROP },      { "noscript", DROP },    { "object", DROP },      { "ol", BLOCK },
    { "optgroup", DROP }, { "option", DROP },      { "p", BLOCK },          { "pre", CODE },
    { "script", DROP },   { "section", BLOCK },    { "select", DROP },      { "style", DROP },
    { "summary", BLOCK }, { "svg", DROP },         { "table", BLOCK },      { "tbody", BLOCK },
    { "td", CELL },       { "template", DROP },    { "textarea", DROP },    { "tfoot", BLOCK },
    { "th", CELL },       { "thead", BLOCK },      { "title", DROP },       { "tr", ROW },
    { "ul", BLOCK },      { "video", DROP },
};

static int compare_element(const void *name, const void *e) {
    return strcmp(name, ((const struct element *)e)->name);
}

static role role_of(const xmlNode *e) {
    const struct element *found =
        bsearch(e->name, elements, COUNT_OF(elements), sizeof elements[0], compare_element);
    return found ? found->role : INLINE;
}

/* Words in a class or id that mark an element as page furniture rather than content. Themes put the text itself into boxes
 * of some names too: "with-sidebar", "section--ads". */
typedef struct furniture_hint {
    const char *word;
    bool doubtful;
} furniture_hint;
static const furniture_hint hints[] = {
    /* sorted by word */
    { "ad", true },           { "ads", true },
    { "advert", true },       { "advertisement", true },
    { "banner", true },       { "breadcrumb", false },
    { "breadcrumbs", false }, { "byline", true },
    { "catlinks", false },    { "comment", false },
    { "comments", false },    { "cookie", false },
    { "cookies", false },     { "copyright", false },
    { "disqus", false },      { "editsection", false },
    { "footer", false },      { "hidden", true },
    { "jump", true },         { "language", true },
    { "languages", true },    { "login", true },
    { "masthead", true },     { "menu", true },
    { "metadata", true },     { "modal", true },
    { "nav", false },         { "navbar", false },
    { "navbox", false },      { "navigation", false },
    { "newsletter", false },  { "noprint", false },
    { "pager", false },       { "pagination", false },
    { "popup", true },        { "portal", true },
    { "promo", true },        { "recommended", false },
    { "reference", true },    { "related", false },
    { "share", true },        { "sharing", true },
    { "sidebar", true },      { "signup", true },
    { "skip", true },         { "social", true },
    { "sponsor", true },      { "sponsored", true },
    { "subscribe", true },    { "tags", true },
    { "toc", true },          { "toolbar", true },
    { "widget", true },
};

static int compare_hint(const void *word, const void *hint) {
    return strcmp(word, ((const furniture_hint *)hint)->word);
}

/* Whether some word of the value is a hint: "site-Footer navTop" contains site, footer, nav,
 * top. @param certain only a hint that is not doubtful counts. */
static bool has_hint(const char *value, bool certain) {
    char word[24];
    size_t n = 0;
    for (const char *p = value;; p++) {
        char c = *p;
        bool upper = c >= 'A' && c <= 'Z', letter = upper || (c >= 'a' && c <= 'z');
        if ((!letter || upper) && n > 0) {
            word[n] = 0;
            const furniture_hint *hint =
                bsearch(word, hints, COUNT_OF(hints), sizeof hints[0], compare_hint);
            if (hint && !(certain && hint->doubtful)) return true;
            n = 0;
        }
        if (!c) return false;
        if (letter && n + 1 < sizeof word) word[n++] = (char)(c | 32);
    }
}

static const char *find_attribute(const xmlNode *e, const char *name) {
    for (const xmlAttr *a = e->properties; a; a = a->next)
        if (strcmp((const char *)a->name, name) == 0)
            return a->children && a->children->content ? (const char *)a->children->content : "";
    return NULL;
}

static bool is_one_of(const char *value, const char *const *words, size_t n) {
    for (size_t i = 0; value && i < n; i++)
        if (strcmp(value, words[i]) == 0) return true;
    return false;
}

static bool is_invisible(const xmlNode *e) {
    const char *hidden = find_attribute(e, "aria-hidden"), *style = find_attribute(e, "style");
    if (find_attribute(e, "hidden") || (hidden && strcmp(hidden, "true") == 0)) return true;
    return style && (strstr(style, "display:none") || strstr(style, "display: none"));
}

/* ---- the walk -------------------------------------------------------------------------------- */
typedef struct page {
    str text;
    html_block *blocks;
    int n, capacity;
    html_block open; /* the block being collected, from open.at to the end of the text */
    int links, code, headings, mains; /* nesting depth of each */
    bool space;                       /* white space is pending before the next character */
    int64_t all;                      /* bytes of text on the whole page */
    bool trusting; /* elements that are page furniture only by a doubtful hint are text */
} page;

/* Bytes of text below an element, stored in the field that libxml2 leaves to applications. */
static int64_t text_below(const xmlNode *e) { return (int64_t)(intptr_t)e->_private; }

typedef bool (*enter_fn)(page *p, xmlNode *e); /* @return whether to visit its children */
typedef void (*leave_fn)(page *p, xmlNode *e);

static void walk_tree(page *p, xmlNode *root, enter_fn enter, leave_fn leave) {
    for (xmlNode *at = root; at;) {
        if (enter(p, at) && at->children) {
            at = at->children;
            continue;
        }
        for (;;) {
            leave(p, at);
            if (at == root) return;
            if (at->next) break;
            at = at->parent;
        }
        at = at->next;
    }
}

static bool enter_measure(page *p, xmlNode *e) {
    e->_private = NULL;
    if (e->type == XML_TEXT_NODE) e->_private = (void *)(intptr_t)strlen((const char *)e->content);
    return e->type == XML_ELEMENT_NODE && role_of(e) != DROP;
}

static void leave_measure(page *p, xmlNode *e) {
    bool counts = e->type == XML_ELEMENT_NODE || e->type == XML_TEXT_NODE;
    if (counts && e->parent && e->parent->type == XML_ELEMENT_NODE)
        e->parent->_private = (void *)(intptr_t)(text_below(e->parent) + text_below(e));
    if (counts) p->all = text_below(e);
}

/* ---- blocks ---------------------------------------------------------------------------------- */
static bool ends_like_a_sentence(const char *text, size_t n) {
    static const char *const ends[] = { ".", "!", "?",  ":",  ";",  "\"", ")", "…", "”",
                                        "»", "’", "。", "！", "？", "」", "।", "؟", "۔" };
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        size_t len = strlen(ends[i]);
        if (n >= len && memcmp(text + n - len, ends[i], len) == 0) return true;
    }
    int stops = 0;
    for (size_t i = 0; i + 1 < n; i++) stops += strchr(".!?", text[i]) && text[i + 1] == ' ';
    return stops >= 2;
}

static void end_block(page *p) {
    html_block b = p->open;
    while (p->text.len > b.at && strchr(" \n\t", p->text.text[p->text.len - 1])) p->text.len--;
    b.len = p->text.len - b.at;
    p->space = false;
    if (b.characters == 0) p->text.len = b.at;
    if (b.characters > 0) {
        b.sentence = ends_like_a_sentence(p->text.text + b.at, b.len);
        b.main = p->mains > 0;
        if (p->headings) b.kind = BLOCK_HEADING;
        if (p->code) b.kind = BLOCK_CODE;
        LIST_ADD(p->blocks, p->n, p->capacity) = b;
    }
    p->open = (html_block){ .at = p->text.len };
}

static void break_line(page *p) {
    bool fresh = p->text.len == p->open.at;
    if (fresh || (p->text.text[p->text.len - 1] == '\n' && !p->code))
        end_block(p);
    else
        str_add_bytes(&p->text, "\n", 1);
    p->space = false;
}

/* @return bytes of a character that is white space (*space true) or invisible (false); 0:
 * neither. */
static size_t match_blank(const char *s, bool *space) {
    static const struct {
        const char *bytes;
        bool space;
    } blanks[] = { { " ", true },
                   { "\n", true },
                   { "\t", true },
                   { "\r", true },
                   { "\f", true },
                   { "\xC2\xA0", true },
                   { "\xC2\xAD", false },
                   { "\xE2\x80\x8B", false },
                   { "\xEF\xBB\xBF", false } };
    if ((unsigned char)*s > ' ' && (unsigned char)*s < 0x80) return 0;
    for (size_t i = 0; i < COUNT_OF(blanks); i++)
        if (str_starts(s, blanks[i].bytes))
            return *space = blanks[i].space, strlen(blanks[i].bytes);
    return 0;
}

static void add_character(page *p, const char *s, size_t n) {
    bool fresh = p->text.len == p->open.at || p->text.text[p->text.len - 1] == '\n';
    if (p->space && !fresh) str_add_bytes(&p->text, " ", 1);
    p->space = false;
    str_add_bytes(&p->text, s, n);
    p->open.characters++;
    p->open.linked += p->links > 0;
}

static void add_page_text(page *p, const char *s) {
    bool space = false;
    uint32_t cp;
    while (*s) {
        size_t n = match_blank(s, &space);
        if (n && p->code && (*s == '\n' || *s == ' ' || *s == '\t'))
            str_add_bytes(&p->text, s, 1);
        else if (n)
            p->space |= space;
        else
            add_character(p, s, n = (size_t)utf8_decode(s, &cp));
        s += n;
    }
}

/* ---- what elements do ------------------------------------------------------------------------ */
static bool is_dropped(const page *p, const xmlNode *e, role r) {
    static const char *const roles[] = { "navigation", "banner", "contentinfo", "complementary",
                                         "search",     "dialog", "menu",        "toolbar" };
    bool aside = r == DROP && p->mains && strcmp((const char *)e->name, "aside") == 0;
    if ((r == DROP && !(aside && p->trusting)) || is_invisible(e)) return true;
    if (is_one_of(find_attribute(e, "role"), roles, COUNT_OF(roles))) return true;
    /* Whole pages may have class "with-sidebar": an element that holds much of the text is kept. */
    if (r == MAIN || text_below(e) * 3 > p->all) return false;
    if (r == HEADER && !p->mains) return true;
    const char *class = find_attribute(e, "class"), *id = find_attribute(e, "id");
    return (class && has_hint(class, p->trusting)) || (id && has_hint(id, p->trusting));
}

static void count_nesting(page *p, const xmlNode *e, role r, int by) {
    p->links += r == LINK ? by : 0;
    p->code += r == CODE ? by : 0;
    p->headings += r == HEADING ? by : 0;
    const char *said = find_attribute(e, "role");
    p->mains += r == MAIN || (said && strcmp(said, "main") == 0) ? by : 0;
}

static bool enter_collect(page *p, xmlNode *e) {
    if (e->type == XML_TEXT_NODE) add_page_text(p, (const char *)e->content);
    if (e->type != XML_ELEMENT_NODE) return false;
    role r = role_of(e);
    e->_private = is_dropped(p, e, r) ? NULL : e; /* leave_collect reads whether it was entered */
    if (!e->_private) return false;
    if (r == BREAK) break_line(p);
    if (r == CELL) p->space = true;
    if (r != INLINE && r != LINK && r != BREAK && r != CELL) end_block(p);
    if (r == ITEM) p->open.kind = BLOCK_ITEM;
    if (r == ROW) p->open.kind = BLOCK_ROW;
    count_nesting(p, e, r, 1);
    return true;
}

static void leave_collect(page *p, xmlNode *e) {
    if (e->type != XML_ELEMENT_NODE || !e->_private) return;
    role r = role_of(e);
    if (r != INLINE && r != LINK && r != BREAK && r != CELL) end_block(p);
    count_nesting(p, e, r, -1);
}

/* ---- the page -------------------------------------------------------------------------------- */
/* libxml2 takes time quadratic in the number of attributes of a tag. Tags longer than people
 * write, which mostly hold data, are reduced to their name. */
static void shorten_long_tags(str *utf8) {
    enum { LONGEST_TAG = 16 << 10 };
    char *end = utf8->text + utf8->len;
    for (char *p = utf8->text; (p = memchr(p, '<', (size_t)(end - p)));) {
        bool script = strncasecmp(p, "<script", 7) == 0;
        if (script || strncasecmp(p, "<style", 6) == 0) { /* their content is not markup */
            char *close = strcasestr(p, script ? "</script" : "</style");
            if (!close) return;
            p = close + 1;
        }
        char *name = p + 1 + strspn(p + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
        char *close = memchr(p, '>', (size_t)(end - p));
        if (!close) close = end;
        if (close - p > LONGEST_TAG && name > p + 1) memset(name, ' ', (size_t)(close - name));
        p = close;
    }
}

static void start_parser(void) { xmlInitParser(); }

static htmlDocPtr parse_html(const str *utf8) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start_parser);
    htmlParserCtxtPtr context = htmlNewParserCtxt();
    if (!context) return NULL;
    int options = HTML_PARSE_RECOVER | HTML_PARSE_NOERROR | HTML_PARSE_NOWARNING |
                  HTML_PARSE_NONET | HTML_PARSE_IGNORE_ENC | HTML_PARSE_COMPACT;
    htmlDocPtr doc =
        htmlCtxtReadMemory(context, utf8->text, (int)utf8->len, NULL, "UTF-8", options);
    htmlFreeParserCtxt(context);
    return doc;
}

static void write_kept(const page *p, str *out) {
    for (int i = 0; i < p->n; i++) {
        const html_block *b = &p->blocks[i];
        if (!b->keep) continue;
        str_add_bytes(out, b->kind == BLOCK_ITEM ? "- " : "", b->kind == BLOCK_ITEM ? 2 : 0);
        str_add_bytes(out, p->text.text + b->at, b->len);
        str_add_bytes(out, "\n", 1);
    }
}

static int64_t kept_text_bytes(const page *p) {
    int64_t sum = 0;
    for (int i = 0; i < p->n; i++) sum += p->blocks[i].keep ? (int64_t)p->blocks[i].len : 0;
    return sum;
}

static void collect_page(page *p, xmlNode *root, bool trusting) {
    p->trusting = trusting;
    walk_tree(p, root, enter_measure, leave_measure);
    walk_tree(p, root, enter_collect, leave_collect);
    end_block(p);
    html_choose(p->blocks, p->n);
}

static void free_page(page *p) {
    str_free(&p->text);
    free(p->blocks);
}

err html_text(const char *bytes, size_t n, const char *charset, str *out) {
    enum { FEW = 4 }; /* the text of a page is suspiciously short beside FEW times as much */
    page p = { 0 }, more = { 0 };
    str utf8 = { 0 };
    str_add_bytes(out, "", 0);
    html_decode(bytes, n, charset, &utf8);
    shorten_long_tags(&utf8);
    htmlDocPtr doc = utf8.len && utf8.len < INT32_MAX ? parse_html(&utf8) : NULL;
    xmlNode *root = doc ? xmlDocGetRootElement(doc) : NULL;
    if (root) {
        collect_page(&p, root, false);
        bool few = FEW * kept_text_bytes(&p) < p.all;
        if (few) collect_page(&more, root, true);
        write_kept(few && kept_text_bytes(&more) > FEW * kept_text_bytes(&p) ? &more : &p, out);
    }
    xmlFreeDoc(doc);
    str_free(&utf8);
    free_page(&p);
    free_page(&more);
    return OK;
}
