/* A tokenizer puts tokens around texts: the ids of Hugging Face's library (fixtures/tokenizers/affixes.json), what
 * is refused, tokenizer_config.json, what is saved, and the documents that data is made of. */
#include "support/tokenizer.h"

#include "checkpoint/checkpoint.h"
#include "shards/data.h"
#include "text/text.h"

/* llama2.json of the fixtures with another post-processor, as X.json. @return owned: json_decref. */
static json_t *llama_with(const json_t *post_processor) {
    json_t *doc = NULL;
    assert_ok(io_json_read(FIXTURE("llama2"), &doc));
    json_object_set(doc, "post_processor", (json_t *)(uintptr_t)post_processor);
    return doc;
}

static err open_with(test_folder *f, const char *post_processor, tokenizer **out) {
    json_t *p = json_loads(post_processor, JSON_DECODE_ANY, NULL);
    assert_non_null(p);
    json_t *doc = llama_with(p);
    const char *path = in_folder(f, "with.json");
    assert_ok(io_json_write(path, doc));
    json_decref(doc);
    json_decref(p);
    return tokenizer_open(path, NULL, out);
}

#define TOKEN(name)   "{\"SpecialToken\": {\"id\": \"" name "\", \"type_id\": 0}}"
#define SEQUENCE(id)  "{\"Sequence\": {\"id\": \"" id "\", \"type_id\": 0}}"
#define DEFINE(t, id) "\"" t "\": {\"id\": \"" t "\", \"ids\": [" id "], \"tokens\": [\"" t "\"]}"
#define TEMPLATE(single, tokens)                                                                   \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single                                      \
    "], \"pair\": [], \"special_tokens\": {" tokens "}}"
#define BOS_TEMPLATE TEMPLATE(TOKEN("<s>") "," SEQUENCE("A"), DEFINE("<s>", "1"))
#define BOTH_TEMPLATE                                                                              \
    TEMPLATE(TOKEN("<s>") "," SEQUENCE("A") "," TOKEN("</s>"),                                     \
             DEFINE("<s>", "1") "," DEFINE("</s>", "2"))
#define SAME_TEMPLATE TEMPLATE(TOKEN("</s>") "," SEQUENCE("A"), DEFINE("</s>", "2"))

static void assert_ids(const token_ids *ids, const json_t *want, const char *name) {
    bool same = ids->n == json_array_size(want);
    for (size_t i = 0; i < ids->n && same; i++)
        same = ids->at[i] == json_integer_value(json_array_get(want, i));
    if (!same) fail_msg("%s: other ids than the library's", name);
}

static void check_texts(const tokenizer *t, const json_t *texts, const json_t *ids,
                        const char *name) {
    encoder *e = encoder_new(t);
    const json_t *text;
    size_t i;
    json_array_foreach(texts, i, text) {
        token_ids got = { 0 };
        encoder_add_affixed(e, json_string_value(text), json_string_length(text), false, &got);
        assert_ids(&got, json_array_get(ids, i), name);
        token_ids_free(&got);
    }
    encoder_free(e);
}

/* As read, and as written back with other affixes and these again. */
static void ids_around_are_those_of_the_library(void **state) {
    json_t *doc = NULL, *c;
    const char *name, *path = in_folder(*state, "case.json"),
                      *back = in_folder(*state, "back.json");
    assert_ok(io_json_read(FIXTURES "/tokenizers/affixes.json", &doc));
    const json_t *texts = json_object_get(doc, "texts");
    json_object_foreach(json_object_get(doc, "cases"), name, c) {
        json_t *whole = llama_with(json_object_get(c, "post_processor"));
        assert_ok(io_json_write(path, whole));
        json_decref(whole);
        tokenizer *t = open_tokenizer(path, NULL), *again;
        check_texts(t, texts, json_object_get(c, "ids"), name);
        token_affixes was = *tokenizer_affixes(t);
        tokenizer_set_affixes(t, &(token_affixes){ .prefix = { 7 }, .n_prefix = 1 });
        tokenizer_set_affixes(t, &was);
        assert_ok(tokenizer_save(t, back));
        again = open_tokenizer(back, NULL);
        check_texts(again, texts, json_object_get(c, "ids"), name);
        assert_int_equal(tokenizer_hash(t), tokenizer_hash(again));
        tokenizer_free(t);
        tokenizer_free(again);
    }
    json_decref(doc);
}

static void other_post_processors_are_refused(void **state) {
    static const struct {
        const char *post_processor, *says;
    } cases[] = {
        { "{\"type\": \"Stanza\"}", "Stanza" },
        { "{\"type\": \"ByteLevel\", \"shout\": true}", "shout" },
        { TEMPLATE(TOKEN("<s>"), DEFINE("<s>", "1")), "exactly once" },
        { TEMPLATE(SEQUENCE("A") "," SEQUENCE("A"), ""), "exactly once" },
        { TEMPLATE(SEQUENCE("B"), ""), "exactly once" },
        { TEMPLATE(TOKEN("<s>") "," SEQUENCE("A"), ""), "<s>" },
        { TEMPLATE(TOKEN("<s>") "," SEQUENCE("A"), DEFINE("<s>", "700000")), "700000" },
        { TEMPLATE(TOKEN("<s>") "," SEQUENCE("A"), DEFINE("<s>", "-1")), "makes sense" },
        { TEMPLATE(TOKEN("<s>") "," SEQUENCE("A"), DEFINE("<s>", "1,1,1,1,1,1,1,1,1")), "than 8" },
        { "{\"type\": \"BertProcessing\", \"sep\": [\"x\"], \"cls\": [\"y\", 1]}", "sep" },
        { "{\"type\": \"Sequence\", \"processors\": [" BOS_TEMPLATE "," BOS_TEMPLATE "]}",
          "after another" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        tokenizer *t = NULL;
        assert_error(open_with(*state, cases[i].post_processor, &t), cases[i].says);
        assert_null(t);
    }
}

/* ---- tokenizer_config.json ------------------------------------------------------------------------ */

static token_affixes opened_beside(test_folder *f, const char *settings, const char *name) {
    folder_write(f, "tokenizer_config.json", settings);
    tokenizer *t = open_tokenizer(in_folder(f, name), NULL);
    token_affixes a = *tokenizer_affixes(t);
    tokenizer_free(t);
    return a;
}

/* Beside a .model, which does not state anything itself, and not beside a tokenizer.json, which does. */
static void settings_beside_a_model_count(void **state) {
    static const char both[] = "{\"add_bos_token\": false, \"add_eos_token\": true, "
                               "\"eos_token\": {\"content\": \"</s>\"}}";
    static const char *const files[] = { "tokenizer.model", "" };
    tokenizer *t = NULL;
    size_t n;
    char *bytes = NULL;
    assert_ok(io_read(FIXTURES "/tokenizers/sp_llama.model", 1 << 20, &bytes, &n));
    folder_write_bytes(*state, "tokenizer.model", bytes, n);
    free(bytes);
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        token_affixes a = opened_beside(*state, both, files[i]);
        assert_int_equal(a.n_prefix, 0);
        assert_int_equal(a.n_suffix, 1);
        assert_int_equal(a.suffix[0], 2);
        a = opened_beside(*state, "{\"add_bos_token\": true, \"bos_token\": \"<s>\"}", files[i]);
        assert_int_equal(a.n_prefix, 1);
        assert_int_equal(a.prefix[0], 1);
        assert_int_equal(a.n_suffix, 0);
        assert_int_equal(opened_beside(*state, "{\"bos_token\": \"<s>\"}", files[i]).n_prefix, 0);
    }
    folder_write(*state, "tokenizer_config.json",
                 "{\"add_bos_token\": true, \"bos_token\": \"<nobody>\"}");
    assert_error(tokenizer_open(in_folder(*state, "tokenizer.model"), NULL, &t), "<nobody>");
    assert_ok(open_with(*state, BOS_TEMPLATE, &t));
    assert_ok(tokenizer_save(t, in_folder(*state, "tokenizer.json")));
    tokenizer_free(t);
    assert_int_equal(opened_beside(*state, both, "").n_prefix, 1);
    assert_int_equal(opened_beside(*state, both, "tokenizer.json").n_suffix, 0);
}

/* The file that is saved has what the settings state. */
static void what_settings_state_is_saved(void **state) {
    size_t n;
    char *bytes = NULL;
    assert_ok(io_read(FIXTURES "/tokenizers/sp_unigram.model", 1 << 20, &bytes, &n));
    const char *path = folder_write_bytes(*state, "tokenizer.model", bytes, n);
    free(bytes);
    folder_write(*state, "tokenizer_config.json",
                 "{\"add_bos_token\": true, \"bos_token\": \"<s>\"}");
    tokenizer *t = open_tokenizer(path, NULL);
    assert_ok(tokenizer_save(t, in_folder(*state, "alone.json")));
    tokenizer *alone = open_tokenizer(in_folder(*state, "alone.json"), NULL);
    assert_int_equal(tokenizer_affixes(alone)->n_prefix, 1);
    assert_int_equal(tokenizer_affixes(alone)->prefix[0], 1);
    assert_int_equal(tokenizer_hash(alone), tokenizer_hash(t));
    tokenizer_free(alone);
    tokenizer_free(t);
}

/* ---- prompts -------------------------------------------------------------------------------------- */

static void a_prompt_has_its_prefix_once(void **state) {
    tokenizer *t = NULL;
    assert_ok(open_with(*state, BOTH_TEMPLATE, &t));
    encoder *e = encoder_new(t);
    token_ids plain = { 0 }, twice = { 0 }, bare = { 0 };
    assert_int_equal(encoder_add_prefixed(e, "river", 5, true, &plain), 1);
    assert_int_equal(encoder_add_prefixed(e, "<s>river", 8, true, &twice), 0);
    encoder_add(e, "<s>river", 8, true, &bare);
    assert_int_equal(plain.at[0], 1);
    assert_int_not_equal(plain.at[plain.n - 1], 2); /* a beginning has no end */
    assert_same_ids(&twice, &bare);
    token_ids_free(&plain);
    token_ids_free(&twice);
    token_ids_free(&bare);
    encoder_free(e);
    tokenizer_free(t);
}

/* Documents of a run made before prefixes were added have none, whatever its tokenizer.json says. */
static void an_old_run_has_no_prefix(void **state) {
    tokenizer *t = NULL;
    assert_ok(open_with(*state, BOTH_TEMPLATE, &t));
    tokenizer_free(t);
    for (int prefixed = 0; prefixed < 2; prefixed++) {
        ckpt_state s = { .prefixed = prefixed };
        assert_ok(ckpt_open_tokenizer(&s, in_folder(*state, "with.json"), &t));
        assert_int_equal(tokenizer_affixes(t)->n_prefix, prefixed);
        assert_int_equal(tokenizer_affixes(t)->n_suffix, 1);
        tokenizer_free(t);
    }
    data_source *s = NULL;
    const char *path = folder_write(*state, "a.txt", "the old river");
    data_options o = { .tokenizer = in_folder(*state, "with.json"), .no_prefix = true };
    assert_ok(data_open_paths(&path, 1, &o, &s));
    assert_int_not_equal(data_token(s, 0), 1);
    data_close(s);
}

/* ---- documents ------------------------------------------------------------------------------------ */

/* Two documents, to shards and as text: the same tokens. @return owned by the caller: data_close. */
static data_source *documents_of(test_folder *f, const char *post_processor, int32_t eos) {
    static const char corpus[] =
        "{\"text\": \"the old river\"}\n{\"text\": \"\"}\n{\"text\": \"x\"}\n";
    tokenizer *t = NULL;
    text_inputs *in = NULL;
    tokenize_report report;
    data_source *shards = NULL, *text = NULL;
    const char *path = folder_write(f, "corpus.jsonl", corpus);
    const char *out = in_folder(f, "tokens");
    assert_ok(open_with(f, post_processor, &t));
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    assert_ok(data_tokenize_text(
        in, out,
        &(tokenize_options){
            .tokenizer = t, .eos = eos, .threads = 1, .quiet = true, .fresh = true },
        &report));
    text_inputs_close(in);
    assert_ok(data_open(out, 0, &shards));
    assert_int_equal(data_source_info(shards)->documents, 2);
    assert_int_equal(data_source_info(shards)->tokens, report.tokens);
    data_options o = { .tokenizer = in_folder(f, "with.json") };
    assert_ok(data_open_paths(&path, 1, &o, &text));
    for (int64_t i = 0; eos == DOCUMENT_END_OWN && i < report.tokens; i++)
        assert_int_equal(data_token(shards, i), data_token(text, i));
    data_close(text);
    tokenizer_free(t);
    return shards;
}

static void check_document(data_source *s, int64_t number, const int32_t *first, int n_first,
                           const int32_t *last, int n_last) {
    data_range d = data_document(s, number);
    for (int i = 0; i < n_first; i++) assert_int_equal(data_token(s, d.from + i), first[i]);
    for (int i = 0; i < n_last; i++) assert_int_equal(data_token(s, d.to - n_last + i), last[i]);
    int32_t inner = data_token(s, d.from + n_first), end = data_token(s, d.to - n_last - 1);
    assert_true(inner > 2 && end > 2);
}

static void documents_begin_and_end_as_the_tokenizer_does_it(void **state) {
    static const struct {
        const char *post_processor;
        int32_t eos;
        int32_t first[2], last[2];
        int n_first, n_last;
        int32_t known_by; /* the id that ends documents, for readers */
    } cases[] = {
        { "null", DOCUMENT_END_OWN, { 0 }, { 2 }, 0, 1, 2 },
        { BOS_TEMPLATE, DOCUMENT_END_OWN, { 1 }, { 2 }, 1, 1, 2 },
        { BOTH_TEMPLATE, DOCUMENT_END_OWN, { 1 }, { 2 }, 1, 1, 2 }, /* one end, not two */
        { SAME_TEMPLATE, DOCUMENT_END_OWN, { 2 }, { 2 }, 1, 1, -1 },
        { BOTH_TEMPLATE, DOCUMENT_END_NONE, { 1 }, { 0 }, 1, 0, -1 },
        { BOTH_TEMPLATE, 0, { 1 }, { 0 }, 1, 1, 0 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        data_source *s = documents_of(*state, cases[i].post_processor, cases[i].eos);
        for (int k = 0; k < 2; k++)
            check_document(s, k, cases[i].first, cases[i].n_first, cases[i].last, cases[i].n_last);
        bool begins = false;
        assert_int_equal(data_source_info(s)->eos, cases[i].known_by);
        assert_ok(data_begins_with(s, (int32_t[]){ 1 }, 1, &begins));
        assert_int_equal(begins, cases[i].n_first && cases[i].first[0] == 1);
        data_close(s);
    }
}

/* A folder made with one beginning is not completed with another. */
static void other_affixes_are_other_work(void **state) {
    const char *path = in_folder(*state, "corpus.jsonl");
    data_close(documents_of(*state, BOS_TEMPLATE, DOCUMENT_END_OWN));
    for (int prefix = 0; prefix < 2; prefix++) {
        tokenizer *t = open_tokenizer(in_folder(*state, "with.json"), NULL);
        text_inputs *in = NULL;
        tokenize_report r;
        if (!prefix) tokenizer_set_affixes(t, &(token_affixes){ 0 });
        assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
        err e = data_tokenize_text(
            in, in_folder(*state, "tokens"),
            &(tokenize_options){
                .tokenizer = t, .eos = DOCUMENT_END_OWN, .threads = 1, .quiet = true },
            &r);
        if (prefix)
            assert_ok(e);
        else
            assert_error(e, "beginning or end");
        text_inputs_close(in);
        tokenizer_free(t);
    }
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(ids_around_are_those_of_the_library),
        IN_FOLDER(other_post_processors_are_refused),
        IN_FOLDER(settings_beside_a_model_count),
        IN_FOLDER(what_settings_state_is_saved),
        IN_FOLDER(a_prompt_has_its_prefix_once),
        IN_FOLDER(an_old_run_has_no_prefix),
        IN_FOLDER(documents_begin_and_end_as_the_tokenizer_does_it),
        IN_FOLDER(other_affixes_are_other_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
