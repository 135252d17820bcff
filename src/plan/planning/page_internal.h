/* The planning page of `ingot serve`: what its answers share. */
#ifndef INGOT_PLANNING_PAGE_INTERNAL_H
#define INGOT_PLANNING_PAGE_INTERNAL_H

#include "planning/planning.h"

typedef struct page_config {
    char *name, *path; /* owned */
} page_config;

/* A layout's answer, kept: dragging back and forth, or two browsers, must not simulate again. */
enum { PAGE_CACHED = 8 };
typedef struct page_cached {
    char *key, *body; /* owned; NULL: nothing yet */
} page_cached;

struct planning_page {
    plan_machine machine; /* of the latest query; its catalogue is of all */
    scaling_law law;      /* of a file; its name is NULL: none */
    page_config *configs; /* [n_configs], offered before the recipes */
    int n_configs, configs_cap;
    page_cached cache[PAGE_CACHED];
    int next;     /* of the cache, to be replaced */
    bool runs;    /* the server has a page of runs, too */
    int computed; /* layouts that were not in the cache */
};

/* A query and the option that it sets; the page makes an input of each. */
typedef struct page_setting {
    const char *query, *option, *label;
} page_setting;
extern const page_setting page_settings[];
extern const int page_setting_count;

/* An error unless all queries are named in one of the lists. @param names ends in NULL. */
err page_check_names(const serve_request *r, const char *const *names, bool settings) MUST_USE;
/* Reads gpu, gpus, dtype, mfu and provider into p->machine. */
err page_choose_machine(planning_page *p, const serve_request *r) MUST_USE;

/* page_layout.c: memory by stage, and the simulated timetable. @param body JSON text */
err page_answer_layout(planning_page *p, const serve_request *r, str *body) MUST_USE;

/* page_tasks.c: from events of the simulator to the tasks of a timetable. */
typedef struct stage_tasks stage_tasks;
stage_tasks *stage_tasks_new(int stages, int chunks, int micros);
void stage_tasks_free(stage_tasks *t);
void stage_tasks_event(void *ctx, const sim_event *e); /* of a sim_watch; ctx is the stage_tasks */
/* Ends the last tasks. @return when the last one ends. */
double stage_tasks_end(stage_tasks *t);
/* Appends [[["forward", chunk, microbatch, begin, end], ... of stage 0], ...]. */
void stage_tasks_json(const stage_tasks *t, str *out);

#endif
