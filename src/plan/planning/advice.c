/* Advice: what published recipes of a model's size did, and the classic mistakes.
 *
 * The recipes are the configs of configs/recipes/, read as any other config, so a figure that is suggested
 * is one that its source states, and a new recipe is a new file. */
#include "planning/planning.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct advice_list {
    advice *item;
    int n;
} advice_list;

static void add_advice(advice_list *l, advice_kind kind, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void add_advice(advice_list *l, advice_kind kind, const char *fmt, ...) {
    char text[640];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    l->item = mem_grow(l->item, sizeof *l->item * (size_t)(l->n + 1));
    char *copy = mem_alloc(strlen(text) + 1);
    strcpy(copy, text);
    l->item[l->n++] = (advice){ kind, copy };
}

void advice_free(advice *list, int n) {
    for (int i = 0; i < n; i++) free(list[i].text);
    free(list);
}

/* ---- the nearest recipe ------------------------------------------------------------------------- */
static double batch_tokens(const config *c) {
    cfg_amount a = c->training.global_batch_size;
    if (isnan(a.value)) a = c->training.local_batch_size;
    return a.unit == CFG_TOKENS ? a.value : a.value * (double)c->training.seq_len;
}

static double warmup_steps(const config *c, double steps) {
    cfg_amount a = c->lr_scheduler.warmup;
    switch (a.unit) {
    case CFG_STEPS: return a.value;
    case CFG_PERCENT: return a.value / 100 * steps;
    case CFG_TOKENS: return a.value / batch_tokens(c);
    case CFG_EPOCHS:
    case CFG_SEQUENCES:
    case CFG_SECONDS: break;
    }
    return NAN; /* not known here */
}

typedef struct nearest {
    int index;
    config c; /* freed by config_free */
    double params, distance;
} nearest;

static err find_nearest(double params, nearest *out) {
    nearest best = { .index = -1, .distance = INFINITY };
    for (int i = 0; i < recipe_count(); i++) {
        config c;
        model_config m;
        config_init(&c);
        err e = config_parse(&c, recipe_text(i), strlen(recipe_text(i)), recipe_name(i));
        if (!e) e = model_from_config(&c, &m);
        if (e) {
            config_free(&c);
            return e;
        }
        double n = (double)model_count(&m), distance = fabs(log(n / params));
        if (distance < best.distance) {
            if (best.index >= 0) config_free(&best.c);
            best = (nearest){ i, c, n, distance };
        } else {
            config_free(&c);
        }
    }
    *out = best;
    return OK;
}

static void suggest_recipe(advice_list *l, const nearest *r) {
    const config *c = &r->c;
    str source = { 0 }, warmup = { 0 };
    recipe_note(r->index, "source", &source);
    if (c->lr_scheduler.warmup.unit == CFG_PERCENT)
        str_add(&warmup, "%g %% of the run", c->lr_scheduler.warmup.value);
    else
        str_add(&warmup, "%g %s", c->lr_scheduler.warmup.value,
                c->lr_scheduler.warmup.unit == CFG_TOKENS ? "tokens" : "steps");
    add_advice(
        l, ADVICE_SUGGESTION,
        "%s (%.3gB parameters) was trained with a peak learning rate of %g, batches of %.3gM tokens, a "
        "warm-up of %s, %s decay to %g of the peak, betas %g and %g, weight decay %g, clipping at %g (%s)",
        recipe_name(r->index), r->params / 1e9, c->optimizer.lr, batch_tokens(c) / 1e6, warmup.text,
        config_choice("lr_scheduler.name", c->lr_scheduler.name), c->lr_scheduler.min_lr_factor,
        c->optimizer.beta1, c->optimizer.beta2, c->optimizer.weight_decay, c->training.max_norm,
        source.text);
    str_free(&source);
    str_free(&warmup);
}

static void compare_recipe(advice_list *l, const config *c, const nearest *r) {
    bool adam = c->optimizer.name == OPTIM_ADAMW || c->optimizer.name == OPTIM_ADAM ||
                c->optimizer.name == OPTIM_ADAM8BIT;
    if (r->distance > log(3)) return; /* no recipe of this size */
    if (adam && c->optimizer.lr > 3 * r->c.optimizer.lr)
        add_advice(l, ADVICE_WARNING,
                   "optimizer.lr %g is %.1f times that of %s (%g): expect spikes or divergence",
                   c->optimizer.lr, c->optimizer.lr / r->c.optimizer.lr, recipe_name(r->index),
                   r->c.optimizer.lr);
    if (batch_tokens(c) < 0.05 * batch_tokens(&r->c))
        add_advice(
            l, ADVICE_WARNING,
            "a step has %.3gM tokens, %s had %.3gM: with this learning rate gradients are noisier; set "
            "training.global_batch_size",
            batch_tokens(c) / 1e6, recipe_name(r->index), batch_tokens(&r->c) / 1e6);
}

/* ---- classic mistakes --------------------------------------------------------------------------- */
static void warn_precision(advice_list *l, const config *c) {
    if (c->precision.dtype == CFG_FP16 && c->precision.loss_scale < 2)
        add_advice(l, ADVICE_WARNING,
                   "fp16 without loss scaling (precision.loss_scale %g): small gradients "
                   "become zero; leave it at 65536, or train in bf16",
                   c->precision.loss_scale);
    if (c->optimizer.master == CFG_MASTER_BF16)
        add_advice(l, ADVICE_WARNING,
                   "optimizer.master=bf16 has 8 bits of mantissa: updates below 1/256 of a "
                   "weight survive only by stochastic rounding");
}

static void warn_schedule(advice_list *l, const config *c, const capacity *cap) {
    double warmup = warmup_steps(c, cap->steps);
    if (cap->params > 1e9 && warmup < 1000)
        add_advice(
            l, ADVICE_WARNING,
            "a warm-up of %.0f steps for %.3gB parameters: published runs above 1B take 1,000 to 8,000",
            warmup, cap->params / 1e9);
    if (c->lr_scheduler.name == SCHED_CONSTANT)
        add_advice(l, ADVICE_WARNING,
                   "the learning rate never decays: the last part of the loss is only "
                   "reached while it does; lr_scheduler.name=cosine or wsd");
    if (c->optimizer.beta2 > 0.99 && cap->params > 1e9)
        add_advice(l, ADVICE_WARNING,
                   "optimizer.beta2 %g averages over %.0f steps: recipes above 1B use 0.95, "
                   "which recovers from spikes sooner",
                   c->optimizer.beta2, 1 / (1 - c->optimizer.beta2));
    if (c->training.max_norm == 0)
        add_advice(l, ADVICE_WARNING, "gradients are not clipped: training.max_norm=1");
}

static void warn_length(advice_list *l, const capacity *cap) {
    double ratio = cap->tokens / cap->params;
    if (ratio < 10)
        add_advice(
            l, ADVICE_WARNING,
            "under-trained: %.3g tokens per parameter, where the compute-optimal is about 20 (%.3gB "
            "tokens); a smaller model would reach a lower loss with the same compute",
            ratio, 20 * cap->params / 1e9);
    if (cap->mc.vocab % 64 && cap->mc.vocab > 1024)
        add_advice(
            l, ADVICE_WARNING,
            "vocabulary of %lld: GEMMs of the head are faster with a multiple of 64, such as %lld",
            (long long)cap->mc.vocab, (long long)((cap->mc.vocab + 63) / 64 * 64));
}

err plan_advise(const config *c, const capacity *cap, advice **out, int *n) {
    advice_list l = { 0 };
    nearest r;
    TRY(find_nearest(cap->params, &r));
    warn_precision(&l, c);
    warn_schedule(&l, c, cap);
    warn_length(&l, cap);
    if (r.index >= 0 && r.distance < log(10)) {
        compare_recipe(&l, c, &r);
        suggest_recipe(&l, &r);
    }
    if (r.index >= 0) config_free(&r.c);
    *out = l.item;
    *n = l.n;
    return OK;
}
