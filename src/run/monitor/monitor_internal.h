#ifndef INGOT_MONITOR_INTERNAL_H
#define INGOT_MONITOR_INTERNAL_H

#include "monitor/monitor.h"

enum { MOST_WINDOW = 100, PLATEAU_STEPS = 100, RISE_STEPS = 25, RISE_SPANS = 4, EXPERT_STEPS = 50 };
enum { RECENT_STEPS = 20 }; /* whose losses show whether one is raised */

/* The last values of something, at most `window` of them. */
typedef struct rolling {
    double value[MOST_WINDOW];
    int64_t seen;
} rolling;
/* A mean over consecutive spans of steps. */
typedef struct span_mean {
    double sum;
    int64_t n;
} span_mean;

/* State that the next step is judged by. All of it but the shares of time, which no two runs have alike, is saved. */
typedef struct monitor_state {
    rolling loss, norm;
    span_mean plateau, rise;
    double before;            /* mean loss of the plateau span before; NaN: none */
    double spans[RISE_SPANS]; /* mean norms of the last spans, the latest last; NaN: none */
    int64_t dead_steps, saturated_steps;
    int64_t spikes;
    double is_spike;
    int64_t clear[MONITOR_ALERTS]; /* steps since the condition last held; -1: it may fire */
    span_mean mfu, comm, data;
    int64_t machine_steps;
} monitor_state;

struct monitor {
    monitor_settings s;
    monitor_state now;
};

/* The verdict of a judge. `judged` false: it had nothing to judge by. */
typedef struct verdict {
    bool judged, holds;
    double value, limit, mean, deviation;
    int block;
} verdict;

/* judge.c: what the mean of a window is, and where its values would be an outlier. */
typedef struct window_stats {
    int n;
    double mean, deviation;
} window_stats;

#endif
