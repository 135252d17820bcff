/* Text to shards. data.h describes the folder; text/ splits the input and keeps the order.
 *
 *     segments of input -> blocks of documents -> workers: ids, in the width they are stored in
 *                                              -> in input order: two shards, for short segments one pair for several
 *
 * The index is written first, marked incomplete, so that what a stopped run left is not mistaken for
 * the results of other inputs; a shard that is there is complete, and is kept. */
#include "shards/data_internal.h"

#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "store/store.h"
#include "store/vfs.h"
#include "text/text.h"
#include "tokenizer/tokenizer.h"
#include "util/wait.h"

enum { TRAIN, HELD_OUT, SIDES };
static const char *const SIDE_NAMES[] = { "train", "validation" };

token_kind token_kind_of(const tokenizer *t) {
    const char *kind = tokenizer_kind(t);
    if (strcmp(kind, "bytes") == 0) return TOKENIZER_BYTES;
    return str_starts(kind, "Unigram") ? TOKENIZER_UNIGRAM : TOKENIZER_BPE;
}

/* ---- what documents came from ------------------------------------------------------------------- */

enum { MOST_SOURCES = 256 }; /* those beyond are counted together */
typedef struct source_tally {
    struct {
        char *name; /* owned */
        int64_t documents, tokens;
    } at[MOST_SOURCES + 1];
    int n;
} source_tally;

/* @return its index; t->n: it has none yet. */
static int tally_find(const source_tally *t, const char *name, size_t len) {
    int i = 0;
    while (i < t->n && (strlen(t->at[i].name) != len || memcmp(t->at[i].name, name, len))) i++;
    return i;
}

static void tally_add(source_tally *t, const char *name, size_t len, int64_t documents,
                      int64_t tokens) {
    static const char others[] = "(others)";
    if (len == 0) name = "";
    len = strnlen(name, len);
    int i = tally_find(t, name, len);
    if (i == t->n && i >= MOST_SOURCES) {
        name = others;
        len = sizeof others - 1;
        i = tally_find(t, name, len);
    }
    if (i == t->n) {
        t->at[i].name = strndup(name, len);
        t->at[i].documents = t->at[i].tokens = 0;
        t->n++;
    }
    t->at[i].documents += documents;
    t->at[i].tokens += tokens;
}

static void tally_add_all(source_tally *t, const source_tally *from) {
    for (int i = 0; i < from->n; i++)
        tally_add(t, from->at[i].name, strlen(from->at[i].name), from->at[i].documents,
                  from->at[i].tokens);
}

static void tally_free(source_tally *t) {
    for (int i = 0; i < t->n; i++) free(t->at[i].name);
    t->n = 0;
}

static json_t *tally_json(const source_tally *t) {
    json_t *o = json_object();
    for (int i = 0; i < t->n; i++)
        json_object_set_new(o, t->at[i].name,
                            json_pack("{s:I, s:I}", "documents", (json_int_t)t->at[i].documents,
                                      "tokens", (json_int_t)t->at[i].tokens));
    return o;
}

static void tally_read(source_tally *t, const json_t *o) {
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, name, v) {
        tally_add(t, name, strlen(name), json_integer_value(json_object_get(v, "documents")),
                  json_integer_value(json_object_get(v, "tokens")));
    }
}

/* ---- one block ------------------------------------------------------------------------------------ */

/* Buffers of a thread, and the block it has made, which is written before it begins another:
 * so buffers serve from block to block, and no memory is asked of the system. */
typedef struct tokenize_worker {
    encoder *encoder;
    token_ids ids; /* of one document */
    str prompt;    /* its own, as text */
    int64_t prompts;
    token_buffer side[SIDES];
    source_tally sources[SIDES];
} tokenize_worker;

typedef struct tokenize_job {
    const tokenize_options *o;
    document_layout layout;
    token_writer_options format;
    uint64_t below; /* hashes of documents to hold out; UINT64_MAX is never reached by a fraction */
    tokenize_worker *workers;
    int threads;
    /* of the segment at work */
    token_writer *writer[SIDES];
    source_tally sources[SIDES];
    text_counts read;
    text_progress *progress;
    /* of all that this rank has read */
    tokenize_report *report;
} tokenize_job;

static err tokenize_block(void *ctx, int index, const text_block *b, void *result) {
    const tokenize_job *t = ctx;
    tokenize_worker *w = &t->workers[index];
    *(tokenize_worker **)result = w;
    for (int k = 0; k < SIDES; k++) {
        w->side[k].n = w->side[k].docs = 0;
        tally_free(&w->sources[k]);
    }
    w->prompts = 0;
    for (int i = 0; i < b->n; i++) {
        const text_doc *d = &b->docs[i];
        w->prompt.len = 0;
        if (t->o->prompt_field) text_doc_member(d, t->o->prompt_field, &w->prompt);
        text_span prompt = { w->prompt.text, w->prompt.len };
        size_t masked = document_encode(w->encoder, &t->layout, prompt.at, prompt.len, d->text.at,
                                        d->text.len, &w->ids);
        if (w->ids.n == 0) continue;
        uint64_t seed = prompt.len ? hash_bytes(prompt.at, prompt.len, 0) : 0;
        int k = t->below && hash_bytes(d->text.at, d->text.len, seed) < t->below ? HELD_OUT : TRAIN;
        size_t before = w->side[k].n;
        token_buffer_add(&w->side[k], w->ids.at, w->ids.n, t->layout.append);
        w->side[k].prompts[w->side[k].docs - 1] = masked;
        w->prompts += masked > 0;
        tally_add(&w->sources[k], d->source.at, d->source.len, 1, (int64_t)(w->side[k].n - before));
    }
    return OK;
}

static err write_token_block(void *ctx, const text_block *b, void *result) {
    tokenize_job *t = ctx;
    const tokenize_worker *w = *(tokenize_worker **)result;
    for (int k = 0; k < SIDES; k++) {
        if (w->side[k].docs) TRY(token_writer_add_buffer(t->writer[k], &w->side[k]));
        tally_add_all(&t->sources[k], &w->sources[k]);
    }
    t->report->prompts += w->prompts;
    t->report->documents += (int64_t)w->side[TRAIN].docs;
    t->report->tokens += (int64_t)w->side[TRAIN].n;
    t->report->held_out_documents += (int64_t)w->side[HELD_OUT].docs;
    t->report->held_out_tokens += (int64_t)w->side[HELD_OUT].n;
    return text_progress_add(t->progress, b->raw_bytes);
}

static err tokenize_segment(tokenize_job *t, text_inputs *in, int segment) {
    const text_pipeline flow = { .ctx = t,
                                 .result_size = sizeof(tokenize_worker *),
                                 .work = tokenize_block,
                                 .merge = write_token_block };
    text_counts read = { 0 };
    TRY(text_pipeline_run(in, segment, &flow, t->threads, &read));
    text_counts_add(&t->read, &read);
    t->report->bytes += read.bytes;
    t->report->repaired += read.repaired;
    t->report->invalid += read.invalid;
    t->report->unreadable += read.unreadable;
    t->report->empty += read.empty;
    t->report->excluded += read.excluded;
    return OK;
}

/* ---- segments to their shards ----------------------------------------------------------------------- */

/* @param from, to: the segments the tokens came from. */
static char *make_provenance(const tokenize_job *t, const text_inputs *in, int from, int to,
                             int k) {
    const text_counts *c = &t->read;
    json_t *inputs = json_array();
    const char *last = "";
    for (int i = from; i < to; i++) {
        const char *path = text_segment_path(in, i);
        if (strcmp(path, last) != 0)
            json_array_append_new(inputs, io_json_string(path, strlen(path)));
        last = path;
    }
    json_t *o = json_pack("{s:o, s:i, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I}}", "inputs",
                          inputs, "segment", from, "sources", tally_json(&t->sources[k]), "read",
                          "documents", (json_int_t)c->documents, "bytes", (json_int_t)c->bytes,
                          "repaired", (json_int_t)c->repaired, "invalid", (json_int_t)c->invalid,
                          "unreadable", (json_int_t)c->unreadable, "empty", (json_int_t)c->empty,
                          "excluded", (json_int_t)c->excluded);
    BUG_IF(!o);
    char *text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
    BUG_IF(!text);
    json_decref(o);
    return text;
}

static char *shard_path(const char *folder, int k, int shard) {
    str s = { 0 };
    str_add(&s, "%s/%s-%05d.tok", folder, SIDE_NAMES[k], shard);
    return s.text;
}

static err close_writer(tokenize_job *t, const text_inputs *in, int from, int to, int k) {
    char *text = make_provenance(t, in, from, to, k);
    token_writer *w = t->writer[k];
    t->writer[k] = NULL; /* close frees it, also on error */
    err e = token_writer_close(w, text);
    free(text);
    return e;
}

/* The training shard is closed last: where it is, the other is too. @param segments the first one, and the end. */
static err make_shards(tokenize_job *t, text_inputs *in, const char *folder, int shard,
                       const int *segments) {
    err e = OK;
    t->read = (text_counts){ 0 };
    for (int k = 0; k < SIDES && !e; k++) {
        char *path = shard_path(folder, k, shard);
        e = token_writer_open(path, &t->format, &t->writer[k]);
        free(path);
    }
    for (int i = segments[0]; i < segments[1] && !e; i++) e = tokenize_segment(t, in, i);
    for (int k = SIDES - 1; k >= 0 && !e; k--) e = close_writer(t, in, segments[0], segments[1], k);
    for (int k = 0; k < SIDES; k++) {
        token_writer_abandon(t->writer[k]);
        t->writer[k] = NULL;
        tally_free(&t->sources[k]);
    }
    return e;
}

/* ---- the index ------------------------------------------------------------------------------------ */

typedef struct folder_work {
    tokenize_job *t;
    text_inputs *in;
    const char *folder, *identity;
    bool *whole;    /* [n] shards that are there already */
    int *first;     /* [n + 1] segments of each */
    int64_t *bytes; /* [n] of input */
    int n;
    /* Of rank 0, which looks at the folder: */
    vfs *files;
    store *store; /* NULL: the folder is on a disk */
} folder_work;

typedef struct listing {
    json_t *shards[SIDES];
    source_tally sources;
    int64_t documents[SIDES], tokens[SIDES];
} listing;

/* Reads a shard's own description. @param l NULL: only whether it is there and complete. */
static bool read_shard(const folder_work *w, int shard, int k, listing *l) {
    data_shard s = { .path = shard_path(w->folder, k, shard), .docs = -1 };
    data_info info;
    vfs_info there = { 0 };
    bool whole = false, remote = remote_is(s.path);
    err e = vfs_stat(w->files, s.path, &there);
    if (!e && !there.found) e = ERR("%s is not there", s.path);
    if (!e)
        e = remote ? remote_map_frame(w->store, s.path, there.bytes, &s.file)
                   : io_map(s.path, &s.file);
    if (!e && s.file.data) e = tokfile_parse(&s, &info, &whole);
    whole = whole && !e && s.provenance;
    err_free(e);
    if (whole && l) {
        json_t *p = json_loadb(s.provenance, s.provenance_len, 0, NULL);
        char sum[32];
        snprintf(sum, sizeof sum, "%016llx", (unsigned long long)s.checksum);
        tally_read(&l->sources, json_object_get(p, "sources"));
        json_array_append_new(l->shards[k],
                              json_pack("{s:s, s:I, s:I, s:s, s:O?, s:O?}", "file",
                                        strrchr(s.path, '/') + 1, "tokens", (json_int_t)s.n,
                                        "documents", (json_int_t)s.docs, "xxh64", sum, "inputs",
                                        json_object_get(p, "inputs"), "segment",
                                        json_object_get(p, "segment")));
        json_decref(p);
        l->documents[k] += s.docs;
        l->tokens[k] += s.n;
    }
    if (remote)
        remote_unmap_frame(&s.file);
    else
        io_unmap(&s.file);
    free(s.path);
    return whole;
}

static err write_tokenize_index(const char *folder, const tokenize_options *o, const char *identity,
                                int32_t eos, const listing *l) {
    char hash[32];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tokenizer_hash(o->tokenizer));
    json_t *doc = json_pack("{s:i, s:b, s:s, s:f, s:{s:s, s:s, s:I, s:i, s:s}}", "format", 1,
                            "complete", l != NULL, "identity", identity, "held_out", o->held_out,
                            "tokenizer", "kind", tokenizer_kind(o->tokenizer), "hash", hash,
                            "vocabulary", (json_int_t)tokenizer_vocab(o->tokenizer), "eos",
                            (int)eos, "file", SHARDS_TOKENIZER);
    BUG_IF(!doc);
    for (int k = 0; k < SIDES && l; k++) json_object_set(doc, SIDE_NAMES[k], l->shards[k]);
    if (l) json_object_set_new(doc, "sources", tally_json(&l->sources));
    err e = vfs_json_write(NULL, PATH_IN(folder, SHARDS_INDEX), doc);
    json_decref(doc);
    return e;
}

/* @return what follows `prefix` and digits in a name; NULL: it has another form. */
static const char *after_number(const char *name, const char *prefix) {
    if (!str_starts(name, prefix)) return NULL;
    const char *digits = name + strlen(prefix), *p = digits;
    while (*p >= '0' && *p <= '9') p++;
    return p > digits ? p : NULL;
}

/* Files that this transform writes, and may delete: train-00000.tok, index.json and so on, or with .tmp. */
static bool is_own_file(const char *name) {
    static const char *const single[] = { SHARDS_INDEX, SHARDS_TOKENIZER, CARD_NAME };
    for (size_t i = 0; i < COUNT_OF(single); i++)
        if (str_starts(name, single[i])) {
            const char *rest = name + strlen(single[i]);
            return !*rest || str_ends(rest, ".tmp");
        }
    const char *rest = after_number(name, "train-");
    if (!rest) rest = after_number(name, "validation-");
    return rest && str_starts(rest, ".tok") && (!rest[4] || str_ends(rest, ".tmp"));
}

/* Shards must not go into the input's folder, for example: each would be read as the other. */
static err refuse_foreign_files(const char *folder) {
    vfs_listing l;
    TRY(vfs_list(NULL, folder, &l));
    err e = OK;
    for (int i = 0; i < l.n && !e; i++)
        if (!is_own_file(l.at[i].name) && l.at[i].name[0] != '.')
            e = err_hint(ERR("%s holds other files, such as %s", folder, l.at[i].name),
                         "choose a folder that is empty or not there yet");
    vfs_listing_free(&l);
    return e;
}

/* Removes the files of an earlier run: shards, and temporary files of one that was killed. */
static err remove_leftovers(const char *folder, bool all) {
    vfs_listing l;
    vfs *files = vfs_new();
    err e = vfs_list(files, folder, &l);
    for (int i = 0; i < l.n && !e; i++) {
        if (!is_own_file(l.at[i].name) || !(all || str_ends(l.at[i].name, ".tmp"))) continue;
        e = vfs_remove(files, PATH_IN(folder, l.at[i].name));
    }
    vfs_listing_free(&l);
    vfs_free(files);
    return e;
}

/* An index that is there must be of the same work. */
static err check_identity(const char *folder, const char *identity, bool *there) {
    const char *path = PATH_IN(folder, SHARDS_INDEX);
    json_t *doc = NULL;
    const char *theirs;
    vfs_info index;
    err e = OK;
    TRY_CLEAN(vfs_stat(NULL, path, &index));
    *there = index.found;
    if (!*there) goto cleanup;
    TRY_CLEAN(vfs_json_read(NULL, path, &doc));
    TRY_CLEAN(io_json_text(doc, path, "identity", &theirs));
    if (strcmp(theirs, identity) != 0)
        e = err_hint(ERR("%s holds the tokens of other input, or was made with another tokenizer, "
                         "beginning or end of documents, or fraction held out",
                         folder),
                     "choose another folder, or pass --fresh to make it anew");
cleanup:
    json_decref(doc);
    return e;
}

static err prepare_folder(const char *folder, const tokenize_options *o, const char *identity,
                          int32_t eos) {
    bool there = false;
    TRY(refuse_foreign_files(folder));
    if (!o->fresh) TRY(check_identity(folder, identity, &there));
    TRY(remove_leftovers(folder, o->fresh));
    if (!there) TRY(write_tokenize_index(folder, o, identity, eos, NULL));
    return tokenizer_save(o->tokenizer, PATH_IN(folder, SHARDS_TOKENIZER));
}

/* ---- the whole run ------------------------------------------------------------------------------------ */

static err run_shards(void *ctx, int shard, text_progress *p) {
    const folder_work *w = ctx;
    w->t->progress = p;
    return make_shards(w->t, w->in, w->folder, shard, w->first + shard);
}

/* Prepares the output on rank 0 before any rank reads. */
static err prepare_and_find(const folder_work *w) {
    vfs_listing l;
    TRY(prepare_folder(w->folder, w->t->o, w->identity, w->t->layout.eos));
    TRY(vfs_list(w->files, w->folder, &l));
    for (int i = 0; i < w->n; i++) {
        w->whole[i] = true;
        for (int k = 0; k < SIDES && w->whole[i]; k++) {
            char *path = shard_path(w->folder, k, i);
            w->whole[i] = vfs_find(&l, strrchr(path, '/') + 1) && read_shard(w, i, k, NULL);
            free(path);
        }
    }
    vfs_listing_free(&l);
    return OK;
}

static text_tasks tokenize_tasks(const tokenize_job *t, const bool *whole, void *ctx,
                                 err (*run)(void *, int, text_progress *)) {
    return (text_tasks){ .comm = t->o->comm,
                         .name = t->o->quiet ? NULL : "tokenize",
                         .done = whole,
                         .ctx = ctx,
                         .run = run };
}

static err total_report(tokenize_report *r, comm *c) {
    int64_t *counts[] = { &r->bytes, &r->repaired, &r->invalid, &r->unreadable,
                          &r->empty, &r->excluded, &r->prompts };
    double sums[COUNT_OF(counts)];
    for (size_t i = 0; i < COUNT_OF(counts); i++) sums[i] = (double)*counts[i];
    TRY(comm_total(c, sums, (int)COUNT_OF(counts)));
    for (size_t i = 0; i < COUNT_OF(counts); i++) *counts[i] = (int64_t)sums[i];
    return OK;
}

/* A network file system shows what other hosts write with a delay. */
static bool read_new_shard(const folder_work *w, int shard, int k, listing *l) {
    enum { PATIENCE_S = 30 };
    wait_state patience;
    wait_begin(&patience, comm_world(w->t->o->comm) > 1 ? PATIENCE_S : 0, "shard %d in %s", shard,
               w->folder);
    while (!read_shard(w, shard, k, l))
        if (!wait_nap(&patience)) return false;
    return true;
}

static err list_all(const folder_work *w) {
    tokenize_job *t = w->t;
    const char *folder = w->folder;
    listing l = { .shards = { json_array(), json_array() } };
    err e = OK;
    for (int i = 0; i < w->n && !e; i++)
        for (int k = 0; k < SIDES && !e; k++)
            if (!read_new_shard(w, i, k, &l))
                e = ERR("%s: shard %d of %s is missing or damaged", folder, i, SIDE_NAMES[k]);
    if (!e) e = write_tokenize_index(folder, t->o, w->identity, t->layout.eos, &l);
    t->report->documents = l.documents[TRAIN];
    t->report->tokens = l.tokens[TRAIN];
    t->report->held_out_documents = l.documents[HELD_OUT];
    t->report->held_out_tokens = l.tokens[HELD_OUT];
    for (int k = 0; k < SIDES; k++) json_decref(l.shards[k]);
    tally_free(&l.sources);
    return e;
}

static err list_or_clear(const folder_work *w) {
    TRY(list_all(w));
    if (w->t->report->tokens > 0) return OK;
    TRY(remove_leftovers(w->folder, true)); /* nothing here is worth keeping */
    return err_hint(ERR("%s: the input has no text to train on", w->folder),
                    "check the input: `ingot data filter` reports what it reads");
}

/* With several ranks rank 0 alone looks at what is in the folder, and writes its index. */
static err fill_folder(folder_work *w) {
    tokenize_job *t = w->t;
    comm *c = t->o->comm;
    bool first = comm_rank(c) == 0;
    int n = w->n;
    text_tasks tasks = tokenize_tasks(t, w->whole, w, run_shards);
    tasks.n = n;
    tasks.bytes = w->bytes;
    TRY(comm_agree(c, first ? prepare_and_find(w) : OK));
    TRY(comm_merge(c, w->whole, (size_t)n * sizeof *w->whole));
    TRY(text_tasks_run(&tasks));
    TRY(total_report(t->report, c));
    t->report->shards = n;
    for (int i = 0; i < n; i++) t->report->resumed += w->whole[i];
    return comm_agree(c, first ? list_or_clear(w) : OK);
}

/* Of all that decides what the shards hold. @param n how many shards. */
static uint64_t work_hash(const tokenize_job *t, const text_inputs *in, int n) {
    const document_layout *d = &t->layout;
    const struct {
        uint64_t input, tokenizer, below;
        int64_t eos;
    } what = { text_inputs_hash(in), tokenizer_hash(t->o->tokenizer), t->below, d->eos };
    uint64_t h = hash_bytes(&what, sizeof what, 0);
    if (t->o->prompt_field) h = hash_bytes(t->o->prompt_field, strlen(t->o->prompt_field), h);
    /* As it was where every segment has a shard of its own, and before there were affixes, so that folders from then can be completed. */
    if (n < text_segments(in)) h = hash_bytes(&n, sizeof n, h);
    if (d->affixes.n_prefix + d->affixes.n_suffix == 0 && d->append == d->eos) return h;
    h = hash_bytes(d->affixes.prefix, (size_t)d->affixes.n_prefix * sizeof(int32_t), h);
    h = hash_bytes(d->affixes.suffix, (size_t)d->affixes.n_suffix * sizeof(int32_t), h);
    return hash_bytes(&d->append, sizeof d->append, h);
}

static err write_folder(tokenize_job *t, text_inputs *in, const char *folder) {
    char identity[32];
    size_t most = (size_t)text_segments(in) + 1;
    folder_work w = { .t = t, .in = in, .folder = folder, .identity = identity };
    text_lock *lock = NULL;
    w.whole = mem_alloc(most * sizeof *w.whole);
    w.first = mem_alloc(most * sizeof *w.first);
    w.bytes = mem_alloc(most * sizeof *w.bytes);
    w.n = text_segments_divide(in, w.first, w.bytes);
    snprintf(identity, sizeof identity, "%016llx", (unsigned long long)work_hash(t, in, w.n));
    w.files = vfs_new();
    err e = remote_is(folder) ? store_open(&w.store) : OK;
    if (!e) e = text_lock_folder(t->o->comm, folder, &lock);
    if (!e) e = fill_folder(&w);
    text_unlock_folder(lock);
    store_close(w.store);
    vfs_free(w.files);
    free(w.whole);
    free(w.first);
    free(w.bytes);
    return e;
}

typedef struct file_work {
    tokenize_job *t;
    text_inputs *in;
} file_work;

static err run_into_file(void *ctx, int segment, text_progress *p) {
    const file_work *w = ctx;
    w->t->progress = p;
    return tokenize_segment(w->t, w->in, segment);
}

static err write_token_file(tokenize_job *t, text_inputs *in, const char *path) {
    file_work w = { t, in };
    t->below = 0;
    if (comm_world(t->o->comm) > 1)
        return err_hint(
            ERR_USAGE("--out: %d ranks need a folder, where each writes shards; %s is one file",
                      comm_world(t->o->comm), path),
            "give a folder");
    TRY(token_writer_open(path, &t->format, &t->writer[TRAIN]));
    err e = text_tasks_run_segments(tokenize_tasks(t, NULL, &w, run_into_file), in);
    if (!e && t->report->tokens == 0) e = ERR("%s: the input has no text", path);
    if (!e) e = close_writer(t, in, 0, text_segments(in), TRAIN);
    token_writer_abandon(t->writer[TRAIN]);
    tally_free(&t->sources[TRAIN]);
    t->report->shards = 1;
    return e;
}

static err job_init(tokenize_job *t) {
    const tokenize_options *o = t->o;
    TRY(document_layout_of(o->tokenizer, o->eos, true, &t->layout));
    BUG_IF(!(o->held_out >= 0 && o->held_out <= 1));
    t->below = o->held_out >= 1 ? UINT64_MAX : (uint64_t)(o->held_out * 0x1p64);
    token_kind kind = token_kind_of(o->tokenizer);
    t->format =
        (token_writer_options){ .vocab = tokenizer_vocab(o->tokenizer),
                                .eos = t->layout.eos,
                                .tokenizer = kind,
                                .prompts = o->prompt_field != NULL,
                                .tokenizer_hash =
                                    kind == TOKENIZER_BYTES ? 0 : tokenizer_hash(o->tokenizer) };
    t->threads = o->threads > 0 ? o->threads : thread_cores();
    t->workers = mem_alloc((size_t)t->threads * sizeof *t->workers);
    for (int i = 0; i < t->threads; i++) {
        t->workers[i].encoder = encoder_new(o->tokenizer);
        for (int k = 0; k < SIDES; k++) t->workers[i].side[k].width = token_width(t->format.vocab);
    }
    return OK;
}

err data_tokenize_text(struct text_inputs *in, const char *out, const tokenize_options *o,
                       tokenize_report *report) {
    tokenize_job *t = mem_alloc(sizeof *t);
    t->o = o;
    t->report = report;
    *report = (tokenize_report){ 0 };
    double began = time_now();
    err e = OK;
    TRY_CLEAN(text_inputs_check_output(in, out));
    if (o->prompt_field) text_inputs_keep_members(in);
    TRY_CLEAN(job_init(t));
    e = str_ends(out, ".tok") ? write_token_file(t, in, out) : write_folder(t, in, out);
    report->ranks = comm_world(o->comm);
    report->peak_memory = (int64_t)mem_peak();
    if (!e) e = comm_largest(o->comm, &report->peak_memory);
    report->seconds = time_now() - began;
cleanup:
    for (int i = 0; i < t->threads; i++) {
        tokenize_worker *w = &t->workers[i];
        encoder_free(w->encoder);
        token_ids_free(&w->ids);
        str_free(&w->prompt);
        for (int k = 0; k < SIDES; k++) {
            token_buffer_free(&w->side[k]);
            tally_free(&w->sources[k]);
        }
    }
    free(t->workers);
    free(t);
    return e;
}
