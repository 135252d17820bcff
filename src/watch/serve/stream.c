/* Answers that other threads give. A stream is shared by the server's thread, which sends, and by whoever makes the answer:
 *
 *     handler:  begin -> write ... -> end      bytes gather in `pending`, and a byte in the pipe wakes the server
 *     server:   take ... -> leave              moves them to the connection; `gone` shows the handler that the peer left
 *
 * Whoever lets go last frees it. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "serve_internal.h"

enum { MOST_PENDING = 8 << 20 }; /* bytes that a peer may be behind */

struct serve_stream {
    pthread_mutex_t lock;
    str pending;
    bool chunked, ended, gone;
    int wake, holders;
};

serve_stream *stream_new(int wake) {
    serve_stream *s = mem_alloc(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->wake = wake;
    s->holders = 2;
    return s;
}

/* Called with the lock held. */
static void let_go(serve_stream *s) {
    bool last = --s->holders == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last) return;
    pthread_mutex_destroy(&s->lock);
    str_free(&s->pending);
    free(s);
}

static void wake_server(const serve_stream *s) {
    ssize_t n = write(s->wake, "w", 1); /* a full pipe wakes it too */
    (void)n;
}

bool serve_stream_is_open(serve_stream *s) {
    pthread_mutex_lock(&s->lock);
    bool open = !s->gone;
    pthread_mutex_unlock(&s->lock);
    return open;
}

void serve_stream_answer(serve_stream *s, serve_answer *a) {
    pthread_mutex_lock(&s->lock);
    put_headers(&s->pending, a->status ? a->status : 200, a->type, (int64_t)a->body.len);
    str_add(&s->pending, "\r\n");
    if (a->body.len) str_add_bytes(&s->pending, a->body.text, a->body.len);
    str_free(&a->body);
    s->ended = true;
    wake_server(s);
    let_go(s);
}

void serve_stream_begin(serve_stream *s, const char *type) {
    pthread_mutex_lock(&s->lock);
    put_headers(&s->pending, 200, type, -1);
    str_add(&s->pending, "\r\n");
    s->chunked = true;
    wake_server(s);
    pthread_mutex_unlock(&s->lock);
}

bool serve_stream_write(serve_stream *s, const char *bytes, size_t n) {
    pthread_mutex_lock(&s->lock);
    bool open = !s->gone && s->pending.len < MOST_PENDING;
    if (open && n) { /* an empty chunk would be the end */
        str_add(&s->pending, "%zx\r\n", n);
        str_add_bytes(&s->pending, bytes, n);
        str_add(&s->pending, "\r\n");
        wake_server(s);
    }
    pthread_mutex_unlock(&s->lock);
    return open;
}

void serve_stream_end(serve_stream *s) {
    pthread_mutex_lock(&s->lock);
    if (s->chunked) str_add(&s->pending, "0\r\n\r\n");
    s->ended = true;
    wake_server(s);
    let_go(s);
}

bool stream_take(serve_stream *s, str *out) {
    pthread_mutex_lock(&s->lock);
    if (s->pending.len) str_add_bytes(out, s->pending.text, s->pending.len);
    s->pending.len = 0;
    bool more = !s->ended;
    pthread_mutex_unlock(&s->lock);
    return more;
}

void stream_leave(serve_stream *s) {
    pthread_mutex_lock(&s->lock);
    s->gone = true;
    let_go(s);
}
