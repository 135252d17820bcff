/* Points over a logarithmic x axis, drawn with letters. */
#include <math.h>
#include <string.h>

#include "planning/planning.h"

enum { WIDTH = 64, HEIGHT = 16, LABEL = 9 };
typedef struct canvas {
    char cell[HEIGHT][WIDTH + 1];
    double x0, x1, y0, y1;
} canvas;

static bool is_drawable(const plot_series *s, int i) {
    return s->x[i] > 0 && isfinite(s->x[i]) && isfinite(s->y[i]);
}

static void set_range(canvas *c, const plot_series *series, int n) {
    c->x0 = c->y0 = INFINITY;
    c->x1 = c->y1 = -INFINITY;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < series[k].n; i++) {
            if (!is_drawable(&series[k], i)) continue;
            c->x0 = fmin(c->x0, log10(series[k].x[i]));
            c->x1 = fmax(c->x1, log10(series[k].x[i]));
            c->y0 = fmin(c->y0, series[k].y[i]);
            c->y1 = fmax(c->y1, series[k].y[i]);
        }
    if (c->x1 - c->x0 < 1e-9) c->x1 = c->x0 + 1;
    if (c->y1 - c->y0 < 1e-9) c->y1 = c->y0 + 1;
}

static void put_points(canvas *c, const plot_series *s) {
    for (int i = 0; i < s->n; i++) {
        if (!is_drawable(s, i)) continue;
        long x = lround((log10(s->x[i]) - c->x0) / (c->x1 - c->x0) * (WIDTH - 1));
        long y = lround((s->y[i] - c->y0) / (c->y1 - c->y0) * (HEIGHT - 1));
        c->cell[HEIGHT - 1 - y][x] = s->mark;
    }
}

void plot_draw(str *out, const plot_series *series, int n, const char *x_label,
               const char *y_label) {
    canvas c;
    set_range(&c, series, n);
    if (!isfinite(c.x0)) return;
    for (int y = 0; y < HEIGHT; y++) {
        memset(c.cell[y], ' ', WIDTH);
        c.cell[y][WIDTH] = '\0';
    }
    for (int k = 0; k < n; k++) put_points(&c, &series[k]);
    str_add(out, "%*s\n", LABEL, y_label);
    for (int y = 0; y < HEIGHT; y++) {
        char label[16] = "";
        double value = c.y1 - (c.y1 - c.y0) * y / (HEIGHT - 1);
        if (y % 5 == 0) snprintf(label, sizeof label, "%.4g", value);
        size_t end = WIDTH;
        while (end > 0 && c.cell[y][end - 1] == ' ') end--;
        str_add(out, "%*s |%.*s\n", LABEL, label, (int)end, c.cell[y]);
    }
    str_add(out, "%*s +", LABEL, "");
    for (int x = 0; x < WIDTH; x++) str_add(out, "-");
    str_add(out, "\n%*s  %-*.2e%.2e  %s\n", LABEL, "", WIDTH - 8, pow(10, c.x0), pow(10, c.x1),
            x_label);
    for (int k = 0; k < n; k++)
        if (series[k].label)
            str_add(out, "%*s  %c %s\n", LABEL, "", series[k].mark, series[k].label);
}
