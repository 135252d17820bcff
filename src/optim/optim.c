/* The update as a list of op calls, one a parameter: which rule, which memory, which numbers. */
#include "optim/optim.h"
#include "ops/block8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rules ------------------------------------------------------------------------------- */
typedef enum { AS_PARAM, AS_ROWS, AS_COLS, AS_BYTES, AS_SIGNED_BYTES } state_shape;
enum { MAX_STATES = 2 };

typedef struct rule {
    op_code op;
    int states, copy; /* copy: which output of the op it is */
    bool whole;       /* wants the matrix as one, with its shape */
    struct {
        const char *name;
        state_shape shape;
    } state[MAX_STATES];
} rule;

static const rule sgd = { OP_UPDATE_SGD, .copy = 1 };
static const rule momentum = { OP_UPDATE_MOMENTUM, 1, 2, .state = { { "m", AS_PARAM } } };
static const rule adam = { OP_UPDATE_ADAM, 2, 3,
                           .state = { { "m", AS_PARAM }, { "v", AS_PARAM } } };
static const rule adam8 = { OP_UPDATE_ADAM8, 2, 3,
                            .state = { { "m", AS_SIGNED_BYTES }, { "v", AS_BYTES } } };
static const rule lion = { OP_UPDATE_LION, 1, 2, .state = { { "m", AS_PARAM } } };
static const rule muon = { OP_UPDATE_MUON, 1, 2, true, .state = { { "m", AS_PARAM } } };
static const rule factors = { OP_UPDATE_ADAFACTOR, 2, 3, true,
                              .state = { { "row", AS_ROWS }, { "col", AS_COLS } } };
static const rule factors_vector = { OP_UPDATE_ADAFACTOR, 1, 3, .state = { { "v", AS_PARAM } } };

static const struct {
    const char *name;
    const rule *hidden, *matrix, *vector; /* matrix: those outside the blocks */
    bool normalised;                      /* an update's size does not follow the gradient's */
} kinds[] = {
    [OPTIM_SGD] = { "sgd", &sgd, &sgd, &sgd, false },
    [OPTIM_MOMENTUM] = { "momentum", &momentum, &momentum, &momentum, false },
    [OPTIM_ADAM] = { "adam", &adam, &adam, &adam, true },
    [OPTIM_ADAMW] = { "adamw", &adam, &adam, &adam, true },
    [OPTIM_ADAFACTOR] = { "adafactor", &factors, &factors, &factors_vector, true },
    [OPTIM_LION] = { "lion", &lion, &lion, &lion, true },
    [OPTIM_ADAM8BIT] = { "adam8bit", &adam8, &adam8, &adam8, true },
    [OPTIM_MUON] = { "muon", &muon, &adam, &adam, true },
};
static const double ADAFACTOR_EPS = 1e-30, AGC_EPS = 1e-3;

/* ---- the optimizer ----------------------------------------------------------------------- */
typedef struct slot { /* a parameter, or the slice of it that lies here */
    const rule *r;
    bucket_view b;
    param_range range;     /* empty: nothing lies here */
    int state[MAX_STATES]; /* plan regions */
    double copies;         /* ranks that hold the same elements */
    bool clipped;          /* by AGC */
    op_attr attr;
} slot;

struct optimizer {
    optim_settings s;
    const model *m;
    const plan *p;
    mesh mesh;
    slot *slot; /* [params] */
    int params;
    int work, norms; /* plan regions; norms: a square sum for each parameter */
    size_t work_bytes;
    int64_t updates;
};

static int64_t slot_count(const slot *k) { return k->range.to - k->range.from; }

static int64_t state_count(const optimizer *o, int param, int k) {
    const slot *t = &o->slot[param];
    const model_param *q = model_param_at(o->m, param);
    if (!slot_count(t)) return 0;
    switch (t->r->state[k].shape) {
    case AS_ROWS: return q->local[0];
    case AS_COLS: return q->local[1];
    default: return slot_count(t);
    }
}

static bool in_bytes(const slot *t, int k) {
    return t->r->state[k].shape == AS_BYTES || t->r->state[k].shape == AS_SIGNED_BYTES;
}

/* ---- what can be done -------------------------------------------------------------------- */
static err check_settings(const optim_settings *s) {
    const struct {
        const char *name;
        double value;
    } below_one[] = { { "beta1", s->beta1 }, { "beta2", s->beta2 }, { "momentum", s->momentum } };
    for (size_t i = 0; i < COUNT_OF(below_one); i++)
        if (!(below_one[i].value >= 0 && (float)below_one[i].value < 1))
            return err_hint(ERR("optimizer.%s is %.10g, expected 0 or more and below 1",
                                below_one[i].name, below_one[i].value),
                            "kernels compute in fp32, where what is nearer to 1 than 6e-8 is 1");
    if (!(s->eps >= 0) || !(s->weight_decay >= 0) || !(s->agc >= 0))
        return ERR("optimizer: eps %g, weight_decay %g and agc %g must not be negative", s->eps,
                   s->weight_decay, s->agc);
    return OK;
}

static err check_layout(const optim_settings *s, const model *m) {
    const model_layout *l = model_lay(m);
    const char *name = kinds[s->kind].name;
    if (model_conf(m)->mup && !kinds[s->kind].normalised)
        return err_hint(ERR("model.mup has no learning rates for %s", name),
                        "use adamw, lion, adafactor, adam8bit or muon, or turn model.mup off");
    bool whole = kinds[s->kind].hidden->whole || s->agc > 0;
    int tp = mesh_size(&l->mesh, AX_TP), dp = mesh_size(&l->mesh, AX_DP);
    if (!whole || (tp == 1 && !(l->zero3 && dp > 1))) return OK;
    const char *what = kinds[s->kind].hidden->whole ? name : "training.agc";
    if (tp > 1)
        return err_hint(
            ERR("%s needs whole matrices, which tensor parallelism over %d ranks cuts", what, tp),
            "use another optimizer, or tensor_parallel_degree 1");
    return err_hint(ERR("%s needs whole matrices, which ZeRO-3 over %d ranks cuts", what, dp),
                    "use another optimizer, or keep parameters whole on every rank");
}

/* ---- building ---------------------------------------------------------------------------- */
static const rule *rule_of(optim_kind kind, const model_param *q) {
    if (q->ndim < 2) return kinds[kind].vector;
    return q->role == ROLE_HIDDEN ? kinds[kind].hidden : kinds[kind].matrix;
}

static double lr_factor(const model_config *c, const model_param *q, const rule *r) {
    if (!c->mup || q->role != ROLE_HIDDEN || r == &muon) return 1;
    return (double)c->mup_base / (double)c->dim;
}

/* The paper leaves the last layer free; a table shared with the embedding is that layer too. */
static bool is_head(const model_config *c, const model_param *q) {
    return q->role == ROLE_OUTPUT || (c->tied && !strcmp(q->base, "embed.tokens"));
}

static op_attr attr_of(const optim_settings *s, double lr_mul, const model_param *q,
                       const rule *r) {
    op_attr a = { 0 };
    a.update.lr_mul = (float)lr_mul;
    a.update.decay = q->decay ? (float)s->weight_decay : 0;
    a.update.beta1 = (float)s->beta1;
    a.update.beta2 = (float)s->beta2;
    a.update.eps = (float)(r->op == OP_UPDATE_ADAFACTOR ? ADAFACTOR_EPS : s->eps);
    a.update.momentum = (float)s->momentum;
    a.update.l2 = s->kind == OPTIM_ADAM;
    a.update.nesterov = s->nesterov;
    a.agc.factor = (float)s->agc;
    a.agc.eps = (float)AGC_EPS;
    return a;
}

static double copies_of(const mesh *m, bool zero3, const model_param *q) {
    int dp = zero3 ? 1 : mesh_size(m, AX_DP);
    return (double)dp * (q->tp.kind == PL_S ? 1 : mesh_size(m, AX_TP));
}

static void fill_slot(optimizer *o, int param, int rank) {
    const model_param *q = model_param_at(o->m, param);
    slot *t = &o->slot[param];
    t->r = rule_of(o->s.kind, q);
    for (int i = 0; i < model_buckets(o->m) && !slot_count(t); i++) {
        t->b = model_bucket(o->m, i, rank);
        if (!model_param_range(o->m, param, &t->b, &t->range)) t->range = (param_range){ 0 };
    }
    t->attr = attr_of(&o->s, lr_factor(model_conf(o->m), q, t->r), q, t->r);
    t->copies = copies_of(&o->mesh, model_lay(o->m)->zero3, q);
    t->clipped = o->s.agc > 0 && q->ndim == 2 && !is_head(model_conf(o->m), q);
}

/* A tensor over elements `at` on of a region; without a committed plan, its shape alone. */
static tensor view(const optimizer *o, bool ready, int region, dtype dt, int64_t at, int ndim,
                   const int64_t *dim) {
    char *data = ready && region >= 0 ? plan_data(o->p, region) : NULL;
    return tensor_of(data ? data + (size_t)at * dt_size(dt) : NULL, dt, ndim, dim);
}

static op_call call_of(const optimizer *o, int param, bool ready) {
    const slot *t = &o->slot[param];
    const model_param *q = model_param_at(o->m, param);
    int64_t flat[] = { slot_count(t) };
    const int64_t *dim = t->r->whole ? q->local : flat;
    int ndim = t->r->whole ? 2 : 1;
    op_call c = { .op = t->r->op, .attr = t->attr };
    c.in[0] = view(o, ready, t->b.grad, DT_F32, t->range.at, ndim, dim);
    c.out[0] = view(o, ready, t->b.master, DT_F32, t->range.at, ndim, dim);
    if (t->b.copy >= 0)
        c.out[t->r->copy] = view(o, ready, t->b.copy, t->b.dt, t->range.at, ndim, dim);
    for (int k = 0; k < t->r->states; k++) {
        bool same = t->r->state[k].shape == AS_PARAM;
        int64_t n = state_count(o, param, k), bytes = (int64_t)block8_bytes(n);
        c.out[1 + k] = in_bytes(t, k) ? view(o, ready, t->state[k], DT_U8, 0, 1, &bytes)
                       : same         ? view(o, ready, t->state[k], DT_F32, 0, ndim, dim)
                                      : view(o, ready, t->state[k], DT_F32, 0, 1, &n);
    }
    return c;
}

static void reserve(optimizer *o, plan *p) {
    for (int i = 0; i < o->params; i++) {
        slot *t = &o->slot[i];
        if (!slot_count(t)) continue;
        op_call c = call_of(o, i, false);
        for (int k = 0; k < t->r->states; k++)
            t->state[k] = plan_region(p, "optimizer", tensor_bytes(&c.out[1 + k]));
        /* kernels that use a workspace here use the same on any number of threads */
        o->work_bytes = MAX(o->work_bytes, ops_workspace(o->s.backend, &c, 1));
    }
    for (int i = 0; i < o->params; i++) {
        int64_t n = slot_count(&o->slot[i]);
        op_call c = { .op = OP_SQNORM, .in = { tensor_of(NULL, DT_F32, 1, &n) } };
        o->work_bytes = MAX(o->work_bytes, ops_workspace(o->s.backend, &c, 1));
    }
    o->work = plan_region(p, "work", o->work_bytes);
    o->norms = plan_region(p, "work", (size_t)o->params * sizeof(float));
}

err optim_new(const optim_settings *s, model *m, plan *p, int rank, optimizer **out) {
    *out = NULL;
    TRY(check_settings(s));
    TRY(check_layout(s, m));
    optimizer *o = mem_alloc(sizeof *o);
    o->s = *s;
    if (!o->s.backend) o->s.backend = ops_cpu(OPS_ISA_BEST);
    o->m = m;
    o->p = p;
    o->mesh = model_lay(m)->mesh;
    o->params = model_params(m);
    o->slot = mem_alloc((size_t)o->params * sizeof *o->slot);
    for (int i = 0; i < o->params; i++) fill_slot(o, i, rank);
    reserve(o, p);
    *out = o;
    return OK;
}

void optim_free(optimizer *o) {
    if (!o) return;
    free(o->slot);
    free(o);
}

int64_t optim_updates(const optimizer *o) { return o->updates; }
void optim_set_updates(optimizer *o, int64_t n) { o->updates = n; }

/* ---- running ----------------------------------------------------------------------------- */
static void run_call(optimizer *o, exec *x, const step_block *step, op_call *c) {
    op_run run = { .pool = x->pool,
                   .workspace = plan_data(o->p, o->work),
                   .workspace_bytes = o->work_bytes,
                   .step = step,
                   .context = o->s.backend->context };
    c->run = &run;
    double t0 = x->profile ? time_now() : 0;
    ops_run(o->s.backend, c);
    if (x->profile) x->op_seconds[c->op] += time_now() - t0;
}

static err sum_over_ranks(optimizer *o, exec *x, float *sum) {
    axis_set axes = 0;
    for (int a = 0; a < AX_COUNT; a++)
        if (mesh_size(&o->mesh, (mesh_axis)a) > 1) axes |= AXIS(a);
    if (!axes) return OK;
    tensor in = tensor_of(sum, DT_F32, 1, (int64_t[]){ 1 });
    comm_move move = { .axes = axes, .from = PLACE_P, .to = PLACE_I };
    comm_ticket ticket;
    TRY(comm_start(x->comm, &move, &in, &in, &ticket));
    TRY(comm_wait(x->comm, &ticket));
    return OK;
}

err optim_grad_norm(optimizer *o, exec *x, double scale, double *norm) {
    double sum = 0;
    float *part = mem_alloc((size_t)o->params * sizeof *part), *at = plan_data(o->p, o->norms);
    const step_block *step = exec_step(x);
    for (int i = 0; i < o->params; i++) {
        const slot *t = &o->slot[i];
        int64_t n = slot_count(t);
        op_call c = { .op = n ? OP_SQNORM : OP_ZERO };
        c.attr.scale.by = (float)(scale * scale / t->copies);
        if (n) c.in[0] = view(o, true, t->b.grad, DT_F32, t->range.at, 1, &n);
        c.out[0] = tensor_of(at + i, DT_F32, 1, (int64_t[]){ 1 });
        run_call(o, x, step, &c);
    }
    err e = plan_get(o->p, part, at, (size_t)o->params * sizeof *part);
    for (int i = 0; i < o->params; i++) sum += part[i];
    free(part);
    TRY(e);
    float all = (float)sum;
    TRY(sum_over_ranks(o, x, &all));
    *norm = sqrt(mesh_world(&o->mesh) > 1 ? all : sum);
    return OK;
}

double optim_clip(double norm, double max_norm) {
    if (!isfinite(norm)) return NAN;
    return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

err optim_step(optimizer *o, exec *x, double lr, double grad_scale) {
    if (!isfinite(lr) || !isfinite(grad_scale))
        return err_hint(ERR("update %lld: learning rate %g, gradients times %g: not finite",
                            (long long)o->updates + 1, lr, grad_scale),
                        "skip the step when the gradient's norm is not finite");
    o->updates++;
    x->step.update.lr = (float)lr;
    x->step.update.grad_scale = (float)grad_scale;
    x->step.update.count = o->updates;
    const step_block *step = exec_step(x);
    for (int i = 0; i < o->params; i++) {
        const slot *t = &o->slot[i];
        if (!slot_count(t)) continue;
        if (t->clipped) {
            const int64_t *dim = model_param_at(o->m, i)->local;
            op_call c = { .op = OP_AGC, .attr = t->attr };
            c.in[0] = view(o, true, t->b.master, DT_F32, t->range.at, 2, dim);
            c.out[0] = view(o, true, t->b.grad, DT_F32, t->range.at, 2, dim);
            run_call(o, x, step, &c);
        }
        op_call c = call_of(o, i, true);
        run_call(o, x, step, &c);
    }
    return OK;
}

/* ---- state, for checkpoints -------------------------------------------------------------- */
int optim_states(const optimizer *o, int param) { return o->slot[param].r->states; }
const char *optim_state_name(const optimizer *o, int param, int k) {
    return o->slot[param].r->state[k].name;
}
int64_t optim_state_count(const optimizer *o, int param, int k) { return state_count(o, param, k); }

err optim_state_get(const optimizer *o, int param, int k, float *to) {
    const slot *t = &o->slot[param];
    int64_t n = state_count(o, param, k);
    if (!n) return OK;
    void *at = plan_data(o->p, t->state[k]);
    if (!in_bytes(t, k)) return plan_get(o->p, to, at, (size_t)n * sizeof *to);
    bool sign = t->r->state[k].shape == AS_SIGNED_BYTES;
    uint8_t *codes = mem_alloc(block8_bytes(n));
    err e = plan_get(o->p, codes, at, block8_bytes(n));
    for (int64_t b = 0; !e && b < block8_count(n); b++) {
        float block[BLOCK8];
        block8_unpack(codes + b * BLOCK8, sign, block8_scales(codes, n)[b], block);
        memcpy(to + b * BLOCK8, block, (size_t)MIN(BLOCK8, n - b * BLOCK8) * sizeof *to);
    }
    free(codes);
    return e;
}

void optim_state_set(optimizer *o, int param, int k, const float *from) {
    const slot *t = &o->slot[param];
    int64_t n = state_count(o, param, k);
    if (!n) return;
    void *at = plan_data(o->p, t->state[k]);
    if (!in_bytes(t, k)) {
        plan_put(o->p, at, from, (size_t)n * sizeof *from);
        return;
    }
    bool sign = t->r->state[k].shape == AS_SIGNED_BYTES;
    uint8_t *codes = mem_alloc(block8_bytes(n));
    for (int64_t b = 0; b < block8_count(n); b++) {
        float block[BLOCK8] = { 0 };
        memcpy(block, from + b * BLOCK8, (size_t)MIN(BLOCK8, n - b * BLOCK8) * sizeof *from);
        block8_pack(block, sign, codes + b * BLOCK8, &block8_scales(codes, n)[b]);
    }
    plan_put(o->p, at, codes, block8_bytes(n));
    free(codes);
}
