/* Experts in 4 bits become the numbers that they stand for. */
#include "support/hf.h"

#include "io/io.h"

enum { EXPERTS = 4, DIM = 32, WIDE = 64 }; /* of the fixture gpt_oss; WIDE: gate and up */

/* Bytes of value i of a tensor, drawn by its name. */
static uint8_t drawn_byte(const char *name, int64_t i) {
    return (uint8_t)rng_below(rng_key_of(3, hash_str(name)), (uint64_t)i, 256);
}
static uint8_t drawn_scale(const char *name, int64_t i) {
    return (uint8_t)(124 + rng_below(rng_key_of(4, hash_str(name)), (uint64_t)i, 6));
}

/* The format states: sign, two bits of exponent, one of mantissa; 0 and 0.5 below the first power. */
static float value_of_nibble(int x) {
    int exponent = x >> 1 & 3, mantissa = x & 1;
    float v = exponent ? ldexpf(1 + 0.5f * (float)mantissa, exponent - 1) : 0.5f * (float)mantissa;
    return x & 8 ? -v : v;
}

/* Element (expert, row, col) of the matrices under a name. */
static float packed_value(const char *name, int64_t rows, int64_t e, int64_t row, int64_t col) {
    int64_t group = (e * rows + row) * (DIM / 32) + col / 32, byte = group * 16 + col % 32 / 2;
    int nibble = drawn_byte(name, byte) >> (col % 2 * 4) & 15;
    return ldexpf(value_of_nibble(nibble), drawn_scale(name, group) - 127);
}

typedef struct packed_file {
    const st_file *from;
    st_spec spec[256];
    char name[256][128];
    int n;
} packed_file;

static bool is_matrix_of_experts(const char *name) {
    return str_ends(name, "experts.gate_up_proj") || str_ends(name, "experts.down_proj");
}

static void add_spec(packed_file *p, const char *name, dtype dt, int ndim, const int64_t *dim) {
    snprintf(p->name[p->n], sizeof p->name[0], "%s", name);
    p->spec[p->n] = (st_spec){ .name = p->name[p->n], .dt = dt, .ndim = ndim };
    for (int k = 0; k < ndim; k++) p->spec[p->n].dim[k] = dim[k];
    p->n++;
}

static err emit_packed(void *ctx, int i, st_sink *sink) {
    packed_file *p = ctx;
    const st_spec *s = &p->spec[i];
    const st_tensor *t = st_find(p->from, s->name);
    if (t) return st_emit(sink, t->data, t->bytes);
    char base[128];
    bool scales = str_ends(s->name, "_scales");
    snprintf(base, sizeof base, "%.*s", (int)strlen(s->name) - 7, s->name);
    int64_t n = 1;
    for (int k = 0; k < s->ndim; k++) n *= s->dim[k];
    for (int64_t k = 0; k < n; k++) {
        uint8_t byte = scales ? drawn_scale(base, k) : drawn_byte(base, k);
        TRY(st_emit(sink, &byte, 1));
    }
    return OK;
}

/* Writes the fixture with its experts in 4 bits. */
static void write_packed(const st_file *from, const char *folder) {
    packed_file p = { .from = from };
    for (int i = 0; i < st_count(from); i++) {
        const st_tensor *t = st_at(from, i);
        if (!is_matrix_of_experts(t->name)) {
            add_spec(&p, t->name, t->dt, t->ndim, t->dim);
            continue;
        }
        char name[128];
        int64_t dim[] = { EXPERTS, t->dim[2], DIM / 32, 16 };
        snprintf(name, sizeof name, "%s_blocks", t->name);
        add_spec(&p, name, DT_U8, 4, dim);
        snprintf(name, sizeof name, "%s_scales", t->name);
        add_spec(&p, name, DT_U8, 3, dim);
    }
    assert_ok(st_write_folder(folder, p.spec, p.n, 0, (st_source){ emit_packed, &p }));
}

static void write_config(const char *from, const char *to, const char *method) {
    char path[512];
    json_t *doc;
    snprintf(path, sizeof path, "%s/config.json", from);
    assert_ok(io_json_read(path, &doc));
    json_object_set_new(doc, "quantization_config", json_pack("{s:s}", "quant_method", method));
    snprintf(path, sizeof path, "%s/config.json", to);
    assert_ok(io_json_write(path, doc));
    json_decref(doc);
}

static void check_expert(const loaded *l, int layer, int e, const char *part) {
    char name[128], ours[64];
    bool down = !strcmp(part, "down"), up = !strcmp(part, "up");
    snprintf(ours, sizeof ours, "l%d.expert%d.%s", layer, e, part);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", layer,
             down ? "down_proj" : "gate_up_proj");
    const float *got = value_of(l, ours);
    for (int64_t r = 0; r < DIM; r++)
        for (int64_t c = 0; c < DIM; c++) {
            float want = packed_value(name, down ? DIM : WIDE, e, down ? r : 2 * r + up, c);
            if (got[r * DIM + c] != want)
                fail_msg("%s[%d,%d] is %g, expected %g", ours, (int)r, (int)c,
                         (double)got[r * DIM + c], (double)want);
        }
}

static void experts_in_4_bits_are_read(void **state) {
    const char *from = FIXTURES "/gpt_oss";
    model_config c;
    const hf_family *family;
    st_file *f;
    loaded l;
    assert_ok(st_open(from, &f));
    write_packed(f, *state);
    write_config(from, *state, "mxfp4");
    st_close(f);
    assert_ok(hf_import_config(*state, &c, &family, NULL));
    assert_ok(load_params(&c, family, *state, &l));
    for (int layer = 0; layer < c.layers; layer++)
        for (int e = 0; e < EXPERTS; e++) {
            check_expert(&l, layer, e, "gate");
            check_expert(&l, layer, e, "up");
            check_expert(&l, layer, e, "down");
        }
    unload(&l);
}

static void other_quantizations_are_refused(void **state) {
    model_config c;
    const hf_family *family;
    write_config(FIXTURES "/gpt_oss", *state, "gptq");
    assert_error(hf_import_config(*state, &c, &family, NULL), "quantization_config");
    write_config(FIXTURES "/llama", *state, "mxfp4");
    assert_error(hf_import_config(*state, &c, &family, NULL), "quantization_config");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(experts_in_4_bits_are_read, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(other_quantizations_are_refused, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
