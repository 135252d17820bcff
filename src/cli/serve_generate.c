/* ingot serve RUN --generate: /v1/completions and /v1/chat/completions of one model.
 *
 * The server's thread parses requests and queues them; the main thread decodes the choices of several requests together and writes to
 * their streams:
 *
 *     waiting (queue) -> open_job -> open -> choices are added as slots become free -> the last one ends -> end_job
 *
 * A peer that leaves ends its generation with the next token, and so does a signal. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/openai.h"
#include "cli/serve_generate.h"
#include "cli/weights.h"
#include "eval/chat.h"
#include "io/io.h"
#include "serve/serve.h"

enum { MOST_WAITING = 64 };

typedef struct job_choice {
    struct generate_job *job;
    int64_t index;
    bool first;
    str text; /* of an answer that is not streamed */
    generated g;
} job_choice;

typedef struct generate_job {
    completion_request r;
    serve_stream *to;
    struct generate_server *v;
    completion_answer a;
    token_ids *prompt;  /* [prompts] */
    job_choice *choice; /* [choices]: those of the first prompt, of the second, ... */
    int64_t prompts, choices, added, ended;
    struct generate_job *next; /* in the queue, or among those that are open */
} generate_job;

typedef struct generate_server {
    weights w;
    generator g;
    tokenizer *tok;
    chat_format format;
    generation *d;
    generate_job *open; /* of those whose choices are decoded or will be, in the order they came */
    char *name;         /* of the model */
    pthread_mutex_t lock;
    generate_job *first;            /* of those that wait */
    int waiting, ready[2], signals; /* ready: a byte per job; signals: a signalfd */
    uint64_t answered;
    bool ends;
} generate_server;

/* ---- requests: the server's thread ------------------------------------------------------------------ */
static void answer_error(serve_stream *to, int status, const completion_error *why) {
    serve_answer a = { .status = status, .type = "application/json" };
    completion_error_json(why, status == 429 ? "rate_limit_error" : "invalid_request_error",
                          &a.body);
    serve_stream_answer(to, &a);
}

static void queue_job(generate_server *v, bool chat, const char *body, size_t n, serve_stream *to) {
    completion_error why;
    generate_job *job = mem_alloc(sizeof *job), **at;
    job->to = to;
    if (!completion_parse(chat, body, n, model_conf(v->w.m)->vocab, &job->r, &why)) {
        answer_error(to, 400, &why);
        free(job);
        return;
    }
    pthread_mutex_lock(&v->lock);
    bool full = v->waiting >= MOST_WAITING;
    for (at = &v->first; *at;) at = &(*at)->next;
    if (!full) {
        *at = job;
        v->waiting++;
    }
    pthread_mutex_unlock(&v->lock);
    if (full) {
        why = (completion_error){ "too many requests are waiting: try again later", "" };
        answer_error(to, 429, &why);
        completion_free(&job->r);
        free(job);
        return;
    }
    ssize_t done = write(v->ready[1], "j", 1);
    (void)done;
}

static void post_completion(void *ctx, const char *body, size_t n, serve_stream *to) {
    queue_job(ctx, false, body, n, to);
}
static void post_chat(void *ctx, const char *body, size_t n, serve_stream *to) {
    queue_job(ctx, true, body, n, to);
}

static void answer_models(void *ctx, const serve_request *r, serve_answer *out) {
    const generate_server *v = ctx;
    json_t *doc = json_pack("{s:s, s:[{s:o, s:s, s:i, s:s, s:I}]}", "object", "list", "data", "id",
                            io_json_string(v->name, strlen(v->name)), "object", "model", "created",
                            0, "owned_by", "ingot", "max_model_len", (json_int_t)v->g.positions);
    out->type = "application/json";
    io_json_add(&out->body, doc, JSON_COMPACT);
}

static const serve_route generate_routes[] = {
    { .path = "/v1/models", .answer = answer_models },
    { .path = "/v1/completions", .post = post_completion },
    { .path = "/v1/chat/completions", .post = post_chat },
};

/* ---- generation: the main thread ----------------------------------------------------------------------- */
static bool send_event(job_choice *c, const char *text, size_t n, const char *finish) {
    str event = { 0 };
    completion_event(&c->job->a, c->index, text, n, c->first, finish, &event);
    bool open = serve_stream_write(c->job->to, event.text, event.len);
    c->first = false;
    str_free(&event);
    return open;
}

static bool take_choice_text(void *ctx, const char *text, size_t n) {
    job_choice *c = ctx;
    generate_server *v = c->job->v;
    v->ends = v->ends || poll(&(struct pollfd){ .fd = v->signals, .events = POLLIN }, 1, 0) > 0;
    if (v->ends) return false;
    if (c->job->r.stream) return send_event(c, text, n, NULL);
    str_add_bytes(&c->text, text, n);
    return serve_stream_is_open(c->job->to);
}

/* Reads the ids of a prompt: text, ids, or the messages of a chat. */
static err prompt_ids(generate_server *v, const generate_job *job, const json_t *prompt,
                      token_ids *out) {
    if (job->r.chat) return chat_prompt(&v->format, v->tok, job->r.messages, out);
    if (json_is_string(prompt))
        return prompt_encode(v->tok, json_string_value(prompt), json_string_length(prompt), out);
    const json_t *one;
    size_t i;
    json_array_foreach(prompt, i, one) {
        int32_t id = (int32_t)json_integer_value(one);
        token_ids_add(out, &id, 1);
    }
    return OK;
}

static void free_job(generate_job *job) {
    for (int64_t i = 0; i < job->prompts; i++) token_ids_free(&job->prompt[i]);
    for (int64_t i = 0; i < job->choices; i++) str_free(&job->choice[i].text);
    free(job->prompt);
    free(job->choice);
    json_decref(job->a.choices);
    completion_free(&job->r);
    free(job);
}

/* Reads the prompts of a request as ids. */
static err read_job(generate_server *v, generate_job *job) {
    job->prompts = job->r.chat ? 1 : (int64_t)json_array_size(job->r.prompts);
    job->choices = job->prompts * job->r.n;
    job->prompt = mem_alloc((size_t)job->prompts * sizeof *job->prompt);
    job->choice = mem_alloc((size_t)job->choices * sizeof *job->choice);
    for (int64_t i = 0; i < job->prompts; i++) {
        token_ids *ids = &job->prompt[i];
        TRY(prompt_ids(v, job, json_array_get(job->r.prompts, (size_t)i), ids));
        if ((int64_t)ids->n >= v->g.positions)
            return ERR("the prompt has %zu tokens, and the context %lld", ids->n,
                       (long long)v->g.positions);
        job->a.prompt_tokens += (int64_t)ids->n;
    }
    return OK;
}

/* Makes a request that waited one of those that are open, or refuses it. */
static void open_job(generate_server *v, generate_job *job) {
    completion_begin(&job->a, &job->r, v->name, v->answered++);
    job->v = v;
    job->next = NULL;
    err e = read_job(v, job);
    if (e) {
        completion_error why = { 0 };
        snprintf(why.param, sizeof why.param, "%s", job->r.chat ? "messages" : "prompt");
        snprintf(why.message, sizeof why.message, "%.200s%s%.150s", err_message(e),
                 *err_remedy(e) ? ". " : "", err_remedy(e));
        answer_error(job->to, 400, &why);
        err_free(e);
        free_job(job);
        return;
    }
    if (job->r.stream) serve_stream_begin(job->to, "text/event-stream");
    generate_job **at = &v->open;
    while (*at) at = &(*at)->next;
    *at = job;
}

/* Answers a request whose choices have all ended. */
static void end_job(generate_server *v, generate_job *job) {
    generate_job **at = &v->open;
    while (*at != job) at = &(*at)->next;
    *at = job->next;
    if (job->r.stream) {
        str last = { 0 };
        completion_done(&job->a, &last);
        serve_stream_write(job->to, last.text, last.len);
        serve_stream_end(job->to);
        str_free(&last);
    } else {
        serve_answer whole = { .status = 200, .type = "application/json" };
        for (int64_t i = 0; i < job->choices; i++)
            completion_add(&job->a, job->choice[i].text.text, job->choice[i].text.len,
                           job->choice[i].g.stopped);
        completion_write(&job->a, &whole.body);
        serve_stream_answer(job->to, &whole);
    }
    free_job(job);
}

static void end_choice(void *ctx, const generated *g) {
    job_choice *c = ctx;
    generate_job *job = c->job;
    c->g = *g;
    job->a.tokens += g->tokens;
    if (job->r.stream) send_event(c, "", 0, g->stopped ? "stop" : "length");
    if (++job->ended == job->choices) end_job(job->v, job);
}

/* Writes the prompt before the text of a choice: as it was given, or its ids decoded. An incomplete character at its end is
 * left to generation, which writes it whole. */
static void echo_prompt(job_choice *c, const json_t *prompt, const token_ids *ids) {
    token_decoder decoder = { .t = c->job->v->tok };
    str text = { 0 };
    if (json_is_string(prompt))
        str_add_bytes(&text, json_string_value(prompt), json_string_length(prompt));
    else
        for (size_t i = 0; i < ids->n; i++) token_decoder_push(&decoder, ids->at[i], &text);
    if (text.len) take_choice_text(c, text.text, text.len);
    str_free(&decoder.text);
    str_free(&text);
}

static err add_choice(generate_server *v, generate_job *job) {
    job_choice *c = &job->choice[job->added];
    int64_t number = job->added % job->r.n, which = job->added / job->r.n;
    const token_ids *ids = &job->prompt[which];
    sample_options o = job->r.o;
    int64_t left = v->g.positions - (int64_t)ids->n;
    *c = (job_choice){ .job = job, .index = job->added++, .first = true };
    o.tokens = o.tokens ? MIN(o.tokens, left) : left;
    if (!job->r.seeded) o.seed = hash_str(job->a.id);
    o.seed += (uint64_t)number;
    o.stop_texts = job->r.stop;
    if (job->r.chat) {
        o.stops = v->format.stops;
        o.n_stops = v->format.n_stops;
    }
    if (!serve_stream_is_open(job->to)) { /* the peer has left */
        end_choice(c, &(generated){ .stopped = true });
        return OK;
    }
    const json_t *prompt = json_array_get(job->r.prompts, (size_t)which);
    if (job->r.chat && job->r.stream) send_event(c, "", 0, NULL);
    if (job->r.echo) echo_prompt(c, prompt, ids);
    return generation_add(
        v->d, v->tok, ids->at, (int64_t)ids->n, &o,
        (decode_sink){ .emit_text = take_choice_text, .done = end_choice, .ctx = c });
}

static generate_job *next_job(generate_server *v) {
    pthread_mutex_lock(&v->lock);
    generate_job *job = v->first;
    if (job) {
        v->first = job->next;
        v->waiting--;
    }
    pthread_mutex_unlock(&v->lock);
    return job;
}

/* The first request with a choice that has no slot yet, of those that are open or wait. @return NULL: there is none */
static generate_job *job_to_begin(generate_server *v) {
    for (generate_job *job;; open_job(v, job)) {
        for (generate_job *o = v->open; o; o = o->next)
            if (o->added < o->choices) return o;
        job = next_job(v);
        if (!job) return NULL;
    }
}

/* Ends a request that will not be answered any more. */
static void drop_job(generate_job *job) {
    serve_stream_end(job->to);
    free_job(job);
}

/* Until a signal. */
static err answer_jobs(generate_server *v) {
    char bytes[MOST_WAITING];
    bool was_full = false; /* choices may wait that no byte will announce again */
    err e = OK;
    while (!v->ends && !e) {
        struct pollfd in[] = { { .fd = v->signals, .events = POLLIN },
                               { .fd = v->ready[0], .events = POLLIN } };
        if (poll(in, COUNT_OF(in), was_full || generation_busy(v->d) ? 0 : -1) < 0 &&
            errno != EINTR)
            return ERR("cannot wait for requests: %s", strerror(errno));
        v->ends = v->ends || in[0].revents;
        ssize_t n = in[1].revents ? read(v->ready[0], bytes, sizeof bytes) : 0;
        (void)n; /* whether one waits is asked of the queue */
        generate_job *job;
        while (!e && !v->ends && generation_has_slot(v->d) && (job = job_to_begin(v)))
            e = add_choice(v, job);
        was_full = !generation_has_slot(v->d);
        if (!e && !v->ends) e = generation_step(v->d);
    }
    for (generate_job *job, *next = v->open; (job = next);) {
        next = job->next;
        drop_job(job);
    }
    for (generate_job *job; (job = next_job(v));) drop_job(job);
    if (e) return e;
    struct signalfd_siginfo got = { 0 };
    ssize_t n = read(v->signals, &got, sizeof got);
    return n == sizeof got && got.ssi_signo == SIGINT
               ? err_exit(ERR("stopped by Ctrl-C"), EXIT_INTERRUPTED)
               : OK;
}

/* ---- beginning ------------------------------------------------------------------------------------------- */
static err open_served_model(const serve_generate_options *o, generate_server *v) {
    ops_choice on;
    TRY(weights_device(o->device, o->index, &on));
    v->w.generate.g = &v->g;
    v->w.generate.positions = o->context;
    v->w.generate.slots = (int)o->batch;
    TRY(weights_open(o->model, &on, &v->w));
    v->d = generation_new(&v->g, &v->w.x);
    TRY(weights_tokenizer(&v->w, &v->tok));
    if (!v->tok)
        return err_hint(ERR("%s has no tokenizer", o->model),
                        "put the tokenizer.json it was trained with into its folder");
    TRY(chat_open(v->w.path, v->tok, &v->format));
    size_t n = strlen(o->model);
    while (n > 1 && o->model[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && o->model[from - 1] != '/') from--;
    v->name = strndup(o->model + from, n - from);
    return OK;
}

static err listen_and_answer(const serve_generate_options *o, generate_server *v) {
    serve *s = NULL;
    serve_options options = { .address = o->address,
                              .token = o->token,
                              .routes = generate_routes,
                              .n_routes = (int)COUNT_OF(generate_routes),
                              .routes_ctx = v,
                              .routes_only = true };
    TRY(serve_start(&options, &s));
    printf("http://%s/v1 serves %s: completions%s\n", serve_address(s), v->name,
           v->format.template ? ", chat/completions" : " (it has no chat template)");
    printf("Ctrl-C ends it.\n");
    fflush(stdout);
    err e = answer_jobs(v);
    serve_stop(s);
    return e;
}

err serve_generate(const serve_generate_options *o) {
    generate_server v = { .ready = { -1, -1 }, .signals = -1 };
    err e = OK;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGTERM);
    pthread_mutex_init(&v.lock, NULL);
    pthread_sigmask(SIG_BLOCK, &wanted,
                    NULL); /* before any other thread begins: one of them would take the signal */
    TRY_CLEAN(open_served_model(o, &v));
    v.signals = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    if (v.signals < 0 || pipe2(v.ready, O_CLOEXEC | O_NONBLOCK) != 0)
        e = ERR("cannot make a pipe: %s", strerror(errno));
    else
        e = listen_and_answer(o, &v);
cleanup:
    for (int i = 0; i < 2; i++)
        if (v.ready[i] >= 0) close(v.ready[i]);
    if (v.signals >= 0) close(v.signals);
    pthread_mutex_destroy(&v.lock);
    generation_free(v.d);
    chat_free(&v.format);
    tokenizer_free(v.tok);
    weights_free(&v.w);
    free(v.name);
    return e;
}
