/* The report of decontamination, as JSON lines. First every match that is removed, in input
 * order:
 *
 *     {"document":7,"file":"a.jsonl","id":"x","begin":120,"end":310,"ngrams":4,
 *      "reference":"gsm8k.jsonl","line":3,"member":"question","text":"..."}
 *
 * begin and end are bytes of the document's text; `text` is the reference's own. A match is a run
 * of overlapping n-grams of one reference text. Then the n-grams that are common, and ignored everywhere:
 *
 *     {"common":"...","documents":57,"reference":"gsm8k.jsonl","line":3,"member":"question"}
 */
#include "curate/decontaminate_internal.h"
#include "io/io.h"

typedef struct match {
    uint32_t text;               /* of the references */
    uint32_t begin, end;         /* in the document */
    uint32_t ref_begin, ref_end; /* in the reference */
    int ngrams;
} match;

typedef struct reporter {
    const decontaminate *d;
    hit_judge judge;
    io_writer *out;
    str line;
} reporter;

static void add_path(const char *name, const char *path, str *out) {
    str_add(out, "\"%s\":", name);
    io_json_quote(out, path);
}

static void add_reference(const refs *r, uint32_t text, str *out) {
    const ref_text *t = &r->texts[text];
    add_path("reference", r->files[t->file].path, out);
    str_add(out, ",\"line\":%d,\"member\":", t->line);
    text_json_string(t->member, strlen(t->member), out);
}

static err write_match(reporter *p, const hit_document *doc, const match *m) {
    const refs *r = p->d->refs;
    str *out = &p->line;
    out->len = 0;
    str_add(out, "{\"document\":%llu,", (unsigned long long)doc->number);
    add_path("file", text_segment_path(p->d->in, doc->segment), out);
    if (doc->names.len) str_add(out, ",%.*s", (int)doc->names.len, doc->names.text);
    str_add(out, ",\"begin\":%u,\"end\":%u,\"ngrams\":%d,", m->begin, m->end, m->ngrams);
    add_reference(r, m->text, out);
    str_add(out, ",\"text\":");
    text_json_string(r->texts[m->text].text.at + m->ref_begin, m->ref_end - m->ref_begin, out);
    str_add(out, "}\n");
    return io_writer_write(p->out, out->text, out->len);
}

/* Extends the match by a hit that overlaps it and occurs in the same reference text. @return
 * false if it does not. */
static bool extend_match(const refs *r, match *m, const ref_hit *h) {
    if (!m->ngrams || h->begin > m->end) return false;
    const ref_ngram *g = refs_find_occurrence(r, h->gram, m->text);
    if (!g) return false;
    m->begin = MIN(m->begin, h->begin);
    m->end = MAX(m->end, h->end);
    m->ref_begin = MIN(m->ref_begin, g->begin);
    m->ref_end = MAX(m->ref_end, g->end);
    m->ngrams++;
    return true;
}

static err report_document(void *ctx, const hit_document *doc) {
    reporter *p = ctx;
    const refs *r = p->d->refs;
    match m = { 0 };
    decontaminate_judge_hits(p->d, &doc->hits, &p->judge);
    for (int i = 0; i < doc->hits.n; i++) {
        const ref_hit *h = &doc->hits.at[i];
        if (p->judge.ignored[i] || extend_match(r, &m, h)) continue;
        if (m.ngrams) TRY(write_match(p, doc, &m));
        const ref_ngram *g = &r->grams[h->gram];
        m = (match){ g->text, h->begin, h->end, g->begin, g->end, 1 };
    }
    return m.ngrams ? write_match(p, doc, &m) : OK;
}

static err report_common(reporter *p) {
    const refs *r = p->d->refs;
    str *out = &p->line;
    for (int i = 0; i < r->n_grams; i++) {
        const ref_ngram *g = &r->grams[i];
        if (!g->documents || g->removed) continue;
        out->len = 0;
        str_add(out, "{\"common\":");
        text_json_string(r->texts[g->text].text.at + g->begin, g->end - g->begin, out);
        str_add(out, ",\"documents\":%u,", g->documents);
        add_reference(r, g->text, out);
        str_add(out, "}\n");
        TRY(io_writer_write(p->out, out->text, out->len));
    }
    return OK;
}

err decontaminate_report_write(const decontaminate *d) {
    reporter p = { .d = d };
    TRY(io_writer_open(d->o.pass.report, &p.out));
    err e = decontaminate_for_each(d, report_document, &p);
    if (!e) e = report_common(&p);
    if (e)
        io_writer_abort(p.out);
    else
        e = io_writer_commit(p.out);
    str_free(&p.line);
    hit_judge_free(&p.judge);
    return e;
}
