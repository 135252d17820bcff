/* Which characters of a text get a token: the most frequent, up to a share of the text. */
#include <stdlib.h>

#include "tokenizer/train_internal.h"

void chars_count(uint64_t *seen, const char *word, size_t len, uint64_t count) {
    uint32_t cp;
    for (size_t i = 0; i < len;) {
        i += (size_t)char_decode(word + i, len - i, &cp);
        seen[cp] += count;
    }
}

typedef struct char_count {
    uint64_t count;
    uint32_t cp;
} char_count;

SORT_ORDER(compare_chars, char_count, FALLING(count) RISING(cp));

int64_t chars_choose(const uint64_t *seen, double coverage, bool *covered) {
    uint64_t all = 0, sum = 0;
    size_t n = 0, k = 0;
    int64_t out = 0;
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++) n += seen[cp] > 0, all += seen[cp];
    char_count *order = mem_alloc((n + 1) * sizeof *order);
    for (uint32_t cp = 0; cp < CODE_POINTS; cp++)
        if (seen[cp]) order[k++] = (char_count){ seen[cp], cp };
    sort_array(order, n, sizeof *order, compare_chars);
    for (size_t i = 0; i < n; i++) {
        bool in = i == 0 || (double)sum < coverage * (double)all;
        covered[order[i].cp] = in;
        out += !in;
        sum += order[i].count;
    }
    free(order);
    return out;
}

err too_many_chars(const tokenizer_options *o, int64_t chars) {
    return err_hint(ERR("a vocabulary of %lld ids is too small: the text has %lld characters to "
                        "begin with",
                        (long long)o->vocab, (long long)chars),
                    "raise --vocab, or lower --coverage, the share of the text whose characters "
                    "get tokens");
}
