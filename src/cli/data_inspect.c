/* ingot data inspect: what token files or a text hold, shard by shard, with samples. */
#include "cli/data_look.h"
#include "io/io.h"

#include <errno.h>
#include <string.h>

typedef struct inspect_args {
    const char *input, *tokenizer, *dtype;
    int64_t samples, document, seed;
    bool json, verify, held_out;
} inspect_args;

enum { SAMPLE_TOKENS = 200 };

/* ---- shared with stats -------------------------------------------------------------------------- */

err look_text_open(const data_source *s, const char *path, look_text *out) {
    const data_info *info = data_source_info(s);
    *out = (look_text){ .bytes = info->tokenizer == TOKENIZER_BYTES };
    if (!path && !out->bytes) path = info->tokenizer_path;
    if (!path) return OK;
    TRY(tokenizer_open(path, NULL, &out->t));
    if (info->tokenizer_hash == 0 || info->tokenizer_hash == tokenizer_hash(out->t)) return OK;
    look_text_close(out);
    return err_hint(ERR("%s is not the tokenizer that %s was made with", path, info->path),
                    "give the one that was used with --tokenizer");
}

err look_open(const char *path, const char *dtype, bool held_out, data_source **out) {
    data_options o = { .held_out = held_out, .raw_dtype = RAW_GUESS };
    if (dtype) TRY(raw_dtype_parse(dtype, &o.raw_dtype));
    TRY(data_open_paths(&path, 1, &o, out));
    return *out ? OK : ERR("%s: nothing was held out there", path);
}

/* Appends tokens [r.from, r.to) of the source. */
static void look_text_add(const look_text *l, const data_source *s, data_range r, str *out) {
    err e = data_hold(s, r.from, r.to - r.from);
    if (e) {
        str_add(out, "(%s)", err_message(e));
        err_free(e);
        return;
    }
    size_t n = (size_t)(r.to - r.from);
    int32_t *ids = mem_alloc((n + 1) * sizeof *ids);
    data_read(s, r.from, r.to - r.from, ids);
    data_release(s, r.from, r.to - r.from);
    if (l->t)
        tokenizer_decode(l->t, ids, n, true, out);
    else if (l->bytes)
        byte_decode(ids, n, out);
    else
        for (size_t i = 0; i < n; i++) str_add(out, i ? " %lld" : "%lld", (long long)ids[i]);
    free(ids);
}

void look_text_close(look_text *l) {
    tokenizer_free(l->t);
    *l = (look_text){ 0 };
}

void look_print_info(const data_info *info, int shards) {
    printf("file        %s\nformat      %s\ntokenizer   %s\ntokens      %lld\n", info->path,
           info->format, token_kind_name(info->tokenizer), (long long)info->tokens);
    if (info->documents >= 0) printf("documents   %lld\n", (long long)info->documents);
    if (info->vocab > 0) printf("vocabulary  %lld\n", (long long)info->vocab);
    if (info->eos >= 0) printf("end id      %lld\n", (long long)info->eos);
    printf("bytes each  %d\n", info->width);
    if (info->prompts) printf("prompts     documents may begin with one, which has no loss\n");
    if (shards > 1) printf("shards      %d\n", shards);
}

json_t *look_info_json(const data_info *info, int shards) {
    json_t *o =
        json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:i, s:i, s:i}", "file",
                  io_json_string(info->path, strlen(info->path)), "format", info->format,
                  "tokenizer", token_kind_name(info->tokenizer), "tokens", (json_int_t)info->tokens,
                  "documents", (json_int_t)info->documents, "vocabulary", (json_int_t)info->vocab,
                  "end_id", (int)info->eos, "token_bytes", info->width, "shards", shards);
    BUG_IF(o == NULL);
    return o;
}

err look_print_json(json_t *o) {
    io_json_print(stdout, o, JSON_INDENT(2));
    if (fflush(stdout) != 0) return ERR("cannot write to standard output: %s", strerror(errno));
    return OK;
}

/* ---- samples ------------------------------------------------------------------------------------ */

/* A document, or as much of its beginning as is shown. */
static data_range document_head(const data_source *s, int64_t document) {
    data_range r = data_document(s, document);
    return (data_range){ r.from, MIN(r.to, r.from + SAMPLE_TOKENS) };
}

/* @return the document to show: the one asked for, else one chosen by the seed. */
static int64_t sample_at(const inspect_args *a, const data_source *s, int64_t i) {
    if (a->document >= 0) return a->document;
    if (i == 0 && a->seed == 0) return 0;
    uint64_t n = (uint64_t)data_source_info(s)->documents;
    return (int64_t)rng_below(rng_key_of((uint64_t)a->seed, hash_str("inspect")), (uint64_t)i, n);
}

static void print_sample(const data_source *s, const look_text *l, int64_t document) {
    data_range whole = data_document(s, document), r = document_head(s, document);
    str text = { 0 };
    look_text_add(l, s, r, &text);
    printf("\ndocument %lld, %lld tokens:\n%s%s\n", (long long)document,
           (long long)(whole.to - whole.from), text.len ? text.text : "",
           r.to < whole.to ? " ..." : "");
    str_free(&text);
}

static json_t *sample_json(const data_source *s, const look_text *l, int64_t document) {
    data_range whole = data_document(s, document);
    str text = { 0 };
    look_text_add(l, s, document_head(s, document), &text);
    json_t *o = json_pack("{s:I, s:I, s:o}", "document", (json_int_t)document, "tokens",
                          (json_int_t)(whole.to - whole.from), "text",
                          io_json_string(text.len ? text.text : "", text.len));
    str_free(&text);
    return o;
}

/* ---- shards ------------------------------------------------------------------------------------- */

static json_t *shard_json(const data_source *s, int i) {
    data_shard_info d = data_shard_at(s, i);
    json_t *o = json_pack("{s:o, s:I, s:I}", "file", io_json_string(d.path, strlen(d.path)),
                          "tokens", (json_int_t)d.tokens, "documents", (json_int_t)d.documents);
    json_t *p = d.provenance ? json_loadb(d.provenance, d.provenance_len, 0, NULL) : NULL;
    if (p) json_object_set_new(o, "provenance", p);
    return o;
}

static void print_shards(const data_source *s) {
    printf("\n%12s %14s  %s\n", "documents", "tokens", "shard, made from");
    for (int i = 0; i < data_shards(s); i++) {
        json_t *o = shard_json(s, i);
        json_t *inputs = json_object_get(json_object_get(o, "provenance"), "inputs");
        const char *first = json_string_value(json_array_get(inputs, 0));
        data_shard_info d = data_shard_at(s, i);
        printf("%12lld %14lld  %s%s%s", (long long)d.documents, (long long)d.tokens, d.path,
               first ? ", " : "", first ? first : "");
        if (json_array_size(inputs) > 1) printf(" and %zu more", json_array_size(inputs) - 1);
        printf("\n");
        json_decref(o);
    }
}

static err print_inspection(const inspect_args *a, data_source *s, const look_text *l) {
    int64_t samples = a->document >= 0 ? 1 : a->samples;
    data_index_documents(s);
    const data_info *info = data_source_info(s);
    if (a->document >= info->documents)
        return ERR_USAGE("--document: %lld; there are %lld, the first being 0",
                         (long long)a->document, (long long)info->documents);
    if (!a->json) {
        look_print_info(info, data_shards(s));
        if (data_shards(s) > 1 || data_shard_at(s, 0).provenance_len > 2) print_shards(s);
        for (int64_t i = 0; i < samples; i++) print_sample(s, l, sample_at(a, s, i));
        if (fflush(stdout) != 0) return ERR("cannot write to standard output: %s", strerror(errno));
        return OK;
    }
    json_t *o = look_info_json(info, data_shards(s)), *shards = json_array(), *shown = json_array();
    for (int i = 0; i < data_shards(s); i++) json_array_append_new(shards, shard_json(s, i));
    for (int64_t i = 0; i < samples; i++)
        json_array_append_new(shown, sample_json(s, l, sample_at(a, s, i)));
    json_object_set_new(o, "shard_list", shards);
    json_object_set_new(o, "samples", shown);
    return look_print_json(o);
}

static err inspect_source(const inspect_args *a) {
    data_source *s = NULL;
    look_text l = { 0 };
    err e = OK;
    TRY_CLEAN(look_open(a->input, a->dtype, a->held_out, &s));
    if (a->verify) TRY_CLEAN(data_verify(s));
    TRY_CLEAN(look_text_open(s, a->tokenizer, &l));
    TRY_CLEAN(print_inspection(a, s, &l));
cleanup:
    look_text_close(&l);
    data_close(s);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    inspect_args a = { .samples = 1, .document = -1 };
    TRY(cli_parse(&self->spec, argc, argv, &a, &a.input));
    return inspect_source(&a);
}

#define AT(member) offsetof(inspect_args, member)
/* clang-format off */
static const cli_arg args[] = {
    { "samples", ARG_COUNT, AT(samples), "N", "documents to show the beginning of (default 1, the first)" },
    { "seed", ARG_COUNT, AT(seed), "N", "show other documents" },
    { "document", ARG_COUNT, AT(document), "I", "show this one" },
    { "tokenizer", ARG_TEXT, AT(tokenizer), "FILE", "tokenizer to decode the ids with (default: the one stored beside the shards)", 't' },
    { "dtype", ARG_TEXT, AT(dtype), "TYPE", "id type of a raw .bin file: uint16, uint32 or int64 (default: guessed from the values)" },
    { "held-out", ARG_FLAG, AT(held_out), "", "read the part of a folder that is held out for validation" },
    { "verify", ARG_FLAG, AT(verify), "", "read everything and verify checksums and ids" },
    { "json", ARG_FLAG, AT(json), "", "print JSON" },
};
/* clang-format on */

const cli_subcommand data_inspect = {
    .summary = "describe token files or a text, and show some of it",
    .run = run,
    .spec = { "data inspect", "PATH [options]", CLI_ARGS(args), 1, false },
    .help =
        "PATH is a folder of shards, a .tok file, llm.c or nanoGPT .bin, Megatron .bin and .idx,\n"
        "JSON lines or a text.\n"
        "\n"
        "Example\n"
        "  ingot data inspect tokens --samples 3 --seed 1\n",
};
