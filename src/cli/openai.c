/* See openai.h. Fields are rows of a table: where a number goes, and its range. */
#include "cli/openai.h"

#include <string.h>
#include <time.h>

#include "io/io.h"

/* ---- requests -------------------------------------------------------------------------------------- */
static bool refuse_field(completion_error *why, const char *param, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static bool refuse_field(completion_error *why, const char *param, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(why->message, sizeof why->message, fmt, args);
    va_end(args);
    snprintf(why->param, sizeof why->param, "%s", param ? param : "");
    return false;
}

typedef enum { FIELD_COUNT, FIELD_REAL, FIELD_SEED, FIELD_FLAG } field_type;
#define OF(member) offsetof(completion_request, member)
static const struct completion_field {
    const char *name;
    field_type type;
    size_t offset;
    double low, high;
} fields[] = {
    { "max_tokens", FIELD_COUNT, OF(o.tokens), 1, 1 << 24 },
    { "max_completion_tokens", FIELD_COUNT, OF(o.tokens), 1, 1 << 24 },
    { "n", FIELD_COUNT, OF(n), 1, COMPLETION_CHOICES },
    { "temperature", FIELD_REAL, OF(o.temperature), 0, 100 },
    { "top_p", FIELD_REAL, OF(o.top_p), 0, 1 },
    { "top_k", FIELD_COUNT, OF(o.top_k), 0, 1 << 24 },
    { "repetition_penalty", FIELD_REAL, OF(o.repetition_penalty), 0.01, 100 },
    { "frequency_penalty", FIELD_REAL, OF(o.frequency_penalty), -2, 2 },
    { "presence_penalty", FIELD_REAL, OF(o.presence_penalty), -2, 2 },
    { "seed", FIELD_SEED, OF(o.seed), 0, 0 },
    { "stream", FIELD_FLAG, OF(stream), 0, 0 },
    { "echo", FIELD_FLAG, OF(echo), 0, 0 },
};
/* Read elsewhere, or without an effect on what is generated. */
static const char *const other_fields[] = {
    "model",    "prompt", "messages",          "stop",        "stream_options", "best_of", "user",
    "metadata", "store",  "safety_identifier", "service_tier"
};

static bool read_field(const struct completion_field *f, const json_t *v, completion_request *out,
                       completion_error *why) {
    char *at = (char *)out + f->offset;
    double x = json_number_value(v);
    if (f->type == FIELD_FLAG) {
        if (!json_is_boolean(v))
            return refuse_field(why, f->name, "%s: expected true or false", f->name);
        *(bool *)at = json_is_true(v);
        return true;
    }
    bool whole = json_is_integer(v);
    if (f->type == FIELD_SEED) {
        if (!whole) return refuse_field(why, f->name, "%s: expected a whole number", f->name);
        *(uint64_t *)at = (uint64_t)json_integer_value(v);
        out->seeded = true;
        return true;
    }
    if (!json_is_number(v) || (f->type == FIELD_COUNT && !whole) || !(x >= f->low && x <= f->high))
        return refuse_field(why, f->name, "%s: expected %s from %.15g to %.15g", f->name,
                            f->type == FIELD_COUNT ? "a whole number" : "a number", f->low,
                            f->high);
    if (f->type == FIELD_COUNT)
        *(int64_t *)at = json_integer_value(v);
    else
        *(double *)at = x;
    return true;
}

/* null, false, 0, and empty lists ask for nothing. */
static bool asks_for_nothing(const json_t *v) {
    if (json_is_number(v)) return json_number_value(v) == 0;
    return json_is_null(v) || json_is_false(v) || (json_is_array(v) && !json_array_size(v)) ||
           (json_is_object(v) && !json_object_size(v));
}

static bool read_fields(json_t *doc, completion_request *out, completion_error *why) {
    const char *key;
    json_t *v;
    json_object_foreach(doc, key, v) {
        bool known = false;
        if (json_is_null(v)) continue;
        for (size_t i = 0; i < COUNT_OF(fields); i++) {
            if (strcmp(key, fields[i].name) != 0) continue;
            if (!read_field(&fields[i], v, out, why)) return false;
            known = true;
        }
        for (size_t i = 0; i < COUNT_OF(other_fields); i++) known |= !strcmp(key, other_fields[i]);
        if (!known && !asks_for_nothing(v))
            return refuse_field(why, key, "%.100s is not supported here: leave it out", key);
    }
    const json_t *best = json_object_get(doc, "best_of");
    if (json_is_integer(best) && json_integer_value(best) != out->n)
        return refuse_field(why, "best_of", "best_of: expected n or nothing");
    out->usage =
        json_is_true(json_object_get(json_object_get(doc, "stream_options"), "include_usage"));
    return true;
}

static bool read_stop_texts(const json_t *v, completion_request *out, completion_error *why) {
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    if (v && !json_is_null(v) && !json_is_string(v) && !json_is_array(v)) n = COMPLETION_STOPS + 1;
    for (size_t i = 0; i < n && n <= COMPLETION_STOPS; i++) {
        out->stop[i] = json_string_value(json_is_string(v) ? v : json_array_get(v, i));
        if (!out->stop[i] || !*out->stop[i]) n = COMPLETION_STOPS + 1;
    }
    if (n > COMPLETION_STOPS)
        return refuse_field(why, "stop", "stop: expected a text, or a list of at most %d texts",
                            COMPLETION_STOPS);
    out->o.n_stop_texts = (int)n;
    return true;
}

static bool are_ids(const json_t *v, int64_t vocab) {
    json_t *one;
    size_t i;
    json_array_foreach(v, i, one) if (!json_is_integer(one) || json_integer_value(one) < 0 ||
                                      json_integer_value(one) >= vocab) return false;
    return json_array_size(v) > 0;
}

/* Reads a text, ids, or a list of either. */
static bool read_prompt_field(json_t *v, int64_t vocab, completion_request *out,
                              completion_error *why) {
    bool one = json_is_string(v) || (json_is_array(v) && json_is_integer(json_array_get(v, 0)));
    out->prompts = one ? json_pack("[O]", v) : json_is_array(v) ? json_incref(v) : json_array();
    json_t *p;
    size_t i, n = json_array_size(out->prompts);
    bool fine = n >= 1 && n <= COMPLETION_PROMPTS;
    json_array_foreach(out->prompts, i, p) fine = fine && (json_is_string(p) || are_ids(p, vocab));
    if (fine) return true;
    return refuse_field(
        why, "prompt",
        "prompt: expected a text, one or more token ids below %lld, or a list of at most %d of them",
        (long long)vocab, COMPLETION_PROMPTS);
}

/* Replaces a content of several text parts by one text, a line per part, since templates expect a text. */
static bool join_content_parts(json_t *message, completion_error *why) {
    json_t *part, *content = json_object_get(message, "content");
    size_t i;
    str all = { 0 };
    bool fine = true;
    if (!json_is_array(content)) return true;
    json_array_foreach(content, i, part) {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0)
            fine = refuse_field(why, "messages",
                                "messages: a content part of type %.40s is not supported: expected "
                                "{\"type\": \"text\", \"text\": ...}",
                                type ? type : "none");
        else if (!json_is_string(text))
            fine = refuse_field(why, "messages", "messages: a content part has no \"text\"");
        if (!fine) break;
        if (i) str_add(&all, "\n");
        str_add_bytes(&all, json_string_value(text), json_string_length(text));
    }
    if (fine)
        json_object_set_new(message, "content", io_json_string(all.text ? all.text : "", all.len));
    str_free(&all);
    return fine;
}

static bool read_messages_field(json_t *v, completion_request *out, completion_error *why) {
    json_t *m;
    size_t i;
    bool fine = json_array_size(v) > 0;
    json_array_foreach(v, i, m) {
        const json_t *content = json_object_get(m, "content");
        fine = fine && json_is_string(json_object_get(m, "role")) &&
               (json_is_string(content) || json_array_size(content) > 0);
    }
    if (!fine)
        return refuse_field(why, "messages",
                            "messages: expected a list of {\"role\": ..., \"content\": ...}");
    json_array_foreach(v, i, m) if (!join_content_parts(m, why)) return false;
    out->messages = v;
    return true;
}

bool completion_parse(bool chat, const char *body, size_t n, int64_t vocab, completion_request *out,
                      completion_error *why) {
    enum { DEFAULT_TOKENS = 16 };
    json_error_t at;
    *out = (completion_request){ .chat = chat, .n = 1 };
    *why = (completion_error){ 0 };
    out->o = (sample_options){ .tokens = chat ? 0 : DEFAULT_TOKENS,
                               .temperature = 1,
                               .top_p = 1,
                               .repetition_penalty = 1,
                               .stop = -1 };
    out->doc = json_loadb(body, n, JSON_REJECT_DUPLICATES, &at);
    bool fine = json_is_object(out->doc);
    if (!fine && !out->doc && json_error_code(&at) == json_error_null_character)
        refuse_field(why, NULL, "a text cannot hold U+0000 (line %d, column %d)", at.line,
                     at.column);
    else if (!fine)
        refuse_field(why, NULL, "the body is not a JSON object: %.150s",
                     out->doc ? "it is another value" : at.text);
    fine = fine && read_fields(out->doc, out, why) &&
           read_stop_texts(json_object_get(out->doc, "stop"), out, why) &&
           (chat ? read_messages_field(json_object_get(out->doc, "messages"), out, why)
                 : read_prompt_field(json_object_get(out->doc, "prompt"), vocab, out, why));
    if (fine && chat && out->echo) fine = refuse_field(why, "echo", "echo: a chat has none");
    if (!fine) completion_free(out);
    return fine;
}

void completion_free(completion_request *r) {
    json_decref(r->doc);
    json_decref(r->prompts);
    *r = (completion_request){ 0 };
}

/* ---- answers ------------------------------------------------------------------------------------------ */
void completion_begin(completion_answer *a, const completion_request *r, const char *name,
                      uint64_t number) {
    *a = (completion_answer){ .r = r, .model = name, .created = (int64_t)time(NULL) };
    snprintf(a->id, sizeof a->id, "%s-%llx%04llx", r->chat ? "chatcmpl" : "cmpl",
             (unsigned long long)a->created, (unsigned long long)number);
    a->choices = json_array();
}

void completion_add(completion_answer *a, const char *text, size_t n, bool stopped) {
    json_t *choice = json_pack("{s:I, s:n, s:s}", "index", (json_int_t)json_array_size(a->choices),
                               "logprobs", "finish_reason", stopped ? "stop" : "length");
    json_t *content = io_json_string(text ? text : "", n);
    if (a->r->chat)
        json_object_set_new(choice, "message",
                            json_pack("{s:s, s:o}", "role", "assistant", "content", content));
    else
        json_object_set_new(choice, "text", content);
    json_array_append_new(a->choices, choice);
}

static json_t *answer_head(const completion_answer *a, const char *object) {
    return json_pack("{s:s, s:s, s:I, s:o}", "id", a->id, "object", object, "created",
                     (json_int_t)a->created, "model", io_json_string(a->model, strlen(a->model)));
}

static json_t *usage_json(const completion_answer *a) {
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)a->prompt_tokens,
                     "completion_tokens", (json_int_t)a->tokens, "total_tokens",
                     (json_int_t)(a->prompt_tokens + a->tokens));
}

void completion_write(completion_answer *a, str *out) {
    json_t *doc = answer_head(a, a->r->chat ? "chat.completion" : "text_completion");
    json_object_set_new(doc, "choices", a->choices);
    a->choices = NULL;
    json_object_set_new(doc, "usage", usage_json(a));
    io_json_add(out, doc, JSON_COMPACT);
}

static const char *event_object(const completion_answer *a) {
    return a->r->chat ? "chat.completion.chunk" : "text_completion";
}

void completion_event(const completion_answer *a, int64_t index, const char *text, size_t n,
                      bool first, const char *finish, str *out) {
    json_t *doc = answer_head(a, event_object(a)), *delta = json_object();
    json_t *choice = json_pack("{s:I, s:n, s:s?}", "index", (json_int_t)index, "logprobs",
                               "finish_reason", finish);
    if (a->r->chat && first) json_object_set_new(delta, "role", json_string("assistant"));
    if (a->r->chat && (n || first))
        json_object_set_new(delta, "content", io_json_string(text ? text : "", n));
    if (a->r->chat)
        json_object_set(choice, "delta", delta);
    else
        json_object_set_new(choice, "text", io_json_string(text ? text : "", n));
    json_decref(delta);
    json_object_set_new(doc, "choices", json_pack("[o]", choice));
    if (a->r->usage) json_object_set_new(doc, "usage", json_null());
    str_add(out, "data: ");
    io_json_add(out, doc, JSON_COMPACT);
    str_add(out, "\n\n");
}

void completion_done(const completion_answer *a, str *out) {
    if (a->r->usage) {
        json_t *doc = answer_head(a, event_object(a));
        json_object_set_new(doc, "choices", json_array());
        json_object_set_new(doc, "usage", usage_json(a));
        str_add(out, "data: ");
        io_json_add(out, doc, JSON_COMPACT);
        str_add(out, "\n\n");
    }
    str_add(out, "data: [DONE]\n\n");
}

void completion_error_json(const completion_error *why, const char *type, str *out) {
    io_json_add(
        out,
        json_pack("{s:{s:o, s:s, s:o, s:n}}", "error", "message",
                  io_json_string(why->message, strlen(why->message)), "type", type, "param",
                  *why->param ? io_json_string(why->param, strlen(why->param)) : json_null(),
                  "code"),
        JSON_COMPACT);
}
