/* ingot ckpt diff: where two checkpoints differ. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ckpt_common.h"

typedef struct difference {
    const char *name;
    int64_t elements, differ; /* differ: in their bits */
    double largest;           /* absolute; NaN where one is not finite */
    const char *only_in;      /* NULL: in both */
} difference;

typedef struct diff_job {
    const char *path[2], *name[2]; /* name: in messages */
    ckpt_reader *r[2];
    difference *at; /* of every tensor that differs */
    int n, tensors;
} diff_job;

static err compare_tensor_values(diff_job *j, int a, int b, difference *d) {
    enum { PIECE = 1 << 20 };
    float *x = mem_alloc(2 * PIECE * sizeof *x), *y = x + PIECE;
    err e = OK;
    for (int64_t at = 0; at < d->elements && !e; at += PIECE) {
        int64_t n = MIN(PIECE, d->elements - at);
        e = ckpt_read(j->r[0], a, at, n, x);
        if (!e) e = ckpt_read(j->r[1], b, at, n, y);
        for (int64_t i = 0; i < n && !e; i++) {
            if (memcmp(&x[i], &y[i], sizeof x[i]) == 0) continue;
            double by = fabs((double)x[i] - y[i]);
            d->differ++;
            if (!(by <= d->largest)) d->largest = isnan(d->largest) ? d->largest : by;
        }
    }
    free(x);
    return e;
}

static err diff_tensors(diff_job *j) {
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < ckpt_tensors(j->r[side]); i++) {
            ckpt_tensor_info t = ckpt_tensor_at(j->r[side], i);
            int other = ckpt_find_tensor(j->r[!side], t.name);
            difference d = { .name = t.name, .elements = t.count };
            if (side && other >= 0) continue; /* compared already */
            j->tensors++;
            if (other < 0 || ckpt_tensor_at(j->r[!side], other).count != t.count)
                d.only_in = j->name[side];
            else
                TRY(compare_tensor_values(j, i, other, &d));
            if (d.only_in || d.differ) j->at[j->n++] = d;
        }
    return OK;
}

static void print_diff(const diff_job *j) {
    for (int i = 0; i < j->n; i++) {
        const difference *d = &j->at[i];
        if (d->only_in)
            printf("%-32s only in %s\n", d->name, d->only_in);
        else
            printf("%-32s %lld of %lld elements differ, by up to %.3g\n", d->name,
                   (long long)d->differ, (long long)d->elements, d->largest);
    }
    if (!j->n) printf("identical: %d tensors\n", j->tensors);
}

static void print_diff_json(const diff_job *j) {
    json_t *list = json_array();
    for (int i = 0; i < j->n; i++) {
        const difference *d = &j->at[i];
        json_t *o = json_pack("{s:s, s:I}", "tensor", d->name, "elements", (json_int_t)d->elements);
        if (d->only_in) {
            json_object_set_new(o, "only_in", io_json_string(d->only_in, strlen(d->only_in)));
        } else {
            json_object_set_new(o, "differ", json_integer(d->differ));
            json_object_set_new(o, "largest", io_json_number(d->largest));
        }
        json_array_append_new(list, o);
    }
    json_t *doc = json_pack("{s:i, s:o}", "tensors", j->tensors, "different", list);
    io_json_print(stdout, doc, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
}

static err diff_paths(diff_job *j, bool json) {
    TRY(ckpt_open(j->path[0], &j->r[0]));
    TRY(ckpt_open(j->path[1], &j->r[1]));
    size_t most = (size_t)(ckpt_tensors(j->r[0]) + ckpt_tensors(j->r[1]) + 1);
    j->at = mem_alloc(most * sizeof *j->at);
    TRY(diff_tensors(j));
    if (json)
        print_diff_json(j);
    else
        print_diff(j);
    if (!j->n) return OK;
    return err_hint(
        ERR("%s and %s differ in %d of %d tensors", j->name[0], j->name[1], j->n, j->tensors),
        "equal runs of one build and device agree to the bit, whatever their layout "
        "was saved as");
}

static err run_diff(const cli_subcommand *self, int argc, char **argv) {
    ckpt_flags a = { 0 };
    const char *word[2];
    ckpt_found found[2] = { 0 };
    TRY(cli_parse(&self->spec, argc, argv, &a, word));
    err e = ckpt_found_open(word[0], &found[0]);
    if (!e) e = ckpt_found_open(word[1], &found[1]);
    diff_job j = { 0 };
    for (int i = 0; i < 2; i++) {
        j.path[i] = found[i].path;
        j.name[i] = found[i].downloaded ? word[i] : found[i].path;
    }
    if (!e) e = diff_paths(&j, a.json);
    free(j.at);
    for (int i = 0; i < 2; i++) {
        ckpt_close(j.r[i]);
        ckpt_found_close(&found[i]);
    }
    return e;
}

const cli_subcommand ckpt_diff = {
    .summary = "compare the tensors of two checkpoints",
    .run = run_diff,
    .spec = { "ckpt diff", "RUN RUN [--json]", CLI_ARGS(ckpt_flag_args), 2 },
    .help =
        "Each RUN is a run folder, whose newest complete checkpoint is used, or a checkpoint\n"
        "inside one, or the URL of either in an object store (s3://bucket/run), which is downloaded to\n"
        "TMPDIR. They may have been written by different numbers of ranks. Exits with 1 when\n"
        "they differ.\n"
        "\n"
        "Examples\n"
        "  ingot ckpt diff runs/a runs/b\n"
        "  ingot ckpt diff runs/a/checkpoints/step-00000500 runs/a/checkpoints/step-00001000\n",
};
