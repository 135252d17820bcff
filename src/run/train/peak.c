/* Measures the peak rate of the device: the 100% of MFU where the vendor publishes no figure, as for CPUs.
 *
 * A peak measured once, while another process had the cores, let MFU read 311%. So it is measured again with
 * validations, the best counts, and it is never less than what a step achieved. */
#include "trainer_internal.h"

#include <math.h>

static double measure_peak(void *ctx) {
    const trainer *t = ctx;
    return ops_peak_flops(t->ops, model_lay(t->m)->dt, t->x.pool);
}

double trainer_mfu_peak(const trainer *t) {
    return isnan(t->peak.published) ? t->peak.flops : t->peak.published;
}

bool peak_is_due(double measured_at, double now) {
    enum { SECONDS = 10 }; /* a measurement takes up to 20 ms */
    return !(now < measured_at + SECONDS);
}

void trainer_measure_peak(trainer *t) {
    double now = time_now();
    if (t->peak.flops > 0 && !peak_is_due(t->peak.measured_at, now)) return;
    double peak = measure_peak(t);
    t->peak.flops = MAX(t->peak.flops, peak);
    t->peak.measured_at = now;
}

double peak_after(double peak, double achieved, double (*again)(void *ctx), void *ctx) {
    if (!(achieved > peak)) return peak;
    double now = again(ctx), most = MAX(now, peak);
    return MAX(most, achieved);
}

void trainer_raise_peak(trainer *t, double achieved) {
    t->peak.flops = peak_after(t->peak.flops, achieved, measure_peak, t);
}
