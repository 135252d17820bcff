/* Tar archives, as WebDataset writes them: consecutive files whose names agree up to the first dot are one sample.
 *
 *     000017.txt  000017.json  000017.jpg      a document: the text of .txt, the members of .json
 *     000018.json                              a document: as a line of JSON
 *     books/emma.txt                           a document
 *     pages.jsonl                              a document for each line
 *
 * The text of a sample is its .txt, .text, .md or .html; else the member of its .json. A sample without any of them is
 * counted as unreadable. Names may be long (GNU) or extended (pax). Links, folders, sparse files and files whose names begin
 * with a dot, such as the ._NAME of macOS before each NAME, are passed over.
 *
 *     header of 512 bytes: name[100] ... size[12] at 124, checksum[8] at 148, type at 156, "ustar" at 257, prefix[155] at 345
 *     content, padded to 512; two blocks of zeros end the archive */
#include <string.h>

#include "text/html.h"
#include "text/inputs_internal.h"

enum { TAR_BLOCK = 512, TAR_NAME = 4096 /* PATH_MAX */, SAMPLE_OVERHEAD = 1 << 20 };

typedef struct tar_entry {
    char name[TAR_NAME]; /* cut if it is longer */
    text_span content;
    char type;       /* '0': a file */
    bool zeros;      /* not an entry, but the end of the archive */
    uint64_t length; /* with header and padding */
} tar_entry;

/* Octal digits, or with the top bit set a big-endian number. @return false: neither. */
static bool tar_number(const char *p, size_t n, uint64_t *out) {
    *out = 0;
    if ((unsigned char)p[0] & 0x80) {
        for (size_t i = n - 8; i < n; i++) *out = *out << 8 | (unsigned char)p[i];
        return *out < (uint64_t)1 << 60;
    }
    size_t i = 0;
    while (i < n && p[i] == ' ') i++;
    for (; i < n && p[i] >= '0' && p[i] <= '7'; i++) *out = *out << 3 | (uint64_t)(p[i] - '0');
    return i == n || p[i] == 0 || p[i] == ' ';
}

static bool header_is_right(const char *p) {
    uint64_t stated, sum = 0;
    if (!tar_number(p + 148, 8, &stated)) return false;
    for (int i = 0; i < TAR_BLOCK; i++) sum += i >= 148 && i < 156 ? ' ' : (unsigned char)p[i];
    return sum == stated;
}

/* Reads the header at p. @return false: it is not one. */
static bool read_tar_header(const char *p, size_t n, tar_entry *e) {
    uint64_t size = 0;
    size_t i = 0;
    if (n < TAR_BLOCK) return false;
    while (i < TAR_BLOCK && p[i] == 0) i++;
    *e = (tar_entry){ .zeros = i == TAR_BLOCK, .length = TAR_BLOCK, .type = p[156] ? p[156] : '0' };
    if (e->zeros) return true;
    if (!header_is_right(p) || !tar_number(p + 124, 12, &size)) return false;
    bool prefixed = memcmp(p + 257, "ustar", 5) == 0 && p[345];
    snprintf(e->name, sizeof e->name, "%.155s%s%.100s", prefixed ? p + 345 : "",
             prefixed ? "/" : "", p);
    e->length += (size + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
    e->content = (text_span){ p + TAR_BLOCK, (size_t)MIN(size, (uint64_t)(n - TAR_BLOCK)) };
    return true;
}

/* Takes the name of the next entry from a GNU long name or from "LENGTH path=NAME" of a pax header. */
static void take_long_name(const tar_entry *e, char *name) {
    const char *at = e->content.at;
    size_t n = e->content.len;
    if (e->type == 'L') {
        snprintf(name, TAR_NAME, "%.*s", (int)MIN(n, (size_t)TAR_NAME), at);
        return;
    }
    for (const char *end = at + n, *line; at < end; at = line) {
        line = memchr(at, '\n', (size_t)(end - at));
        line = line ? line + 1 : end;
        const char *space = memchr(at, ' ', (size_t)(line - at));
        if (space && line - space > 6 && memcmp(space + 1, "path=", 5) == 0)
            snprintf(name, TAR_NAME, "%.*s", (int)(line - space - 7), space + 6);
    }
}

/* Reads the entry at p, after the entries that only name it. Its length includes theirs. @return false: the buffer
 * ends before, or there is no header. *damaged: there is none. */
static bool read_tar_entry(const char *p, size_t n, tar_entry *e, bool *damaged) {
    char name[TAR_NAME] = "";
    uint64_t before = 0;
    *damaged = false;
    for (;;) {
        if (n - before < TAR_BLOCK) return false;
        if (!read_tar_header(p + before, n - before, e)) return *damaged = true, false;
        if (e->length > n - before) return e->length += before, false;
        if (e->type != 'L' && e->type != 'x') break; /* else it names the next entry */
        take_long_name(e, name);
        before += e->length;
    }
    if (*name) memcpy(e->name, name, sizeof name);
    e->length += before;
    return true;
}

static const char *last_name_part(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

static bool is_hidden_entry(const tar_entry *e) {
    return !e->zeros && *last_name_part(e->name) == '.';
}

/* @return bytes of the name up to the first dot of its last part: what the files of a sample share. */
static size_t sample_key(const char *name) {
    const char *last = last_name_part(name);
    return (size_t)(last - name) + strcspn(last, ".");
}

static bool same_sample(const tar_entry *a, const tar_entry *b) {
    size_t n = sample_key(a->name);
    return n == sample_key(b->name) && memcmp(a->name, b->name, n) == 0;
}

static size_t last_sample_end(const char *p, size_t n) {
    tar_entry first = { 0 }, e;
    size_t at = 0, end = 0;
    bool damaged, inside = false;
    while (read_tar_entry(p + at, n - at, &e, &damaged)) {
        if (is_hidden_entry(&e) || (inside && !e.zeros && same_sample(&first, &e))) {
            at += (size_t)e.length;
            continue;
        }
        end = at; /* another sample begins here */
        first = e;
        inside = !e.zeros;
        at += (size_t)e.length;
        if (e.zeros) end = at;
    }
    /* A block that is not a header is passed to the parser, which searches for the next header. */
    return damaged && n - at >= TAR_BLOCK ? at + TAR_BLOCK : end;
}

static size_t first_sample_end(const char *p, size_t n, bool line_start) {
    return n >= TAR_BLOCK ? TAR_BLOCK : 0;
}

/* Of a sample that is too long, its first file. */
static uint64_t tar_record_length(const char *p, size_t n) {
    tar_entry e = { 0 };
    bool damaged;
    if (read_tar_entry(p, n, &e, &damaged)) return e.length;
    return damaged ? TAR_BLOCK : e.length;
}

/* ---- samples to documents -------------------------------------------------------------------- */
enum { PART_TEXT, PART_HTML, PART_JSON, PART_LINES, PART_KINDS };
static const struct {
    const char *ending;
    int kind;
} part_kinds[] = {
    { ".txt", PART_TEXT },    { ".text", PART_TEXT },    { ".md", PART_TEXT },
    { ".html", PART_HTML },   { ".htm", PART_HTML },     { ".json", PART_JSON },
    { ".jsonl", PART_LINES }, { ".ndjson", PART_LINES },
};

typedef struct tar_sample {
    text_span part[PART_KINDS]; /* `at` NULL: it has none */
    text_span key;
    int64_t offset;
} tar_sample;

/* A JSON object of several lines as one: line breaks are not inside of strings. */
static text_span one_line_json(parser *p, text_span json) {
    json = span_trim(json);
    char *to = spool_reserve(&p->strings, json.len);
    for (size_t i = 0; i < json.len; i++)
        to[i] = json.at[i] == '\n' || json.at[i] == '\r' ? ' ' : json.at[i];
    return spool_commit(&p->strings, json.len);
}

static void add_sample_lines(parser *p, text_span lines, int64_t offset) {
    for (size_t at = 0; at < lines.len;) {
        const char *brk = memchr(lines.at + at, '\n', lines.len - at);
        size_t n = brk ? (size_t)(brk - lines.at) - at : lines.len - at;
        text_span line = span_trim((text_span){ lines.at + at, n });
        if (line.len) json_parse_object(p, line, offset, false);
        at += n + 1;
    }
}

/* Adds the members of a sample's .json to a document whose text is in another file. */
static void add_sample_members(parser *p, text_span json, text_doc *d) {
    json_member m[FIELDS] = { 0 };
    bool odd = false, repaired = false;
    text_span line = one_line_json(p, json);
    text_span *const field[FIELDS] = { [FIELD_ID] = &d->id,
                                       [FIELD_URL] = &d->url,
                                       [FIELD_SOURCE] = &d->source,
                                       [FIELD_LICENSE] = &d->license };
    if (!parser_check_utf8(p, &line, &repaired)) return;
    if (json_scan(line.at, line.len, p->in->wants, p->in->n_wants, m, &odd) || odd) return;
    for (int i = 0; i < FIELDS; i++)
        if (field[i] && m[i].kind == JSON_PLAIN)
            *field[i] = (text_span){ line.at + m[i].at + 1, m[i].end - m[i].at - 2 };
    p->body.len = 0;
    if (p->in->all_members)
        json_add_others(line.at, line.len, p->in->wants, p->in->n_wants, &p->body);
    if (p->body.len) d->members = spool_copy(&p->strings, p->body.text, p->body.len);
}

static bool sample_page(parser *p, const tar_sample *s, text_span *text) {
    str page = { 0 };
    err e = html_text(s->part[PART_HTML].at, s->part[PART_HTML].len, NULL, &page);
    if (e) bad_records_add(&p->bad, s->offset, "%s", err_message(e));
    if (!e) *text = spool_copy(&p->strings, page.text, page.len);
    err_free(e);
    str_free(&page);
    return !e;
}

static void add_sample(parser *p, const tar_sample *s) {
    text_doc d = { .id = s->key, .source = p->source };
    bool repaired = false;
    if (s->part[PART_LINES].at) add_sample_lines(p, s->part[PART_LINES], s->offset);
    if (s->part[PART_TEXT].at || s->part[PART_HTML].at) {
        d.text = s->part[PART_TEXT];
        if (!d.text.at && !sample_page(p, s, &d.text)) return;
        if (!parser_check_utf8(p, &d.text, &repaired) || !parser_check_utf8(p, &d.id, &repaired))
            return;
        d.text = parser_normalize_breaks(p, d.text);
        if (s->part[PART_JSON].at) add_sample_members(p, s->part[PART_JSON], &d);
        parser_add_document(p, &d, repaired);
    } else if (s->part[PART_JSON].at) {
        json_parse_object(p, one_line_json(p, s->part[PART_JSON]), s->offset, false);
    } else if (!s->part[PART_LINES].at) {
        bad_records_add(&p->bad, s->offset,
                        "no .txt, .html, .json or .jsonl in the sample \"%.*s\"", (int)s->key.len,
                        s->key.at);
    }
}

static void parse_tar_block(parser *p, const raw_block *b) {
    const char *from = b->bytes.text;
    size_t n = b->bytes.len;
    tar_entry first = { 0 }, e;
    tar_sample s = { 0 };
    bool inside = false, was_bad = false;
    for (size_t at = 0; at < n;) {
        bool damaged, whole = read_tar_entry(from + at, n - at, &e, &damaged);
        int64_t offset = b->offset + (int64_t)at;
        if (whole && is_hidden_entry(&e)) {
            at += (size_t)e.length;
            continue;
        }
        if (inside && (!whole || e.zeros || !same_sample(&first, &e))) {
            add_sample(p, &s);
            inside = false;
        }
        if (!whole) {
            if (!was_bad)
                bad_records_add(&p->bad, offset,
                                damaged ? "not a tar header" : "the archive is truncated");
            was_bad = true;
            at += damaged ? TAR_BLOCK : n - at;
            continue;
        }
        was_bad = false;
        at += (size_t)e.length;
        if (e.zeros || (e.type != '0' && e.type != '7')) continue;
        if (!parser_check_length(p, e.content.len, offset)) continue;
        if (!inside) s = (tar_sample){ .offset = offset }, first = e;
        inside = true;
        for (size_t i = 0; i < COUNT_OF(part_kinds); i++)
            if (str_ends(e.name, part_kinds[i].ending)) s.part[part_kinds[i].kind] = e.content;
        if (!s.key.at) s.key = spool_copy(&p->strings, e.name, sample_key(e.name));
    }
    if (inside) add_sample(p, &s);
}

bool tar_has_magic(const char *head, size_t n) {
    return n >= TAR_BLOCK && memcmp(head + 257, "ustar", 5) == 0 && header_is_right(head);
}

const text_format format_tar = { .name = "tar",
                                 .last_record_end = last_sample_end,
                                 .first_record_end = first_sample_end,
                                 .length = tar_record_length,
                                 .parse = parse_tar_block,
                                 .overhead = SAMPLE_OVERHEAD,
                                 .decodes = true };
