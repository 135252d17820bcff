/* The requests and answers of an OpenAI-compatible server, as plain functions: `ingot serve --generate` (serve_generate.c) connects
 * them with HTTP and a model.
 *
 *     completion_request r;
 *     completion_error why;
 *     if (!completion_parse(false, body, n, 50257, &r, &why)) ...  // why.message, why.param
 *     completion_free(&r);
 */
#ifndef INGOT_CLI_OPENAI_H
#define INGOT_CLI_OPENAI_H

#include <jansson.h>

#include "eval/eval.h"

enum { COMPLETION_PROMPTS = 64, COMPLETION_CHOICES = 128, COMPLETION_STOPS = 16 };

typedef struct completion_request {
    bool chat, stream, usage, echo; /* usage: in the stream too */
    bool seeded;                    /* o.seed was given */
    json_t *doc;                    /* owned; what follows is borrowed from it */
    json_t *prompts;                /* an array of texts, or of arrays of ids; owned */
    json_t *messages;               /* of a chat */
    int64_t n;                      /* choices per prompt */
    sample_options o;               /* tokens 0: as many as fit */
    const char *stop[COMPLETION_STOPS];
} completion_request;

typedef struct completion_error {
    char message[400];
    char param[104]; /* the field; "": none */
} completion_error;

/* Reads a body. Fields that would have an effect and are not supported are refused. @param vocab ids are below it
 * @return false: why is set, and nothing is to be freed. */
bool completion_parse(bool chat, const char *body, size_t n, int64_t vocab, completion_request *out,
                      completion_error *why);
void completion_free(completion_request *r);

/* ---- answers ---------------------------------------------------------------------------------- */
typedef struct completion_answer {
    const completion_request *r;
    char id[48];
    const char *model; /* borrowed */
    int64_t created;
    json_t *choices; /* of an answer that is not streamed; owned */
    int64_t prompt_tokens, tokens;
} completion_answer;
void completion_begin(completion_answer *a, const completion_request *r, const char *model,
                      uint64_t number);
/* Adds a finished choice. */
void completion_add(completion_answer *a, const char *text, size_t n, bool stopped);
/* Appends the whole answer as JSON; frees the choices. */
void completion_write(completion_answer *a, str *out);
/* One event of a stream: "data: {...}\n\n", appended. @param finish "stop", "length", or NULL while it goes on
 * @param first the choice begins here */
void completion_event(const completion_answer *a, int64_t index, const char *text, size_t n,
                      bool first, const char *finish, str *out);
/* The last events: usage where it was asked for, and "data: [DONE]". */
void completion_done(const completion_answer *a, str *out);
/* {"error": {...}}, appended. */
void completion_error_json(const completion_error *why, const char *type, str *out);

#endif
