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
 *     /api/runs                the runs, their metrics and how far they are
 *     /api/series?run&key&from&to&points   a metric, reduced to `points` points
 *     /api/csv?run&key         a metric, every step
 *     /api/ranks?run&windows   what ranks measured of themselves, in the last windows of steps
 *     /api/timetable?run       of a pipeline: when its stages work on what
 *     /api/events?run          the last events: samples, spikes, saves, attempts of a launch that failed
 *     /api/config?run          config.yaml
 */
#ifndef INGOT_SERVE_H
#define INGOT_SERVE_H

#include "util/util.h"

typedef struct serve_options {
    const char *address; /* "127.0.0.1:8080", "[::1]:8080", "8080" (loopback); port 0: a free one */
    const char *token;   /* what every request must carry; NULL or "": none */
    const char *const *runs; /* folders, borrowed until serve_start returns */
    int n_runs;
} serve_options;

typedef struct serve serve;
/* Listens, and serves from a thread of its own. */
err serve_start(const serve_options *o, serve **out) MUST_USE;
/* @return "127.0.0.1:8080": where it listens. */
const char *serve_address(const serve *s);
void serve_stop(serve *s); /* takes NULL */

#endif
