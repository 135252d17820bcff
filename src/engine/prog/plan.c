/* A plan's arena: regions, inputs, and copies to and from the memory of a device. */
#include "plan_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- regions ----------------------------------------------------------------------------- */
plan *plan_new(const mesh *m, const op_backend *backend, int threads) {
    plan *p = mem_alloc(sizeof *p);
    p->m = *m;
    p->backend = backend;
    p->threads = threads;
    p->late = (open_comms){ .ring = p->late_ring, .cap = MOST_LATE };
    p->updated = (open_comms){ .ring = p->updated_ring, .cap = MOST_AHEAD };
    return p;
}

int plan_region(plan *p, const char *name, size_t bytes) {
    BUG_IF(p->arena);
    p->region = mem_reserve(p->region, &p->region_cap, p->regions, sizeof *p->region);
    region *r = &p->region[p->regions];
    snprintf(r->name, sizeof r->name, "%s", name);
    r->bytes = bytes;
    return p->regions++;
}

int plan_region_host(plan *p, const char *name, size_t bytes) {
    int index = plan_region(p, name, bytes);
    p->region[index].offloaded = true;
    p->region[index].host = p->backend->device != NULL;
    return index;
}

size_t plan_region_offloaded(const plan *p, int index) {
    return p->region[index].offloaded ? p->region[index].bytes : 0;
}

size_t plan_offloaded_bytes(const plan *p) {
    size_t sum = 0;
    for (int i = 0; i < p->regions; i++) sum += plan_region_offloaded(p, i);
    return sum;
}

size_t plan_host_bytes(const plan *p) {
    size_t sum = 0;
    for (int i = 0; i < p->regions; i++) sum += p->region[i].host ? p->region[i].bytes : 0;
    return sum;
}

size_t plan_bytes(const plan *p, const char *name) {
    size_t sum = 0;
    for (int i = 0; i < p->regions; i++)
        if (!p->region[i].host && (!name || !strcmp(p->region[i].name, name)))
            sum += p->region[i].bytes;
    /* asked before commit, the shared regions are not there yet */
    if (!p->arena && (!name || !strcmp(name, "temp"))) sum += p->temp_bytes;
    if (!p->arena && (!name || !strcmp(name, "work"))) sum += p->work_bytes + p->update_work_bytes;
    if (!p->arena && (!name || !strcmp(name, "gathered"))) sum += p->gathered_bytes;
    if (!p->arena && (!name || !strcmp(name, "whole grads"))) sum += p->whole_grad_bytes;
    return sum;
}

int plan_region_count(const plan *p) { return p->regions; }

const char *plan_region_info(const plan *p, int index, size_t *bytes) {
    *bytes = p->region[index].host ? 0 : p->region[index].bytes;
    return p->region[index].name;
}

size_t plan_offset(const plan *p, int index) {
    size_t at = 0;
    for (int i = 0; i < index; i++)
        if (p->region[i].host == p->region[index].host)
            at += align_up(p->region[i].bytes, PLAN_PAGE);
    return at;
}

static int find_input(const plan *p, const char *name) {
    for (int i = 0; i < p->regions; i++)
        if (p->region[i].name[0] == '.' && !strcmp(p->region[i].name + 1, name)) return i;
    return -1;
}

/* Inputs are regions whose name begins with a dot; programs that ask for one share it. */
void plan_add_input(plan *p, const prog_val *v, int layers) {
    size_t bytes = val_bytes(v) * (size_t)(v->per_layer ? layers : 1);
    int at = find_input(p, v->name);
    if (at < 0) {
        char name[REGION_NAME];
        snprintf(name, sizeof name, ".%s", v->name);
        at = plan_region(p, name, 0);
        p->region[at].input = (input_info){ .dt = v->dt, .pl = v->pl };
    }
    /* one input, one part of it; rows are divided before */
    axis_set differs = placement_axes(p->region[at].input.pl, PL_S) ^ placement_axes(v->pl, PL_S);
    BUG_IF(differs & sequence_axes());
    if (v->per_layer) p->region[at].layer_bytes = val_bytes(v);
    bool one = v->shared || (v->per_layer && !v->per_micro);
    size_t slots = one ? 1 : (size_t)p->input_slots;
    size_t stride = MAX(p->region[at].stride, slots > 1 ? align_up(bytes, INPUT_ALIGN) : bytes);
    p->region[at].stride = p->region[at].input.bytes = stride;
    p->region[at].bytes = MAX(p->region[at].bytes, stride * slots);
}

void *plan_data(const plan *p, int index) {
    BUG_IF(!p->arena);
    return (char *)(p->region[index].host ? p->host : p->arena) + p->region[index].at;
}

void *plan_input(const plan *p, const char *name, int slot) {
    int at = find_input(p, name);
    if (at < 0) return NULL;
    const region *r = &p->region[at];
    return (char *)plan_data(p, at) + (r->bytes > r->stride ? (size_t)slot * r->stride : 0);
}

bool plan_input_info(const plan *p, const char *name, input_info *out) {
    int at = find_input(p, name);
    if (at >= 0) *out = p->region[at].input;
    return at >= 0;
}

void plan_put(const plan *p, void *to, const void *from, size_t bytes) {
    const device_table *d = p->backend->device;
    if (d)
        d->put(p->backend->context, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

err plan_get(const plan *p, void *to, const void *from, size_t bytes) {
    const device_table *d = p->backend->device;
    if (d) return d->get(p->backend->context, to, from, bytes);
    memcpy(to, from, bytes);
    return OK;
}

bool plan_has_device(const plan *p) { return p->backend->device != NULL; }

void plan_fetch(const plan *p, device_queue q, device_ticket *t, const void *from, size_t bytes) {
    const device_table *d = p->backend->device;
    if (d) {
        d->fetch(p->backend->context, q, t, from, bytes);
        return;
    }
    if (t->capacity < bytes) t->memory = mem_grow(t->memory, t->capacity = bytes);
    t->bytes = bytes;
    memcpy(t->memory, from, bytes);
}

err plan_take(const plan *p, device_ticket *t, void *to) {
    const device_table *d = p->backend->device;
    if (d) return d->take(p->backend->context, t, to);
    memcpy(to, t->memory, t->bytes);
    return OK;
}

err plan_wait(const plan *p, device_ticket *t, const void **bytes) {
    const device_table *d = p->backend->device;
    *bytes = t->memory;
    return d ? d->take(p->backend->context, t, NULL) : OK;
}

void plan_drop(const plan *p, device_ticket *t) {
    const device_table *d = p->backend->device;
    if (d)
        d->drop(p->backend->context, t);
    else
        free(t->memory);
    *t = (device_ticket){ 0 };
}

void *plan_map_spare(const plan *p, size_t bytes) {
    const device_table *d = p->backend->device;
    void *at = NULL;
    if (d && d->map_spare) d->map_spare(p->backend->context, bytes, &at);
    return at;
}

void plan_unmap_spare(const plan *p, void *at, size_t bytes) {
    if (at) p->backend->device->unmap(p->backend->context, at, bytes);
}

void plan_copy(const plan *p, device_queue q, void *to, const void *from, size_t bytes) {
    p->backend->device->copy(p->backend->context, q, to, from, bytes);
}

void plan_copy_rows(const plan *p, const char *name, int64_t rows, int64_t to, int64_t from,
                    int64_t n) {
    int at = find_input(p, name);
    BUG_IF(at < 0 || !p->region[at].layer_bytes);
    size_t row = p->region[at].layer_bytes / (size_t)rows, bytes = row * (size_t)n;
    char *base = plan_data(p, at), *end = base + p->region[at].bytes;
    for (char *layer = base; layer < end; layer += p->region[at].layer_bytes) {
        char *dst = layer + row * (size_t)to, *src = layer + row * (size_t)from;
        if (p->backend->device)
            plan_copy(p, QUEUE_COMPUTE, dst, src, bytes);
        else
            memcpy(dst, src, bytes);
    }
}

err plan_pull(const plan *p, device_queue q, device_ticket *t, const void *from, size_t bytes,
              void *to) {
    return p->backend->device->pull(p->backend->context, q, t, from, bytes, to);
}

void plan_share(plan *p, comm *c) { p->comm = c; }

static err map_on_host(plan *p, size_t bytes, void **out) {
    err e = p->comm ? comm_map(p->comm, bytes, out) : mem_map(bytes, out);
    if (!e) return OK;
    return err_hint(e, "use a smaller model, training.local_batch_size or training.seq_len; "
                       "activation_checkpoint.mode=full, optimizer.name=adam8bit and "
                       "optimizer.master=bf16 need less");
}

static err arena_map(plan *p, size_t bytes, size_t host_bytes) {
    const device_table *d = p->backend->device;
    TRY(d ? d->map(p->backend->context, bytes, &p->arena) : map_on_host(p, bytes, &p->arena));
    p->arena_bytes = bytes;
    if (!host_bytes) return OK;
    TRY(d->map_host(p->backend->context, host_bytes, &p->host));
    p->host_bytes = host_bytes;
    return OK;
}

static void arena_unmap(plan *p) {
    const device_table *d = p->backend->device;
    if (d && p->host) d->unmap_host(p->backend->context, p->host, p->host_bytes);
    if (d && p->arena)
        d->unmap(p->backend->context, p->arena, p->arena_bytes);
    else if (!d && p->comm)
        comm_unmap(p->comm, p->arena, p->arena_bytes);
    else if (!d)
        mem_unmap(p->arena, p->arena_bytes);
}

void plan_await_update(plan *p, int layer) {
    while (p->awaits_cap <= layer + 1)
        p->awaits = mem_reserve(p->awaits, &p->awaits_cap, p->awaits_cap, sizeof *p->awaits);
    p->awaits[layer + 1] = true;
}

err plan_commit(plan *p) {
    p->temp = plan_region(p, "temp", p->temp_bytes);
    p->work = plan_region(p, "work", p->work_bytes);
    p->update_work = plan_region(p, "work", p->update_work_bytes);
    p->gathered = plan_region(p, "gathered", p->gathered_bytes);
    p->whole_grad = plan_region(p, "whole grads", p->whole_grad_bytes);
    p->step = plan_region(p, "step", p->backend->device ? sizeof(step_block) : 0);
    size_t at = 0, host_at = 0;
    for (int i = 0; i < p->regions; i++) {
        size_t *end = p->region[i].host ? &host_at : &at;
        p->region[i].at = *end;
        *end += align_up(p->region[i].bytes, PLAN_PAGE);
    }
    TRY(arena_map(p, at, host_at));
    for (int i = 0; i < p->chains; i++) chain_resolve(p, &p->chain[i]);
    for (int i = 0; i < p->programs; i++) program_resolve(p, &p->program[i]);
    return OK;
}

void plan_free(plan *p) {
    if (!p) return;
    if (p->backend->device) err_free(p->backend->device->sync(p->backend->context));
    for (int i = 0; i < p->chains; i++) chain_free(p, &p->chain[i]);
    for (int i = 0; i < p->programs; i++) free(p->program[i].addr);
    free(p->chain);
    free(p->program);
    free(p->region);
    free(p->awaits);
    free(p->row_counts);
    free(p->params);
    arena_unmap(p);
    free(p);
}
