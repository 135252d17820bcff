/* The progress line: rewritten in place on a terminal, a line each time elsewhere. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "observe/observe.h"

struct progress {
    FILE *to;
    bool live;   /* on a terminal: one line, rewritten */
    bool color;  /* only when live */
    bool drawn;  /* the live line is on the screen */
    bool broken; /* the output's reader has closed it: reported once */
};

/* ---- fields -------------------------------------------------------------------------------- */
typedef struct field {
    char text[48];
    const char *color; /* escape sequence, "" for none */
    int need;          /* the higher, the sooner it is left out; 0 stays */
} field;

typedef struct field_list {
    field f[8];
    int n;
} field_list;

#define BOLD  "\033[1m"
#define DIM   "\033[2m"
#define RED   "\033[31m"
#define PLAIN "\033[0m"

static char *add_progress_field(field_list *l, int need, const char *color) {
    BUG_IF(l->n == (int)COUNT_OF(l->f));
    field *f = &l->f[l->n++];
    f->need = need;
    f->color = color;
    return f->text;
}

enum { FIELD_BYTES = sizeof(((field *)0)->text) };

static void collect_fields(const observe_step *s, field_list *l) {
    char scratch[32];
    char *step = add_progress_field(l, 0, "");
    if (s->total_steps > 0)
        snprintf(step, FIELD_BYTES, "step %lld/%lld", (long long)s->step,
                 (long long)s->total_steps);
    else
        snprintf(step, FIELD_BYTES, "step %lld", (long long)s->step);
    snprintf(add_progress_field(l, 0, isfinite(s->loss) ? BOLD : RED), FIELD_BYTES, "loss %.4f",
             s->loss);
    if (!isnan(s->val_loss))
        snprintf(add_progress_field(l, 2, BOLD), FIELD_BYTES, "val %.4f", s->val_loss);
    if (!isnan(s->lr)) snprintf(add_progress_field(l, 6, DIM), FIELD_BYTES, "lr %.2e", s->lr);
    if (!isnan(s->grad_norm))
        snprintf(add_progress_field(l, 5, isfinite(s->grad_norm) ? DIM : RED), FIELD_BYTES,
                 "norm %.3f", s->grad_norm);
    if (isfinite(s->tok_s))
        snprintf(add_progress_field(l, 3, ""), FIELD_BYTES, "%s tok/s",
                 str_count(scratch, sizeof scratch, s->tok_s));
    if (isfinite(s->mfu))
        snprintf(add_progress_field(l, 4, DIM), FIELD_BYTES, "MFU %.1f%%", 100 * s->mfu);
    if (isfinite(s->eta_s) && s->eta_s >= 0)
        snprintf(add_progress_field(l, 1, ""), FIELD_BYTES, "ETA %s",
                 str_duration(scratch, sizeof scratch, s->eta_s));
}

static const char separator[] = "  ";

static int width_of(const field_list *l) {
    int width = 0;
    for (int i = 0; i < l->n; i++)
        width += (int)strlen(l->f[i].text) + (i ? (int)strlen(separator) : 0);
    return width;
}

/* Takes out the least needed field. @return false when all that is left must stay. */
static bool drop_one(field_list *l) {
    int worst = 0;
    for (int i = 1; i < l->n; i++)
        if (l->f[i].need > l->f[worst].need) worst = i;
    if (l->n == 0 || l->f[worst].need == 0) return false;
    memmove(&l->f[worst], &l->f[worst + 1], sizeof(field) * (size_t)(l->n - worst - 1));
    l->n--;
    return true;
}

void progress_format(str *out, const observe_step *s, int width, bool color) {
    field_list l = { 0 };
    collect_fields(s, &l);
    while (width > 0 && width_of(&l) > width && drop_one(&l)) {
    }
    int left = width > 0 ? width : INT32_MAX; /* the last resort: truncate what stays */
    for (int i = 0; i < l.n && left > 0; i++) {
        const field *f = &l.f[i];
        bool paint = color && f->color[0];
        int gap = i ? MIN(left, (int)strlen(separator)) : 0;
        left -= gap;
        int n = MIN(left, (int)strlen(f->text));
        left -= n;
        str_add(out, "%.*s%s%.*s%s", gap, separator, paint ? f->color : "", n, f->text,
                paint ? PLAIN : "");
    }
}

/* ---- showing ------------------------------------------------------------------------------- */
#define ERASE_LINE "\r\033[K"

progress *progress_new(FILE *to) {
    progress *p = mem_alloc(sizeof *p);
    p->to = to;
    p->live = term_can_rewrite(to);
    p->color = p->live && term_has_color(to);
    return p;
}

bool progress_is_live(const progress *p) { return p && p->live; }

/* One column is left free: some terminals wrap when the last is written. */
static int progress_width(const progress *p) {
    struct winsize size;
    if (ioctl(fileno(p->to), TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return 79;
    return size.ws_col - 1;
}

static void flush_output(progress *p) {
    if (fflush(p->to) == 0 || p->broken) return;
    p->broken = true;
    log_warn("progress cannot be shown: %s; the run continues, metrics.jsonl has every step",
             strerror(errno));
}

void progress_show(progress *p, const observe_step *s) {
    if (!p) return;
    str line = { 0 };
    progress_format(&line, s, p->live ? progress_width(p) : 0, p->color);
    if (p->live)
        fprintf(p->to, ERASE_LINE "%s", line.text);
    else
        fprintf(p->to, "%s\n", line.text);
    flush_output(p);
    p->drawn = p->live;
    str_free(&line);
}

void progress_note(progress *p, const char *fmt, ...) {
    if (!p) return;
    char *text = NULL;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    BUG_IF(n < 0);
    fprintf(p->to, "%s%s\n", p->drawn ? ERASE_LINE : "", text);
    flush_output(p);
    p->drawn = false;
    log_line(text);
    free(text);
}

void progress_log(const observe_step *s) {
    str line = { 0 };
    progress_format(&line, s, 0, false);
    log_line(line.text);
    str_free(&line);
}

void progress_end(progress *p) {
    if (!p) return;
    if (p->drawn) fputc('\n', p->to);
    flush_output(p);
    p->drawn = false;
}

void progress_free(progress *p) {
    if (!p) return;
    progress_end(p);
    free(p);
}
