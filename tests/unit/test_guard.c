/* The guard: each verdict at its exact threshold, and alike for ids of both widths. */
#include "support/data.h"

#include "shards/data_internal.h"
#include "tokenizer/tokenizer.h"

enum { N = 1000 };

/* The verdict on n ids, which must not depend on how they are stored. */
static guard_verdict judge_ids(const guard_options *g, const guard_text *text, const int32_t *ids,
                               int64_t n) {
    guard_buffer b = { 0 };
    uint16_t *narrow = malloc((size_t)n * sizeof *narrow);
    for (int64_t i = 0; i < n; i++) narrow[i] = (uint16_t)ids[i];
    guard_verdict wide = guard_judge(g, text, &(token_view){ ids, 4, n }, &b);
    assert_int_equal(guard_judge(g, text, &(token_view){ narrow, 2, n }, &b), wide);
    free(narrow);
    guard_buffer_free(&b);
    return wide;
}

/* Different ids throughout, but for the first `count`, which all are 7. They are spread evenly. */
static void fill_repeated(int32_t *ids, int count) {
    for (int i = 0; i < N; i++) {
        bool one = (int64_t)(i + 1) * count / N > (int64_t)i * count / N;
        ids[i] = one ? 7 : 100 + i;
    }
}

static void one_id_may_fill_up_to_its_share(void **state) {
    int32_t ids[N];
    static const double shares[] = { 0.5, 0.8, 0.9 };
    for (size_t k = 0; k < COUNT_OF(shares); k++) {
        guard_options g = { .on = true, .repeated = shares[k] };
        int most = (int)(shares[k] * N + 0.5);
        fill_repeated(ids, most);
        assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_FINE);
        fill_repeated(ids, most + 1);
        assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_REPEATED);
        g.repeated = 0;
        assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_FINE);
    }
}

/* `different` ids in an order without a period. */
static void fill_few(int32_t *ids, int n, int different) {
    rng_key key = rng_key_of(4, (uint64_t)different);
    for (int i = 0; i < n; i++)
        ids[i] = i < different ? i : (int32_t)rng_below(key, (uint64_t)i, (uint64_t)different);
}

static void fewer_ids_than_the_least_are_refused(void **state) {
    int32_t ids[N];
    for (int least = 2; least <= 32; least += 5) {
        guard_options g = { .on = true, .few_ids = least };
        fill_few(ids, N, least);
        assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_FINE);
        fill_few(ids, N, least - 1);
        assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_FEW_IDS);
    }
    guard_options g = { .on = true, .few_ids = 8 }; /* a short window may have a fourth as many */
    fill_few(ids, 12, 3);
    assert_int_equal(judge_ids(&g, NULL, ids, 12), GUARD_FINE);
    fill_few(ids, 12, 2);
    assert_int_equal(judge_ids(&g, NULL, ids, 12), GUARD_FEW_IDS);
}

/* A phrase of `period` ids, 36 of them different, over and over in the first `looped` of the window, then others. */
static void fill_loop(int32_t *ids, int period, int looped) {
    rng_key key = rng_key_of(5, (uint64_t)period);
    for (int i = 0; i < N; i++) {
        int32_t phrase = 1000 + (int32_t)rng_below(key, (uint64_t)(i % period), 36);
        ids[i] = i < looped ? phrase : 10000 + i;
    }
}

static void a_phrase_may_fill_up_to_its_share(void **state) {
    int32_t ids[N];
    guard_options g = { .on = true, .repeated = 0.8, .few_ids = 2 };
    static const int periods[] = { 3, 10, 25, 60, 100, 150 };
    for (size_t k = 0; k < COUNT_OF(periods); k++) {
        int p = periods[k], most = 800 + p; /* the first time round repeats nothing */
        fill_loop(ids, p, MIN(N, most + 1));
        assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_LOOPED);
        fill_loop(ids, p, most);
        assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_FINE);
        g.repeated = 0;
        fill_loop(ids, p, N);
        assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_FINE);
        g.repeated = 0.8;
    }
    fill_loop(ids, 200, N); /* so long a phrase explains no more than 0.8 of the window */
    assert_int_equal(judge_ids(&g, NULL, ids, N), GUARD_FINE);
}

static void text_repeats_itself_less_than_a_loop(void **state) {
    guard_options g = { .on = true, .repeated = 0.8, .few_ids = 8, .malformed = 0.1 };
    data_source *s = NULL;
    assert_ok(data_open_synth(3, 200, &s));
    guard_text *text = guard_text_new(data_source_info(s), NULL);
    assert_non_null(text);
    int32_t ids[256];
    for (int64_t at = 0; at + 256 <= data_source_info(s)->tokens; at += 256) {
        data_read(s, at, 256, ids);
        assert_int_equal(judge_ids(&g, text, ids, 256), GUARD_FINE);
    }
    guard_text_free(text);
    data_close(s);
}

/* ---- text -------------------------------------------------------------------------------------- */

static const guard_options TEXT_ONLY = { .on = true, .malformed = 0.1 };

static guard_verdict judge_bytes(const char *bytes, size_t n) {
    int32_t *ids = malloc(n * sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)bytes[i];
    guard_text *text = guard_text_new(&(data_info){ .tokenizer = TOKENIZER_BYTES }, NULL);
    guard_verdict v = judge_ids(&TEXT_ONLY, text, ids, (int64_t)n);
    guard_text_free(text);
    free(ids);
    return v;
}

/* `unit` over and over. */
static guard_verdict judge_text(const char *unit, size_t len) {
    str s = { 0 };
    while (s.len < N) str_add_bytes(&s, unit, len);
    guard_verdict v = judge_bytes(s.text, s.len);
    str_free(&s);
    return v;
}
#define JUDGE(unit) judge_text(unit, sizeof unit - 1)

static void malformed_text_is_refused(void **state) {
    assert_int_equal(JUDGE("caf\xE9 cr\xE8me "), GUARD_MALFORMED);       /* Latin-1 */
    assert_int_equal(JUDGE("a\xEF\xBF\xBD b "), GUARD_MALFORMED);        /* U+FFFD */
    assert_int_equal(JUDGE("a\0b\0"), GUARD_MALFORMED);                  /* UTF-16 */
    assert_int_equal(JUDGE("cafÃ© crÃ¨me "), GUARD_MALFORMED);           /* decoded twice */
    assert_int_equal(JUDGE("â€œwordâ€\xC2\x9D "), GUARD_MALFORMED);      /* quotation marks */
    assert_int_equal(JUDGE("Ð¿Ñ€Ð¸Ð²ÐµÑ‚ "), GUARD_MALFORMED);           /* Cyrillic */
    assert_int_equal(JUDGE("\x1b[31mred\x1b[0m\x07 "), GUARD_MALFORMED); /* terminal output */
}

static void sound_text_passes(void **state) {
    static const char *const texts[] = {
        "The quick brown fox.\r\n\tIt jumps. ",
        "Über die Straße, sagte sie. Ärger, Öl. ",
        "À côté d’un “mot” — façon «française». ",
        "Привет, мир. Это проверка. ",
        "你好，世界。这是一个测试。 ",
        "ÃO AÇÃO JOÃO são Â Ã ",
        "हिन्दी में लिखा हुआ पाठ। ",
        "emoji 😀 👍🏽 in text 😀 ",
        "Nestlé™ café® naïve» ",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        assert_int_equal(judge_text(texts[i], strlen(texts[i])), GUARD_FINE);
}

/* One bad byte in n, until the share is crossed. */
static void malformed_characters_may_fill_up_to_their_share(void **state) {
    for (int bad = 90; bad <= 110; bad++) {
        char text[N];
        for (int i = 0; i < N; i++)
            text[i] = (i + 1) * bad / N > i * bad / N ? (char)0xFF : (char)('a' + i % 20);
        bool refused = judge_bytes(text, N) == GUARD_MALFORMED;
        assert_int_equal(refused, bad - 2 > 100); /* two may be parts of characters at the ends */
    }
}

static void windows_may_begin_inside_a_character(void **state) {
    const char *text = "你好，世界。这是一个测试。";
    for (size_t from = 0; from < 3; from++)
        for (size_t to = strlen(text) - 3; to <= strlen(text); to++)
            assert_int_equal(judge_bytes(text + from, to - from), GUARD_FINE);
}

/* The ids of a trained tokenizer are decoded, however it splits characters. */
static void ids_of_a_tokenizer_are_decoded(void **state) {
    static const struct {
        const char *text;
        guard_verdict verdict;
    } cases[] = { { "cafÃ© crÃ¨me â€œwordâ€œ ", GUARD_MALFORMED },
                  { "caf\xE9 cr\xE8me \xFF ", GUARD_MALFORMED },
                  { "Hello, this is a text. ", GUARD_FINE },
                  { "你好，世界。Привет, café. ", GUARD_FINE } };
    static const char *const names[] = { "gpt2", "llama2" };
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        char path[256];
        snprintf(path, sizeof path, FIXTURES "/tokenizers/%s/tokenizer.json", names[k]);
        if (!io_exists(path)) snprintf(path, sizeof path, FIXTURES "/tokenizers/%s.json", names[k]);
        tokenizer *t = NULL;
        assert_ok(tokenizer_open(path, NULL, &t));
        data_info info = { .tokenizer = TOKENIZER_BPE, .tokenizer_hash = tokenizer_hash(t) };
        guard_text *text = guard_text_new(&info, t);
        assert_non_null(text);
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
            token_ids ids = { 0 };
            encoder *e = encoder_new(t);
            for (int n = 0; n < 50; n++)
                encoder_add(e, cases[i].text, strlen(cases[i].text), false, &ids);
            assert_int_equal(judge_ids(&TEXT_ONLY, text, ids.at, (int64_t)ids.n), cases[i].verdict);
            token_ids_free(&ids);
            encoder_free(e);
        }
        guard_text_free(text);
        info.tokenizer_hash++; /* ids of another tokenizer mean nothing to this one */
        assert_null(guard_text_new(&info, t));
        assert_null(guard_text_new(&info, NULL));
        tokenizer_free(t);
    }
}

/* From the bytes of a file to the batch: no target is left. */
static void a_looped_phrase_in_a_file_gets_no_weight(void **state) {
    test_folder *f = *state;
    str s = { 0 };
    for (int i = 0; i < 3000; i++) str_add(&s, "buy now cheap best price ");
    data_source *source = NULL;
    assert_ok(data_open(folder_write(f, "loop.txt", s.text), 0, &source));
    str_free(&s);
    loader *l = loader_of(
        source,
        (loader_options){ .seq_len = 256, .rows = 2, .guard = { true, 0.8, 8, 0.1, NULL } });
    for (int i = 0; i < 50; i++) {
        data_batch b = next(l);
        assert_int_equal(b.valid, 0);
        assert_int_equal(b.guard[0], GUARD_LOOPED);
    }
    loader_free(l);
    data_close(source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_id_may_fill_up_to_its_share),
        cmocka_unit_test(fewer_ids_than_the_least_are_refused),
        cmocka_unit_test(a_phrase_may_fill_up_to_its_share),
        cmocka_unit_test(text_repeats_itself_less_than_a_loop),
        cmocka_unit_test(malformed_text_is_refused),
        cmocka_unit_test(sound_text_passes),
        cmocka_unit_test(malformed_characters_may_fill_up_to_their_share),
        cmocka_unit_test(windows_may_begin_inside_a_character),
        cmocka_unit_test(ids_of_a_tokenizer_are_decoded),
        cmocka_unit_test_setup_teardown(a_looped_phrase_in_a_file_gets_no_weight, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
