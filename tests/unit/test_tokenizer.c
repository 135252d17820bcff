/* Tokenizers: the ids and texts that Hugging Face's library gives for the files of fixtures/, and
 * that what was encoded comes back. */
#include "support/tokenizer.h"

#include <utf8proc.h>

#include "tokenizer/tokenizer_internal.h"

/* ---- against Hugging Face --------------------------------------------------------------------- */

static void check_ids(const char *name, const char *text, const json_t *want,
                      const token_ids *got) {
    bool same = json_array_size(want) == got->n;
    for (size_t i = 0; same && i < got->n; i++)
        same = json_integer_value(json_array_get(want, i)) == got->at[i];
    if (same) return;
    fprintf(stderr, "%s: \"%s\" became", name, text);
    for (size_t i = 0; i < got->n; i++) fprintf(stderr, " %d", got->at[i]);
    char *expected = json_dumps(want, JSON_COMPACT);
    fail_msg("expected %s", expected);
}

/* [ids, ids with special tokens or null, decoded or null] */
static void check_case(const char *name, const tokenizer *t, encoder *e, const json_t *text,
                       const json_t *want) {
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    const json_t *plain = json_array_get(want, 0), *special = json_array_get(want, 1);
    const json_t *decoded = json_array_get(want, 2);
    if (json_is_null(decoded)) decoded = text;
    token_ids ids = { 0 };
    str back = { 0 };
    encoder_add(e, s, n, true, &ids);
    check_ids(name, s, json_is_null(special) ? plain : special, &ids);
    ids.n = 0;
    encoder_add(e, s, n, false, &ids);
    check_ids(name, s, plain, &ids);
    tokenizer_decode(t, ids.at, ids.n, true, &back);
    assert_int_equal(back.len, json_string_length(decoded));
    if (back.len) assert_memory_equal(back.text, json_string_value(decoded), back.len);
    token_ids_free(&ids);
    str_free(&back);
}

static json_t *read_cases(void) {
    char *text = NULL;
    size_t n;
    assert_ok(io_read(FIXTURE("cases"), 1 << 24, &text, &n));
    json_t *doc = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    assert_non_null(doc);
    free(text);
    return doc;
}

static void test_hugging_face(void **state) {
    json_t *doc = read_cases(), *texts = json_object_get(doc, "texts"), *cases, *text;
    const char *name;
    int tokenizers = 0;
    size_t i;
    json_object_foreach(json_object_get(doc, "cases"), name, cases) {
        str path = { 0 };
        str_add(&path, "%s/tokenizers/%s.json", FIXTURES, name);
        tokenizer *t = open_tokenizer(path.text, NULL);
        encoder *e = encoder_new(t);
        assert_int_equal(json_array_size(cases), json_array_size(texts));
        for (int pass = 0; pass < 2; pass++) /* the second from the cache */
            json_array_foreach(texts, i, text)
                check_case(name, t, e, text, json_array_get(cases, i));
        encoder_free(e);
        tokenizer_free(t);
        str_free(&path);
        tokenizers++;
    }
    assert_int_equal(tokenizers, 11);
    json_decref(doc);
}

/* ---- there and back ---------------------------------------------------------------------------- */

static void round_trip(const tokenizer *t, encoder *e, const char *bytes, size_t n) {
    token_ids ids = { 0 };
    str back = { 0 };
    encoder_add(e, bytes, n, n % 2, &ids);
    tokenizer_decode(t, ids.at, ids.n, true, &back);
    assert_int_equal(back.len, n);
    if (n) assert_memory_equal(back.text, bytes, n);
    token_ids_free(&ids);
    str_free(&back);
}

/* Bytes as they come, and pieces of UTF-8 that are right, cut short, overlong or surrogates. */
static size_t random_bytes(chance *c, char *out, size_t capacity) {
    static const char *const parts[] = { "the ",
                                         " river",
                                         "'ll",
                                         "\r\n",
                                         "   ",
                                         "\xC3\xA9",
                                         "\xE4\xB8\xAD",
                                         "\xF0\x9F\x9A\x80",
                                         "\xE4\xB8",
                                         "\xF0\x9F",
                                         "\xC0\x80",
                                         "\xED\xA0\x80",
                                         "\xF4\x8F\xBC\x80",
                                         "\xF4\x90\x80\x80",
                                         "\xEF\xBF\xBD",
                                         "<|endoftext|>" };
    size_t n = 0, want = below(c, capacity);
    while (n < want) {
        const char *part = parts[below(c, COUNT_OF(parts))];
        if (below(c, 3) && n + strlen(part) < capacity) {
            memcpy(out + n, part, strlen(part));
            n += strlen(part);
        } else {
            out[n++] = (char)below(c, 256);
        }
    }
    return n;
}

static void test_round_trip(void **state) {
    static const char *const names[] = { FIXTURE("gpt2"), FIXTURE("llama3"), FIXTURE("o200k"),
                                         FIXTURE("llama2"), "bytes" };
    char bytes[400];
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        tokenizer *t = open_tokenizer(names[k], NULL);
        encoder *e = encoder_new(t);
        chance c = { rng_key_of(1, k), 0 };
        for (int b = 0; b < 256; b++) round_trip(t, e, &(char){ (char)b }, 1);
        for (int i = 0; i < 65536; i += SANITIZED ? 97 : 7)
            round_trip(t, e, (char[]){ (char)i, (char)(i >> 8) }, 2);
        for (int i = 0; i < (SANITIZED ? 300 : 3000); i++) {
            size_t n = random_bytes(&c, bytes, sizeof bytes);
            round_trip(t, e, bytes, n);
        }
        encoder_free(e);
        tokenizer_free(t);
    }
}

/* Returns the text of ids by its definition: their bytes, then without spaces at the ends. */
static str decode_whole(const tokenizer *t, const int32_t *ids, size_t n) {
    str out = { 0 };
    bool first = true, strip = true;
    str_add(&out, "%s", "");
    for (size_t i = 0; i <= n; i++) {
        bool unknown = i < n && t->unknown_surface && ids[i] == t->bpe.unknown;
        if (strip && (i == n || unknown)) {
            size_t left = 0, right = 0;
            while (left < out.len && left < (size_t)t->strip_left && out.text[left] == ' ') left++;
            while (right < out.len - left && right < (size_t)t->strip_right &&
                   out.text[out.len - 1 - right] == ' ')
                right++;
            memmove(out.text, out.text + left, out.len - left);
            out.len -= left + right;
            strip = false;
        }
        if (i == n) break;
        bool known = ids[i] >= 0 && ids[i] < t->vocab;
        if (known && t->is_special[ids[i]] && !unknown) continue;
        text_span s = unknown ? (text_span){ t->unknown_surface, strlen(t->unknown_surface) }
                      : known ? (first && t->decoded_first ? t->decoded_first : t->decoded)[ids[i]]
                              : (text_span){ "\xEF\xBF\xBD", 3 };
        str_add_bytes(&out, s.at, s.len);
        if (known) first = false;
    }
    return out;
}

/* Ids that arrive one by one, as from a model that has learned nothing: every addition is UTF-8, and their sum is the text of
 * all ids. */
static void decode_by_ids(const tokenizer *t, const int32_t *ids, size_t n) {
    token_decoder d = { .t = t };
    str whole = decode_whole(t, ids, n), want = { 0 }, got = { 0 };
    tokenizer_decode(t, ids, n, false, &got);
    assert_int_equal(got.len, whole.len);
    if (got.len) assert_memory_equal(got.text, whole.text, whole.len);
    got.len = 0;
    utf8_repair(whole.text, whole.len, &want);
    for (size_t i = 0; i <= n; i++) {
        size_t before = got.len;
        if (i < n)
            token_decoder_push(&d, ids[i], &got);
        else
            token_decoder_end(&d, &got);
        assert_true(d.text.len < 4); /* the work of an id does not grow with those before it */
        if (got.len > before)
            assert_int_equal(utf8_valid(got.text + before, got.len - before), got.len - before);
    }
    assert_int_equal(got.len, want.len);
    if (want.len) assert_memory_equal(got.text, want.text, want.len);
    str_free(&whole);
    str_free(&want);
    str_free(&got);
}

static void ids_that_arrive_one_by_one_read_as_all_of_them(void **state) {
    static const char *const names[] = { FIXTURE("gpt2"), FIXTURE("llama3"), FIXTURE("o200k"),
                                         FIXTURE("llama2"), "bytes" };
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        tokenizer *t = open_tokenizer(names[k], NULL);
        encoder *e = encoder_new(t);
        chance c = { rng_key_of(2, k), 0 };
        for (int i = 0; i < (SANITIZED ? 100 : 1000); i++) {
            token_ids ids = { 0 };
            char bytes[64];
            encoder_add(e, bytes, random_bytes(&c, bytes, sizeof bytes), false, &ids);
            decode_by_ids(t, ids.at, ids.n);
            /* ids that no text becomes, so that a character's bytes are divided among them in other ways */
            for (size_t j = 0; j < ids.n; j++)
                if (below(&c, 2)) ids.at[j] = (int32_t)below(&c, (size_t)tokenizer_vocab(t));
            decode_by_ids(t, ids.at, ids.n);
            token_ids_free(&ids);
        }
        encoder_free(e);
        tokenizer_free(t);
    }
    /* an invalid character, and then two tokens that form a valid one: E4 B8, F0, AB E3 81, B1 */
    tokenizer *t = open_tokenizer("bytes", NULL);
    decode_by_ids(t, (int32_t[]){ 0xE4, 0xB8, 0xF0, 0xAB, 0xE3, 0x81, 0xB1 }, 7);
    tokenizer_free(t);
}

/* Byte tokens with each way of stripping spaces, by streams in which spaces, parts of characters and ids outside of the vocabulary
 * are frequent; and one of a length that decoding all ids again for each would not end with. */
static void spaces_are_stripped_as_ids_arrive(void **state) {
    static const unsigned char often[] = { ' ', ' ', ' ', 'a', 0xE2, 0x81, 0x87, 0xC3, 0xF0, 0xFF };
    enum { STREAMS = 3000, MOST = 40, LONG = 300000 };
    tokenizer *t = open_tokenizer("bytes", NULL);
    chance c = { rng_key_of(3, 0), 0 };
    int32_t of[256], *ids = mem_alloc(LONG * sizeof *ids);
    for (int32_t i = 0; i < tokenizer_vocab(t); i++)
        if (t->decoded[i].len == 1) of[(unsigned char)t->decoded[i].at[0]] = i;
    for (int i = 0; i <= STREAMS; i++) {
        size_t n = i < STREAMS ? below(&c, MOST) : LONG;
        t->strip_left = (int)below(&c, 4);
        t->strip_right = (int)below(&c, 4);
        free(t->unknown_surface);
        t->unknown_surface = below(&c, 2) ? strdup(" \xE2\x81\x87 ") : NULL;
        t->bpe.unknown = of['?'];
        for (size_t k = 0; k < n; k++) ids[k] = of[often[below(&c, COUNT_OF(often))]];
        for (size_t k = 0; k < n; k += 1 + below(&c, 20))
            ids[k] = below(&c, 2) ? of['?'] : (int32_t)below(&c, 600) - 100;
        decode_by_ids(t, ids, n);
    }
    free(ids);
    tokenizer_free(t);
}

/* As the first token of a text, one loses Metaspace's mark; spaces of its own stay. */
static void test_first_token(void **state) {
    static const char model[] =
        "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],"
        "[\"\u2581\",-1],[\"\u2581a\",-1]]},\"added_tokens\":[{\"id\":3,\"content\":\"[A B]\","
        "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
        "\"special\":false}],\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\u2581\","
        "\"prepend_scheme\":\"%s\",\"split\":true}}";
    static const struct {
        const char *scheme;
        int32_t ids[3];
        const char *want;
    } cases[] = { { "always", { 3, 1, 2 }, "[A B]  a" },
                  { "always", { 2, 3, 2 }, "a[A B] a" },
                  { "never", { 2, 3, 2 }, " a[A B] a" } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str text = { 0 }, out = { 0 };
        char *path = io_join(*state, "tokenizer.json");
        str_add(&text, model, cases[i].scheme);
        write_bytes(path, text.text, text.len);
        tokenizer *t = open_tokenizer(path, NULL);
        tokenizer_decode(t, cases[i].ids, 3, true, &out);
        assert_string_equal(out.text, cases[i].want);
        decode_by_ids(t, cases[i].ids, 3);
        tokenizer_free(t);
        free(path);
        str_free(&text);
        str_free(&out);
    }
}

/* ---- long pieces ---------------------------------------------------------------------------------- */

/* BPE as its definition says, on texts: join the pair of the lowest rank, leftmost, until none. */
static size_t slow_bpe(const json_t *merges, char (*part)[64], size_t n) {
    for (;;) {
        size_t best = SIZE_MAX, at = 0, rank;
        json_t *merge;
        json_array_foreach(merges, rank, merge) {
            const char *l = json_string_value(json_array_get(merge, 0));
            const char *r = json_string_value(json_array_get(merge, 1));
            for (size_t i = 0; i + 1 < n && best == SIZE_MAX; i++)
                if (!strcmp(part[i], l) && !strcmp(part[i + 1], r)) best = rank, at = i;
            if (best != SIZE_MAX) break;
        }
        if (best == SIZE_MAX) return n;
        memcpy(part[at] + strlen(part[at]), part[at + 1], strlen(part[at + 1]) + 1);
        memmove(part[at + 1], part[at + 2], (n - at - 2) * sizeof *part);
        n--;
    }
}

static void test_long_pieces(void **state) {
    json_t *doc = NULL;
    tokenizer *t = open_tokenizer(FIXTURE("gpt2"), NULL);
    assert_ok(io_json_read(FIXTURE("gpt2"), &doc));
    const json_t *model = json_object_get(doc, "model");
    static char part[200][64], text[200];
    chance c = { rng_key_of(2, 0), 0 };
    for (int round = 0; round < (SANITIZED ? 80 : 400); round++) {
        size_t n =
            2 + below(&c, 150); /* letters: one piece, on both sides of where it turns long */
        for (size_t i = 0; i < n; i++) {
            text[i] = "theanrisdo"[below(&c, 3 + (uint64_t)round % 8)];
            snprintf(part[i], sizeof part[i], "%c", text[i]);
        }
        token_ids ids = ids_of(t, text, n, false);
        assert_int_equal(ids.n, slow_bpe(json_object_get(model, "merges"), part, n));
        for (size_t i = 0; i < ids.n; i++)
            assert_int_equal(ids.at[i], json_integer_value(json_object_get(
                                            json_object_get(model, "vocab"), part[i])));
        token_ids_free(&ids);
    }
    json_decref(doc);
    tokenizer_free(t);
}

/* A megabyte of the same (under sanitizers an eighth): would take hours if anything were quadratic. */
static void test_worst_texts(void **state) {
    static const char *const files[] = { FIXTURE("gpt2"),   FIXTURE("llama3"),     FIXTURE("o200k"),
                                         FIXTURE("llama2"), FIXTURE("normalized"), "bytes" };
    static const char *const units[] = { "a",   " ",        "\n", "\xF0\x9F\x9A\x80",
                                         "A",   "'",        "1",  "\xFF",
                                         " \n", "\xCC\x81", "a'", "\xE4\xB8\xADZ" };
    size_t n = SANITIZED ? 1 << 17 : 1 << 20;
    char *text = mem_alloc(n + 1);
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        tokenizer *t = open_tokenizer(files[f], NULL);
        for (size_t u = 0; u < COUNT_OF(units); u++) {
            size_t len = strlen(units[u]);
            for (size_t i = 0; i < n; i++) text[i] = units[u][i % len];
            token_ids ids = ids_of(t, text, n / len * len, true);
            assert_true(ids.n > 0);
            token_ids_free(&ids);
        }
        tokenizer_free(t);
    }
    free(text);
}

/* ---- the cache ------------------------------------------------------------------------------------- */

/* More pieces than the cache holds, short and long: what it gives is what BPE gives. */
static void test_cache(void **state) {
    tokenizer *t = open_tokenizer(FIXTURE("gpt2"), NULL);
    encoder *e = encoder_new(t);
    bpe_work w = { 0 };
    token_ids ids = { 0 };
    chance c = { rng_key_of(3, 0), 0 };
    for (int i = 0; i < 400000; i++) {
        char piece[64];
        size_t len = 1 + below(&c, i % 4 ? 6 : 60), n;
        uint64_t seed = below(&c, 100000);
        for (size_t k = 0; k < len; k++, seed = seed * 6364136223846793005u + 1442695040888963407u)
            piece[k] = (char)('a' + (seed >> 33) % 26);
        ids.n = 0;
        encoder_add(e, piece, len, false, &ids);
        const int32_t *want = bpe_piece(&t->bpe, &w, piece, len, &n);
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.at, want, n * sizeof *want);
    }
    token_ids_free(&ids);
    bpe_work_free(&w);
    encoder_free(e);
    tokenizer_free(t);
}

/* ---- questions ------------------------------------------------------------------------------------ */

static void test_questions(void **state) {
    tokenizer *t = open_tokenizer(FIXTURE("gpt2"), NULL);
    assert_string_equal(tokenizer_kind(t), "byte-level BPE");
    assert_int_equal(tokenizer_vocab(t), 600);
    assert_int_equal(tokenizer_eos(t), 0);
    assert_int_equal(tokenizer_find(t, "<|endoftext|>", 13), 0);
    assert_true(tokenizer_find(t, " the", 4) > 256);
    assert_int_equal(tokenizer_find(t, "no such token", 13), -1);
    str out = { 0 };
    tokenizer_decode(t, (int32_t[]){ -1, 0, 600 }, 3, false, &out);
    assert_string_equal(out.text, "\xEF\xBF\xBD\xEF\xBF\xBD");
    str_free(&out);
    tokenizer_free(t);

    t = open_tokenizer("bytes", NULL);
    assert_string_equal(tokenizer_kind(t), "bytes");
    assert_int_equal(tokenizer_vocab(t), 257);
    assert_int_equal(tokenizer_eos(t), 256);
    tokenizer_free(t);

    t = open_tokenizer(FIXTURE("llama2"), NULL);
    assert_string_equal(tokenizer_kind(t), "BPE with byte fallback");
    assert_int_equal(tokenizer_eos(t), tokenizer_find(t, "</s>", 4));
    tokenizer_free(t);
}

/* ---- real files, where they are --------------------------------------------------------------------- */

static const char *shared_file(const char *name) {
    static char path[4096];
    const char *root = getenv("INGOT_SHARED_DATA");
    snprintf(path, sizeof path, "%s/%s", root ? root : "", name);
    return root && io_exists(path) ? path : NULL;
}

static void test_shakespeare(void **state) {
    const char *path = shared_file("tinyshakespeare/input.txt");
    if (!path) skip();
    char *text = NULL;
    size_t n;
    assert_ok(io_read(path, 1 << 24, &text, &n));
    tokenizer *t = open_tokenizer(shared_file("gpt2-bpe/tokenizer.json"), NULL);
    token_ids ids = ids_of(t, text, n, false);
    assert_int_equal(ids.n, 338025);
    token_ids_free(&ids);
    tokenizer_free(t);
    free(text);
}

static void test_gpt2_samples(void **state) {
    const char *path = shared_file("gpt2-bpe/samples.inp");
    if (!path) skip();
    static const char between[] = "\n__ggml_vocab_test__\n";
    char *text = NULL, *want = NULL, *line, *rest;
    size_t n;
    assert_ok(io_read(path, 1 << 20, &text, &n));
    assert_ok(io_read(shared_file("gpt2-bpe/samples.out"), 1 << 20, &want, NULL));
    tokenizer *t = open_tokenizer(shared_file("gpt2-bpe/tokenizer.json"), NULL);
    rest = want;
    for (char *s = text, *end; s; s = end ? end + strlen(between) : NULL) {
        end = memmem(s, (size_t)(text + n - s), between, strlen(between));
        token_ids ids = ids_of(t, s, (size_t)((end ? end : text + n) - s), false);
        line = strsep(&rest, "\n");
        assert_non_null(line);
        for (size_t i = 0; i < ids.n; i++) assert_int_equal(strtol(line, &line, 10), ids.at[i]);
        assert_int_equal(line[strspn(line, " ")], 0);
        token_ids_free(&ids);
    }
    free(text);
    free(want);
    tokenizer_free(t);
}

static void test_tiktoken_samples(void **state) {
    const char *path = shared_file("tiktoken/samples.txt");
    if (!path) skip();
    char *text = NULL;
    assert_ok(io_read(path, 1 << 20, &text, NULL));
    tokenizer *cl100k = open_tokenizer(shared_file("tiktoken/cl100k_base.tiktoken"), NULL);
    tokenizer *gpt2 = open_tokenizer(shared_file("gpt2-bpe/tokenizer.json"), NULL);
    int seen = 0;
    for (char *s = text; (s = strstr(s, "EncodingName: ")); seen++) {
        bool old = str_starts(s, "EncodingName: r50k");
        char *sample = strstr(s, "\nSample: ") + 9, *end = strstr(sample, "\nEncoded: [");
        token_ids ids = ids_of(old ? gpt2 : cl100k, sample, (size_t)(end - sample), false);
        s = end + strlen("\nEncoded: [");
        for (size_t i = 0; i < ids.n; i++, s++) assert_int_equal(strtol(s, &s, 10), ids.at[i]);
        if (!ids.n) s++;
        assert_int_equal(s[-1], ']');
        token_ids_free(&ids);
    }
    assert_true(seen > 100);
    free(text);
    tokenizer_free(gpt2);
    tokenizer_free(cl100k);
}

/* ---- normal forms ---------------------------------------------------------------------------- */

static str normal_form_of(normalizer_kind kind, const char *text, size_t n) {
    str scratch[2] = { { 0 }, { 0 } };
    norm_step step = { .kind = kind };
    text_span made = normalize_text(&step, 1, NULL, (text_span){ text, n }, scratch);
    str out = { 0 };
    str_add_bytes(&out, made.at, made.len);
    str_free(&scratch[0]);
    str_free(&scratch[1]);
    return out;
}

/* Marks of all classes in any order, precomposed and conjoining characters: as utf8proc has it. */
static void normal_forms_are_those_of_utf8proc(void **state) {
    static const uint32_t points[] = { 0x41,   0x65,   0xE9,    0x1E69, 0x301,  0x316,
                                       0x327,  0x338,  0x345,   0x5B0,  0x5BC,  0x64B,
                                       0x3099, 0x304B, 0x1100,  0x1161, 0x11A8, 0xAC00,
                                       0x212B, 0xFB01, 0x1D15E, 0x0344, 0x0F71, 0x0F73 };
    static const int options[] = { [NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
                                   [NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
                                   [NORM_NFKC] =
                                       UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
                                   [NORM_NFKD] =
                                       UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT };
    chance c = { rng_key_of(3, 3), 0 };
    for (int round = 0; round < (SANITIZED ? 2000 : 20000); round++) {
        str text = { 0 };
        for (uint64_t n = 1 + below(&c, 12); n > 0; n--) {
            char code[4];
            uint32_t cp = points[below(&c, COUNT_OF(points))];
            str_add_bytes(&text, code, (size_t)utf8_encode(cp, code));
        }
        for (int kind = NORM_NFC; kind <= NORM_NFKD; kind++) {
            utf8proc_uint8_t *expected = NULL;
            utf8proc_ssize_t n =
                utf8proc_map((const utf8proc_uint8_t *)text.text, (utf8proc_ssize_t)text.len,
                             &expected, (utf8proc_option_t)options[kind]);
            str made = normal_form_of((normalizer_kind)kind, text.text, text.len);
            assert_int_equal(made.len, n);
            assert_memory_equal(made.text, expected, made.len);
            str_free(&made);
            free(expected);
        }
        str_free(&text);
    }
}

/* A million marks on one letter, in the worst order: exchanging neighbors would take hours. */
static void stacked_marks_are_sorted_at_once(void **state) {
    enum { MARKS = 1000000 };
    str text = { 0 };
    str_add(&text, "q");
    for (int i = 0; i < MARKS; i++)
        str_add(&text, i < MARKS / 2 ? "\xCC\x8D" : "\xCC\x96"); /* 230, 220 */
    str made = normal_form_of(NORM_NFC, text.text, text.len);
    assert_int_equal(made.len, text.len);
    assert_memory_equal(made.text + 1, "\xCC\x96", 2);
    assert_memory_equal(made.text + made.len - 2, "\xCC\x8D", 2);
    str_free(&made);
    str_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normal_forms_are_those_of_utf8proc),
        cmocka_unit_test(stacked_marks_are_sorted_at_once),
        cmocka_unit_test(test_hugging_face),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(ids_that_arrive_one_by_one_read_as_all_of_them),
        cmocka_unit_test(spaces_are_stripped_as_ids_arrive),
        cmocka_unit_test_setup_teardown(test_first_token, folder_setup, folder_teardown),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_worst_texts),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_shakespeare),
        cmocka_unit_test(test_gpt2_samples),
        cmocka_unit_test(test_tiktoken_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
