/* Mix files, and the weights of published mixes. */
#include "config/config.h"
#include "shards/data_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* ---- published mixes --------------------------------------------------------------------------
 * Shares of the training data as the papers and dataset cards state them, in percent of sampled
 * tokens, or in thousand millions of tokens where only sizes are given. */
typedef struct preset_weight {
    const char *preset, *source;
    double weight;
} preset_weight;
/* clang-format off */
static const preset_weight PRESETS[] = {
    /* Brown et al. 2020, table 2.2 */
    { "gpt3", "common_crawl", 60 }, { "gpt3", "webtext2", 22 }, { "gpt3", "books1", 8 },
    { "gpt3", "books2", 8 }, { "gpt3", "wikipedia", 3 },
    /* Touvron et al. 2023, table 1 */
    { "llama1", "common_crawl", 67 }, { "llama1", "c4", 15 }, { "llama1", "github", 4.5 },
    { "llama1", "wikipedia", 4.5 }, { "llama1", "books", 4.5 }, { "llama1", "arxiv", 2.5 },
    { "llama1", "stackexchange", 2 },
    /* Gao et al. 2020, table 1 */
    { "pile", "pile_cc", 18.11 }, { "pile", "pubmed_central", 14.40 }, { "pile", "books3", 12.07 },
    { "pile", "openwebtext2", 10.01 }, { "pile", "arxiv", 8.96 }, { "pile", "github", 7.59 },
    { "pile", "freelaw", 6.12 }, { "pile", "stackexchange", 5.13 }, { "pile", "uspto", 3.65 },
    { "pile", "pubmed_abstracts", 3.07 }, { "pile", "gutenberg", 2.17 },
    { "pile", "opensubtitles", 1.55 }, { "pile", "wikipedia", 1.53 },
    { "pile", "dm_mathematics", 1.24 }, { "pile", "ubuntu_irc", 0.88 },
    { "pile", "bookcorpus2", 0.75 }, { "pile", "europarl", 0.73 }, { "pile", "hackernews", 0.62 },
    { "pile", "youtube_subtitles", 0.60 }, { "pile", "philpapers", 0.38 },
    { "pile", "nih_exporter", 0.30 }, { "pile", "enron_emails", 0.14 },
    /* RedPajama-Data-1T, dataset card: tokens */
    { "redpajama", "common_crawl", 878 }, { "redpajama", "c4", 175 }, { "redpajama", "github", 59 },
    { "redpajama", "arxiv", 28 }, { "redpajama", "books", 26 }, { "redpajama", "wikipedia", 24 },
    { "redpajama", "stackexchange", 20 },
    /* SlimPajama-627B, dataset card */
    { "slimpajama", "common_crawl", 52.2 }, { "slimpajama", "c4", 26.7 },
    { "slimpajama", "github", 5.2 }, { "slimpajama", "arxiv", 4.6 }, { "slimpajama", "books", 4.2 },
    { "slimpajama", "wikipedia", 3.8 }, { "slimpajama", "stackexchange", 3.3 },
    /* Soldaini et al. 2024, table 1: tokens */
    { "dolma", "common_crawl", 2281 }, { "dolma", "the_stack", 411 }, { "dolma", "c4", 198 },
    { "dolma", "reddit", 89 }, { "dolma", "pes2o", 70 }, { "dolma", "gutenberg", 6 },
    { "dolma", "wikipedia", 4.3 },
    /* Raffel et al. 2020 and Penedo et al. 2024: web pages alone, in one source each */
    { "c4", "c4", 100 },
    { "fineweb", "fineweb", 100 },
};
/* clang-format on */

const char *mix_preset_name(int i) {
    const char *last = "";
    for (size_t k = 0; k < COUNT_OF(PRESETS); k++) {
        if (strcmp(PRESETS[k].preset, last) == 0) continue;
        last = PRESETS[k].preset;
        if (i-- == 0) return last;
    }
    return NULL;
}

/* "CommonCrawl" and "common-crawl" are "common_crawl". */
static bool same_name(const char *a, const char *b) {
    for (;;) {
        while (*a && !isalnum((unsigned char)*a)) a++;
        while (*b && !isalnum((unsigned char)*b)) b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
        if (!*a) return true;
        a++, b++;
    }
}

double mix_preset_weight(const char *preset, const char *source) {
    for (size_t k = 0; k < COUNT_OF(PRESETS); k++)
        if (strcmp(PRESETS[k].preset, preset) == 0 && same_name(PRESETS[k].source, source))
            return PRESETS[k].weight;
    return 0;
}

/* ---- the file ----------------------------------------------------------------------------------- */

enum { MOST_BYTES = 1 << 20, MOST_SOURCES = 1000 };

typedef struct mix_reader {
    const char *path;
    yaml_document_t *doc;
    mix_file *m;
} mix_reader;

static int mix_line(const yaml_node_t *n) { return (int)n->start_mark.line + 1; }

static const yaml_node_t *node_at(const mix_reader *r, int index) {
    return yaml_document_get_node(r->doc, index);
}

static err read_mix_text(const mix_reader *r, const yaml_node_t *n, const char *what,
                         const char **out) {
    *out = NULL;
    if (n->type != YAML_SCALAR_NODE || n->data.scalar.length == 0 ||
        strlen((const char *)n->data.scalar.value) != n->data.scalar.length)
        return ERR("%s:%d: %s: expected a text", r->path, mix_line(n), what);
    *out = arena_strdup(r->m->memory, (const char *)n->data.scalar.value);
    return OK;
}

static err read_mix_number(const mix_reader *r, const yaml_node_t *n, const char *what,
                           double *out) {
    const char *text = NULL;
    char *end;
    TRY(read_mix_text(r, n, what, &text));
    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out) || *out <= 0)
        return err_hint(ERR("%s:%d: %s: expected a number above 0; got \"%.40s\"", r->path,
                            mix_line(n), what, text),
                        "weights may be in any unit; leave a source out that is not wanted");
    return OK;
}

/* One path, or a list of them. */
static err read_paths(const mix_reader *r, const yaml_node_t *n, mix_entry *e) {
    if (n->type != YAML_SEQUENCE_NODE) {
        const char **one = arena_alloc(r->m->memory, sizeof *one);
        e->paths = one;
        e->n_paths = 1;
        return read_mix_text(r, n, "path", one);
    }
    yaml_node_item_t *from = n->data.sequence.items.start, *to = n->data.sequence.items.top;
    const char **paths = arena_alloc(r->m->memory, (size_t)(to - from + 1) * sizeof *paths);
    for (yaml_node_item_t *i = from; i < to; i++)
        TRY(read_mix_text(r, node_at(r, *i), "path", &paths[e->n_paths++]));
    e->paths = paths;
    return OK;
}

static err read_mix_member(const mix_reader *r, mix_entry *e, const char *key,
                           const yaml_node_t *value) {
    if (strcmp(key, "name") == 0) return read_mix_text(r, value, key, &e->name);
    if (strcmp(key, "path") == 0 || strcmp(key, "paths") == 0) return read_paths(r, value, e);
    if (strcmp(key, "weight") == 0) return read_mix_number(r, value, key, &e->weight);
    if (strcmp(key, "epochs") == 0) return read_mix_number(r, value, key, &e->epochs);
    return err_hint(
        ERR("%s:%d: \"%.40s\" is not a member of a source", r->path, mix_line(value), key),
        "a source has name, path, weight and epochs");
}

static err read_entry(const mix_reader *r, const yaml_node_t *n, mix_entry *e) {
    if (n->type != YAML_MAPPING_NODE)
        return err_hint(
            ERR("%s:%d: expected a source with a name and a path", r->path, mix_line(n)),
            "write \"- name: web\" and, below it, \"path: FOLDER\"");
    yaml_node_pair_t *from = n->data.mapping.pairs.start, *to = n->data.mapping.pairs.top;
    for (yaml_node_pair_t *p = from; p < to; p++) {
        const char *key = NULL;
        TRY(read_mix_text(r, node_at(r, p->key), "key", &key));
        TRY(read_mix_member(r, e, key, node_at(r, p->value)));
    }
    if (!e->name || !e->n_paths)
        return ERR("%s:%d: a source needs a name and a path", r->path, mix_line(n));
    for (const mix_entry *other = r->m->entries; other < e; other++)
        if (strcmp(other->name, e->name) == 0)
            return ERR("%s:%d: two sources are called \"%s\"", r->path, mix_line(n), e->name);
    return OK;
}

static err read_sources(const mix_reader *r, const yaml_node_t *n) {
    if (n->type != YAML_SEQUENCE_NODE || n->data.sequence.items.start == n->data.sequence.items.top)
        return ERR("%s:%d: sources: expected a list", r->path, mix_line(n));
    if (r->m->entries) return ERR("%s:%d: sources are listed twice", r->path, mix_line(n));
    int64_t count = n->data.sequence.items.top - n->data.sequence.items.start;
    if (count > MOST_SOURCES)
        return ERR("%s:%d: %lld sources; a mix has at most %d", r->path, mix_line(n),
                   (long long)count, MOST_SOURCES);
    r->m->entries = arena_alloc(r->m->memory, (size_t)count * sizeof *r->m->entries);
    for (int64_t i = 0; i < count; i++) {
        TRY(read_entry(r, node_at(r, n->data.sequence.items.start[i]), &r->m->entries[i]));
        r->m->n++;
    }
    return OK;
}

static err apply_preset(const mix_reader *r) {
    mix_file *m = r->m;
    const char *near = NULL, *name;
    bool found = false;
    if (!m->preset) return OK;
    for (int i = 0; (name = mix_preset_name(i)); i++) {
        found = found || strcmp(name, m->preset) == 0;
        near = str_nearer(m->preset, name, near);
    }
    if (!found) {
        err e = ERR("%s: no published mix is called \"%.40s\"", r->path, m->preset);
        if (same_name(m->preset, "llama2") || same_name(m->preset, "llama3"))
            return err_hint(
                e, "its paper does not state the shares of its sources; llama1 is the last of "
                   "the family that does");
        return near
                   ? err_hint(e, "did you mean %s?", near)
                   : err_hint(
                         e,
                         "there are gpt3, llama1, pile, redpajama, slimpajama, dolma, c4, fineweb");
    }
    for (int i = 0; i < m->n; i++) {
        mix_entry *e = &m->entries[i];
        if (!e->weight) e->weight = mix_preset_weight(m->preset, e->name);
        if (!e->weight)
            return err_hint(ERR("%s: the mix %s has no source \"%s\"", r->path, m->preset, e->name),
                            "name the source as the mix does, or give it a weight of its own");
    }
    return OK;
}

/* ---- phases ------------------------------------------------------------------------------------ */
/* { web: 0.3, books: 0.7 } */
static err read_phase_weights(const mix_reader *r, const yaml_node_t *n, mix_phase *s) {
    if (n->type != YAML_MAPPING_NODE)
        return err_hint(
            ERR("%s:%d: weights: expected names of sources with numbers", r->path, mix_line(n)),
            "write weights: { web: 0.3, books: 0.7 }");
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        const char *name = NULL;
        TRY(read_mix_text(r, node_at(r, p->key), "weights", &name));
        int i = 0;
        while (i < r->m->n && strcmp(r->m->entries[i].name, name) != 0) i++;
        if (i == r->m->n)
            return err_hint(
                ERR("%s:%d: weights: no source is called \"%.40s\"", r->path, mix_line(n), name),
                "list it in sources, before phases");
        TRY(read_mix_number(r, node_at(r, p->value), name, &s->weights[i]));
    }
    return OK;
}

static err read_mix_phase(const mix_reader *r, const yaml_node_t *n, mix_phase *s) {
    bool weights = false, from = false;
    if (n->type != YAML_MAPPING_NODE)
        return err_hint(ERR("%s:%d: expected a phase with from and weights", r->path, mix_line(n)),
                        "write - { from: 9e11, weights: { web: 0.3, books: 0.7 } }");
    s->weights = arena_alloc(r->m->memory, (size_t)r->m->n * sizeof *s->weights);
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        const char *key = NULL;
        const yaml_node_t *value = node_at(r, p->value);
        TRY(read_mix_text(r, node_at(r, p->key), "key", &key));
        if (strcmp(key, "from") == 0) {
            const char *text = NULL;
            TRY(read_mix_text(r, value, key, &text));
            from = true; /* 0: the run begins with it */
            if (strcmp(text, "0") != 0)
                TRY(read_mix_number(r, value, "from, in tokens of the run", &s->from));
        } else if (strcmp(key, "weights") == 0) {
            TRY(read_phase_weights(r, value, s));
            weights = true;
        } else {
            return ERR("%s:%d: \"%.40s\" is not a member of a phase, which has from and weights",
                       r->path, mix_line(value), key);
        }
    }
    if (from && weights) return OK;
    return ERR("%s:%d: a phase needs from, in tokens of the run, and weights", r->path,
               mix_line(n));
}

static err read_phases(const mix_reader *r, const yaml_node_t *n) {
    mix_file *m = r->m;
    if (n->type != YAML_SEQUENCE_NODE || !m->n || m->phases)
        return ERR("%s:%d: phases: expected one list, after the sources", r->path, mix_line(n));
    int64_t count = n->data.sequence.items.top - n->data.sequence.items.start;
    if (count > MOST_SOURCES)
        return ERR("%s:%d: %lld phases; a mix has at most %d", r->path, mix_line(n),
                   (long long)count, MOST_SOURCES);
    m->phases = arena_alloc(m->memory, (size_t)count * sizeof *m->phases + 1);
    for (; m->n_phases < count; m->n_phases++) {
        const yaml_node_t *at = node_at(r, n->data.sequence.items.start[m->n_phases]);
        mix_phase *s = &m->phases[m->n_phases];
        TRY(read_mix_phase(r, at, s));
        if (m->n_phases && s->from <= s[-1].from)
            return ERR("%s:%d: a phase begins at %g tokens, after one at %g", r->path, mix_line(at),
                       s->from, s[-1].from);
    }
    return OK;
}

/* ---- weights by size ------------------------------------------------------------------------------------ */

/* { tokens: 1e12, epochs: 4 } */
static err read_unimax(const mix_reader *r, const yaml_node_t *n) {
    if (n->type != YAML_MAPPING_NODE)
        return err_hint(ERR("%s:%d: unimax: expected tokens and epochs", r->path, mix_line(n)),
                        "write unimax: { tokens: 1e12, epochs: 4 }, with the tokens of the run");
    yaml_node_pair_t *from = n->data.mapping.pairs.start, *to = n->data.mapping.pairs.top;
    for (yaml_node_pair_t *p = from; p < to; p++) {
        const char *key = NULL;
        const yaml_node_t *value = node_at(r, p->value);
        TRY(read_mix_text(r, node_at(r, p->key), "key", &key));
        bool tokens = strcmp(key, "tokens") == 0;
        if (!tokens && strcmp(key, "epochs") != 0)
            return err_hint(
                ERR("%s:%d: \"%.40s\" is not a member of unimax", r->path, mix_line(value), key),
                "unimax has tokens and epochs");
        TRY(read_mix_number(r, value, key, tokens ? &r->m->unimax_tokens : &r->m->unimax_epochs));
    }
    if (!r->m->unimax_tokens || !r->m->unimax_epochs)
        return ERR("%s:%d: unimax: needs tokens, those of the run, and epochs", r->path,
                   mix_line(n));
    return OK;
}

/* One of preset, temperature, UniMax and weights of the sources decides. A preset may be overridden by weights. */
static err check_one_rule(const mix_reader *r) {
    const mix_file *m = r->m;
    int weighted = 0;
    for (int i = 0; i < m->n; i++) weighted += m->entries[i].weight > 0;
    bool by_size = m->temperature || m->unimax_tokens;
    if ((m->temperature && m->unimax_tokens) || (by_size && (m->preset || weighted)))
        return err_hint(ERR("%s: two rules for the weights of the sources", r->path),
                        "give weights to the sources, or one of preset, temperature and unimax");
    return OK;
}

/* UniMax (Chung et al. 2023): from the smallest source on, each gets an equal share of what is left of the tokens,
 * but no more than its epochs. */
static void weigh_unimax(mix_file *m, const int64_t *tokens, int present) {
    double left = m->unimax_tokens;
    for (int done = 0, last = -1; done < present; done++) {
        int next = -1;
        for (int i = 0; i < m->n; i++) {
            bool after =
                last < 0 || tokens[i] > tokens[last] || (tokens[i] == tokens[last] && i > last);
            if (tokens[i] >= 0 && after && (next < 0 || tokens[i] < tokens[next])) next = i;
        }
        mix_entry *e = &m->entries[next];
        double epochs = e->epochs ? e->epochs : m->unimax_epochs;
        e->weight = MIN(left / (present - done), epochs * (double)tokens[next]);
        left -= e->weight;
        last = next;
    }
}

void mix_file_weigh(mix_file *m, const int64_t *tokens) {
    int present = 0;
    double most = 0;
    for (int i = 0; i < m->n; i++) {
        present += tokens[i] >= 0;
        most = MAX(most, (double)tokens[i]);
    }
    if (m->unimax_tokens) weigh_unimax(m, tokens, present);
    for (int i = 0; i < m->n && m->temperature; i++)
        if (tokens[i] >= 0)
            m->entries[i].weight =
                pow(MAX((double)tokens[i], 1) / MAX(most, 1), 1 / m->temperature);
}

static err read_mix_document(const mix_reader *r) {
    const yaml_node_t *root = yaml_document_get_root_node(r->doc);
    if (!root || root->type != YAML_MAPPING_NODE)
        return err_hint(ERR("%s: expected \"sources:\" and a list of them", r->path),
                        "docs/data.md shows a mix file");
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top;
         p++) {
        const char *key = NULL;
        const yaml_node_t *value = node_at(r, p->value);
        TRY(read_mix_text(r, node_at(r, p->key), "key", &key));
        if (strcmp(key, "sources") == 0)
            TRY(read_sources(r, value));
        else if (strcmp(key, "preset") == 0)
            TRY(read_mix_text(r, value, key, &r->m->preset));
        else if (strcmp(key, "temperature") == 0)
            TRY(read_mix_number(r, value, key, &r->m->temperature));
        else if (strcmp(key, "unimax") == 0)
            TRY(read_unimax(r, value));
        else if (strcmp(key, "phases") == 0 || strcmp(key, "stages") == 0) /* an earlier name */
            TRY(read_phases(r, value));
        else
            return err_hint(ERR("%s:%d: unknown key \"%.40s\"", r->path, mix_line(value), key),
                            "a mix file has sources, and preset, temperature, unimax or phases");
    }
    if (!r->m->n) return ERR("%s: the mix has no sources", r->path);
    TRY(check_one_rule(r));
    return apply_preset(r);
}

bool mix_file_is(const char *path) { return str_ends(path, ".yaml") || str_ends(path, ".yml"); }

err mix_file_read(const char *path, mix_file *out) {
    *out = (mix_file){ .memory = arena_new() };
    char *text = NULL;
    size_t n;
    err e = io_read(path, MOST_BYTES, &text, &n);
    if (!e) e = config_check_yaml_depth(text, n, path);
    if (e) {
        free(text);
        mix_file_free(out);
        return err_trail(e, __FILE__, __LINE__);
    }
    yaml_parser_t parser;
    yaml_document_t doc;
    BUG_IF(!yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    if (yaml_parser_load(&parser, &doc)) {
        e = read_mix_document(&(mix_reader){ path, &doc, out });
        yaml_document_delete(&doc);
    } else {
        e = ERR("%s:%zu: not valid YAML: %s", path, parser.problem_mark.line + 1,
                parser.problem ? parser.problem : "out of memory");
    }
    yaml_parser_delete(&parser);
    free(text);
    if (e) mix_file_free(out);
    return e;
}

void mix_file_free(mix_file *m) {
    arena_free(m->memory);
    *m = (mix_file){ 0 };
}
