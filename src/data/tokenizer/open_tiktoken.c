/* .tiktoken files, and Llama 3's tokenizer.model, which is one: a token in base64 and its rank, which is its
 * id, on each line. Merges are not listed: any two tokens whose joint bytes are a token may be joined, at that
 * token's rank. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "tokenizer/chars_internal.h"
#include "tokenizer/open_internal.h"

static const size_t MAX_FILE = (size_t)256 << 20;

/* ---- what the files do not contain ------------------------------------------------------------------------ */

typedef struct special_token {
    const char *text;
    int32_t id;
} special_token;

/* OpenAI's vocabularies, known by pattern and size, with their special tokens. */
static const struct {
    const char *name, *pattern;
    int64_t tokens; /* ids in the file are below */
    special_token special[6];
} openai[] = {
    { "r50k", "gpt2", 50256, { { "<|endoftext|>", 50256 } } },
    { "gpt2", "gpt2", 50256, { { "<|endoftext|>", 50256 } } },
    { "p50k", "gpt2", 50281, { { "<|endoftext|>", 50256 } } },
    { "cl100k",
      "cl100k",
      100256,
      { { "<|endoftext|>", 100257 },
        { "<|fim_prefix|>", 100258 },
        { "<|fim_middle|>", 100259 },
        { "<|fim_suffix|>", 100260 },
        { "<|endofprompt|>", 100276 } } },
    { "o200k", "o200k", 199998, { { "<|endoftext|>", 199999 }, { "<|endofprompt|>", 200018 } } },
};

/* Llama 3's, known by its size: 128000 tokens and 256 special ones. */
enum { LLAMA3_TOKENS = 128000, LLAMA3_SPECIAL = 256, MAX_SPECIAL = LLAMA3_SPECIAL };

static err pattern_of(const char *path, int64_t tokens, const char **pattern) {
    const char *name = strrchr(path, '/');
    if (*pattern) return splitter_check(*pattern);
    name = name ? name + 1 : path;
    for (size_t i = 0; i < COUNT_OF(openai) && !*pattern; i++)
        if (str_starts(name, openai[i].name)) *pattern = openai[i].pattern;
    if (!*pattern && tokens == LLAMA3_TOKENS) *pattern = "cl100k";
    if (*pattern) return OK;
    return err_hint(ERR("%s does not specify the pattern by which text is split", path),
                    "give --pattern: gpt2, cl100k, o200k or a regular expression");
}

/* ---- lines ---------------------------------------------------------------------------------------------- */

typedef struct tokens {
    text_span *at; /* [n] in id order; empty: none */
    int64_t n, capacity, lines;
    str bytes;
    size_t *starts; /* of each id's bytes, plus 1; 0: none */
    size_t *lens;
} tokens;

static void tokens_free(tokens *t) {
    free(t->at);
    free(t->starts);
    free(t->lens);
    str_free(&t->bytes);
}

static void reserve_ranks(tokens *t, int64_t id) {
    if (id < t->capacity) return;
    int64_t capacity = MAX(id + 1, t->capacity * 2 + 1024);
    t->starts = mem_grow(t->starts, (size_t)capacity * sizeof *t->starts);
    t->lens = mem_grow(t->lens, (size_t)capacity * sizeof *t->lens);
    memset(t->starts + t->capacity, 0, (size_t)(capacity - t->capacity) * sizeof *t->starts);
    memset(t->lens + t->capacity, 0, (size_t)(capacity - t->capacity) * sizeof *t->lens);
    t->capacity = capacity;
}

static err add_rank_line(const char *path, int64_t line, const char *s, tokens *t) {
    const char *gap = strchr(s, ' ');
    size_t before = t->bytes.len;
    char *end = NULL;
    long id = gap ? strtol(gap + 1, &end, 10) : -1;
    bool good = gap && end > gap + 1 && !*end && base64_to_bytes(s, (size_t)(gap - s), &t->bytes);
    if (!good || t->bytes.len == before)
        return ERR("%s:%lld: expected a token in base64 and its rank, got \"%.40s\"", path,
                   (long long)line, s);
    if (id < 0 || id >= MIN(8 * line + 4096, TOKEN_MAX_ID))
        return ERR("%s:%lld: the rank %ld makes no sense there", path, (long long)line, id);
    reserve_ranks(t, id);
    if (t->starts[id]) return ERR("%s:%lld: the rank %ld came before", path, (long long)line, id);
    t->starts[id] = before + 1;
    t->lens[id] = t->bytes.len - before;
    t->n = MAX(t->n, id + 1);
    return OK;
}

static err read_tokens(const char *path, tokens *t) {
    char *text = NULL;
    TRY(io_read(path, MAX_FILE, &text, NULL));
    char *rest = text;
    err e = OK;
    for (int64_t line = 1; rest && !e; line++) {
        char *s = strsep(&rest, "\n");
        size_t n = strlen(s);
        if (n && s[n - 1] == '\r') s[n - 1] = 0;
        if (s[0]) e = add_rank_line(path, line, s, t);
    }
    free(text);
    if (!e && t->n == 0) e = ERR("%s holds no tokens", path);
    return e;
}

/* ---- merges ----------------------------------------------------------------------------------------------- */

/* A token can only be made of one pair: the last two that joining its own bytes by rank leaves. For
 * whatever else could be joined to it would have been joined otherwise before. */
typedef struct join {
    size_t start; /* of each part; the last is the end */
    int32_t id;
} join;

static size_t lowest_join(const bpe *b, const char *s, const join *part, size_t n) {
    size_t best = n;
    int32_t rank = INT32_MAX;
    for (size_t i = 0; i + 1 < n; i++) {
        int32_t id = bpe_find(b, s + part[i].start, part[i + 2].start - part[i].start);
        if (id >= 0 && id < rank) rank = id, best = i;
    }
    return best;
}

static bool last_pair(const bpe *b, text_span t, join *part, bpe_pair *out) {
    size_t n = t.len;
    for (size_t i = 0; i <= n; i++) {
        part[i] = (join){ i, i < n ? bpe_find(b, t.at + i, 1) : -1 };
        if (i < n && part[i].id < 0) return false;
    }
    while (n > 2) {
        size_t i = lowest_join(b, t.at, part, n);
        if (i == n) return false;
        part[i].id = bpe_find(b, t.at + part[i].start, part[i + 2].start - part[i].start);
        memmove(&part[i + 1], &part[i + 2], (n - i - 1) * sizeof *part);
        n--;
    }
    *out = (bpe_pair){ part[0].id, part[1].id };
    return true;
}

/* Finds the pair where only one split of a token leaves two tokens. @return how many splits do. */
static int count_splits(const bpe *b, text_span t, bpe_pair *out) {
    int found = 0;
    for (size_t i = 1; i < t.len; i++) {
        bpe_pair p = { bpe_find(b, t.at, i), -1 };
        if (p.left >= 0) p.right = bpe_find(b, t.at + i, t.len - i);
        if (p.right < 0) continue;
        *out = p;
        found++;
    }
    return found;
}

static int64_t recover_merges(const tokens *t, bpe_pair *merges) {
    enum { LONGEST = 512 }; /* bytes of a token that is joined; the longest of OpenAI's has 128 */
    join part[LONGEST + 1];
    bpe b = { 0 };
    int64_t n = 0;
    bpe_set_tokens(&b, t->at, t->n, NULL);
    for (int64_t i = 0; i < t->n; i++) {
        text_span s = t->at[i];
        if (s.len < 2 || s.len > LONGEST) continue;
        int splits = count_splits(&b, s, &merges[n]);
        n += splits == 1 || (splits > 1 && last_pair(&b, s, part, &merges[n]));
    }
    bpe_free(&b);
    return n;
}

/* ---- all of it ----------------------------------------------------------------------------------------------- */

static void add_special_token(tokens *t, const char *text, int32_t id) {
    reserve_ranks(t, id);
    t->starts[id] = t->bytes.len + 1;
    t->lens[id] = strlen(text);
    str_add(&t->bytes, "%s", text);
    t->n = MAX(t->n, id + 1);
}

static int add_llama3_tokens(tokens *t, int32_t *special) {
    static const char *const named[] = { [0] = "<|begin_of_text|>",
                                         [1] = "<|end_of_text|>",
                                         [6] = "<|start_header_id|>",
                                         [7] = "<|end_header_id|>",
                                         [9] = "<|eot_id|>" };
    for (int i = 0, reserved = 0; i < LLAMA3_SPECIAL; i++) {
        char text[48];
        const char *name = i < (int)COUNT_OF(named) ? named[i] : NULL;
        if (!name) snprintf(text, sizeof text, "<|reserved_special_token_%d|>", reserved++);
        special[i] = LLAMA3_TOKENS + i;
        add_special_token(t, name ? name : text, special[i]);
    }
    return LLAMA3_SPECIAL;
}

static int add_known_tokens(const char *pattern, tokens *t, int32_t *special) {
    int n = 0;
    if (t->n == LLAMA3_TOKENS && splitter_pattern(pattern) == splitter_pattern("cl100k"))
        return add_llama3_tokens(t, special);
    for (size_t i = 0; i < COUNT_OF(openai); i++) {
        if (openai[i].tokens != t->n ||
            splitter_pattern(openai[i].pattern) != splitter_pattern(pattern))
            continue;
        for (const special_token *s = openai[i].special; s->text; s++) {
            add_special_token(t, s->text, s->id);
            special[n++] = s->id;
        }
        break;
    }
    return n;
}

static void set_spans(tokens *t) {
    t->at = mem_grow(t->at, ((size_t)t->n + 1) * sizeof *t->at);
    for (int64_t i = 0; i < t->n; i++)
        t->at[i] = t->starts[i] ? (text_span){ t->bytes.text + t->starts[i] - 1, t->lens[i] }
                                : (text_span){ "", 0 };
}

err tokenizer_open_tiktoken(const char *path, const char *pattern, tokenizer **out) {
    tokens t = { 0 };
    int32_t special[MAX_SPECIAL];
    bpe_pair *merges = NULL;
    err e = OK;
    *out = NULL;
    TRY_CLEAN(read_tokens(path, &t));
    TRY_CLEAN(pattern_of(path, t.n, &pattern));
    set_spans(&t);
    merges = mem_alloc(((size_t)t.n + 1) * sizeof *merges);
    bpe_parts p = {
        .pattern = pattern, .flavor = REGEX_RUST, .merges = merges, .whole_first = true
    };
    p.n_merges = recover_merges(&t, merges);
    p.special = special;
    p.n_special = splitter_pattern(pattern) ? add_known_tokens(pattern, &t, special) : 0;
    set_spans(&t);
    p.tokens = t.at;
    p.n_tokens = t.n;
    TRY_CLEAN(tokenizer_from_bpe(&p, out));
cleanup:
    free(merges);
    tokens_free(&t);
    return e;
}
