/* Which parameter gets which rule and which numbers, and what cannot be done. */
#include "optim_internal.h"

#include <string.h>

static const rule sgd = { OP_UPDATE_SGD }, momentum = { OP_UPDATE_MOMENTUM };
static const rule adam = { OP_UPDATE_ADAM }, adam8 = { OP_UPDATE_ADAM8 }, lion = { OP_UPDATE_LION };
static const rule muon = { OP_UPDATE_ALONG, { OP_MUON_MOMENTUM }, BY_ORTHOGONAL };
static const rule muon_rows = { OP_UPDATE_ALONG,
                                { OP_MUON_MOMENTUM, OP_MUON_UNPACK_ROWS },
                                BY_ORTHOGONAL };
static const rule muon_cols = { OP_UPDATE_ALONG,
                                { OP_MUON_MOMENTUM, OP_MUON_UNPACK_COLS },
                                BY_ORTHOGONAL };
static const rule factors = { OP_UPDATE_ALONG, { OP_FACTOR_MOMENTS }, BY_FACTORS };
static const rule factors_vector = { OP_UPDATE_ALONG, { OP_FACTOR_VECTOR }, BY_FACTORS_VECTOR };
static const rule router_bias = { OP_UPDATE_ROUTER_BIAS }; /* alone in its bucket */

static void add_states(op_code op, rule_states *to) {
    op_signature sig = op_signature_of(op);
    for (int i = 0; i < sig.outs; i++) {
        const op_operand *x = &sig.out[i];
        struct rule_state *s = &to->state[to->n];
        if (!x->state) continue;
        memcpy(s->name, x->name, sizeof s->name);
        s->op = op;
        s->out = i;
        s->shape = x->type == KIND_U8        ? x->sign ? AS_SIGNED_BYTES : AS_BYTES
                   : x->dim[0].symbol == 'R' ? AS_ROWS
                   : x->dim[0].symbol == 'C' ? AS_COLS
                                             : AS_PARAM;
        to->n++;
    }
}

rule_states rule_states_of(const rule *r) {
    rule_states out = { 0 };
    if (!r->keeps[0]) add_states(r->op, &out);
    for (size_t i = 0; i < COUNT_OF(r->keeps) && r->keeps[i]; i++) add_states(r->keeps[i], &out);
    return out;
}

typedef struct rule_set {
    const rule *hidden, *matrix, *vector; /* matrix: those outside the blocks */
    bool normalized;                      /* an update's size does not follow the gradient's */
    bool l2;                              /* weight decay is added to the gradient */
} rule_set;
/* One for each row of OPTIM_KINDS (config/choices.h). */
static const rule_set OPTIM_SGD_rules = { &sgd, &sgd, &sgd };
static const rule_set OPTIM_MOMENTUM_rules = { &momentum, &momentum, &momentum };
static const rule_set OPTIM_ADAM_rules = { &adam, &adam, &adam, .normalized = true, .l2 = true };
static const rule_set OPTIM_ADAMW_rules = { &adam, &adam, &adam, .normalized = true };
static const rule_set OPTIM_ADAFACTOR_rules = { &factors, &factors, &factors_vector,
                                                .normalized = true };
static const rule_set OPTIM_LION_rules = { &lion, &lion, &lion, .normalized = true };
static const rule_set OPTIM_ADAM8BIT_rules = { &adam8, &adam8, &adam8, .normalized = true };
static const rule_set OPTIM_MUON_rules = { &muon, &adam, &adam, .normalized = true };

static const struct {
    const char *name;
    const rule_set *rules;
} kinds[] = {
#define KIND(symbol, text, traits, help) [symbol] = { text, &symbol##_rules },
    OPTIM_KINDS(KIND)
};
static const double ADAFACTOR_EPS = 1e-30, AGC_EPS = 1e-3;

/* ---- what is supported ------------------------------------------------------------------- */
err rules_check_group(const optim_group *g, const model *m) {
    const struct {
        const char *name;
        double value;
    } below_one[] = { { "beta1", g->beta1 }, { "beta2", g->beta2 }, { "momentum", g->momentum } };
    for (size_t i = 0; i < COUNT_OF(below_one); i++)
        if (!(below_one[i].value >= 0 && (float)below_one[i].value < 1))
            return err_hint(ERR("optimizer.%s is %.10g, expected 0 or more and below 1",
                                below_one[i].name, below_one[i].value),
                            "kernels compute in fp32, where anything closer to 1 than 6e-8 is 1");
    if (!(g->eps >= 0) || !(g->weight_decay >= 0))
        return ERR("optimizer: eps %g and weight_decay %g must not be negative", g->eps,
                   g->weight_decay);
    if (model_conf(m)->mup && !kinds[g->kind].rules->normalized)
        return err_hint(ERR("model.mup has no learning rates for %s", kinds[g->kind].name),
                        "use adamw, lion, adafactor, adam8bit or muon, or turn model.mup off");
    return OK;
}

/* Weights kept in bf16 are rounded stochastically as they are stored; adaptive clipping reads fp32. */
static err check_master(const optim_settings *s, const model *m) {
    const model_layout *l = model_lay(m);
    if (l->master != DT_BF16) return OK;
    if (l->dt != DT_BF16)
        return err_hint(ERR("optimizer.master=bf16 needs a model that computes in bf16, this one "
                            "computes in %s",
                            dt_name(l->dt)),
                        "set precision=bf16, or optimizer.master=fp32");
    if (s->agc == 0) return OK;
    return err_hint(ERR("training.agc needs weights in fp32"),
                    "set optimizer.master=fp32, or training.agc=0");
}

err rules_check(const optim_settings *s, const model *m) {
    if (!(s->offload >= 0 && s->offload <= 1))
        return ERR("optimizer.offload is %g, expected 0 to 1", s->offload);
    if (!(s->muon_beta2 >= 0 && (float)s->muon_beta2 < 1))
        return ERR("optimizer.muon_beta2 is %.10g, expected 0 or more and below 1", s->muon_beta2);
    if (!(s->agc >= 0)) return ERR("training.agc is %g, expected 0 or more", s->agc);
    return check_master(s, m);
}

/* ---- what each parameter gets ------------------------------------------------------------ */
const rule *rule_of(const optim_settings *s, const optim_group *g, const model_param *q) {
    if (q->role == ROLE_STATE) return &router_bias;
    const rule_set *rules = kinds[g->kind].rules;
    if (q->ndim < 2) return rules->vector;
    const rule *r = q->role == ROLE_HIDDEN ? rules->hidden : rules->matrix;
    /* second moments are per neuron: along the longer side of a matrix */
    if (r == &muon && s->muon_beta2 > 0) return q->dim[0] >= q->dim[1] ? &muon_rows : &muon_cols;
    return r;
}

optim_kind rule_kind_of(const optim_settings *s, const optim_group *g, const model_param *q) {
    return rule_of(s, g, q) == &adam && !kinds[g->kind].rules->l2 ? OPTIM_ADAMW : g->kind;
}

const char *rule_kind_name(optim_kind kind) { return kinds[kind].name; }

op_attr rule_attr(const optim_settings *s, const optim_group *g, const model_config *c,
                  const model_param *q) {
    const rule *r = rule_of(s, g, q);
    op_attr a = { 0 };
    bool scaled = c->mup && q->role == ROLE_HIDDEN && r->kind != BY_ORTHOGONAL;
    double mup = scaled ? (double)c->mup_base / (double)c->dim : 1;
    a.update.lr_mul = (float)(g->lr_factor * mup);
    if (r == &router_bias) a.update.lr_mul = c->router_bias ? (float)c->router_bias_rate : 0;
    a.update.decay = q->decay || g->decays_vectors ? (float)g->weight_decay : 0;
    a.update.beta1 = (float)g->beta1;
    a.update.beta2 = (float)g->beta2;
    a.update.eps =
        (float)(kinds[g->kind].rules->hidden->kind == BY_FACTORS ? ADAFACTOR_EPS : g->eps);
    a.update.momentum = (float)g->momentum;
    a.update.decay_by = (int)g->decay_by + (g->scaled_decay ? wd_schedule_count : 0);
    a.update.cautious = s->cautious && r->kind == BY_ORTHOGONAL;
    a.update.l2 = kinds[g->kind].rules->l2;
    a.update.nesterov = s->nesterov;
    a.agc.factor = (float)s->agc;
    a.agc.eps = (float)AGC_EPS;
    return a;
}

/* The paper leaves the last layer free; a table shared with the embedding is that layer too. */
bool rule_clips_rows(const optim_settings *s, const model_config *c, const model_param *q) {
    bool head = q->role == ROLE_OUTPUT || (c->tied && !strcmp(q->base, "embed.tokens"));
    return s->agc > 0 && q->ndim == 2 && !head;
}
