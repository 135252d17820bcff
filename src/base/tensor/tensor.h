/* tensor: element types, shapes and placements. No memory is owned here. Depends on util.
 *
 * Given `void *ptr`, `int64_t N`, `int64_t D` and `float *row`:
 *
 *     tensor x = tensor_of(ptr, DT_BF16, 2, (int64_t[]){ N, D });   // [N, D]
 *     dt_to_f32(x.dt, x.data, row, D);                              // any type to fp32
 */
#ifndef INGOT_TENSOR_H
#define INGOT_TENSOR_H

#include <string.h>

#include "util/util.h"

/* ---- element types ----------------------------------------------------------------------- */
typedef enum {
    DT_NONE,
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_E4M3, /* fp8 for values: no infinity, saturates at 448 */
    DT_E5M2, /* fp8 for gradients: saturates at 57344 */
    DT_I32,
    DT_I64,
    DT_U8,
    DT_U16,
    DT_COUNT
} dtype;

size_t dt_size(dtype dt);
static inline bool dt_is_fp8(dtype dt) { return dt == DT_E4M3 || dt == DT_E5M2; }
const char *dt_name(dtype dt);        /* "fp32", "bf16", ... */
const char *dt_safetensors(dtype dt); /* "F32", "BF16", "F8_E4M3", ... */
dtype dt_from_name(const char *name); /* DT_NONE when unknown */
dtype dt_from_safetensors(const char *name);
bool dt_is_float(dtype dt);

static inline uint32_t f32_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline float f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* One element. Round to nearest, ties to even; subnormals kept; NaN stays NaN. bf16 and fp16
 * overflow to infinity; the fp8 types saturate, as training wants. */
uint16_t f32_to_bf16(float x);
float bf16_to_f32(uint16_t h);
uint16_t f32_to_f16(float x);
float f16_to_f32(uint16_t h);
uint8_t f32_to_e4m3(float x);
float e4m3_to_f32(uint8_t b);
uint8_t f32_to_e5m2(float x);
float e5m2_to_f32(uint8_t b);

/* n elements of a float type, to and from fp32. */
void dt_to_f32(dtype from, const void *src, float *dst, int64_t n);
void dt_from_f32(dtype to, const float *src, void *dst, int64_t n);

/* ---- shapes ------------------------------------------------------------------------------ */
enum { TENSOR_MAX_DIM = 3 };
typedef struct tensor {
    void *data; /* borrowed; NULL: absent */
    dtype dt;
    int ndim;
    int64_t dim[TENSOR_MAX_DIM];
} tensor;

tensor tensor_of(void *data, dtype dt, int ndim, const int64_t *dim);
int64_t tensor_count(const tensor *t);
size_t tensor_bytes(const tensor *t);

/* ---- mesh axes -----------------------------------------------------------------------------
 * Ranks form a box (comm/comm.h) with one axis for each way to divide the work:
 *
 *     pp             layers: each rank runs a stage of them
 *     dp_replicate   sequences, with parameters stored on every rank
 *     dp_shard       sequences, with parameters stored in slices (ZeRO)
 *     cp             the tokens of a sequence
 *     ep             experts; for everything else it divides sequences as dp_shard does
 *     tp             heads and columns of matrices
 */
typedef enum { AX_PP, AX_DP_REPLICATE, AX_DP_SHARD, AX_CP, AX_EP, AX_TP, AX_COUNT } mesh_axis;
extern const char *const mesh_axis_name[AX_COUNT + 1]; /* the last: of AXES_TP_REP */

typedef uint32_t axis_set; /* bit a: mesh_axis a */
#define AXIS(a)  ((axis_set)1 << (a))
#define AXES_ALL (AXIS(AX_COUNT) - 1)
/* A part of tp: ranks that hold the same key/value heads, where there are fewer heads than tp ranks. It is
 * a set of its own, of mesh.tp_rep adjacent tp coordinates, and no tensor has a placement on it. */
#define AXES_TP_REP AXIS(AX_COUNT)
/* Along these, ranks are stages of a pipeline: they hold other programs. No tensor has a placement on them. */
#define AXES_STAGES AXIS(AX_PP)
/* Sets that a communication may be over: any of the axes, and AXES_TP_REP. */
enum { AXIS_SETS = 2 << AX_COUNT };
/* Along these, ranks hold other sequences ... */
#define AXES_ROWS (AXIS(AX_DP_REPLICATE) | AXIS(AX_DP_SHARD) | AXIS(AX_EP))
/* ... or other tokens of them, so that a parameter's gradient is a sum over them. */
#define AXES_DATA (AXES_ROWS | AXIS(AX_CP))

/* ---- placements --------------------------------------------------------------------------
 * How a tensor is distributed over the ranks of one mesh axis:
 *     I     invariant: same value, same use on every rank      gradient: I
 *     R     replicated: same value, each rank's use differs    gradient: P
 *     S(d)  sharded along dim d                                gradient: S(d)
 *     P     a partial sum                                      gradient: R
 * A dim that several axes shard is divided by the first of them first. */

typedef enum { PL_I, PL_R, PL_S, PL_P } place_kind;
typedef struct place {
    uint8_t kind; /* place_kind */
    uint8_t dim;  /* of PL_S */
} place;
typedef struct placement {
    place on[AX_COUNT];
} placement;

#define PLACE_I    ((place){ PL_I, 0 })
#define PLACE_R    ((place){ PL_R, 0 })
#define PLACE_P    ((place){ PL_P, 0 })
#define PLACE_S(d) ((place){ PL_S, (d) })

place place_dual(place p);
bool place_same(place a, place b);
placement placement_dual(placement p);
bool placement_same(placement a, placement b);
/* The placement that is `p` on these axes and invariant on the others. */
placement placement_on(axis_set axes, place p);
/* The axes on which a placement is of this kind; of S, along any dim. */
axis_set placement_axes(placement p, place_kind kind);
/* "dp_shard+cp". @return buf. */
char *axes_str(char *buf, size_t n, axis_set axes);
/* "dp_shard:S0 tp:I"; invariant axes are left out, and all-invariant gives "I". @return buf. */
char *placement_str(char *buf, size_t n, placement p);

#endif
