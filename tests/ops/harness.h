/* One harness for every op on every backend. A spec states what the op table (ops.def) cannot: sizes, a
 * plain fp64 reference, and values that are not just random. The rest follows from the op's row: which
 * operands are optional, which results accumulate, which may share memory, how backward ops bind to
 * the values and gradients of the forward op.
 *
 *     static void double_reference(op_case *c) {
 *         for (int64_t i = 0; i < c->in[0].count; i++) c->out[0].v[i] = 2 * c->in[0].v[i];
 *     }
 *     { .op = OP_DOUBLE, .letters = "ND", .reference = double_reference,
 *       .small = { { 1, 1 }, { 7, 33 } }, .wide = { { 130, 129 } }, .wide_tol = { 1e-6 } }
 *
 * small: on every backend, in every mixture of element types and with every choice of absent operands,
 *        results against the reference and gradients against finite differences of it;
 * wide:  on a device, results against those of the CPU backend.
 *
 * With --few (kernels that are emulated, which takes long) operands are absent in every combination in one
 * mixture of types, and in the others none of them or all; a wide case has all operands, and one of its types.
 *
 * Around every call: nothing outside operands and workspace is written, no input is changed, poisoned
 * results are overwritten, results are bit-identical in place and (CPU) on any number of threads.
 *
 * harness.h   what a spec declares          run.c    guarded memory, one call on a backend
 * case.c      operands, finite differences  check.c  the comparisons
 * main.c      options, the report           spec_*.c the specs, by family */
#ifndef INGOT_TESTS_OPS_HARNESS_H
#define INGOT_TESTS_OPS_HARNESS_H

#include "ops/op_table.h"

/* ---- what a spec declares ---------------------------------------------------------------------- */
/* An operand or a result of a case. */
typedef struct op_value {
    char name[OPERAND_NAME];
    operand_type type;
    bool optional;
    dtype dt, grad_dt; /* of its elements, of its gradient's */
    int ndim;
    int64_t dim[TENSOR_MAX_DIM], count;
    double *v; /* owned; integers too; NULL: absent */
} op_value;

/* Wide cases under --most: where they fit, always, never. */
typedef enum { WHERE_IT_FITS, ALWAYS, UNLIMITED } shape_when;
/* Sizes of one case, in the order of the spec's letters; `variant` means what the spec wants. */
typedef struct op_shape {
    int64_t n, a, b, c, d, e, f;
    int variant;
    /* wide alone: */
    uint32_t modes; /* element types; 0: the spec's */
    double tol;     /* of fp32 results of backward ops; 0: the spec's */
    shape_when when;
    bool
        adds_first; /* the first call of this shape accumulates: a GPU's library tries its algorithms */
} op_shape;

typedef struct op_case {
    op_shape shape;
    op_value in[OP_MAX_IN], out[OP_MAX_OUT];
    double *grad[OP_MAX_OUT]; /* owned: given gradients of results; NULL: none */
    op_attr attr;
    step_block step;
    uint32_t layer;
    int64_t size[128]; /* by the letter of the signature */
} op_case;

/* Mixtures of element types: a set of these bits. */
enum {
    MODE_F32 = 1,
    MODE_BF16 = 2,
    MODE_F16 = 4,
    MODE_BF16_F32 = 8, /* bf16 operands; fp32 weights and results */
    MODE_ALL_THREE = 16,
    MODE_COUNT = 5,
    MODES_UNIFORM = MODE_F32 | MODE_BF16 | MODE_F16
};

enum { SPEC_SMALL = 10, SPEC_WIDE = 64 };
typedef struct op_spec {
    op_code op;
    const char *name; /* where one op has several specs; NULL: the op's */
    const char
        *letters; /* what a shape's numbers are the sizes of: "NKM". An operand [...] has all */
    void (*sizes)(op_case *c);  /* attributes, and sizes of further letters */
    void (*values)(op_case *c); /* changes operands, which are normals (integers: 0) */
    void (*reference)(
        op_case *c); /* in[].v to out[].v. NULL: it is in the test that checked_in names */
    const char *checked_in;
    const char *writes; /* an operand that is written, by the reference too */
    /* Whether these results may be absent when these operands are; NULL: any but all. */
    bool (*may_lack)(uint32_t absent_in, uint32_t absent_out);
    void (*merge)(double *v); /* of out[0]: what is compared instead of its elements */
    bool alone;               /* its backward ops are another spec's */
    op_code only;             /* the only call is this backward op; the forward is not one op */
    bool in_out;              /* results are also operands, beyond those of OPF_UPDATE */
    bool shares;              /* out[0] may share in[0]'s memory, beyond OPF_INPLACE */
    bool nan;                 /* results may be NaN */
    bool exact;               /* wide: results are the CPU's, bit for bit */
    int variants;             /* every shape in this many variants, from its own on; 0: 1 */
    uint32_t private_out;     /* results in a layout of the backend's own: a device's backward takes
                                 those of its own forward */
    uint32_t modes, wide_modes; /* 0: all; the uniform ones */
    bool cancels;        /* a gradient may be 0 as the difference of rounded sums of about 1 */
    double looser;       /* small: multiplies the tolerance; 0: 1 */
    double wide_tol[2];  /* fp32 results, forward and backward: norm of the difference */
    double wide_half[2]; /* multiplies what 16-bit results may differ by; 0: 1 */
    double wide_mixed;   /* fp32 results of operands that are not; 0: wide_tol */
    size_t shift;        /* wide: once more, this many bytes off alignment; 0: not */
    op_shape small[SPEC_SMALL], wide[SPEC_WIDE];
} op_spec;

/* The specs of each family; the last one has no op. */
extern const op_spec elementwise_specs[], norm_specs[], heads_specs[], linear_specs[], fp8_specs[],
    update_specs[], expert_specs[], latent_specs[], delta_specs[];

/* ---- for specs: values ------------------------------------------------------------------------- */
double draw_normal(void);
int64_t draw_below(int64_t n);
/* v = mean + spread * v. */
void spread_values(op_value *x, double mean, double spread);
void fill_below(op_value *x, int64_t n); /* integers in [0, n) */
void drop_value(op_value *x);            /* makes it absent */
void swap_dims(op_value *x);             /* of a matrix */
static inline int64_t size_of(const op_case *c, char letter) { return c->size[(int)letter]; }
double gelu_of(double x, act_kind act);

/* ---- the run ----------------------------------------------------------------------------------- */
typedef struct op_record {
    double worst; /* difference as a share of what is allowed */
    char where[240];
    char failure[400]; /* the first; "": none */
    bool covered;
    const char *checked_in; /* the test that has its reference; NULL: a spec here has */
} op_record;

extern struct harness {
    const op_backend *cpu[8]; /* every instruction set; the last is the best */
    int cpus;
    const op_backend *device; /* NULL: the CPU is what is tested */
    bool deterministic;       /* a device's calls are made twice */
    bool own_gemms;           /* OPS_OWN_GEMMS */
    bool few;                 /* fewer mixtures of types and choices of absent operands */
    uint64_t seed;            /* of wide cases; small ones are the same in every run */
    int64_t most;             /* elements of a wide case; 0: no limit */
    pool *pools[3];           /* of 1, 2 and 3 threads */
    pool *pool;               /* for the CPU's part of wide cases */
    op_record record[OP_COUNT];
} harness;

/* ---- case.c ------------------------------------------------------------------------------------ */
typedef struct op_mode {
    const char *name;
    dtype in, out, weight, grad;
    double tol;   /* relative */
    double least; /* absolute: where the coarsest type underflows */
} op_mode;
extern const op_mode op_modes[MODE_COUNT];

const char *spec_name(const op_spec *s);
/* Ends the program: the spec itself is wrong. */
void spec_error(const op_spec *s, const char *fmt, ...) PRINTF_LIKE(2, 3) __attribute__((noreturn));
void draw_from(const char *name, uint64_t seed);
bool spec_in_out(const op_spec *s); /* its results are operands too */
/* Operands and results, rounded to their types. */
void case_make(op_case *c, const op_spec *s, const op_mode *m, op_shape shape);
/* A random gradient of a result, where the spec has set none. */
void case_give_gradient(op_case *c, int result);
void case_free(op_case *c);
bool case_too_large(const op_case *c);
double *copy_values(const double *v, int64_t n);

/* An operand of a call: input i, result o, the gradient of result g (given), of input d (wanted). */
typedef struct op_slot {
    char kind; /* 0: absent */
    int index;
} op_slot;
enum { MAX_CALLS = 3 };
typedef struct op_binding {
    op_code op;
    op_signature sig;
    bool forward;
    op_slot in[OP_MAX_IN], out[OP_MAX_OUT];
} op_binding;
/* The calls of a spec: the op and, by its row, its backward ops. @return how many. */
int case_bind(const op_spec *s, const op_case *c, op_binding calls[MAX_CALLS]);
int spec_ops(const op_spec *s, op_code ops[MAX_CALLS]);

/* Gradients by finite differences: of some elements (fewer under sanitizers, which look at the ops alone), and along one
 * direction. */
#ifndef PROBES
#define PROBES 40
#endif
typedef struct grad_want {
    int64_t n, at[PROBES];
    double want[PROBES], rms;
    double *along, along_want; /* along: owned */
} grad_want;
grad_want differences(const op_spec *s, op_case *c, int input);

/* ---- run.c ------------------------------------------------------------------------------------- */
/* Elements to and from fp64. The tensor's memory is owned by who asked. */
tensor encode(const double *v, dtype dt, int ndim, const int64_t *dim); /* v NULL: poisoned */
double *decode(const tensor *x);
void round_values(dtype dt, double *v, int64_t n);

typedef struct run_options {
    int threads; /* CPU: 1 to 3; 0: harness.pool */
    size_t shift;
    bool in_place;   /* out[0] where in[0] is */
    uint32_t writes; /* operands that may change */
} run_options;
/* Runs the call on copies of its tensors in guarded memory of the backend; results and written
 * operands replace the call's. @return "" or what was wrong. */
const char *run_call(const op_backend *b, op_call *c, const op_case *k, run_options o);

/* ---- check.c ----------------------------------------------------------------------------------- */
void check_spec(const op_spec *s);

#endif
