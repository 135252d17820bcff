/* Requests and answers of the OpenAI-compatible server. */
#include "support/test.h"

#include "cli/openai.h"

static bool parse(bool chat, const char *body, completion_request *r, completion_error *why) {
    return completion_parse(chat, body, strlen(body), 100, r, why);
}

static void fields_are_read(void **state) {
    completion_request r;
    completion_error why;
    assert_true(parse(
        false,
        "{\"model\":\"any\",\"prompt\":\"The\",\"max_tokens\":7,\"temperature\":0,\"top_p\":0.5,"
        "\"n\":3,\"seed\":-1,\"stop\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":"
        "true},\"frequency_penalty\":1.5,\"presence_penalty\":-2,\"repetition_penalty\":1.25,"
        "\"top_k\":9,\"echo\":true,\"user\":\"u\",\"logprobs\":null,\"suffix\":null,\"logit_bias\":{}}",
        &r, &why));
    assert_true(r.o.tokens == 7 && r.o.temperature == 0 && r.o.top_p == 0.5 && r.n == 3 &&
                r.seeded);
    assert_true(r.o.seed == UINT64_MAX && r.stream && r.usage && r.echo && r.o.top_k == 9);
    assert_true(r.o.frequency_penalty == 1.5 && r.o.presence_penalty == -2);
    assert_true(r.o.repetition_penalty == 1.25 && r.o.n_stop_texts == 1);
    assert_string_equal(r.stop[0], "x");
    assert_int_equal(json_array_size(r.prompts), 1);
    completion_free(&r);
    assert_true(parse(false, "{\"prompt\":[[1,2],\"b\",[99]]}", &r, &why));
    assert_int_equal(json_array_size(r.prompts), 3);
    assert_true(r.o.tokens == 16 && r.o.temperature == 1 && !r.seeded); /* OpenAI's defaults */
    completion_free(&r);
    assert_true(parse(false, "{\"prompt\":[1,2,3]}", &r, &why));
    assert_int_equal(json_array_size(r.prompts), 1);
    completion_free(&r);
    assert_true(
        parse(true,
              "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_completion_tokens\":3,"
              "\"tools\":[]}",
              &r, &why));
    assert_true(r.o.tokens == 3 && json_array_size(r.messages) == 1);
    completion_free(&r);
    assert_true(
        parse(true,
              "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
              "{\"type\":\"text\",\"text\":\"b\"}]}]}",
              &r, &why));
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(r.messages, 0), "content")), "a\nb");
    completion_free(&r);
}

static void what_is_not_supported_is_refused(void **state) {
    static const struct {
        bool chat;
        const char *body, *words;
    } cases[] = {
        { false, "", "not a JSON object" },
        { false, "[]", "not a JSON object: it is another value" },
        { false, "{}", "prompt: expected" },
        { false, "{\"prompt\":\"x\\u0000y\"}", "a text cannot hold U+0000" },
        { false, "{\"prompt\":[100]}", "ids below 100" },
        { false, "{\"prompt\":[-1]}", "ids below 100" },
        { false, "{\"prompt\":[[]]}", "prompt: expected" },
        { false, "{\"prompt\":\"a\",\"n\":0}", "n: expected a whole number from 1 to 128" },
        { false, "{\"prompt\":\"a\",\"n\":1.5}", "n: expected a whole number" },
        { false, "{\"prompt\":\"a\",\"max_tokens\":-1}",
          "max_tokens: expected a whole number from 1 to 16777216" },
        { false, "{\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature: expected a number" },
        { false, "{\"prompt\":\"a\",\"top_p\":2}", "top_p: expected a number from 0 to 1" },
        { false, "{\"prompt\":\"a\",\"stream\":1}", "stream: expected true or false" },
        { false, "{\"prompt\":\"a\",\"stop\":[\"\"]}", "stop: expected" },
        { false, "{\"prompt\":\"a\",\"stop\":5}", "stop: expected" },
        { false, "{\"prompt\":\"a\",\"logprobs\":2}", "logprobs is not supported" },
        { false, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":3}}", "logit_bias is not supported" },
        { false, "{\"prompt\":\"a\",\"best_of\":4}", "best_of: expected" },
        { false, "{\"prompt\":\"a\",\"seed\":\"x\"}", "seed: expected" },
        { false, "{\"prompt\":\"a\",\"prompt\":\"b\"}", "not a JSON object" },
        { true, "{\"prompt\":\"a\"}", "messages: expected" },
        { true, "{\"messages\":[]}", "messages: expected" },
        { true, "{\"messages\":[{\"role\":\"user\"}]}", "messages: expected" },
        { true, "{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "messages: expected" },
        { true, "{\"messages\":[{\"role\":\"user\",\"content\":[1,null]}]}", "part of type none" },
        { true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}",
          "part of type image_url is not supported" },
        { true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
          "has no \"text\"" },
        { true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}]}",
          "tools is not supported" },
        { true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"echo\":true}",
          "echo: a chat has none" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        completion_request r;
        completion_error why;
        if (parse(cases[i].chat, cases[i].body, &r, &why)) fail_msg("accepted: %s", cases[i].body);
        if (!strstr(why.message, cases[i].words))
            fail_msg("%s: no \"%s\" in \"%s\"", cases[i].body, cases[i].words, why.message);
    }
}

/* A name that is too long for the error is cut, also within a character. */
static void errors_are_json_whatever_the_field_is_named(void **state) {
    for (int n = 90; n < 110; n++) {
        completion_request r;
        completion_error why;
        str body = { 0 }, out = { 0 };
        str_add(&body, "{\"prompt\":\"a\",\"%0*d\xc3\xa9\":1}", n, 0);
        assert_false(parse(false, body.text, &r, &why));
        completion_error_json(&why, "invalid_request_error", &out);
        json_t *doc = json_loads(out.text, 0, NULL), *e = json_object_get(doc, "error");
        assert_true(str_starts(json_string_value(json_object_get(e, "param")), "000"));
        assert_true(str_starts(json_string_value(json_object_get(e, "message")), "000"));
        json_decref(doc);
        str_free(&out);
        str_free(&body);
    }
    str out = { 0 };
    completion_error_json(&(completion_error){ .message = "m" }, "t", &out);
    assert_non_null(strstr(out.text, "\"param\":null"));
    str_free(&out);
}

/* Answers hold what clients read. */
static void answers_have_their_shape(void **state) {
    completion_request r;
    completion_error why;
    completion_answer a;
    str out = { 0 };
    assert_true(parse(true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &r, &why));
    completion_begin(&a, &r, "m", 1);
    completion_add(&a, "hi \xff", 4, true);
    a.prompt_tokens = 3;
    a.tokens = 2;
    completion_write(&a, &out);
    json_t *doc = json_loads(out.text, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(doc, "choices"), 0);
    assert_string_equal(json_string_value(json_object_get(doc, "object")), "chat.completion");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(choice, "message"), "content")),
        "hi \xef\xbf\xbd");
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), "stop");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(doc, "usage"), "total_tokens")), 5);
    json_decref(doc);
    out.len = 0;
    completion_event(&a, 2, "x\n", 2, true, NULL, &out);
    assert_true(str_starts(out.text, "data: {") && str_ends(out.text, "}\n\n"));
    assert_non_null(strstr(out.text, "\"delta\":{\"role\":\"assistant\",\"content\":\"x\\n\"}"));
    assert_non_null(strstr(out.text, "\"index\":2,\"logprobs\":null,\"finish_reason\":null"));
    out.len = 0;
    completion_done(&a, &out);
    assert_string_equal(out.text, "data: [DONE]\n\n");
    str_free(&out);
    completion_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_read),
        cmocka_unit_test(what_is_not_supported_is_refused),
        cmocka_unit_test(errors_are_json_whatever_the_field_is_named),
        cmocka_unit_test(answers_have_their_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
