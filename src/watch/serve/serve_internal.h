#ifndef INGOT_SERVE_INTERNAL_H
#define INGOT_SERVE_INTERNAL_H

#include "observe/observe.h"
#include "observe/series.h"
#include "observe/status.h"
#include "serve/serve.h"

/* ---- request.c: a request, parsed ----------------------------------------------------------- */
enum { REQUEST_BYTES = 8192 }; /* of a request line and its headers, at most */
enum { QUERY_MOST = 24, SECRET_MOST = 1024 };
struct serve_request {
    bool head; /* HEAD: the body is left out */
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
/* What requests are answered from. */
typedef struct served_site {
    served_run *runs;
    int n_runs;
    const serve_route *routes;
    int n_routes;
    void *routes_ctx;
    const char *plan_path; /* NULL: there is no planning page */
} served_site;
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
