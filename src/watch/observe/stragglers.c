/* Stragglers: ranks that compute longer than others with the same work. See observe.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "observe/observe.h"

double straggler_typical(const double *steps, int n) {
    double sorted[STRAGGLER_WINDOW];
    int kept = MIN(n, (int)STRAGGLER_WINDOW);
    if (kept < 1) return NAN;
    memcpy(sorted, steps, (size_t)kept * sizeof *sorted);
    sort_array(sorted, (size_t)kept, sizeof *sorted, compare_doubles);
    return sorted[(kept - 1) / 4];
}

/* Of the ranks in this one's group; of an even number the lower one, so that of two the slower can be named. */
static double group_median(const double *seconds, const int *group, int n, int rank) {
    double *same = mem_alloc((size_t)n * sizeof *same);
    int k = 0;
    for (int r = 0; r < n; r++)
        if (group[r] == group[rank]) same[k++] = seconds[r];
    sort_array(same, (size_t)k, sizeof *same, compare_doubles);
    double median = same[(k - 1) / 2];
    free(same);
    return median;
}

void straggler_judge(straggler *s, const double *seconds, const int *group, int n) {
    for (int r = 0; r < n; r++) {
        double median = group_median(seconds, group, n, r), excess = seconds[r] - median;
        bool slow = seconds[r] > STRAGGLER_RATIO * median && excess > STRAGGLER_LEAST_S;
        bool well = seconds[r] < STRAGGLER_CLEAR * median || excess <= STRAGGLER_LEAST_S;
        s[r].ratio = seconds[r] / median;
        s[r].median = median;
        s[r].windows = slow ? s[r].windows + 1 : 0;
        s[r].raised = !s[r].slow && s[r].windows >= STRAGGLER_WINDOWS;
        s[r].cleared = s[r].slow && well;
        s[r].slow = (s[r].slow || s[r].raised) && !s[r].cleared;
    }
}
