/* Documents: which tokens belong together. Token files bring an index; where one has none, ends are
 * found by reading. */
#include "shards/data_internal.h"

err data_begins_with(const data_source *s, const int32_t *ids, int n, bool *out) {
    *out = s->info.tokens >= n;
    if (!*out || n == 0) return OK;
    TRY(data_hold(s, 0, n));
    for (int i = 0; i < n; i++) *out = *out && data_token(s, i) == ids[i];
    data_release(s, 0, n);
    return OK;
}

/* Ends at every eos; what follows the last is a document too. */
static void make_index(data_shard *s, int32_t eos) {
    int64_t docs = 0;
    for (int64_t i = 0; i < s->n && eos >= 0; i++) docs += shard_token(s, i) == eos;
    bool open = eos < 0 || shard_token(s, s->n - 1) != eos;
    s->docs = docs + open;
    s->made_ends = mem_alloc((size_t)s->docs * sizeof *s->made_ends);
    int64_t d = 0;
    for (int64_t i = 0; i < s->n && eos >= 0; i++)
        if (shard_token(s, i) == eos) s->made_ends[d++] = (uint64_t)i + 1;
    if (open) s->made_ends[d] = (uint64_t)s->n;
    s->ends = s->made_ends;
}

void data_index_documents(data_source *s) {
    int64_t documents = 0;
    for (int i = 0; i < s->n; i++) {
        data_shard *shard = &s->shard[i];
        if (!shard->ends) make_index(shard, s->info.eos);
        shard->first_doc = documents;
        documents += shard->docs;
    }
    s->info.documents = documents;
    s->indexed = true;
}

/* @return the shard that has a document. */
static const data_shard *document_shard(const data_source *s, int64_t d) {
    BUG_IF(!s->indexed || d < 0 || d >= s->info.documents);
    int low = 0, high = s->n - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (s->shard[middle].first_doc <= d)
            low = middle;
        else
            high = middle - 1;
    }
    return &s->shard[low];
}

int64_t data_document_prompt(const data_source *s, int64_t d) {
    const data_shard *shard = document_shard(s, d);
    return shard->prompts ? (int64_t)shard->prompts[d - shard->first_doc] : 0;
}

data_range data_document(const data_source *s, int64_t d) {
    const data_shard *shard = document_shard(s, d);
    int64_t k = d - shard->first_doc;
    int64_t from = k > 0 ? (int64_t)shard->ends[k - 1] : 0, to = (int64_t)shard->ends[k];
    return (data_range){ shard->first + from, shard->first + to };
}

int64_t data_document_of(const data_source *s, int64_t i) {
    BUG_IF(!s->indexed);
    const data_shard *shard = source_shard(s, i);
    uint64_t at = (uint64_t)(i - shard->first);
    int64_t low = 0, high = shard->docs - 1; /* the first whose end is after the token */
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (shard->ends[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return shard->first_doc + low;
}

/* Searches for one token's document in a shard that has no index. */
static data_range scan_document(const data_source *s, int64_t i) {
    enum { MOST = 1 << 20 };
    int64_t from = i, to = i;
    int32_t eos = s->info.eos;
    if (s->cache) return (data_range){ i, i + 1 }; /* not for a message */
    if (eos < 0) return (data_range){ 0, s->info.tokens };
    while (from > 0 && i - from < MOST && data_token(s, from - 1) != eos) from--;
    while (to < s->info.tokens && to - i < MOST && data_token(s, to) != eos) to++;
    return (data_range){ from, MIN(to + 1, s->info.tokens) };
}

data_range data_look_up_document(const data_source *s, int64_t i, int64_t *number) {
    const data_shard *here = source_shard(s, i);
    *number = -1;
    if (!here->ends) return scan_document(s, i);
    int64_t before = 0, low = 0, high = here->docs - 1;
    uint64_t at = (uint64_t)(i - here->first);
    for (const data_shard *d = s->shard; d < here && before >= 0; d++)
        before = d->ends ? before + d->docs : -1;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (here->ends[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    if (before >= 0) *number = before + low;
    int64_t from = low > 0 ? (int64_t)here->ends[low - 1] : 0;
    return (data_range){ here->first + from, here->first + (int64_t)here->ends[low] };
}

err shard_check_index(const data_shard *s) {
    if (!s->ends) return OK;
    /* Without a branch in the loop: an index has millions of entries. Empty documents are refused,
     * for two equal ends would make "the document of this token" ambiguous. */
    uint64_t before = 0;
    int64_t bad = 0;
    for (int64_t d = 0; d < s->docs; d++) {
        bad += s->ends[d] <= before;
        before = s->ends[d];
    }
    for (int64_t d = 0; s->prompts && d < s->docs; d++)
        bad += s->prompts[d] > s->ends[d] - (d ? s->ends[d - 1] : 0);
    if (bad || before != (uint64_t)s->n)
        return shard_damaged(s, "the document index does not fit the tokens");
    return OK;
}
