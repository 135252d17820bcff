/* What the device can do: the 100% of MFU where the vendor publishes no figure, as for CPUs.
 *
 * A peak measured once, while another process had the cores, let MFU read 311%. So it is the best of
 * several measurements, taken again with every validation, and never less than what a step achieved. */
#include "train_internal.h"

#include <math.h>

static double measure_peak(void *ctx) {
    const trainer *t = ctx;
    return ops_peak_flops(t->ops, model_lay(t->m)->dt, t->x.pool);
}

double trainer_mfu_peak(const trainer *t) {
    return isnan(t->published) ? t->peak_flops : t->published;
}

void trainer_measure_peak(trainer *t) {
    enum { TRIES = 3 };
    for (int i = 0; i < (t->ops->device ? 1 : TRIES); i++) {
        double now = measure_peak(t);
        t->peak_flops = MAX(t->peak_flops, now);
    }
}

double peak_after(double peak, double achieved, double (*again)(void *ctx), void *ctx) {
    if (!(achieved > peak)) return peak;
    double now = again(ctx), most = MAX(now, peak);
    return MAX(most, achieved);
}

void trainer_raise_peak(trainer *t, double achieved) {
    t->peak_flops = peak_after(t->peak_flops, achieved, measure_peak, t);
}
