/* ingot data stats: how much there is of what: lengths of documents, sources, ids. */
#include "cli/data_look.h"
#include "io/io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct stats_args {
    const char *input, *tokenizer, *dtype;
    int64_t top;
    bool json, held_out;
} stats_args;

enum { LENGTHS = 41, BAR = 40, MOST_IDS = 1 << 24 };

typedef struct token_stats {
    int64_t documents, tokens;
    int64_t shortest, longest, median;
    int64_t length[LENGTHS]; /* documents of [2^i, 2^(i+1)) tokens */
    int64_t *count;          /* [ids] how often each id is there */
    int64_t ids;             /* largest id + 1 */
    int64_t different;
} token_stats;

/* ---- counting ----------------------------------------------------------------------------------- */

static int class_of(int64_t n) {
    int k = 0;
    while (n >> (k + 1)) k++;
    return MIN(k, LENGTHS - 1);
}

static void measure_documents(const data_source *s, token_stats *t) {
    uint32_t *lengths = mem_alloc((size_t)t->documents * sizeof *lengths);
    t->shortest = INT64_MAX;
    for (int64_t d = 0; d < t->documents; d++) {
        data_range r = data_document(s, d);
        int64_t n = r.to - r.from;
        t->shortest = MIN(t->shortest, n);
        t->longest = MAX(t->longest, n);
        t->length[class_of(n)]++;
        lengths[d] = (uint32_t)MIN(n, UINT32_MAX);
    }
    sort_array(lengths, (size_t)t->documents, sizeof *lengths, compare_uint32);
    t->median = lengths[t->documents / 2];
    free(lengths);
}

/* Ids from MOST_IDS on, which no vocabulary reaches, are counted as the last. */
static err count_ids(const data_source *s, token_stats *t) {
    int32_t ids[4096];
    for (int64_t at = 0; at < t->tokens; at += (int64_t)COUNT_OF(ids)) {
        int64_t n = MIN((int64_t)COUNT_OF(ids), t->tokens - at);
        TRY(data_hold(s, at, n));
        data_read(s, at, n, ids);
        data_release(s, at, n);
        for (int64_t i = 0; i < n; i++) {
            int64_t id = MIN((uint32_t)ids[i], MOST_IDS - 1);
            if (id >= t->ids) {
                int64_t more = MAX(id + 1, 2 * t->ids);
                t->count = mem_grow(t->count, (size_t)more * sizeof *t->count);
                memset(t->count + t->ids, 0, (size_t)(more - t->ids) * sizeof *t->count);
                t->ids = more;
            }
            t->count[id]++;
        }
    }
    while (t->ids > 0 && t->count[t->ids - 1] == 0) t->ids--;
    for (int64_t i = 0; i < t->ids; i++) t->different += t->count[i] > 0;
    return OK;
}

/* @return the most frequent id not returned before; -1: none. Sets its count to 0. */
static int64_t take_commonest(int64_t *count, int64_t ids) {
    int64_t best = -1;
    for (int64_t i = 0; i < ids; i++)
        if (count[i] > 0 && (best < 0 || count[i] > count[best])) best = i;
    return best;
}

/* Sums what the shards record about their sources. @return owned; empty: they record nothing. */
static json_t *sum_sources(const data_source *s) {
    json_t *all = json_object();
    for (int i = 0; i < data_shards(s); i++) {
        data_shard_info d = data_shard_at(s, i);
        json_t *p = d.provenance ? json_loadb(d.provenance, d.provenance_len, 0, NULL) : NULL;
        const char *name;
        json_t *v;
        json_object_foreach(json_object_get(p, "sources"), name, v) {
            static const char *const keys[] = { "documents", "tokens" };
            json_t *sum = json_object_get(all, name);
            if (!sum) {
                sum = json_object();
                json_object_set_new(all, name, sum);
            }
            for (size_t k = 0; k < COUNT_OF(keys); k++)
                json_object_set_new(sum, keys[k],
                                    json_integer(json_integer_value(json_object_get(sum, keys[k])) +
                                                 json_integer_value(json_object_get(v, keys[k]))));
        }
        json_decref(p);
    }
    return all;
}

/* ---- telling ------------------------------------------------------------------------------------ */

static void print_lengths(const token_stats *t) {
    int64_t most = 0;
    int first = class_of(t->shortest), last = class_of(t->longest);
    for (int k = first; k <= last; k++) most = MAX(most, t->length[k]);
    printf("\ndocument length: shortest %lld, median %lld, mean %.1f, longest %lld tokens\n",
           (long long)t->shortest, (long long)t->median, (double)t->tokens / (double)t->documents,
           (long long)t->longest);
    for (int k = first; k <= last; k++) {
        printf("%12lld to %-12lld %12lld  ", 1LL << k, (1LL << (k + 1)) - 1,
               (long long)t->length[k]);
        int full = most ? (int)((double)t->length[k] / (double)most * BAR + 0.5) : 0;
        for (int i = 0; i < MAX(full, t->length[k] > 0); i++) putchar('#');
        putchar('\n');
    }
}

static void print_sources(json_t *sources, int64_t tokens) {
    const char *name;
    json_t *v;
    if (json_object_size(sources) == 0) return;
    printf("\n%12s %14s %7s  source\n", "documents", "tokens", "share");
    json_object_foreach(sources, name, v) {
        double n = (double)json_integer_value(json_object_get(v, "tokens"));
        printf("%12lld %14.0f %6.2f%%  %s\n",
               (long long)json_integer_value(json_object_get(v, "documents")), n,
               100 * n / (double)tokens, *name ? name : "(not given)");
    }
}

/* One id on a line, as JSON writes it, so that spaces and line breaks show. */
static char *quoted_id(const data_source *s, const look_text *l, int64_t id) {
    str text = { 0 };
    int32_t one = (int32_t)id;
    if (l->t)
        tokenizer_decode(l->t, &one, 1, true, &text);
    else if (l->bytes && id < BYTE_EOS)
        byte_decode(&one, 1, &text);
    json_t *j = io_json_string(text.len ? text.text : "", text.len);
    char *out = json_dumps(j, JSON_ENCODE_ANY);
    json_decref(j);
    str_free(&text);
    return out;
}

static void print_common_ids(const stats_args *a, const data_source *s, const look_text *l,
                             token_stats *t) {
    printf("\nids: %lld different, largest %lld\n", (long long)t->different, (long long)t->ids - 1);
    for (int64_t i = 0; i < a->top; i++) {
        int64_t id = take_commonest(t->count, t->ids);
        if (id < 0) break;
        char *text = quoted_id(s, l, id);
        printf("%12lld %14lld %6.2f%%  %s\n", (long long)id, (long long)t->count[id],
               100 * (double)t->count[id] / (double)t->tokens, text);
        free(text);
        t->count[id] = 0;
    }
}

static err print_stats_json(const stats_args *a, const data_source *s, token_stats *t,
                            json_t *sources) {
    json_t *o = look_info_json(data_source_info(s), data_shards(s));
    json_t *lengths = json_array(), *ids = json_array();
    for (int k = 0; k < LENGTHS; k++)
        if (t->length[k])
            json_array_append_new(lengths, json_pack("{s:I, s:I}", "from", (json_int_t)1 << k,
                                                     "documents", (json_int_t)t->length[k]));
    for (int64_t i = 0; i < a->top; i++) {
        int64_t id = take_commonest(t->count, t->ids);
        if (id < 0) break;
        json_array_append_new(
            ids, json_pack("{s:I, s:I}", "id", (json_int_t)id, "count", (json_int_t)t->count[id]));
        t->count[id] = 0;
    }
    json_object_set_new(o, "length",
                        json_pack("{s:I, s:I, s:f, s:I, s:o}", "shortest", (json_int_t)t->shortest,
                                  "median", (json_int_t)t->median, "mean",
                                  (double)t->tokens / (double)t->documents, "longest",
                                  (json_int_t)t->longest, "histogram", lengths));
    json_object_set_new(o, "different_ids", json_integer(t->different));
    json_object_set_new(o, "commonest", ids);
    json_object_set(o, "sources", sources);
    return look_print_json(o);
}

static err print_stats(const stats_args *a, data_source *s, const look_text *l) {
    data_index_documents(s);
    const data_info *info = data_source_info(s);
    token_stats t = { .documents = info->documents, .tokens = info->tokens };
    measure_documents(s, &t);
    err e = count_ids(s, &t);
    json_t *sources = sum_sources(s);
    if (!e && a->json) {
        e = print_stats_json(a, s, &t, sources);
    } else if (!e) {
        look_print_info(info, data_shards(s));
        print_sources(sources, info->tokens);
        print_lengths(&t);
        print_common_ids(a, s, l, &t);
        if (fflush(stdout) != 0) e = ERR("cannot write to standard output: %s", strerror(errno));
    }
    json_decref(sources);
    free(t.count);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    stats_args a = { .top = 10 };
    data_source *s = NULL;
    look_text l = { 0 };
    err e = OK;
    TRY(cli_parse(&self->spec, argc, argv, &a, &a.input));
    TRY(look_open(a.input, a.dtype, a.held_out, &s));
    TRY_CLEAN(look_text_open(s, a.tokenizer, &l));
    TRY_CLEAN(print_stats(&a, s, &l));
cleanup:
    look_text_close(&l);
    data_close(s);
    return e;
}

#define AT(member) offsetof(stats_args, member)
/* clang-format off */
static const cli_arg args[] = {
    { "top", ARG_COUNT, AT(top), "N", "most frequent ids to show (default 10)" },
    { "tokenizer", ARG_TEXT, AT(tokenizer), "FILE", "tokenizer to decode the ids with (default: the one stored beside the shards)", 't' },
    { "dtype", ARG_TEXT, AT(dtype), "TYPE", "id type of a raw .bin file: uint16, uint32 or int64 (default: guessed from the values)" },
    { "held-out", ARG_FLAG, AT(held_out), "", "read the part of a folder that is held out for validation" },
    { "json", ARG_FLAG, AT(json), "", "print JSON" },
};
/* clang-format on */

const cli_subcommand data_stats = {
    .summary = "count documents, tokens, sources and lengths",
    .run = run,
    .spec = { "data stats", "PATH [options]", CLI_ARGS(args), 1, false },
    .help = "Reads every token of a folder of shards, a token file or a text.\n"
            "\n"
            "Example\n"
            "  ingot data stats tokens\n",
};
