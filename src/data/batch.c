/* One window of the source becomes one row of a batch: targets, positions, document starts. */
#include "data/data_internal.h"

/* @return tokens of window w, its last target included: seq_len + 1, fewer at the range's end. */
static int64_t window_tokens(const loader_options *o, int64_t w) {
    int64_t left = o->range.to - o->range.from - w * o->seq_len;
    return MAX(0, MIN(left, o->seq_len + 1));
}

int64_t window_valid(const data_source *s, const loader_options *o, int64_t w) {
    int64_t inputs = window_tokens(o, w) - 1, from = o->range.from + w * o->seq_len, ends = 0;
    if (inputs <= 0) return 0;
    int32_t eos = s->info.eos;
    if (!o->mask_documents || eos < 0) return inputs;
    if (s->info.width == 2) {
        const uint16_t *t = (const uint16_t *)s->tokens + from;
        for (int64_t i = 0; i < inputs; i++) ends += t[i] == eos;
    } else {
        const uint32_t *t = (const uint32_t *)s->tokens + from;
        for (int64_t i = 0; i < inputs; i++) ends += t[i] == (uint32_t)eos;
    }
    return inputs - ends;
}

static err check_ids(const data_source *s, int64_t limit, const int32_t *ids, int64_t n,
                     int64_t from) {
    uint32_t max = 0; /* unsigned: a negative id is the largest */
    for (int64_t i = 0; i < n; i++) max = MAX(max, (uint32_t)ids[i]);
    if (limit <= 0 || (int64_t)max < limit) return OK;
    int64_t at = 0;
    while ((int64_t)(uint32_t)ids[at] < limit) at++;
    return err_hint(ERR("%s: token %lld has id %lld, the model's vocabulary ends at %lld",
                        s->info.path, (long long)(from + at), (long long)(uint32_t)ids[at],
                        (long long)limit - 1),
                    "the file was made with another tokenizer, or it is damaged; `ingot data "
                    "inspect` shows what it holds");
}

err window_fill(const data_source *s, const loader_options *o, int64_t w, int64_t limit,
                int32_t *scratch, int64_t row, data_batch *b) {
    int64_t T = o->seq_len, have = window_tokens(o, w), from = o->range.from + w * T, at = row * T;
    data_read(s, from, have, scratch);
    TRY(check_ids(s, o->vocab_limit, scratch, have, from));
    int64_t begin = 0; /* of the document, or of the piece of one, that token t is in */
    for (int64_t t = 0; t < T; t++) {
        bool real = t < have;
        bool ends = real && o->mask_documents && scratch[t] == s->info.eos;
        bool predicts = t + 1 < have && !ends;
        if (t == have) begin = t; /* padding is a document of its own */
        b->tokens[at + t] = real ? scratch[t] : 0;
        b->targets[at + t] = predicts ? scratch[t + 1] : DATA_NO_TARGET;
        b->pos[at + t] = (int32_t)(t - begin);
        b->start[at + t] = (int32_t)(at + begin);
        b->id[at + t] = from + t;
        b->valid_here += predicts;
        if (ends || t + 1 - begin == limit) begin = t + 1;
    }
    b->window[row] = have > 1 ? w : -1;
    return OK;
}
