/* Token sources: opens token files and texts, checks that they belong together, and reads their
 * tokens as one sequence that runs through all shards. */
#include "shards/data_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const KIND_NAMES[] = {
    [TOKENIZER_UNKNOWN] = "unknown",
    [TOKENIZER_BYTES] = "bytes",
    [TOKENIZER_BPE] = "bpe",
    [TOKENIZER_UNIGRAM] = "unigram",
};

const char *token_kind_name(token_kind kind) {
    BUG_IF((int)kind < 0 || kind >= TOKENIZER_KINDS);
    return KIND_NAMES[kind];
}

const data_info *data_source_info(const data_source *s) { return &s->info; }

/* ---- reading ------------------------------------------------------------------------------- */

const data_shard *source_shard(const data_source *s, int64_t i) {
    int low = 0, high = s->n - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (s->shard[middle].first <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return &s->shard[low];
}

int32_t data_token(const data_source *s, int64_t i) {
    BUG_IF(i < 0 || i >= s->info.tokens);
    const data_shard *shard = source_shard(s, i);
    return shard_token(shard, i - shard->first);
}

void data_read(const data_source *s, int64_t from, int64_t n, int32_t *out) {
    if (n <= 0) return;
    BUG_IF(from < 0 || from + n > s->info.tokens);
    for (const data_shard *shard = source_shard(s, from); n > 0; shard++) {
        int64_t at = from - shard->first, here = MIN(n, shard->n - at);
        if (shard->width == 2) {
            const uint16_t *restrict t = (const uint16_t *)shard->tokens + at;
            int32_t *restrict to = out;
            for (int64_t i = 0; i < here; i++) to[i] = t[i];
        } else {
            memcpy(out, (const uint32_t *)shard->tokens + at, (size_t)here * sizeof *out);
        }
        from += here;
        n -= here;
        out += here;
    }
}

/* ---- tokens in an object store --------------------------------------------------------------- */

typedef enum { REQUEST, HOLD, RELEASE } cache_verb;

/* Does one of the three with every shard that holds tokens of a range. */
static err visit_range(const data_source *s, int64_t from, int64_t n, cache_verb verb,
                       int64_t *done) {
    err e = OK;
    if (!s->cache || n <= 0) return OK;
    BUG_IF(from < 0 || from + n > s->info.tokens);
    for (const data_shard *shard = source_shard(s, from); n > 0 && !e; shard++) {
        int64_t at = from - shard->first, here = MIN(n, shard->n - at);
        int64_t a = at * shard->width, b = (at + here) * shard->width;
        if (shard->cached >= 0 && verb == REQUEST)
            chunk_cache_request(s->cache, shard->cached, a, b);
        if (shard->cached >= 0 && verb == RELEASE)
            chunk_cache_release(s->cache, shard->cached, a, b);
        if (shard->cached >= 0 && verb == HOLD) e = chunk_cache_hold(s->cache, shard->cached, a, b);
        from += here;
        n -= here;
        if (!e) *done += here;
    }
    return e;
}

err data_hold(const data_source *s, int64_t from, int64_t n) {
    int64_t done = 0;
    err e = visit_range(s, from, n, HOLD, &done);
    if (e) data_release(s, from, done);
    return e;
}

void data_release(const data_source *s, int64_t from, int64_t n) {
    int64_t done = 0;
    err_free(visit_range(s, from, n, RELEASE, &done)); /* only holding fails */
}

void source_request(const data_source *s, int64_t from, int64_t n) {
    int64_t done = 0;
    err_free(visit_range(s, from, n, REQUEST, &done));
}

chunk_cache_stats data_cache_stats(const data_source *s) {
    return s->cache ? chunk_cache_statistics(s->cache) : (chunk_cache_stats){ 0 };
}

/* ---- reading, continued ---------------------------------------------------------------------- */

token_view source_view(const data_source *s, int64_t from, int64_t n, int32_t *buffer) {
    BUG_IF(from < 0 || from + n > s->info.tokens);
    const data_shard *shard = source_shard(s, from);
    int64_t at = from - shard->first;
    if (at + n <= shard->n)
        return (token_view){ (const char *)shard->tokens + at * shard->width, shard->width, n };
    data_read(s, from, n, buffer);
    return (token_view){ buffer, 4, n };
}

/* Sums in the tokens' own width, in enough lanes that no sum waits for the one before it. */
static int64_t count_narrow(const uint16_t *t, int64_t n, uint16_t id) {
    enum { LANES = 32, STRETCH = LANES * UINT16_MAX };
    int64_t count = 0, i = 0;
    while (n - i >= LANES) {
        uint16_t some[LANES] = { 0 };
        int64_t to = MIN(n, i + STRETCH);
        for (; i + LANES <= to; i += LANES)
            for (int k = 0; k < LANES; k++) some[k] = (uint16_t)(some[k] + (t[i + k] == id));
        uint32_t sum = 0;
        for (int k = 0; k < LANES; k++) sum += some[k];
        count += sum;
    }
    for (; i < n; i++) count += t[i] == id;
    return count;
}

int64_t view_count(const token_view *v, int64_t from, int64_t to, int32_t id) {
    if (v->width == 2)
        return id > UINT16_MAX || id < 0
                   ? 0
                   : count_narrow((const uint16_t *)v->at + from, to - from, (uint16_t)id);
    const uint32_t *t = v->at;
    uint32_t count = 0;
    for (int64_t i = from; i < to; i++) count += t[i] == (uint32_t)id;
    return count;
}

uint32_t view_largest(const token_view *v) {
    if (v->width == 2) {
        const uint16_t *t = v->at;
        uint16_t max = 0;
        for (int64_t i = 0; i < v->n; i++) max = MAX(max, t[i]);
        return max;
    }
    const uint32_t *t = v->at;
    uint32_t max = 0;
    for (int64_t i = 0; i < v->n; i++) max = MAX(max, t[i]);
    return max;
}

/* ---- identity ------------------------------------------------------------------------------ */
static uint64_t shard_hash(const data_shard *s) {
    enum { SAMPLES = 4096, SAMPLE_BYTES = 4096 };
    const char *bytes = s->tokens;
    size_t n = (size_t)s->n * (size_t)s->width;
    if (s->has_checksum) return s->checksum;
    if (n <= DATA_VERIFY_BYTES) return hash_bytes(bytes, n, 0);
    uint64_t hash = 0;
    for (size_t i = 0; i < SAMPLES; i++)
        hash = hash_bytes(bytes + (n - SAMPLE_BYTES) / (SAMPLES - 1) * i, SAMPLE_BYTES, hash);
    return hash;
}

uint64_t data_hash(const data_source *s) {
    uint64_t hash = 0;
    for (int i = 0; i < s->n; i++) {
        uint64_t facts[2] = { shard_hash(&s->shard[i]), (uint64_t)s->shard[i].n };
        hash = hash_bytes(facts, sizeof facts, hash);
    }
    return hash;
}

/* ---- checking ---------------------------------------------------------------------------- */

static err id_beyond(const data_shard *s, uint32_t max, int64_t limit, const char *whose) {
    int64_t at = 0;
    while ((uint32_t)shard_token(s, at) < (uint64_t)limit) at++;
    return err_hint(ERR("%s: id %lld at token %lld is outside %s vocabulary of %lld (largest id in "
                        "the file: %lld)",
                        s->path, (long long)(uint32_t)shard_token(s, at), (long long)at, whose,
                        (long long)limit, (long long)max),
                    "the file's tokenizer differs from the model's; tokenize the text "
                    "again, or set model.vocab_size to at least %lld",
                    (long long)max + 1);
}

/* @return the largest id of a shard; of one that takes long to read, of samples spread over it. */
static uint32_t largest_sampled(const data_shard *s) {
    enum { SAMPLES = 4096, SAMPLE = 4096 }; /* of ids */
    if (s->n * s->width <= DATA_VERIFY_BYTES)
        return view_largest(&(token_view){ s->tokens, s->width, s->n });
    uint32_t max = 0;
    for (int64_t i = 0; i < SAMPLES; i++) {
        int64_t at = (s->n - SAMPLE) / (SAMPLES - 1) * i;
        const char *from = (const char *)s->tokens + at * s->width;
        max = MAX(max, view_largest(&(token_view){ from, s->width, SAMPLE }));
    }
    return max;
}

err data_check_ids(const data_source *s, int64_t vocab) {
    if (s->info.vocab > 0 || (s->below > 0 && s->below <= vocab)) return OK;
    for (int i = 0; i < s->n; i++) {
        if (s->shard[i].cached >= 0) continue; /* only formats that state a vocabulary */
        uint32_t max = largest_sampled(&s->shard[i]);
        if (max >= vocab) return id_beyond(&s->shard[i], max, vocab, "the model's");
    }
    return OK;
}

static err verify_shard(const data_source *s, const data_shard *shard) {
    size_t bytes = (size_t)shard->n * (size_t)shard->width;
    if (shard->has_checksum && hash_bytes(shard->tokens, bytes, 0) != shard->checksum)
        return err_hint(ERR("%s: the tokens do not match the checksum in the trailer", shard->path),
                        "the file was damaged after it was written; make it again with `ingot data "
                        "tokenize`, or copy it again");
    uint32_t max = view_largest(&(token_view){ shard->tokens, shard->width, shard->n });
    if (s->info.vocab > 0 && max >= s->info.vocab)
        return id_beyond(shard, max, s->info.vocab, "the file's own");
    if (s->vocab_limit > 0 && max >= s->vocab_limit)
        return id_beyond(shard, max, s->vocab_limit, "the model's");
    return OK;
}

/* Chunks are verified as they arrive: what is left is to look at their ids. */
static err verify_remote(const data_source *s, const data_shard *shard) {
    int64_t limit = s->vocab_limit > 0 ? s->vocab_limit : s->info.vocab;
    for (int64_t at = 0; at < shard->n;) {
        int64_t n = MIN(shard->n - at, (int64_t)(TOKFILE_CHUNK / shard->width));
        TRY(data_hold(s, shard->first + at, n));
        token_view v = { (const char *)shard->tokens + at * shard->width, shard->width, n };
        bool beyond = limit > 0 && view_largest(&v) >= limit;
        data_release(s, shard->first + at, n);
        if (beyond)
            return ERR("%s: an id of tokens %lld to %lld is outside the vocabulary of %lld",
                       shard->path, (long long)at, (long long)(at + n - 1), (long long)limit);
        at += n;
    }
    return OK;
}

err data_verify(const data_source *s) {
    for (int i = 0; i < s->n; i++)
        TRY(s->shard[i].cached < 0 ? verify_shard(s, &s->shard[i])
                                   : verify_remote(s, &s->shard[i]));
    return OK;
}

/* All tokens are read now only where that takes next to no time. */
static err check_source(data_source *s) {
    if (s->vocab_limit > 0 && s->info.vocab > s->vocab_limit)
        return err_hint(ERR("%s: made with a vocabulary of %lld, the model has %lld", s->info.path,
                            (long long)s->info.vocab, (long long)s->vocab_limit),
                        "give the model a vocabulary of at least %lld, or tokenize the text with "
                        "the model's tokenizer",
                        (long long)s->info.vocab);
    if (s->info.tokens * s->info.width > DATA_VERIFY_BYTES || s->cache) return OK;
    TRY(data_verify(s));
    s->below = s->vocab_limit > 0 ? s->vocab_limit : s->info.vocab;
    return OK;
}

/* ---- joining shards ---------------------------------------------------------------------- */

static data_source *source_new(const char *path, int64_t vocab_limit) {
    data_source *s = mem_alloc(sizeof *s);
    s->path = strdup(path);
    s->info = (data_info){ .path = s->path, .eos = -1 };
    s->vocab_limit = vocab_limit;
    return s;
}

data_shard *source_add(data_source *s, const char *path) {
    data_shard *shard = &LIST_ADD(s->shard, s->n, s->capacity);
    *shard = (data_shard){ .path = strdup(path), .docs = -1, .cached = -1 };
    return shard;
}

static err mismatch_error(const data_source *s, const char *what, long long here,
                          long long before) {
    return err_hint(ERR("%s: its %s is %lld, that of %s is %lld", s->shard[s->n - 1].path, what,
                        here, s->shard[0].path, before),
                    "files of one source must come from one tokenizer; name the others as sources "
                    "of their own in a mix file");
}

err source_join(data_source *s, const data_info *info) {
    data_shard *shard = &s->shard[s->n - 1];
    data_info *all = &s->info;
    TRY(shard_check_index(shard));
    shard->first = all->tokens;
    if (s->n == 1) {
        const char *path = all->path, *tokenizer_path = all->tokenizer_path;
        *all = *info;
        all->path = path;
        all->tokenizer_path = tokenizer_path;
        all->tokens = 0;
        all->documents = 0;
    }
    if (info->eos != all->eos) return mismatch_error(s, "end of document id", info->eos, all->eos);
    if (info->tokenizer != all->tokenizer || info->tokenizer_hash != all->tokenizer_hash)
        return mismatch_error(s, "tokenizer hash", (long long)info->tokenizer_hash,
                              (long long)all->tokenizer_hash);
    if (all->format != info->format) all->format = "several formats";
    all->vocab = all->vocab && info->vocab ? MAX(all->vocab, info->vocab) : 0;
    all->width = MAX(all->width, shard->width);
    all->tokens += shard->n;
    all->documents = all->documents < 0 || shard->docs < 0 ? -1 : all->documents + shard->docs;
    return OK;
}

/* ---- opening ----------------------------------------------------------------------------- */

/* Token files stay mapped; a text is left behind once its bytes have become tokens. */
static err open_token_file(data_shard *s, const data_options *o, data_info *info) {
    static const file_parser parsers[] = { tokfile_parse, foreign_parse };
    if (!remote_is(s->path) && megatron_is(s->path)) return megatron_open(s, info);
    if (io_is_dir(s->path) || remote_is(s->path)) return text_tokenize(s, o, info);
    TRY(io_map(s->path, &s->file));
    if (s->file.size == 0) return ERR("%s is empty", s->path);
    bool found = false;
    for (size_t i = 0; i < COUNT_OF(parsers) && !found; i++) TRY(parsers[i](s, info, &found));
    if (!found && str_ends(s->path, ".bin")) {
        TRY(raw_parse(s, o->raw_dtype, info));
    } else if (!found) {
        TRY(text_tokenize(s, o, info));
        io_unmap(&s->file);
    }
    if (s->n == 0) return ERR("%s holds no tokens", s->path);
    return OK;
}

/* Opens one path into `s`. @param shards of a folder: whether those held out are meant. */
static err source_open_path(data_source *s, const char *path, const data_options *o) {
    bool found = false;
    if (remote_is(path)) TRY(remote_open(s, path, o, &found));
    if (found) return OK;
    if (shards_are_in(path)) return shards_open(s, path, o->held_out);
    if (o->held_out) return OK; /* only folders have a part held out */
    data_info info = { .eos = -1 };
    TRY(open_token_file(source_add(s, path), o, &info));
    return source_join(s, &info);
}

err data_open_paths(const char *const *paths, int n, const data_options *o, data_source **out) {
    BUG_IF(n < 1);
    data_source *s = source_new(paths[0], o->vocab_limit);
    err e = OK;
    for (int i = 0; i < n; i++) TRY_CLEAN(source_open_path(s, paths[i], o));
    *out = NULL;
    if (o->held_out && s->info.tokens == 0) goto cleanup;
    if (s->info.tokens == 0) {
        e = ERR("%s holds no tokens", paths[0]);
        goto cleanup;
    }
    if (s->cache) TRY_CLEAN(chunk_cache_start(s->cache));
    TRY_CLEAN(check_source(s));
    bool indexed = true;
    for (int i = 0; i < s->n; i++) {
        indexed = indexed && s->shard[i].ends;
        s->info.prompts |= s->shard[i].prompts != NULL;
    }
    if (indexed || s->info.prompts)
        data_index_documents(s); /* takes no reading where all have an index */
    *out = s;
    s = NULL;
cleanup:
    data_close(s);
    return e;
}

err data_open(const char *path, int64_t vocab_limit, data_source **out) {
    return data_open_paths(&path, 1, &(data_options){ .vocab_limit = vocab_limit }, out);
}

err data_open_synth(uint64_t seed, int64_t documents, data_source **out) {
    if (documents < 1)
        return ERR("a synthetic corpus needs a document, %lld were asked for",
                   (long long)documents);
    data_source *s = source_new("synthetic corpus", 0);
    token_buffer t = { .width = 2 };
    str text = { 0 };
    for (int64_t i = 0; i < documents; i++) {
        text.len = 0;
        data_synth_document(seed, i, NULL, &text);
        token_buffer_add_bytes(&t, text.text, text.len);
    }
    str_free(&text);
    token_buffer_move(&t, source_add(s, s->path));
    data_info info = byte_info("synthetic");
    err_free(source_join(s, &info)); /* the first shard goes with any source */
    *out = s;
    return OK;
}

err data_open_memory(const int32_t *tokens, int64_t n, int64_t vocab, int32_t eos,
                     data_source **out) {
    BUG_IF(n < 1);
    data_source *s = source_new("tokens in memory", 0);
    data_shard *shard = source_add(s, s->path);
    shard->made = mem_alloc((size_t)n * sizeof *tokens);
    memcpy(shard->made, tokens, (size_t)n * sizeof *tokens);
    shard->tokens = shard->made;
    shard->n = n;
    shard->width = 4;
    err e = OK;
    TRY_CLEAN(source_join(s, &(data_info){ .format = "memory", .vocab = vocab, .eos = eos }));
    TRY_CLEAN(data_verify(s));
    *out = s;
    s = NULL;
cleanup:
    data_close(s);
    return e;
}

void data_close(data_source *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) {
        if (s->shard[i].cached < 0) io_unmap(&s->shard[i].file);
        free(s->shard[i].made);
        free(s->shard[i].made_ends);
        free(s->shard[i].path);
    }
    chunk_cache_free(s->cache); /* unmaps its shards */
    free(s->shard);
    free(s->tokenizer);
    free(s->path);
    free(s);
}

int data_shards(const data_source *s) { return s->n; }

data_shard_info data_shard_at(const data_source *s, int i) {
    BUG_IF(i < 0 || i >= s->n);
    const data_shard *d = &s->shard[i];
    return (data_shard_info){ d->path, d->n, d->docs, d->provenance, d->provenance_len };
}

/* ---- the held-out part ------------------------------------------------------------------- */

/* @return whether token i is the last of a document. */
static bool ends_document(const data_source *s, int64_t i) {
    if (!s->indexed) return s->info.eos >= 0 && data_token(s, i) == s->info.eos;
    return data_document(s, data_document_of(s, i)).to == i + 1;
}

err data_split(const data_source *s, double fraction, int64_t seq_len, data_range *train,
               data_range *held_out) {
    int64_t n = s->info.tokens, need = seq_len + 1;
    if (!(fraction > 0 && fraction < 1))
        return err_hint(ERR("a held-out fraction of %g", fraction), "it must be between 0 and 1");
    int64_t split = n - MAX((int64_t)((double)n * fraction), need);
    if (split < need)
        return err_hint(ERR("%s has %lld tokens: too few for a window of %lld to train on and one "
                            "held out",
                            s->info.path, (long long)n, (long long)seq_len),
                        "use a longer file or a shorter sequence");
    /* Back to the end of a document, unless that costs much of the training part or of time. */
    int64_t least = MAX(need, split - MIN(split / 10, 1 << 20)), at = split;
    while (at > least && !ends_document(s, at - 1)) at--;
    if (at > least) split = at;
    *train = (data_range){ 0, split };
    *held_out = (data_range){ split, n };
    return OK;
}
