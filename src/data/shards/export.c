/* Token files for other systems, from any source of tokens. Each format is a row of the table at the end.
 *
 *     megatron   PREFIX.bin, PREFIX.idx: ids, and where documents begin (foreign_shards.c reads them back)
 *     llm.c      PREFIX_000000.bin ...: a header of 1024 bytes and ids
 *     nanogpt    FILE.bin: uint16 ids alone
 *     arrow      FOLDER/data-00000-of-00001.arrow ..., dataset_info.json, state.json: what Hugging Face's
 *                datasets.load_from_disk opens; a row per document, ids as lists in the column "input_ids"
 *
 * Documents are never cut. Ids are copied as they are, with whatever begins and ends documents. */
#include "shards/arrow_out.h"
#include "shards/data_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EXPORT_CHUNK = 1 << 18, MEGATRON_UINT16_BELOW = 65500, UINT16_IDS = 65536 };
static const int64_t SHARD_TOKENS = 100 * 1000 * 1000;

/* ---- ids ------------------------------------------------------------------------------------- */
/* Whether all ids fit 16 bits: by the vocabulary, or where the file does not state one by how it stores them. */
static bool fits_uint16(const data_source *s, int64_t below) {
    const data_info *info = data_source_info(s);
    return info->vocab ? info->vocab <= below : info->width == 2;
}

/* Appends tokens [from, to) as integers of `width` bytes. */
static err write_ids(io_writer *w, const data_source *s, int64_t from, int64_t to, int width) {
    int32_t *ids = mem_grow(NULL, EXPORT_CHUNK * sizeof *ids);
    uint16_t *narrow = mem_grow(NULL, EXPORT_CHUNK * sizeof *narrow);
    err e = OK;
    for (int64_t at = from; at < to && !e;) {
        int64_t n = MIN(to - at, (int64_t)EXPORT_CHUNK);
        e = data_hold(s, at, n);
        if (e) break;
        data_read(s, at, n, ids);
        data_release(s, at, n);
        for (int64_t i = 0; i < n; i++) narrow[i] = (uint16_t)ids[i];
        e = io_writer_write(w, width == 2 ? (const void *)narrow : ids, (size_t)(n * width));
        at += n;
    }
    free(ids);
    free(narrow);
    return e;
}

static char *export_path(const char *prefix, const char *ending) {
    str name = { 0 };
    str_add(&name, "%s%s", prefix, ending);
    return name.text;
}

static err end_file(io_writer *w, err e) {
    if (!e) return io_writer_commit(w);
    io_writer_abort(w);
    return e;
}

/* ---- files of some documents each ------------------------------------------------------------ */
typedef struct token_shards {
    int64_t *first_doc; /* [n + 1] */
    int n, cap;
} token_shards;

/* A file ends with the document that fills it. */
static token_shards plan_shards(const data_source *s, int64_t tokens) {
    token_shards p = { 0 };
    int64_t documents = data_source_info(s)->documents, filled = 0;
    for (int64_t d = 0; d <= documents; d++) {
        if (d == documents || filled == 0) {
            p.first_doc = mem_reserve(p.first_doc, &p.cap, p.n + 1, sizeof *p.first_doc);
            p.first_doc[p.n] = d;
            p.n += d < documents;
        }
        if (d == documents) break;
        data_range r = data_document(s, d);
        filled += r.to - r.from;
        if (filled >= tokens) filled = 0;
    }
    return p;
}

/* ---- Megatron -------------------------------------------------------------------------------- */
static err write_megatron_index(io_writer *w, const data_source *s, int width) {
    uint64_t documents = (uint64_t)data_source_info(s)->documents, version = 1,
             boundaries = documents + 1;
    uint8_t type = width == 2 ? 8 : 4; /* uint16, int32 */
    TRY(io_writer_write(w, "MMIDIDX\0", 9));
    TRY(io_writer_write(w, &version, 8));
    TRY(io_writer_write(w, &type, 1));
    TRY(io_writer_write(w, &documents, 8));
    TRY(io_writer_write(w, &boundaries, 8));
    for (uint64_t d = 0; d < documents; d++) {
        data_range r = data_document(s, (int64_t)d);
        int32_t length = (int32_t)(r.to - r.from);
        if (r.to - r.from > INT32_MAX)
            return ERR("document %" PRIu64 " has %lld tokens, more than Megatron's index can hold",
                       d, (long long)(r.to - r.from));
        TRY(io_writer_write(w, &length, 4));
    }
    for (uint64_t d = 0; d < documents; d++) {
        int64_t at = data_document(s, (int64_t)d).from * width;
        TRY(io_writer_write(w, &at, 8));
    }
    for (uint64_t d = 0; d <= documents; d++) TRY(io_writer_write(w, &d, 8));
    return OK;
}

static err export_megatron(const data_source *s, const data_export_options *o) {
    int width = fits_uint16(s, MEGATRON_UINT16_BELOW - 1) ? 2 : 4; /* as Megatron itself chooses */
    char *bin = export_path(o->out, ".bin"), *idx = export_path(o->out, ".idx");
    io_writer *w = NULL;
    err e = io_writer_open(bin, &w);
    if (!e) e = end_file(w, write_ids(w, s, 0, data_source_info(s)->tokens, width));
    if (!e) e = io_writer_open(idx, &w);
    if (!e) e = end_file(w, write_megatron_index(w, s, width));
    free(bin);
    free(idx);
    return e;
}

/* ---- llm.c ----------------------------------------------------------------------------------- */
static err export_llmc_file(const data_source *s, const char *path, int64_t from, int64_t to,
                            int width) {
    int32_t head[256] = { width == 2 ? 20240520 : 20240801, width == 2 ? 1 : 7,
                          (int32_t)(to - from) };
    io_writer *w = NULL;
    if (to - from > INT32_MAX)
        return err_hint(ERR("%s would have %lld tokens, more than llm.c's header can state", path,
                            (long long)(to - from)),
                        "lower --shard");
    TRY(io_writer_open(path, &w));
    err e = io_writer_write(w, head, sizeof head);
    if (!e) e = write_ids(w, s, from, to, width);
    return end_file(w, e);
}

static char *llmc_path(const data_export_options *o, int i) {
    char number[32];
    snprintf(number, sizeof number, "_%06d.bin", i);
    return export_path(o->out, number);
}

/* Files of another export would be read as if they belonged to this one. */
static err refuse_other_export(const char *path) {
    return err_hint(ERR("%s is not of this export, and would be read with it", path),
                    "remove it, or choose another --out");
}

static err export_llmc(const data_source *s, const data_export_options *o) {
    token_shards p = plan_shards(s, o->shard_tokens ? o->shard_tokens : SHARD_TOKENS);
    int width = fits_uint16(s, UINT16_IDS) ? 2 : 4;
    char *next = llmc_path(o, p.n);
    err e = io_exists(next) ? refuse_other_export(next) : OK;
    free(next);
    for (int i = 0; i < p.n && !e; i++) {
        char *path = llmc_path(o, i);
        e = export_llmc_file(s, path, data_document(s, p.first_doc[i]).from,
                             data_document(s, p.first_doc[i + 1] - 1).to, width);
        free(path);
    }
    free(p.first_doc);
    return e;
}

/* ---- nanoGPT --------------------------------------------------------------------------------- */
static err export_nanogpt(const data_source *s, const data_export_options *o) {
    io_writer *w = NULL;
    if (!fits_uint16(s, UINT16_IDS)) {
        const data_info *info = data_source_info(s);
        err e = info->vocab ? ERR("%s: nanoGPT's files have ids of 16 bits, and the vocabulary has "
                                  "%lld",
                                  info->path, (long long)info->vocab)
                            : ERR("%s: nanoGPT's files have ids of 16 bits, and these are of 32 "
                                  "bits, from a vocabulary of unknown size",
                                  info->path);
        return err_hint(e, "use --to megatron, llm.c or arrow");
    }
    if (!str_ends(o->out, ".bin"))
        return err_hint(
            ERR_USAGE("--out: nanoGPT reads files that end in .bin; %s does not", o->out),
            "name it train.bin or val.bin");
    TRY(io_writer_open(o->out, &w));
    return end_file(w, write_ids(w, s, 0, data_source_info(s)->tokens, 2));
}

/* ---- Arrow ----------------------------------------------------------------------------------- */
enum { BATCH_ROWS = 1000, BATCH_TOKENS = 4 << 20 };

/* Writes a record batch of documents [from, to). */
static err export_batch(io_writer *w, const data_source *s, int64_t from, int64_t to) {
    int64_t rows = to - from, first = data_document(s, from).from;
    int64_t tokens = data_document(s, to - 1).to - first;
    int32_t *ends = mem_grow(NULL, (size_t)(rows + 1) * sizeof *ends);
    str head = { 0 };
    err e = OK;
    ends[0] = 0;
    for (int64_t i = 0; i < rows; i++)
        ends[i + 1] = (int32_t)(data_document(s, from + i).to - first);
    size_t padding = arrow_batch_head(rows, tokens, &head);
    e = io_writer_write(w, head.text, head.len);
    if (!e) e = io_writer_write(w, ends, (size_t)(rows + 1) * sizeof *ends);
    if (!e) e = io_writer_write(w, ARROW_ZEROS, padding);
    if (!e) e = write_ids(w, s, first, first + tokens, 4);
    if (!e) e = io_writer_write(w, ARROW_ZEROS, (size_t)(tokens & 1) * 4);
    free(ends);
    str_free(&head);
    return e;
}

static err export_arrow_file(const data_source *s, const char *path, int64_t from, int64_t to) {
    io_writer *w = NULL;
    str head = { 0 };
    TRY(io_writer_open(path, &w));
    arrow_list_schema("input_ids", &head);
    err e = io_writer_write(w, head.text, head.len);
    for (int64_t d = from; d < to && !e;) {
        int64_t end = d, tokens = 0;
        for (; end < to && end - d < BATCH_ROWS && tokens < BATCH_TOKENS; end++) {
            data_range r = data_document(s, end);
            tokens += r.to - r.from;
        }
        e = tokens > INT32_MAX
                ? ERR("%s: a document of %lld tokens is too long", path, (long long)tokens)
                : export_batch(w, s, d, end);
        d = end;
    }
    if (!e) e = io_writer_write(w, ARROW_END, 8);
    str_free(&head);
    return end_file(w, e);
}

static err write_json_file(const char *folder, const char *name, json_t *doc) {
    BUG_IF(!doc);
    err e = io_json_write(PATH_IN(folder, name), doc);
    json_decref(doc);
    return e;
}

enum { ARROW_NAME = 64 };
static void arrow_name(char *name, int i, int n) {
    snprintf(name, ARROW_NAME, "data-%05d-of-%05d.arrow", i, n);
}

/* The folder may have what this export writes, from when it was interrupted, and nothing else. */
static err check_arrow_folder(const char *folder, int files) {
    char **names = NULL, ours[ARROW_NAME];
    int n = 0, number = 0;
    TRY(io_make_dirs(folder));
    TRY(io_list(folder, &names, &n));
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        bool known = str_ends(names[i], ".tmp") || strcmp(names[i], "dataset_info.json") == 0 ||
                     (strcmp(names[i], "state.json") == 0 &&
                      io_exists(PATH_IN(folder, "dataset_info.json")));
        if (!known && sscanf(names[i], "data-%d-of-", &number) == 1 && number >= 0 &&
            number < files) {
            arrow_name(ours, number, files);
            known = strcmp(names[i], ours) == 0;
        }
        if (!known) e = refuse_other_export(PATH_IN(folder, names[i]));
    }
    io_list_free(names, n);
    return e;
}

static err export_arrow(const data_source *s, const data_export_options *o) {
    token_shards p = plan_shards(s, o->shard_tokens ? o->shard_tokens : SHARD_TOKENS);
    json_t *files = json_array();
    char fingerprint[20];
    err e = check_arrow_folder(o->out, p.n);
    for (int i = 0; i < p.n && !e; i++) {
        char name[ARROW_NAME];
        arrow_name(name, i, p.n);
        e = export_arrow_file(s, PATH_IN(o->out, name), p.first_doc[i], p.first_doc[i + 1]);
        json_array_append_new(files, json_pack("{ss}", "filename", name));
    }
    free(p.first_doc);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, data_hash(s));
    if (!e)
        e = write_json_file(o->out, "dataset_info.json",
                            json_pack("{ss ss s{s{s{ss ss} ss}} ss ss}", "citation", "",
                                      "description", "", "features", "input_ids", "feature",
                                      "dtype", "int32", "_type", "Value", "_type", "Sequence",
                                      "homepage", "", "license", ""));
    if (!e)
        e = write_json_file(o->out, "state.json",
                            json_pack("{sO ss sn s{} sn sb sn}", "_data_files", files,
                                      "_fingerprint", fingerprint, "_format_columns",
                                      "_format_kwargs", "_format_type", "_output_all_columns", 0,
                                      "_split"));
    json_decref(files);
    return e;
}

/* ---- the table ------------------------------------------------------------------------------- */
static const struct export_format {
    const char *name;
    err (*write)(const data_source *s, const data_export_options *o);
    bool shards; /* it has files of --shard tokens */
} export_formats[] = {
    { "megatron", export_megatron, false },
    { "llm.c", export_llmc, true },
    { "nanogpt", export_nanogpt, false },
    { "arrow", export_arrow, true },
};

err data_export(data_source *s, const data_export_options *o) {
    for (size_t i = 0; i < COUNT_OF(export_formats); i++) {
        const struct export_format *f = &export_formats[i];
        if (strcmp(f->name, o->format) != 0) continue;
        if (o->shard_tokens && !f->shards)
            return err_hint(ERR_USAGE("--shard has no effect: %s has one file", f->name),
                            "leave it out");
        data_index_documents(s);
        if (s->info.prompts)
            log_warn(
                "%s: its documents have prompts, which %s does not state: they are exported as "
                "text like the rest",
                s->info.path, f->name);
        return f->write(s, o);
    }
    return ERR_USAGE("--to: \"%s\" is not " DATA_EXPORT_FORMATS, o->format);
}
