/* The report of clusters: one JSON line each, in the order of the documents kept.
 *
 *     {"kept":4,"members":[{"document":4,"file":"a.jsonl","id":"x"},{"document":9,...}],"size":2}
 *
 * Names of documents come from the spill files, in input order. As many clusters as fit in memory
 * are gathered per pass; a cluster that does not fit by itself is written directly as it is read. */
#include "curate/dedup_internal.h"

#include <stdlib.h>

typedef struct member {
    uint32_t kept, document;
    size_t begin, end; /* range in the gathered text */
} member;

typedef struct gathering {
    const dedup *d;
    io_writer *out;
    uint8_t *shared;    /* bit per document: in a cluster of two or more */
    uint32_t low, high; /* range of clusters of this pass */
    enum {
        GATHER,
        TOO_LARGE,
        DIRECT
    } how; /* TOO_LARGE: a single cluster does not fit; the next pass is DIRECT */
    member *members;
    int n, cap;
    str text;
    int64_t written; /* members written of the current cluster */
} gathering;

/* ---- one cluster ----------------------------------------------------------------------------- */

static err cluster_begin(gathering *g, uint32_t kept) {
    char line[64];
    int n = snprintf(line, sizeof line, "{\"kept\":%u,\"members\":[", kept);
    g->written = 0;
    return io_writer_write(g->out, line, (size_t)n);
}

static err cluster_add(gathering *g, const char *text, size_t n) {
    if (g->written++) TRY(io_writer_write(g->out, ",", 1));
    return io_writer_write(g->out, text, n);
}

static err cluster_end(gathering *g) {
    char line[64];
    int n = snprintf(line, sizeof line, "],\"size\":%lld}\n", (long long)g->written);
    return io_writer_write(g->out, line, (size_t)n);
}

/* ---- members --------------------------------------------------------------------------------- */

/* Postpones half of the clusters to the next pass. */
static void gather_less(gathering *g) {
    if (g->high - g->low == 1) g->how = TOO_LARGE;
    g->high = g->low + (g->high - g->low + 1) / 2;
    str text = { 0 };
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        member m = g->members[i];
        if (m.kept >= g->high) continue;
        size_t begin = text.len;
        str_add_bytes(&text, g->text.text + m.begin, m.end - m.begin);
        g->members[n++] = (member){ m.kept, m.document, begin, text.len };
    }
    str_free(&g->text);
    g->text = text;
    g->n = n;
}

static void format_member(const gathering *g, uint32_t document, int segment, const char *names,
                          uint32_t n, str *out) {
    str_add(out, "{\"document\":%u,\"file\":", document);
    io_json_quote(out, text_segment_path(g->d->in, segment));
    if (n) str_add(out, ",");
    str_add_bytes(out, names, n);
    str_add(out, "}");
}

static err take_member(gathering *g, uint32_t document, int segment, const char *names,
                       uint32_t n) {
    uint32_t kept = g->d->cluster.parent[document];
    bool shared = g->shared[document / 8] >> document % 8 & 1;
    if (kept < g->low || kept >= g->high || !shared || g->how == TOO_LARGE) return OK;
    if (g->how == DIRECT) g->text.len = 0;
    size_t begin = g->text.len;
    format_member(g, document, segment, names, n, &g->text);
    if (g->how == DIRECT) return cluster_add(g, g->text.text, g->text.len);
    LIST_ADD(g->members, g->n, g->cap) = (member){ kept, document, begin, g->text.len };
    size_t held = g->text.len + (size_t)g->n * sizeof *g->members;
    if (held >= dedup_memory_left(g->d) / 4) gather_less(g);
    return OK;
}

static err read_names(gathering *g, spill_reader *r, int segment, str *names) {
    const dedup *d = g->d;
    for (uint64_t i = d->first_doc[segment]; i < d->first_doc[segment + 1]; i++) {
        uint32_t n;
        TRY(spill_read(r, &n, sizeof n));
        TRY(spill_read_str(r, n, names));
        TRY(take_member(g, (uint32_t)i, segment, names->text, n));
    }
    return OK;
}

static err read_all_names(gathering *g) {
    const dedup *d = g->d;
    str names = { 0 };
    err e = OK;
    for (int i = 0; i < d->reading.splits.n && !e; i++) {
        spill_reader r;
        e = spill_reader_open(d->reading.spills[i], SECTION_NAMES, &r);
        for (int s = d->reading.splits.first[i]; !e && s < d->reading.splits.first[i + 1]; s++)
            e = read_names(g, &r, s, &names);
        spill_reader_close(&r);
    }
    str_free(&names);
    return e;
}

/* ---- the file -------------------------------------------------------------------------------- */

SORT_ORDER(by_cluster, member, RISING(kept) RISING(document));

static err write_gathered(gathering *g) {
    sort_array(g->members, (size_t)g->n, sizeof *g->members, by_cluster);
    for (int i = 0; i < g->n; i++) {
        const member *m = &g->members[i];
        if (i == 0 || m[-1].kept != m->kept) TRY(cluster_begin(g, m->kept));
        TRY(cluster_add(g, g->text.text + m->begin, m->end - m->begin));
        if (i + 1 == g->n || m[1].kept != m->kept) TRY(cluster_end(g));
    }
    return OK;
}

static err write_pass(gathering *g) {
    g->n = 0;
    g->text.len = 0;
    g->how = GATHER;
    TRY(read_all_names(g)); /* may lower `high` */
    if (g->how == GATHER) return write_gathered(g);
    g->how = DIRECT;
    TRY(cluster_begin(g, g->low));
    TRY(read_all_names(g));
    return cluster_end(g);
}

err dedup_report_write(const dedup *d) {
    gathering g = { .d = d };
    uint32_t n = d->cluster.n;
    TRY(io_writer_open(d->o.pass.report, &g.out));
    g.shared = mem_alloc((size_t)n / 8 + 1);
    const uint32_t *kept = d->cluster.parent;
    for (uint32_t i = 0; i < n; i++) {
        if (kept[i] == i) continue;
        g.shared[i / 8] |= (uint8_t)(1 << i % 8);
        g.shared[kept[i] / 8] |= (uint8_t)(1 << kept[i] % 8);
    }
    err e = OK;
    while (g.low < n && !e) {
        g.high = n;
        e = write_pass(&g);
        g.low = g.high;
    }
    if (e)
        io_writer_abort(g.out);
    else
        e = io_writer_commit(g.out);
    free(g.shared);
    free(g.members);
    str_free(&g.text);
    return e;
}
