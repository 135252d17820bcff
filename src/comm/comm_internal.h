/* The backend side of comm.h. */
#ifndef INGOT_COMM_INTERNAL_H
#define INGOT_COMM_INTERNAL_H

#include "comm/comm.h"

typedef struct comm_backend {
    const char *name;
    err (*start)(comm *c, comm_ticket *t);
    err (*wait)(comm *c, comm_ticket *t);
    void (*abort)(comm *c); /* NULL: nobody waits */
    void (*free)(comm *c);
} comm_backend;

struct comm {
    const comm_backend *backend;
    mesh m;
    void *state; /* the backend's */
};

/* A tensor seen as [outer, dim, inner] around the dim that is split. */
typedef struct dim_split {
    int64_t outer, dim, inner;
} dim_split;
dim_split split_at(const tensor *t, int dim);

/* out (+)= part `index` of `parts` of `in`, split along `dim`. Types are equal. */
void comm_take_slice(const tensor *in, const tensor *out, int dim, int index, int parts);

#endif
