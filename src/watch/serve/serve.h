/* serve: the live page and the Prometheus endpoint of runs, over HTTP. Depends on observe, and on nothing
 * outside the program: the page is part of it.
 *
 *     serve *s = NULL;
 *     const char *runs[] = { "runs/a" };
 *     TRY(serve_start(&(serve_options){ .address = "127.0.0.1:8080", .runs = runs, .n_runs = 1 }, &s));
 *     printf("http://%s/\n", serve_address(s));
 *     serve_stop(s);
 *
 * All of it is read-only, from the run folders: a run that is served does not know. Requests are GET or
 * HEAD, and name runs by number and metrics by key: no path of the disk can be asked for. One thread of
 * the lowest priority serves a bounded number of connections, each with a bounded request and a deadline.
 *
 *     /                        the page
 *     /metrics                 the last value of every metric, as Prometheus text
 *     /api/runs                the runs, their metrics and how far they are (observe/status.h)
 *     /api/end                 the same, answered when the server ends: a page shows the last state of its run
 *     /api/bye                 from such a page, when it has read all it needs; the server ends without waiting further
 *     /api/series?run&key&from&to&points   a metric, reduced to `points` points
 *     /api/csv?run&key         a metric, every step
 *     /api/ranks?run&windows   what ranks measured of themselves, in the last windows of steps
 *     /api/timetable?run       of a pipeline: when its stages work on what
 *     /api/events?run          the last events: samples, spikes, saves, attempts of a launch that failed
 *     /api/config?run          config.yaml
 *
 * Whoever starts the server may add paths of its own (serve_route), as `ingot serve` does for the planning
 * page; a run that serves itself adds none.
 */
#ifndef INGOT_SERVE_H
#define INGOT_SERVE_H

#include "util/util.h"

/* ---- paths that others add ------------------------------------------------------------------- */
typedef struct serve_request serve_request;
typedef struct serve_answer {
    int status; /* 200 unless set */
    const char *type;
    str body;
    const char *file;        /* suggested name of a download; NULL: none */
    struct csv_parts *parts; /* what follows the body; NULL: nothing. Taken over by the server */
} serve_answer;
/* @return a query's value, decoded; NULL when it is not there. Nothing in it is trusted. */
const char *serve_query(const serve_request *r, const char *name);
/* @return the name of the i-th query; NULL past the end. */
const char *serve_query_name(const serve_request *r, int i);
/* Answers with a page: `text`, in which the line "<!-- common -->" stands for the style and the script that
 * all pages share (common.html). */
void serve_put_page(serve_answer *out, const char *text);
/* An answer to a POST that takes time, given from any thread: whole, or piece by piece as it is made. */
typedef struct serve_stream serve_stream;
/* Answers at once and releases the stream. @param a its body is taken over */
void serve_stream_answer(serve_stream *to, serve_answer *a);
/* Begins an answer of pieces, with status 200. */
void serve_stream_begin(serve_stream *to, const char *type);
/* @return false when the peer is gone: the rest need not be made. */
bool serve_stream_write(serve_stream *to, const char *bytes, size_t n);
bool serve_stream_is_open(serve_stream *to); /* the peer is there */
void serve_stream_end(serve_stream *to);     /* releases it */

typedef struct serve_route {
    const char *path; /* "/plan" */
    /* Called from the server's thread, one at a time: until it returns no other request is answered. NULL: POST only */
    void (*answer)(void *ctx, const serve_request *r, serve_answer *out);
    /* A POST of JSON, called from the same thread. It hands `to` to another thread, or answers. Threads have ended their
     * streams before serve_stop. @param body n bytes and a NUL, borrowed. NULL: GET only */
    void (*post)(void *ctx, const char *body, size_t n, serve_stream *to);
} serve_route;

typedef struct serve_options {
    const char *address; /* "127.0.0.1:8080", "[::1]:8080", "8080" (loopback); port 0: a free one */
    const char *token;   /* what every request must carry; NULL or "": none */
    const char *const *runs; /* folders, borrowed until serve_start returns */
    int n_runs;
    const serve_route *routes; /* borrowed until serve_stop, with their context */
    int n_routes;
    void *routes_ctx;
    bool routes_only; /* serve the routes and nothing else: no page, no runs */
    const char
        *plan_path; /* of the page that plans runs, which the page of runs links to; NULL: none */
} serve_options;

typedef struct serve serve;
/* Listens, and serves from a thread of its own. */
err serve_start(const serve_options *o, serve **out) MUST_USE;
/* @return "127.0.0.1:8080": where it listens. */
const char *serve_address(const serve *s);
/* Waits a few seconds at most for pages that show the end. */
void serve_stop(serve *s); /* takes NULL */

#endif
