/* Failures, checkpoints and restarts: how long a run takes that needs `work` seconds without them.
 *
 *     | work tau | save | work tau | save | work ... X lost | down: spare, restart | work tau | save | ...
 *                                                 ^ failure: back to the last checkpoint
 *
 * Failures of a node are a Poisson process, so those of all nodes are one too, with the sum of the rates.
 * The closed form is Daly's (J. T. Daly 2006, "A higher order estimate of the optimum checkpoint interval
 * for restart dumps"); Young's interval is its first term. The simulation adds what
 * no closed form has, spares that run out and nodes that come back from repair, and gives a distribution.
 * It jumps from failure to failure, so a trial costs as many steps as there are failures. */
#include "planning/planning.h"

#include <math.h>
#include <stdlib.h>

double goodput_mtbf(const goodput_run *r) {
    return r->failures_per_node_day > 0 ? 86400 / (r->failures_per_node_day * r->nodes) : INFINITY;
}

double goodput_young(const goodput_run *r) { return sqrt(2 * r->checkpoint_s * goodput_mtbf(r)); }

double goodput_daly(const goodput_run *r) {
    double m = goodput_mtbf(r), d = r->checkpoint_s;
    if (!isfinite(m)) return INFINITY;
    if (d >= 2 * m) return m;
    return goodput_young(r) * (1 + sqrt(d / (2 * m)) / 3 + d / (2 * m) / 9) - d;
}

double goodput_expected(const goodput_run *r, double interval) {
    double m = goodput_mtbf(r), tau = fmin(interval, r->work);
    if (!isfinite(m)) return r->work + (ceil(r->work / tau) - 1) * r->checkpoint_s;
    return m * exp(r->restart_s / m) * expm1((tau + r->checkpoint_s) / m) * r->work / tau;
}

/* ---- simulation --------------------------------------------------------------------------------- */
typedef struct trial {
    const goodput_run *r;
    double interval, mtbf;
    rng_key key;
    uint64_t drawn;
    double *repaired; /* [spares used], when each broken node is back; unordered */
    int broken;
    double failures;
} trial;

static double time_to_failure(trial *t) {
    if (!isfinite(t->mtbf)) return INFINITY;
    double u = (rng_u32(t->key, t->drawn) + 0.5) / 4294967296.0;
    t->drawn++;
    return -t->mtbf * log(u);
}

/* Replaces a node that broke at `now`, which returns after its repair. @return when a replacement is available. */
static double replace_node(trial *t, double now) {
    double back = now + t->r->repair_s;
    int first = 0;
    for (int i = 0; i < t->broken; i++) { /* those that are back are spares again */
        if (t->repaired[i] > now) continue;
        t->repaired[i--] = t->repaired[--t->broken];
    }
    if (t->broken < t->r->spares) {
        t->repaired[t->broken++] = back;
        return now;
    }
    if (!t->broken) return back; /* without any spares */
    for (int i = 1; i < t->broken; i++)
        if (t->repaired[i] < t->repaired[first]) first = i;
    double ready = t->repaired[first];
    if (back < ready) return back;
    t->repaired[first] = back;
    return ready;
}

/* From a failure until the run works again, failures while it restarts included. */
static double recover_node(trial *t, double now) {
    for (;;) {
        t->failures++;
        now = replace_node(t, now);
        double next = time_to_failure(t);
        if (next >= t->r->restart_s) return now + t->r->restart_s;
        now += next;
    }
}

/* @return the seconds of a whole run; INFINITY when it does not get anywhere. */
static double simulate_run(trial *t) {
    enum { MOST_FAILURES = 1 << 22 };
    double now = 0, done = 0, cycle = t->interval + t->r->checkpoint_s;
    t->broken = 0;
    t->failures = 0;
    while (t->failures < MOST_FAILURES) {
        double left = t->r->work - done;
        double saves = ceil(left / t->interval) - 1; /* none after the last stretch */
        double needed = left + saves * t->r->checkpoint_s, until = time_to_failure(t);
        if (until >= needed) return now + needed;
        done += fmin(floor(until / cycle), saves) * t->interval;
        now = recover_node(t, now + until);
    }
    return INFINITY;
}

/* @return an estimate of the seconds that simulating one run takes. */
static double simulation_seconds(const goodput_run *r, double interval) {
    double mtbf = goodput_mtbf(r), per_failure = 50e-9, per_broken = 1e-9;
    if (!isfinite(mtbf)) return per_failure;
    double broken = fmin(r->spares, r->repair_s / mtbf);
    return goodput_expected(r, interval) / mtbf * (per_failure + broken * per_broken) + per_failure;
}

/* @return the trials that take these seconds, at most `trials` and at least four: the more failures a run has, the
 * less its length varies, and the fewer trials it needs. */
static int affordable_trials(const goodput_run *r, double interval, int trials, double seconds) {
    return (int)fmax(4, fmin(trials, seconds / simulation_seconds(r, interval)));
}

static void run_trials(const goodput_run *r, double interval, int trials, uint64_t seed,
                       goodput *out) {
    double *seconds = mem_alloc(sizeof *seconds * (size_t)trials), failures = 0, sum = 0;
    trial t = { .r = r, .interval = fmin(interval, r->work), .mtbf = goodput_mtbf(r) };
    t.repaired = mem_alloc(sizeof *t.repaired * (size_t)MAX(r->spares, 1));
    for (int i = 0; i < trials; i++) {
        t.key = rng_key_of(seed, (uint64_t)i);
        t.drawn = 0;
        seconds[i] = simulate_run(&t);
        sum += seconds[i];
        failures += t.failures;
    }
    sort_array(seconds, (size_t)trials, sizeof *seconds, compare_doubles);
    out->mean = sum / trials;
    out->p10 = seconds[(int)(0.1 * (trials - 1))];
    out->p50 = seconds[(int)(0.5 * (trials - 1))];
    out->p90 = seconds[(int)(0.9 * (trials - 1))];
    out->failures = failures / trials;
    free(t.repaired);
    free(seconds);
}

static err check_run(const goodput_run *r) {
    const struct {
        const char *name;
        double value, low, high;
    } all[] = { { "failures", r->failures_per_node_day, 0, 100 },
                { "restart", r->restart_s, 0, 1e7 },
                { "repair", r->repair_s, 0, 1e8 },
                { "spares", r->spares, 0, 1e5 },
                { "checkpoint-time", r->checkpoint_s, 1e-3, 1e6 } };
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (!(all[i].value >= all[i].low && all[i].value <= all[i].high))
            return err_hint(ERR_USAGE("--%s: expected %g to %g; got %g", all[i].name, all[i].low,
                                      all[i].high, all[i].value),
                            "--%s %g", all[i].name,
                            all[i].value > all[i].high ? all[i].high : all[i].low);
    return OK;
}

static const double longest_simulation = 0.1; /* of one run, seconds */

/* @return the interval of the lowest simulated mean, on a grid around Daly's: the same draws for each. */
static double best_interval(const goodput_run *r, double daly, uint64_t seed) {
    enum { STEPS = 13, FEW_TRIALS = 200 };
    double best = INFINITY, at = daly;
    for (int i = 0; i < STEPS; i++) {
        goodput g;
        double tau = daly * pow(2, (i - STEPS / 2) / 3.0);
        if (!(simulation_seconds(r, tau) < longest_simulation)) continue;
        run_trials(r, tau, affordable_trials(r, tau, FEW_TRIALS, 0.05), seed, &g);
        if (!(g.mean < best)) continue;
        best = g.mean;
        at = tau;
    }
    return at;
}

err goodput_simulate(const goodput_run *r, double interval, int trials, uint64_t seed,
                     goodput *out) {
    goodput g = { .mtbf = goodput_mtbf(r), .young = goodput_young(r), .daly = goodput_daly(r) };
    TRY(check_run(r));
    if (!(goodput_expected(r, fmin(g.daly, r->work)) < 1000 * r->work))
        return err_hint(
            ERR("the run never ends: it fails every %.0f s, and needs %.0f s to save and "
                "%.0f s to restart",
                g.mtbf, r->checkpoint_s, r->restart_s),
            "save and restart faster, or use fewer nodes");
    g.interval = !isnan(interval) ? interval : fmin(g.daly, r->work);
    g.expected = goodput_expected(r, g.interval);
    if (isfinite(g.mtbf) && !(g.expected < 1000 * r->work))
        return err_hint(ERR("with a checkpoint every %.0f s the run never ends", g.interval),
                        "--interval %.0f", g.daly);
    if (!(simulation_seconds(r, g.interval) < longest_simulation))
        return err_hint(ERR("the run takes %.3g years and fails %.3g times: too many to simulate",
                            g.expected / (365.25 * 86400), g.expected / g.mtbf),
                        "plan a shorter run, or leave out --goodput");
    g.simulated = isfinite(g.daly) ? best_interval(r, g.daly, seed) : r->work;
    run_trials(r, g.interval, affordable_trials(r, g.interval, trials, 0.5), seed, &g);
    g.goodput = r->work / g.mean;
    if (!isfinite(g.mean))
        return err_hint(ERR("with a checkpoint every %.0f s the run never ends", g.interval),
                        "--interval %.0f", g.daly);
    *out = g;
    return OK;
}
