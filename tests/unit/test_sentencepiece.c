/* SentencePiece models: the ids and texts that the library gives (fixtures/tokenizers/sp_*), and what
 * becomes of models that are damaged or of another kind. */
#include <math.h>

#include "support/tokenizer.h"

#include "tokenizer/charsmap_internal.h"

static const char *const NAMES[] = { "llama",          "plain",          "no_prefix", "symbols",
                                     "symbols_prefix", "symbols_rules",  "rules",     "unigram",
                                     "unigram_bytes",  "unigram_symbols" };

static tokenizer *open_model(const char *name) {
    char path[512];
    snprintf(path, sizeof path, FIXTURES "/tokenizers/sp_%s.model", name);
    return open_tokenizer(path, NULL);
}

static void check_case(const char *name, const tokenizer *t, const json_t *row) {
    const json_t *text = json_array_get(row, 0), *expected = json_array_get(row, 1);
    const json_t *back = json_array_get(row, 2);
    token_ids ids = ids_of(t, json_string_value(text), json_string_length(text), false);
    bool same = ids.n == json_array_size(expected);
    for (size_t i = 0; i < ids.n && same; i++)
        same = ids.at[i] == json_integer_value(json_array_get(expected, i));
    if (!same) {
        char *want = json_dumps(expected, JSON_COMPACT);
        print_message("%s: \"%s\": expected %s, got", name, json_string_value(text), want);
        for (size_t i = 0; i < ids.n; i++) print_message(" %d", ids.at[i]);
        print_message("\n");
        free(want);
        fail();
    }
    str made = { 0 };
    tokenizer_decode(t, ids.at, ids.n, false, &made);
    bool same_text = made.len == json_string_length(back) &&
                     (!made.len || memcmp(made.text, json_string_value(back), made.len) == 0);
    if (!same_text)
        fail_msg("%s: expected \"%s\", decoded \"%s\"", name, json_string_value(back),
                 made.len ? made.text : "");
    str_free(&made);
    token_ids_free(&ids);
}

static void ids_are_those_of_the_library(void **state) {
    json_t *cases = NULL;
    assert_ok(io_json_read(FIXTURES "/tokenizers/sp_cases.json", &cases));
    for (size_t k = 0; k < COUNT_OF(NAMES); k++) {
        tokenizer *t = open_model(NAMES[k]);
        const json_t *rows = json_object_get(cases, NAMES[k]), *row;
        size_t i;
        assert_true(json_array_size(rows) > 200);
        assert_int_equal(tokenizer_eos(t), 2);
        json_array_foreach(rows, i, row) check_case(NAMES[k], t, row);
        tokenizer_free(t);
    }
    json_decref(cases);
}

/* The saved file is a tokenizer.json that opens to the same ids. */
static void a_model_is_saved_as_a_tokenizer_json(void **state) {
    for (size_t k = 0; k < COUNT_OF(NAMES); k++) {
        tokenizer *t = open_model(NAMES[k]);
        const char *path = in_folder(*state, "tokenizer.json");
        assert_ok(tokenizer_save(t, path));
        tokenizer *again = open_tokenizer(path, NULL);
        static const char text[] =
            "the time of day,  e\u0301 E\u0301\u0323 ﬁne ☃☃ <tag>aaa über straße 你好 😀";
        token_ids a = ids_of(t, text, sizeof text - 1, false);
        token_ids b = ids_of(again, text, sizeof text - 1, false);
        assert_same_ids(&a, &b);
        assert_int_equal(tokenizer_hash(t), tokenizer_hash(again));
        token_ids_free(&a);
        token_ids_free(&b);
        tokenizer_free(t);
        tokenizer_free(again);
    }
}

static char *read_model(const char *name, size_t *n) {
    char path[512], *bytes = NULL;
    snprintf(path, sizeof path, FIXTURES "/tokenizers/sp_%s.model", name);
    assert_ok(io_read(path, 1 << 20, &bytes, n));
    return bytes;
}

/* Truncated anywhere, or with any byte changed: an error, or a tokenizer that encodes. */
static void damaged_models_never_crash(void **state) {
    size_t n;
    char *bytes = read_model("plain", &n);
    chance c = { rng_key_of(5, 5), 0 };
    for (int round = 0; round < 600; round++) {
        size_t len = round % 2 ? n : (size_t)below(&c, n);
        char *copy = malloc(n);
        memcpy(copy, bytes, n);
        for (int flips = round % 2 ? 3 : 0; flips > 0; flips--) {
            uint64_t at = below(&c, n);
            copy[at] = (char)(copy[at] ^ (1 << below(&c, 8)));
        }
        const char *path = folder_write_bytes(*state, "bad.model", copy, len);
        tokenizer *t = NULL;
        err e = tokenizer_open(path, NULL, &t);
        if (e) {
            assert_non_null(strstr(err_message(e), "bad.model"));
        } else {
            token_ids ids = ids_of(t, "the time of day", 15, false);
            token_ids_free(&ids);
        }
        err_free(e);
        tokenizer_free(t);
        free(copy);
    }
    free(bytes);
}

/* Fields are added at the end, where they override those before. */
static void other_kinds_are_refused(void **state) {
    static const struct {
        const char *bytes, *says;
        size_t n;
    } tails[] = {
        { "\x12\x02\x18\x03", "word", 4 },            /* 3 */
        { "\x12\x02\x18\x09", "unknown type", 4 },    /* 9 */
        { "\x12\x03\xC0\x01\x01", "mark spaces", 5 }, /* treat_whitespace_as_suffix */
        { "\x1A\x03\x12\x01x", "normalization", 5 },  /* normalizer_spec.precompiled_charsmap */
        { "\x0A\x07\x0A\x03"
          "a b\x18\x04",
          "symbol \"a b\" holds a space", 9 },
        { "\x0A\x05\x0A\x01~\x18\x05", "unused", 7 },
        { "\x0A\x05\x0A\x01\xFF\x18\x01", "not UTF-8", 7 },
        { "\x0A\x05\x0A\x01~\x18\x0F", "type 15", 7 },
        { "\x0A\x7F", "not a SentencePiece model", 2 }, /* longer than what is left */
    };
    size_t n;
    char *bytes = read_model("plain", &n);
    for (size_t i = 0; i < COUNT_OF(tails); i++) {
        char *copy = malloc(n + 16);
        memcpy(copy, bytes, n);
        memcpy(copy + n, tails[i].bytes, tails[i].n);
        const char *path = folder_write_bytes(*state, "other.model", copy, n + tails[i].n);
        tokenizer *t = NULL;
        assert_error(tokenizer_open(path, NULL, &t), "other.model", tails[i].says);
        free(copy);
    }
    free(bytes);
}

/* ---- near-ties in long texts ------------------------------------------------------------------------ */

enum { MODEL_TOKENS = 60, TEXT_CHARS = 4000 };
typedef struct drawn_model {
    char text[MODEL_TOKENS][40];
    float score[MODEL_TOKENS];
    int n;
} drawn_model;
static const char *const letters[] = { "\u2581", "a",      "b",          "\u65E5",
                                       "\u672C", "\u3042", "\U00020BB7", "z" };
enum { UNKNOWN_LETTER = 7, LETTERS = 8 }; /* the last one is not a token */

/* Tokens of up to four letters; the score of a longer one is near the sum of its letters' scores. */
static void draw_model(chance *c, drawn_model *m) {
    *m = (drawn_model){ .text = { "<unk>" }, .n = 1 };
    for (int i = 0; i < UNKNOWN_LETTER; i++, m->n++) {
        snprintf(m->text[m->n], sizeof m->text[0], "%s", letters[i]);
        m->score[m->n] = -50 - (float)below(c, 4);
    }
    while (m->n < MODEL_TOKENS) {
        char *text = m->text[m->n];
        float sum = 0;
        text[0] = 0;
        for (uint64_t k = 0, len = 2 + below(c, 3); k < len; k++) {
            uint64_t letter = k ? 1 + below(c, UNKNOWN_LETTER - 1) : below(c, UNKNOWN_LETTER);
            strcat(text, letters[letter]);
            sum += m->score[1 + letter];
        }
        bool is_new = true;
        for (int i = 0; i < m->n; i++) is_new = is_new && strcmp(m->text[i], text) != 0;
        m->score[m->n] = sum + 0.002f * ((float)below(c, 21) - 10);
        m->n += is_new;
    }
}

static tokenizer *open_drawn(void *folder, const drawn_model *m) {
    json_t *vocab = json_array();
    for (int i = 0; i < m->n; i++)
        json_array_append_new(vocab, json_pack("[s, f]", m->text[i], (double)m->score[i]));
    json_t *doc = json_pack(
        "{s:s, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}]}, "
        "s:n, s:n, s:n, s:{s:s, s:i, s:o, s:b}}",
        "version", "1.0", "added_tokens", "id", 0, "content", "<unk>", "single_word", 0, "lstrip",
        0, "rstrip", 0, "normalized", 0, "special", 1, "normalizer", "type", "Sequence",
        "normalizers", "type", "Replace", "pattern", "String", " ", "content", "\u2581",
        "sentencepiece", 1, "pre_tokenizer", "post_processor", "decoder", "model", "type",
        "Unigram", "unk_id", 0, "vocab", vocab, "byte_fallback", 0);
    char *text = json_dumps(doc, 0);
    assert_non_null(text);
    tokenizer *t = open_tokenizer(folder_write(folder, "tokenizer.json", text), NULL);
    free(text);
    json_decref(doc);
    return t;
}

/* SentencePiece's search over a whole text, with nothing left out. */
static void search_plainly(const drawn_model *m, const char *text, size_t n, token_ids *out) {
    float *sum = malloc((n + 1) * sizeof *sum), lowest = 0;
    struct {
        size_t start;
        int32_t id;
    } *best = malloc((n + 1) * sizeof *best);
    for (int i = 1; i < m->n; i++) lowest = MIN(lowest, m->score[i]);
    for (size_t i = 1; i <= n; i++) sum[i] = -INFINITY;
    sum[0] = 0;
    for (size_t at = 0, len; at < n; at += len) {
        uint32_t cp;
        bool is_token = false;
        len = (size_t)utf8_decode(text + at, &cp);
        float offset = sum[at];
        for (size_t i = at; fabsf(offset) > 100000 && i <= n; i++) sum[i] -= offset;
        for (int i = 0; i <= m->n; i++) {
            bool unknown = i == m->n; /* last, where the character is not a token */
            size_t bytes = unknown ? len : strlen(m->text[i]);
            if (unknown ? is_token
                        : i == 0 || at + bytes > n || memcmp(text + at, m->text[i], bytes) != 0)
                continue;
            is_token |= bytes == len;
            float now = sum[at] + (unknown ? lowest - 10 : m->score[i]);
            if (!(now > sum[at + bytes])) continue;
            sum[at + bytes] = now;
            best[at + bytes].start = at;
            best[at + bytes].id = unknown ? 0 : i;
        }
    }
    for (size_t at = n; at > 0; at = best[at].start) {
        bool joins = best[at].id == 0 && out->n && out->at[out->n - 1] == 0;
        if (!joins) token_ids_add(out, &best[at].id, 1);
    }
    for (size_t i = 0; i < out->n / 2; i++) {
        int32_t swapped = out->at[i];
        out->at[i] = out->at[out->n - 1 - i];
        out->at[out->n - 1 - i] = swapped;
    }
    free(best);
    free(sum);
}

/* Draws a text of short words, of words of thousands of characters, or of long runs of one letter, in which tokens
 * overlap everywhere. */
static void draw_text(chance *c, int round, str *text) {
    uint64_t letter = 0, run = 0;
    for (int i = 0; i < TEXT_CHARS; i++) {
        bool has_spaces = round == 0 || below(c, 1000) == 0;
        if (run == 0) {
            letter = has_spaces ? below(c, LETTERS - 1) : 1 + below(c, LETTERS - 2);
            run = round == 2 && below(c, 10) == 0 ? 1 + below(c, 1500) : 1;
            if (round < 2 && below(c, 100) == 0) letter = UNKNOWN_LETTER, run = 1 + below(c, 40);
        }
        run--;
        str_add(text, "%s", letters[letter]);
    }
}

/* Sums are floats, so that what came before decides between ways that are nearly equal: neither the cache
 * nor the windows of long words may change that. */
static void near_ties_in_long_texts_are_decided_as_in_the_library(void **state) {
    for (uint64_t seed = 0; seed < 12; seed++) {
        chance c = { rng_key_of(seed, 39), 0 };
        drawn_model m;
        draw_model(&c, &m);
        tokenizer *t = open_drawn(*state, &m);
        encoder *e = encoder_new(t);
        assert_true(t->by_words);
        for (int round = 0; round < 3; round++) { /* the cache is warm from the second text on */
            str text = { 0 };
            token_ids got = { 0 }, expected = { 0 };
            draw_text(&c, round, &text);
            search_plainly(&m, text.text, text.len, &expected);
            encoder_add(e, text.text, text.len, false, &got);
            assert_same_ids(&got, &expected);
            token_ids_free(&got);
            token_ids_free(&expected);
            str_free(&text);
        }
        encoder_free(e);
        tokenizer_free(t);
    }
}

/* ---- normalization ---------------------------------------------------------------------------------- */

enum { RULES = 12, NODES = 256 }; /* of a table: a node has 256 units of its own */
typedef struct drawn_rules {
    char from[RULES][16], to[RULES][16];
} drawn_rules;

/* Makes a table as SentencePiece stores it (charsmap.c), with the replacements where each rule has 16 bytes. */
static size_t make_charsmap(const drawn_rules *r, char *out) {
    uint32_t *units = (uint32_t *)(void *)(out + 4), n_nodes = 2, bytes = 4 * 256 * NODES;
    memset(out, 0, 4 + bytes + sizeof r->to);
    memcpy(out, &bytes, sizeof bytes);
    units[0] = 256u << 10; /* to the node of the root */
    for (uint32_t k = 0; k < RULES; k++) {
        uint32_t unit = 0;
        for (const char *p = r->from[k]; *p; p++) {
            uint32_t base = unit ^ units[unit] >> 10, next = base ^ (uint8_t)*p;
            if (!units[next]) units[next] = (uint8_t)*p | (next ^ 256 * n_nodes++) << 10;
            unit = next;
        }
        units[unit] |= 1u << 8;
        units[unit ^ units[unit] >> 10] = k * (uint32_t)sizeof r->to[0] | 1u << 31;
    }
    assert_true(n_nodes <= NODES);
    memcpy(out + 4 + bytes, r->to, sizeof r->to);
    return 4 + bytes + sizeof r->to;
}

static void replace_plainly(const drawn_rules *r, const char *text, str *out) {
    while (*text) {
        size_t longest = 0, rule = 0;
        for (size_t k = 0; k < RULES; k++) {
            size_t len = strlen(r->from[k]);
            bool is_longer = len >= longest && len > 0 && strncmp(text, r->from[k], len) == 0;
            if (is_longer) longest = len, rule = k;
        }
        uint32_t cp;
        size_t bytes = longest ? longest : (size_t)utf8_decode(text, &cp);
        if (longest)
            str_add(out, "%s", r->to[rule]);
        else
            str_add_bytes(out, text, bytes);
        text += bytes;
    }
}

/* The shortcuts for what no rule touches, and for single characters, give what the rules alone do. */
static void the_longest_rule_applies_at_each_character(void **state) {
    static const char *const parts[] = { "a",      "b",          " ",      "\u00E9",
                                         "\u0301", "\u3042",     "\u3099", "\uFF0C",
                                         "\u65E5", "\U00020BB7", "~" };
    chance c = { rng_key_of(8, 39), 0 };
    char *table = malloc(4 + 4 * 256 * NODES + sizeof(drawn_rules));
    for (int round = 0; round < 200; round++) {
        drawn_rules r = { 0 };
        charsmap *m = NULL;
        for (int k = 0; k < RULES; k++) {
            for (uint64_t i = 0, n = 1 + below(&c, 3); i < n; i++)
                strcat(r.from[k], parts[below(&c, COUNT_OF(parts))]);
            for (uint64_t i = 0, n = below(&c, 4); i < n; i++)
                strcat(r.to[k], parts[below(&c, COUNT_OF(parts) - 2)]);
        }
        assert_ok(charsmap_new(table, make_charsmap(&r, table), &m));
        for (int t = 0; t < 20; t++) {
            str text = { 0 }, got = { 0 }, expected = { 0 };
            for (uint64_t i = 0, n = 1 + below(&c, 60); i < n; i++)
                str_add(&text, "%s", parts[below(&c, COUNT_OF(parts))]);
            replace_plainly(&r, text.text, &expected);
            charsmap_normalize(m, true, text.text, text.len, &got);
            assert_int_equal(got.len, expected.len);
            if (got.len) assert_memory_equal(got.text, expected.text, got.len);
            str_free(&text);
            str_free(&got);
            str_free(&expected);
        }
        charsmap_free(m);
    }
    free(table);
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_library),
        IN_FOLDER(a_model_is_saved_as_a_tokenizer_json),
        IN_FOLDER(near_ties_in_long_texts_are_decided_as_in_the_library),
        cmocka_unit_test(the_longest_rule_applies_at_each_character),
        IN_FOLDER(damaged_models_never_crash),
        IN_FOLDER(other_kinds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
