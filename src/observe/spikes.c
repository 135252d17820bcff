/* Spikes of the loss. */
#include "observe/observe.h"

int spike_add(spike_window *w, double loss) {
    if (!isfinite(loss)) return w->seen >= SPIKE_LEAST ? 1 : -1;
    int n = (int)MIN(w->seen, SPIKE_WINDOW);
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += w->loss[i];
    w->mean = n ? sum / n : loss;
    for (int i = 0; i < n; i++) squares += (w->loss[i] - w->mean) * (w->loss[i] - w->mean);
    w->deviation = n ? sqrt(squares / n) : 0;
    w->loss[w->seen++ % SPIKE_WINDOW] = loss;
    if (n < SPIKE_LEAST) return -1;
    return loss > w->mean + 3 * w->deviation;
}
