#ifndef INGOT_SERVE_INTERNAL_H
#define INGOT_SERVE_INTERNAL_H

#include "observe/observe.h"
#include "observe/series.h"
#include "observe/status.h"
#include "serve/serve.h"

/* ---- request.c: a request, parsed ----------------------------------------------------------- */
enum { REQUEST_BYTES = 8192 }; /* of a request line and its headers, at most */
enum { QUERY_MOST = 24, SECRET_MOST = 1024 };
enum { BODY_BYTES = 4 << 20 }; /* of a POST, at most */
struct serve_request {
    bool head; /* HEAD: the body is left out */
    bool post;
    bool json, expects; /* Content-Type: application/json; Expect: 100-continue */
    int64_t length;     /* of the body; -1: not given */
    char path[128];
    struct {
        char name[16], value[SECRET_MOST];
    } query[QUERY_MOST];
    int n_query;
    char token[SECRET_MOST]; /* "Authorization: Bearer ...", else ?token=; "": none */
    char host[256];
};
/* Parses n bytes that end in an empty line. @return 0, or the status to answer with: 400, 405, 414. */
int request_parse(const char *text, size_t n, serve_request *out);

/* ---- answer.c: what is served ---------------------------------------------------------------- */
typedef struct served_run {
    char *dir, *name;
    series *all;
    double updated; /* time_now of the last series_update */
} served_run;
/* Holds the runs and routes that requests are answered from. */
typedef struct served_site {
    served_run *runs;
    int n_runs;
    const serve_route *routes;
    int n_routes;
    void *routes_ctx;
    const char *plan_path; /* NULL: without a planning page */
    bool routes_only;
} served_site;
/* @return the route that takes a POST to this path; NULL: none does. */
const serve_route *find_post(const served_site *site, const char *path);

/* ---- csv.c: a metric, every step --------------------------------------------------------------- */
typedef struct csv_parts csv_parts;
/* @param head gets the line of headings */
csv_parts *csv_open(const char *dir, const char *name, str *head);
/* Appends the rows of the next MiB of the run's file. @param more false: it was the last part */
err csv_next(csv_parts *c, str *out, bool *more) MUST_USE;
void csv_free(csv_parts *c); /* takes NULL */

/* ---- stream.c: answers from other threads ----------------------------------------------------- */
/* @param wake a pipe; a byte 'w' is written to it whenever there is something to send. The server and the handler hold one
 * reference each. */
serve_stream *stream_new(int wake);
/* Moves what is to be sent to `out`. @return whether there will be more. */
bool stream_take(serve_stream *s, str *out);
void stream_leave(serve_stream *s); /* the server's reference: the peer is gone, or has all */
/* The status line and the headers that all answers have, without the empty line. @param length -1: in chunks */
void put_headers(str *out, int status, const char *type, int64_t length);
void answer_request(const served_site *site, const serve_request *r, serve_answer *out);
/* prometheus.c */
/* "train/spike_count" becomes "ingot_train_spikes": a gauge may not end in _count. What stands in <> is a
 * label, and leaves the name. @param name is overwritten. @param label [16]: "" when there is none. */
void prometheus_name(const metric *m, str *name, char *label);
void prometheus_text(served_run *const *runs, int n, str *out);

/* @return how many requests wait for the end of the server; for tests. */
int serve_held(const serve *s);

extern const embedded_file page_files[]; /* page.html, common.html */

#endif
