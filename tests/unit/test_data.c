/* The byte tokenizer, token files and the loader. */
#include "support/data.h"

#include "tokenizer/tokenizer.h"

static data_source *open_text(test_folder *f, const char *name, const char *text) {
    data_source *s = NULL;
    assert_ok(data_open(folder_write_bytes(f, name, text, strlen(text)), 0, &s));
    return s;
}

/* ---- the byte tokenizer -------------------------------------------------------------------- */

static str stream(const unsigned char *bytes, size_t n) {
    byte_decoder d = { 0 };
    char piece[BYTE_DECODE_MAX];
    str out = { 0 };
    str_add(&out, "%s", "");
    for (size_t i = 0; i < n; i++) {
        str_add_bytes(&out, piece, (size_t)byte_decoder_push(&d, bytes[i], piece));
        /* Whatever has come out so far is whole characters. */
        if (out.len > 0) {
            size_t last = out.len - 1;
            while (last > 0 && ((unsigned char)out.text[last] & 0xC0) == 0x80) last--;
            unsigned char lead = (unsigned char)out.text[last];
            size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
            assert_int_equal(out.len - last, length);
        }
    }
    str_add_bytes(&out, piece, (size_t)byte_decoder_end(&d, piece));
    return out;
}

static void decoding_holds_back_half_characters(void **state) {
    const char *text = "na\xC3\xAFve \xE2\x82\xAC 5 \xF0\x9F\x98\x80!";
    str out = stream((const unsigned char *)text, strlen(text));
    assert_string_equal(out.text, text);
    str_free(&out);
}

static void decoding_replaces_what_is_not_utf8(void **state) {
    static const struct {
        const char *in, *out;
    } cases[] = {
        { "a\xFFz", "a\xEF\xBF\xBDz" },     /* no such byte */
        { "a\x80z", "a\xEF\xBF\xBDz" },     /* continuation of nothing */
        { "a\xE2\x82z", "a\xEF\xBF\xBDz" }, /* cut short */
        { "\xC3\xE2\x82\xAC", "\xEF\xBF\xBD\xE2\x82\xAC" },
        { "\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" }, /* surrogate */
        { "\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD" },                 /* overlong */
        { "ab\xF0\x9F", "ab\xEF\xBF\xBD" },                         /* at the end */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str out = stream((const unsigned char *)cases[i].in, strlen(cases[i].in));
        assert_string_equal(out.text, cases[i].out);
        str_free(&out);
    }
}

static void random_bytes_decode_to_valid_text(void **state) {
    rng_key key = rng_key_of(1, 2);
    unsigned char bytes[64];
    for (uint64_t round = 0; round < 2000; round++) {
        for (uint64_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (unsigned char)rng_u32(key, round * sizeof bytes + i);
        str out = stream(bytes, sizeof bytes);
        json_t *valid = json_stringn(out.text, out.len); /* refuses what is not UTF-8 */
        assert_non_null(valid);
        json_decref(valid);
        str_free(&out);
    }
}

static void encode_and_decode_are_inverse(void **state) {
    const char *text = "One d\xC3\xA9j\xC3\xA0 vu.";
    int32_t ids[64];
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    ids[n] = BYTE_EOS;
    str out = { 0 };
    byte_decode(ids, n, &out);
    assert_string_equal(out.text, text);
    out.len = 0;
    byte_decode(ids, n + 1, &out);
    assert_string_equal(out.text + n, "\n" TEXT_SEPARATOR "\n");
    str_free(&out);
}

/* ---- text files ---------------------------------------------------------------------------- */

static void assert_tokens(const data_source *s, const int32_t *expected, int64_t n) {
    assert_int_equal(data_source_info(s)->tokens, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(data_token(s, i), expected[i]);
}

static void text_splits_at_separator_lines(void **state) {
    static const int32_t two[] = { 'a', '\n', 'b', BYTE_EOS, 'c', BYTE_EOS };
    static const int32_t kept[] = { 'x', '<', '|', 'e', 'n', 'd', 'o',  'f',
                                    't', 'e', 'x', 't', '|', '>', '\n', BYTE_EOS };
    static const char *const forms[] = {
        "a\nb\n<|endoftext|>\nc\n<|endoftext|>\n",
        "a\nb\n<|endoftext|>\nc\n<|endoftext|>",
        "<|endoftext|>\na\nb\n<|endoftext|>\n<|endoftext|>\nc",
    };
    for (size_t i = 0; i < COUNT_OF(forms); i++) {
        data_source *s = open_text(*state, "a.txt", forms[i]);
        assert_tokens(s, two, COUNT_OF(two));
        assert_int_equal(data_source_info(s)->documents, 2);
        assert_int_equal(data_source_info(s)->vocab, BYTE_VOCAB);
        data_close(s);
    }
    data_source *s = open_text(*state, "a.txt", "x<|endoftext|>\n"); /* not a line of its own */
    assert_tokens(s, kept, COUNT_OF(kept));
    data_close(s);
    s = open_text(*state, "a.txt", "c\r\n<|endoftext|>\r\nd");
    assert_tokens(s, (const int32_t[]){ 'c', BYTE_EOS, 'd', BYTE_EOS }, 4);
    data_close(s);
}

static void json_lines_are_read(void **state) {
    data_source *s =
        open_text(*state, "a.jsonl", "{\"id\":1,\"text\":\"a\\n\"}\n\n{\"text\":\"b\"}");
    assert_tokens(s, (const int32_t[]){ 'a', '\n', BYTE_EOS, 'b', BYTE_EOS }, 5);
    data_close(s);
    static const struct {
        const char *text, *says, *place;
    } bad[] = {
        { "{\"text\":\"a\"}\n{\"text\":", "at byte 13", "a.jsonl" },
        { "{\"txt\":\"a\"}\n", "at byte 0", "a.jsonl" },
        { "{\"text\":\"\"}\n", "no text", "a.jsonl" },
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        const char *path = folder_write_bytes(*state, "a.jsonl", bad[i].text, strlen(bad[i].text));
        assert_error(data_open(path, 0, &s), bad[i].says, bad[i].place);
    }
}

/* A text gives the same tokens whether it is opened or tokenized into a file first. */
static void assert_same_tokens(test_folder *f, const char *path, const char *tokenizer_name) {
    const char *tok = in_folder(f, "made.tok");
    tokenizer *t = NULL;
    text_inputs *in = NULL;
    tokenize_report report;
    assert_ok(tokenizer_open(tokenizer_name, NULL, &t));
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    tokenize_options o = { .tokenizer = t, .eos = -1, .quiet = true };
    assert_ok(data_tokenize_text(in, tok, &o, &report));
    data_source *made = NULL, *direct = NULL;
    assert_ok(data_open(tok, 0, &made));
    assert_ok(data_open_paths(&path, 1, &(data_options){ .tokenizer = tokenizer_name }, &direct));
    const data_info *a = data_source_info(direct), *b = data_source_info(made);
    assert_int_equal(a->tokens, b->tokens);
    assert_int_equal(a->documents, b->documents);
    assert_int_equal(a->tokenizer_hash, b->tokenizer_hash);
    for (int64_t n = 0; n < a->tokens; n++)
        assert_int_equal(data_token(direct, n), data_token(made, n));
    data_close(made);
    data_close(direct);
    text_inputs_close(in);
    tokenizer_free(t);
}

static void a_text_has_the_tokens_of_data_tokenize(void **state) {
    static const char *const texts[][2] = {
        { "bom.txt", "\xEF\xBB\xBFone\r\ntwo\r\n" },
        { "crlf.txt", "a\r\nb\r\n<|endoftext|>\r\nc\rd\r\n<|endoftext|>\r\n\r\n" },
        { "end.txt", "one\n\n<|endoftext|>\n  \n<|endoftext|>\n two <|endoftext|>" },
        { "bom.jsonl", "\xEF\xBB\xBF{\"text\": \"a\\r\\nb\"}\r\n\r\n{\"text\": \"\\u00e9 \"}" },
    };
    static const char *const tokenizers[] = { "bytes", FIXTURES "/tokenizers/gpt2.json",
                                              FIXTURES "/tokenizers/llama2.json" };
    char stray[5000];
    memset(stray, 'a', sizeof stray);
    stray[77] = '\xFF';
    stray[sizeof stray - 1] = 0;
    for (size_t k = 0; k < COUNT_OF(tokenizers); k++) {
        for (size_t i = 0; i < COUNT_OF(texts); i++)
            assert_same_tokens(*state, folder_write(*state, texts[i][0], texts[i][1]),
                               tokenizers[k]);
        assert_same_tokens(*state, folder_write(*state, "stray.txt", stray), tokenizers[k]);
    }
}

static void files_that_are_no_text_are_refused(void **state) {
    data_source *s = NULL;
    assert_error(data_open(in_folder(*state, "none.txt"), 0, &s), "none.txt");
    assert_error(data_open(folder_write_bytes(*state, "e.txt", "", 0), 0, &s), "empty", "e.txt");
    assert_error(data_open(folder_write_bytes(*state, "z.txt", "ab\0c", 4), 0, &s), "byte 2",
                 "z.txt");
    assert_error(data_open(folder_write_bytes(*state, "l.txt", "caf\xE9 au lait", 12), 0, &s),
                 "UTF-8", "l.txt");
    assert_error(data_open(folder_write_bytes(*state, "s.txt", "<|endoftext|>\n", 14), 0, &s),
                 "no text", "s.txt");
    /* A few stray bytes in a long text are not worth a refusal. */
    char text[5000];
    memset(text, 'a', sizeof text);
    text[77] = '\xFF';
    assert_ok(data_open(folder_write_bytes(*state, "t.txt", text, sizeof text), 0, &s));
    data_close(s);
}

/* ---- token files --------------------------------------------------------------------------- */

static const char *write_tok(test_folder *f, const char *name, const int32_t *ids, int64_t n,
                             int64_t vocab, int32_t eos) {
    token_writer *w = NULL;
    const token_writer_options o = {
        .vocab = vocab, .eos = eos, .tokenizer = TOKENIZER_BPE, .tokenizer_hash = 99
    };
    assert_ok(token_writer_open(in_folder(f, name), &o, &w));
    assert_ok(token_writer_add(w, ids, n / 2));
    assert_ok(token_writer_add(w, ids + n / 2, n - n / 2));
    assert_ok(token_writer_close(w, NULL));
    return in_folder(f, name);
}

/* A file whose ids were checked against its own vocabulary, one larger than the loader's limit. */
static void the_first_id_beyond_the_limit_is_found(void **state) {
    enum { N = 41, LIMIT = 100 };
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = i == 13 ? LIMIT : 10 + i;
    data_source *s = NULL;
    assert_ok(data_open(write_tok(*state, "a.tok", ids, N, LIMIT + 1, -1), 0, &s));
    loader *l = loader_of(
        s, (loader_options){ .seq_len = 10, .rows = 1, .in_order = true, .vocab_limit = LIMIT });
    data_batch b;
    next(l);
    assert_error(loader_next(l, &b), "token 13 has id 100");
    loader_free(l);
    data_close(s);
}

static void token_files_come_back_as_written(void **state) {
    static const int64_t vocabs[] = { 50257, 65536, 65537, 128256 };
    enum { N = 100003 }; /* several of the writer's buffers, an odd number */
    int32_t *ids = malloc(N * sizeof *ids);
    for (size_t v = 0; v < COUNT_OF(vocabs); v++) {
        rng_key key = rng_key_of(3, v);
        int64_t ends = 0;
        for (uint64_t i = 0; i < N; i++) {
            ids[i] = (int32_t)rng_below(key, i, (uint64_t)vocabs[v]);
            ends += ids[i] == 7;
        }
        ids[N - 1] = 8;
        data_source *s = NULL;
        assert_ok(data_open(write_tok(*state, "a.tok", ids, N, vocabs[v], 7), vocabs[v], &s));
        const data_info *info = data_source_info(s);
        assert_int_equal(info->width, vocabs[v] <= 65536 ? 2 : 4);
        assert_int_equal(info->vocab, vocabs[v]);
        assert_int_equal(info->eos, 7);
        assert_int_equal(info->documents, ends + 1);
        assert_int_equal(info->tokenizer, TOKENIZER_BPE);
        assert_int_equal(info->tokenizer_hash, 99);
        assert_tokens(s, ids, N);
        data_close(s);
    }
    free(ids);
}

static void an_abandoned_token_file_leaves_nothing(void **state) {
    token_writer *w = NULL;
    const token_writer_options o = { .vocab = 10, .eos = -1 };
    assert_ok(token_writer_open(in_folder(*state, "a.tok"), &o, &w));
    assert_ok(token_writer_add(w, (const int32_t[]){ 1, 2, 3 }, 3));
    token_writer_abandon(w);
    char **names = NULL;
    int n = -1;
    assert_ok(io_list(((test_folder *)*state)->path, &names, &n));
    assert_int_equal(n, 0);
    io_list_free(names, n);
}

/* Every truncation and every changed byte must be noticed; nothing may crash. */
static void damaged_token_files_are_refused(void **state) {
    enum { N = 50 };
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = i;
    char *bytes = NULL;
    size_t n = 0;
    assert_ok(io_read(write_tok(*state, "a.tok", ids, N, 300, 0), 1 << 20, &bytes, &n));
    data_source *s = NULL;
    for (size_t cut = 0; cut < n; cut++) {
        err e = data_open(folder_write_bytes(*state, "cut.tok", bytes, cut), 0, &s);
        assert_non_null(e);
        assert_non_null(strstr(err_message(e), "cut.tok"));
        err_free(e);
    }
    for (size_t at = 0; at < n; at++) {
        bytes[at] ^= (char)(1 << (at % 8));
        err e = data_open(folder_write_bytes(*state, "bad.tok", bytes, n), 0, &s);
        assert_non_null(e);
        err_free(e);
        bytes[at] ^= (char)(1 << (at % 8));
    }
    assert_error(data_open(folder_write_bytes(*state, "long.tok", bytes, n + 1), 0, &s), "trailer",
                 "long.tok");
    bytes[32 + 2 * 20] ^= 1; /* a token */
    assert_error(data_open(folder_write_bytes(*state, "sum.tok", bytes, n), 0, &s), "checksum",
                 "sum.tok");
    free(bytes);
}

static void a_larger_vocabulary_than_the_model_is_refused(void **state) {
    data_source *s = NULL;
    const int32_t ids[] = { 5, 299, 7 };
    const char *path = write_tok(*state, "a.tok", ids, 3, 300, -1);
    assert_error(data_open(path, 299, &s), "vocabulary of 300", "model has 299");
    assert_ok(data_open(path, 300, &s));
    data_close(s);
    const uint16_t raw[] = { 3, 70, 5 };
    path = folder_write_bytes(*state, "a.bin", raw, sizeof raw);
    assert_error(data_open(path, 50, &s), "id 70 at token 1", "vocabulary of 50");
    path = folder_write_bytes(*state, "a.txt", "abc", 3);
    assert_error(data_open(path, 256, &s), "vocabulary of 257", "model has 256");
}

static void foreign_token_files_are_read(void **state) {
    data_source *s = NULL;
    const uint16_t raw[] = { 3, 50256, 5, 60000 };
    assert_ok(data_open(folder_write_bytes(*state, "nano.bin", raw, sizeof raw), 0, &s));
    assert_tokens(s, (const int32_t[]){ 3, 50256, 5, 60000 }, 4);
    assert_int_equal(data_source_info(s)->eos, 50256);
    data_close(s);
    assert_error(data_open(folder_write_bytes(*state, "odd.bin", raw, 7), 0, &s),
                 "whole number of uint16", "odd.bin");

    int32_t gpt2[256 + 1] = { 20240520, 1, 2 }, llama[256 + 3] = { 20240801, 7, 3 };
    gpt2[256] = (int32_t)(11u | 50256u << 16);
    assert_ok(data_open(folder_write_bytes(*state, "gpt2.bin", gpt2, sizeof gpt2), 50257, &s));
    assert_tokens(s, (const int32_t[]){ 11, 50256 }, 2);
    data_close(s);
    llama[256] = 128000;
    llama[257] = 9;
    llama[258] = 100000;
    assert_ok(data_open(folder_write_bytes(*state, "llama.bin", llama, sizeof llama), 0, &s));
    assert_tokens(s, (const int32_t[]){ 128000, 9, 100000 }, 3);
    assert_int_equal(data_source_info(s)->eos, 128000);
    data_close(s);

    llama[257] = -1;
    assert_error(data_open(folder_write_bytes(*state, "neg.bin", llama, sizeof llama), 128256, &s),
                 "4294967295", "token 1");
    gpt2[2] = 3;
    assert_error(data_open(folder_write_bytes(*state, "short.bin", gpt2, sizeof gpt2), 0, &s),
                 "3 tokens", "short.bin");
    gpt2[2] = -1;
    assert_error(data_open(folder_write_bytes(*state, "minus.bin", gpt2, sizeof gpt2), 0, &s),
                 "negative", "minus.bin");
    gpt2[1] = 2;
    assert_error(data_open(folder_write_bytes(*state, "v2.bin", gpt2, sizeof gpt2), 0, &s),
                 "version 2", "v2.bin");
    assert_error(data_open(folder_write_bytes(*state, "head.bin", gpt2, 1000), 0, &s), "header",
                 "head.bin");
}

/* ids as numpy writes them: n values of `width` bytes. */
static const char *write_raw(test_folder *f, const int64_t *ids, int n, int width) {
    char *bytes = malloc((size_t)(n * width));
    for (int i = 0; i < n; i++)
        memcpy(bytes + i * width, &ids[i], (size_t)width); /* little-endian */
    const char *path = folder_write_bytes(f, "raw.bin", bytes, (size_t)(n * width));
    free(bytes);
    return path;
}

static void raw_tokens_are_recognized_by_their_values(void **state) {
    enum { N = 1000 };
    static const struct {
        int64_t vocab;
        int width;
        const char *format;
    } kinds[] = {
        { 4, 2, "raw uint16 tokens" },      { 65, 2, "raw uint16 tokens" },
        { 50257, 2, "raw uint16 tokens" },  { 65536, 2, "raw uint16 tokens" },
        { 65, 4, "raw uint32 tokens" },     { 50257, 4, "raw uint32 tokens" },
        { 128256, 4, "raw uint32 tokens" }, { 262144, 4, "raw uint32 tokens" },
        { 65, 8, "raw int64 tokens" },      { 50257, 8, "raw int64 tokens" },
        { 128256, 8, "raw int64 tokens" },
    };
    int64_t ids[N];
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        rng_key key = rng_key_of(1, k);
        for (int i = 0; i < N; i++)
            ids[i] = (int64_t)rng_below(key, (uint64_t)i, (uint64_t)kinds[k].vocab);
        data_source *s = NULL;
        assert_ok(data_open(write_raw(*state, ids, N, kinds[k].width), 0, &s));
        assert_string_equal(data_source_info(s)->format, kinds[k].format);
        assert_int_equal(data_source_info(s)->tokens, N);
        for (int i = 0; i < N; i++) assert_int_equal(data_token(s, i), ids[i]);
        assert_int_equal(data_source_info(s)->eos, kinds[k].vocab > 65536 ? -1 : 50256);
        data_close(s);
    }
}

static void the_type_of_raw_tokens_can_be_given(void **state) {
    const int64_t few[] = { 7, 8, 9, 10 };
    data_source *s = NULL;
    const char *path = write_raw(*state, few, 4, 4); /* too few to guess */
    assert_ok(data_open_paths(&path, 1, &(data_options){ .raw_dtype = RAW_UINT32 }, &s));
    assert_tokens(s, (const int32_t[]){ 7, 8, 9, 10 }, 4);
    data_close(s);
    assert_ok(data_open_paths(&path, 1, &(data_options){ .raw_dtype = RAW_UINT16 }, &s));
    assert_tokens(s, (const int32_t[]){ 7, 0, 8, 0, 9, 0, 10, 0 }, 8);
    data_close(s);
    const int64_t odd[] = { 7, 8, (int64_t)1 << 40 };
    path = write_raw(*state, odd, 3, 8);
    assert_error(data_open_paths(&path, 1, &(data_options){ .raw_dtype = RAW_INT64 }, &s),
                 "raw.bin", "token 2", "1099511627776");
    path = write_raw(*state, few, 3, 4);
    assert_error(data_open_paths(&path, 1, &(data_options){ .raw_dtype = RAW_INT64 }, &s),
                 "12 bytes");
    raw_dtype dtype;
    assert_ok(raw_dtype_parse("int64", &dtype));
    assert_int_equal(dtype, RAW_INT64);
    assert_error(raw_dtype_parse("float", &dtype), "float");
}

static void built_in_data_is_the_corpus(void **state) {
    data_source *s = NULL;
    assert_ok(data_open_synth(4, 3, &s));
    int64_t at = 0;
    for (int64_t i = 0; i < 3; i++) {
        str text = { 0 };
        data_synth_document(4, i, NULL, &text);
        for (size_t j = 0; j < text.len; j++)
            assert_int_equal(data_token(s, at++), (unsigned char)text.text[j]);
        assert_int_equal(data_token(s, at++), BYTE_EOS);
        str_free(&text);
    }
    assert_int_equal(at, data_source_info(s)->tokens);
    data_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_holds_back_half_characters),
        cmocka_unit_test(decoding_replaces_what_is_not_utf8),
        cmocka_unit_test(random_bytes_decode_to_valid_text),
        cmocka_unit_test(encode_and_decode_are_inverse),
        cmocka_unit_test_setup_teardown(text_splits_at_separator_lines, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(json_lines_are_read, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_text_has_the_tokens_of_data_tokenize, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(files_that_are_no_text_are_refused, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(the_first_id_beyond_the_limit_is_found, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(token_files_come_back_as_written, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(an_abandoned_token_file_leaves_nothing, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(damaged_token_files_are_refused, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_larger_vocabulary_than_the_model_is_refused, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(foreign_token_files_are_read, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(raw_tokens_are_recognized_by_their_values, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(the_type_of_raw_tokens_can_be_given, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(built_in_data_is_the_corpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
