/* Scaling laws: the table of published ones, and what follows from a law in any direction.
 *
 * Every row cites the table it comes from. A law with a surface has a loss everywhere; one without, such
 * as the rule of 20 tokens, only splits a budget, and takes its losses from the default law.
 *
 * All searches are in log space over functions with one minimum or of one sign change, so bisection and
 * golden section are enough, and exact to the last digits that are printed. */
#include <math.h>
#include <string.h>

#include "planning/planning.h"

/* L = E + A / N^alpha + B / D^beta. */
#define SUM(e_, a_, alpha_, b_, beta_)                                                             \
    .surface = SURFACE_SUM, .e = e_, .a = a_, .alpha = alpha_, .b = b_, .beta = beta_
/* The best D for N parameters is `tokens` at `params`, and grows as N^exponent. */
#define FRONTIER(params, tokens, exponent)                                                         \
    .at_params = params, .at_tokens = tokens, .slope = exponent
#define HOFFMANN "Hoffmann et al. 2022, arXiv:2203.15556"
static const scaling_law laws[] = {
    { "refit", "Chinchilla, refit", "Besiroglu et al. 2024, arXiv:2404.10102, equation 3",
      SUM(1.8172, 482.01, 0.3478, 2085.43, 0.3658) },
    /* Through the rows of 1B and 10T parameters. The row of 67B, Gopher's budget, differs from it by 3 %. */
    { "chinchilla-1", "Chinchilla, approach 1", HOFFMANN ", table 3",
      FRONTIER(1e9, 20.2e9, 1.00737) },
    { "chinchilla-2", "Chinchilla, approach 2", HOFFMANN ", table A3",
      FRONTIER(1e9, 20.0e9, 1.04108) },
    /* The surface is equation 10. Its frontier does not give table A3, which was computed before rounding;
     * the frontier here is the table's. */
    { "chinchilla-3", "Chinchilla, approach 3", HOFFMANN ", equation 10 and table A3",
      SUM(1.69, 406.4, 0.34, 410.7, 0.28), FRONTIER(1e9, 27.1e9, 1.18024) },
    { "20-tokens", "20 tokens per parameter", "the rule drawn from " HOFFMANN,
      FRONTIER(1e9, 20e9, 1) },
    /* E is exp(0.6254804), A exp(6.255414), B exp(7.3049974). */
    { "muennighoff", "data-constrained", "Muennighoff et al. 2023, arXiv:2305.16264, appendix A",
      SUM(1.8691437, 520.826155, 0.3526596, 1487.71571, 0.3526596) },
    /* N_opt = 1.3e9 C^0.73 with C in PF-days (table 6), and D = C / 6 N; the loss is table 2's. Parameters
     * are those outside the embeddings. */
    { "kaplan", "Kaplan", "Kaplan et al. 2020, arXiv:2001.08361, tables 2 and 6",
      .surface = SURFACE_JOINT, .a = 6.4e13, .alpha = 0.076, .b = 1.8e13, .beta = 0.103,
      FRONTIER(1.3e9, PF_DAY / (6 * 1.3e9), 1 / 0.73 - 1) },
};

/* How fast repeated tokens and excess parameters lose their worth: Muennighoff et al. 2023, appendix A. */
static const double repeat_half_life = 15.387756, excess_half_life = 5.309743;

int law_count(void) { return (int)COUNT_OF(laws); }
const scaling_law *law_at(int i) { return &laws[i]; }
const scaling_law *law_default(void) { return &laws[0]; }

err law_find(const char *name, const scaling_law **out) {
    for (size_t i = 0; i < COUNT_OF(laws); i++)
        if (strcmp(laws[i].name, name) == 0) {
            *out = &laws[i];
            return OK;
        }
    str all = { 0 };
    const char *near = NULL;
    for (size_t i = 0; i < COUNT_OF(laws); i++) {
        str_add(&all, "%s%s", i ? ", " : "", laws[i].name);
        near = str_nearer(name, laws[i].name, near);
    }
    err e = ERR_USAGE("no scaling law is called \"%.40s\"; there are %s", name, all.text);
    str_free(&all);
    return err_hint(e, "--law %s", near ? near : laws[0].name);
}

/* ---- the surface --------------------------------------------------------------------------- */
static const scaling_law *with_surface(const scaling_law *l) {
    return l->surface == SURFACE_NONE ? law_default() : l;
}

static double surface_loss(const scaling_law *l, double n, double d) {
    l = with_surface(l);
    if (l->surface == SURFACE_SUM) return l->e + l->a * pow(n, -l->alpha) + l->b * pow(d, -l->beta);
    return pow(pow(l->a / n, l->alpha / l->beta) + l->b / d, l->beta);
}

/* Discounts x: `first` counts in full, the rest exponentially less. */
static double discount_excess(double x, double first, double half_life) {
    if (!(x > first)) return x;
    return first * (1 + half_life * (1 - exp(-(x / first - 1) / half_life)));
}

double law_effective_tokens(double tokens, double unique) {
    return discount_excess(tokens, unique, repeat_half_life);
}

/* ---- the frontier -------------------------------------------------------------------------- */
static double frontier_tokens(const scaling_law *l, double n) {
    if (l->slope > 0) return l->at_tokens * pow(n / l->at_params, l->slope);
    return pow(l->beta * l->b * pow(n, l->alpha) / (l->alpha * l->a), 1 / l->beta);
}

static double frontier_params(const scaling_law *l, double d) {
    if (l->slope > 0) return l->at_params * pow(d / l->at_tokens, 1 / l->slope);
    return pow(l->alpha * l->a * pow(d, l->beta) / (l->beta * l->b), 1 / l->alpha);
}

enum { ROUNDS = 100 };
/* Where f changes its sign in [low, high], which are positive; f(low) and f(high) differ in sign. */
static double find_root(double (*f)(const void *ctx, double x), const void *ctx, double low,
                        double high) {
    bool rising = f(ctx, low) < 0;
    double from = log(low), to = log(high);
    for (int i = 0; i < ROUNDS; i++) {
        double middle = (from + to) / 2;
        if ((f(ctx, exp(middle)) < 0) == rising)
            from = middle;
        else
            to = middle;
    }
    return exp((from + to) / 2);
}

/* Where f, which has one minimum in [low, high], is lowest. */
static double find_minimum(double (*f)(const void *ctx, double x), const void *ctx, double low,
                           double high) {
    static const double golden = 0.6180339887498949;
    double from = log(low), to = log(high);
    for (int i = 0; i < ROUNDS; i++) {
        double left = to - golden * (to - from), right = from + golden * (to - from);
        if (f(ctx, exp(left)) < f(ctx, exp(right)))
            to = right;
        else
            from = left;
    }
    return exp((from + to) / 2);
}

static const double least = 1, most = 1e30; /* parameters and tokens that are searched */
typedef struct problem {
    const scaling_law *law;
    double given, loss, unique, inference;
} problem;

double law_loss(const scaling_law *l, double params, double tokens, double unique) {
    if (!(tokens > unique)) return surface_loss(l, params, tokens);
    double enough = frontier_params(with_surface(l), unique);
    return surface_loss(l, discount_excess(params, enough, excess_half_life),
                        law_effective_tokens(tokens, unique));
}

static double loss_on_budget(const void *ctx, double n) {
    const problem *p = ctx;
    return law_loss(p->law, n, p->given / (6 * n), p->unique);
}

/* The best split of a budget. Where data runs out it is no longer the frontier's. */
static double params_for_compute(const scaling_law *l, double c, double unique) {
    /* the frontier is a power law, D = k N^s, so C = 6 k N^(1 + s) */
    double slope = l->slope > 0 ? l->slope : l->alpha / l->beta;
    double n = pow(c / (6 * frontier_tokens(l, 1)), 1 / (1 + slope));
    if (!(c / (6 * n) > unique)) return n;
    return find_minimum(loss_on_budget, &(problem){ .law = l, .given = c, .unique = unique },
                        n / 1e6, n * 1e6);
}

/* ---- from a loss --------------------------------------------------------------------------- */
static double loss_at_tokens(const void *ctx, double d) {
    const problem *p = ctx;
    return law_loss(p->law, p->given, d, p->unique) - p->loss;
}
static double loss_at_params(const void *ctx, double n) {
    const problem *p = ctx;
    return law_loss(p->law, n, p->given, p->unique) - p->loss;
}
static double loss_at_compute(const void *ctx, double c) {
    const problem *p = ctx;
    double n = params_for_compute(p->law, c, p->unique);
    return law_loss(p->law, n, c / (6 * n), p->unique) - p->loss;
}
static double loss_on_budget_minus(const void *ctx, double n) {
    return loss_on_budget(ctx, n) - ((const problem *)ctx)->loss;
}

/* The x in [low, high] at which f, a loss less the one asked for that falls with x, is 0. */
static err solve_for_loss(double (*f)(const void *, double), problem *p, double low, double high,
                          const char *what, double *out) {
    double floor = f(p, high) + p->loss;
    if (!(f(p, high) < 0))
        return err_hint(ERR_USAGE("--loss: %.4g cannot be reached %s: the law \"%s\" ends at %.4g",
                                  p->loss, what, p->law->name, floor),
                        "--loss %.3f", ceil(floor * 1.01 * 1e3) / 1e3);
    if (f(p, low) < 0) {
        *out = low;
        return OK;
    }
    *out = find_root(f, p, low, high);
    return OK;
}

static err from_loss(const scaling_law *l, const scaling_query *q, scaling_point *o) {
    problem p = { .law = l, .loss = q->loss, .unique = q->unique };
    if (!isnan(q->params)) {
        p.given = o->params = q->params;
        return solve_for_loss(loss_at_tokens, &p, least, most, "with these parameters", &o->tokens);
    }
    if (!isnan(q->tokens)) {
        p.given = o->tokens = q->tokens;
        return solve_for_loss(loss_at_params, &p, least, most, "with these tokens", &o->params);
    }
    if (!isnan(q->compute)) {
        p.given = q->compute;
        double best = find_minimum(loss_on_budget, &p, least, q->compute / 6);
        TRY(solve_for_loss(loss_on_budget_minus, &p, least, best, "with this compute", &o->params));
        o->tokens = q->compute / (6 * o->params);
        return OK;
    }
    double c = 0;
    TRY(solve_for_loss(loss_at_compute, &p, 1e6, 1e40, "with any compute", &c));
    o->params = params_for_compute(l, c, q->unique);
    o->tokens = c / (6 * o->params);
    return OK;
}

/* ---- in any direction ---------------------------------------------------------------------- */
static err check_value(const char *name, double v, double low, double high, const char *unit) {
    if (isnan(v) || (v >= low && v <= high)) return OK;
    err e = ERR_USAGE("--%s: expected %g to %g %s; got %g", name, low, high, unit, v);
    if (v > 0 && v < low && low == 1e3) /* "7" stands for billions more often than for seven */
        return err_hint(e, "--%s %gB, for %g billion", name, v, v);
    return err_hint(e, "--%s %g", name, v < low ? low : high);
}

static err check_query(const scaling_query *q) {
    TRY(check_value("compute", q->compute, 1e9, 1e36, "floating point operations"));
    TRY(check_value("params", q->params, 1e3, 1e18, "parameters"));
    TRY(check_value("tokens", q->tokens, 1e3, 1e18, "tokens"));
    TRY(check_value("loss", q->loss, 0.5, 12, "nats per token"));
    if (isfinite(q->unique)) TRY(check_value("unique-tokens", q->unique, 1e3, 1e18, "tokens"));
    int known = !isnan(q->compute) + !isnan(q->params) + !isnan(q->tokens) + !isnan(q->loss);
    if (known >= 1 && known <= 2) return OK;
    return err_hint(ERR_USAGE("expected one or two of --compute, --params, --tokens and --loss; "
                              "got %s",
                              known ? known == 3 ? "three" : "four" : "none"),
                    known ? "leave one out: it follows from the others" : "--compute 1e21");
}

static void from_budget(const scaling_law *l, const scaling_query *q, scaling_point *o) {
    o->params = q->params;
    o->tokens = q->tokens;
    if (!isnan(q->compute)) {
        if (!isnan(q->tokens))
            o->params = q->compute / (6 * q->tokens);
        else if (isnan(q->params))
            o->params = params_for_compute(l, q->compute, q->unique);
        o->tokens = q->compute / (6 * o->params);
    } else if (isnan(q->params)) {
        o->params = frontier_params(l, q->tokens);
    } else if (isnan(q->tokens)) {
        o->tokens = frontier_tokens(l, q->params);
    }
}

err law_solve(const scaling_law *l, const scaling_query *q, scaling_point *out) {
    TRY(check_query(q));
    scaling_point o = { 0 };
    if (isnan(q->loss))
        from_budget(l, q, &o);
    else
        TRY(from_loss(l, q, &o));
    o.compute = 6 * o.params * o.tokens;
    o.loss = law_loss(l, o.params, o.tokens, q->unique);
    o.effective_tokens = law_effective_tokens(o.tokens, q->unique);
    *out = o;
    return OK;
}

/* ---- over the model's life ----------------------------------------------------------------- */
/* Operations over the life of a model of n parameters and the loss asked for. */
static double lifetime_flops(const void *ctx, double n) {
    problem p = *(const problem *)ctx;
    p.given = n;
    if (!(loss_at_tokens(&p, most) < 0)) return INFINITY;
    double d = find_root(loss_at_tokens, &p, least, most);
    return 6 * n * d + 2 * n * p.inference;
}

err law_solve_lifetime(const scaling_law *l, double loss, double unique, double inference,
                       scaling_point *out) {
    scaling_query q = { NAN, NAN, NAN, loss, unique };
    scaling_point o;
    TRY(check_value("inference-tokens", inference, 0, 1e18, "tokens"));
    TRY(law_solve(l, &q, &o)); /* the optimum without inference: no larger model is cheaper */
    problem p = { .law = l, .loss = loss, .unique = unique, .inference = inference };
    double smallest = 0, largest = 1e3 * o.params;
    p.given = most;
    TRY(solve_for_loss(loss_at_params, &p, least, largest, "at all", &smallest));
    q.params = find_minimum(lifetime_flops, &p, smallest * (1 + 1e-9), largest);
    return law_solve(l, &q, out);
}
