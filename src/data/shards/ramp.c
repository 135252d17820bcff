/* The batch ramp: how many windows each step takes, and what lengths in steps and in windows are to
 * one another.
 *
 *     full ............................ |‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾|
 *                        ___|‾‾‾‾‾‾‾‾‾‾                  |_  what is left before `end`
 *     start ____|‾‾‾‾‾‾‾‾
 *           0                           windows          end
 *
 * A schedule of phases (training.batch_schedule) has sizes and ends of its own instead.
 *
 * The size of a step depends on nothing but the windows consumed before it, so a run that is resumed
 * takes the steps of one that never stopped, on whatever ranks. Sizes grow by increments: the steps of one
 * size are counted by a division, and a count takes as long as there are sizes, not steps. */
#include "shards/data_internal.h"

static int64_t round_to_unit(const batch_ramp *r, int64_t size) {
    return ceil_div(size, r->unit) * r->unit;
}

static int64_t ramp_size(const batch_ramp *r, int64_t consumed) {
    for (int i = 0; i < r->n_phases; i++)
        if (consumed < r->phases[i].until) return round_to_unit(r, r->phases[i].size);
    if (r->start <= 0 || consumed >= r->windows) return round_to_unit(r, r->full);
    int64_t by = r->increment > 0 ? r->increment : r->start, n = ceil_div(r->full - r->start, by);
    int64_t taken = (int64_t)((double)consumed * (double)n / (double)r->windows);
    return round_to_unit(r, MIN(r->start + taken * by, r->full));
}

int64_t batch_ramp_size(const batch_ramp *r, int64_t consumed) {
    int64_t size = ramp_size(r, consumed);
    if (r->end <= consumed || consumed + size <= r->end) return size;
    return round_to_unit(r, r->end - consumed);
}

/* @return the first position after `consumed` where steps have another size; INT64_MAX: none. */
static int64_t next_size_at(const batch_ramp *r, int64_t consumed) {
    int64_t size = ramp_size(r, consumed), low = consumed, high = r->windows;
    for (int i = 0; i < r->n_phases; i++)
        if (consumed < r->phases[i].until) return r->phases[i].until;
    if (r->start <= 0 || consumed >= high || ramp_size(r, high) == size) return INT64_MAX;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (ramp_size(r, middle) == size)
            low = middle;
        else
            high = middle;
    }
    return high;
}

/* Takes steps of one size after another, from *at on, until `steps` are taken or `to` is reached.
 * @return how many were taken. */
static int64_t take_steps(const batch_ramp *r, int64_t *at, int64_t to, int64_t steps) {
    int64_t taken = 0;
    while (*at < to && taken < steps) {
        int64_t size = ramp_size(r, *at), until = MIN(to, next_size_at(r, *at));
        int64_t n = MIN(ceil_div(until - *at, size), steps - taken);
        taken += n;
        *at = n > (INT64_MAX - *at) / size ? INT64_MAX : *at + n * size;
    }
    return taken;
}

int64_t batch_ramp_steps(const batch_ramp *r, int64_t from, int64_t to) {
    int64_t at = from, steps = 0;
    if (r->end > from && r->end < to) {
        steps = take_steps(r, &at, r->end, INT64_MAX);
        at = r->end;
    }
    return steps + take_steps(r, &at, to, INT64_MAX - steps);
}

int64_t batch_ramp_windows(const batch_ramp *r, int64_t steps) {
    int64_t at = 0, taken = 0;
    if (r->end > 0) {
        taken = take_steps(r, &at, r->end, steps);
        at = MIN(at, r->end);
    }
    take_steps(r, &at, INT64_MAX, steps - taken);
    return at;
}
