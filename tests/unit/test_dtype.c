/* The narrow float types, every code of them, against a slow reference that shares nothing with
 * the converters: a code's value by its definition, and rounding by search for the nearest code. */
#include "support/test.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tensor/tensor.h"

typedef struct format {
    const char *name;
    int exp_bits, man_bits;
    bool has_inf;   /* the top exponent is infinity and NaN; else only its last code is NaN */
    bool saturates; /* on overflow; else infinity */
    double max;     /* largest finite value, from the format's definition */
    uint32_t (*narrow)(float x);
    float (*widen)(uint32_t code);
} format;

static uint32_t narrow_bf16(float x) { return f32_to_bf16(x); }
static uint32_t narrow_f16(float x) { return f32_to_f16(x); }
static uint32_t narrow_e4m3(float x) { return f32_to_e4m3(x); }
static uint32_t narrow_e5m2(float x) { return f32_to_e5m2(x); }
static float widen_bf16(uint32_t c) { return bf16_to_f32((uint16_t)c); }
static float widen_f16(uint32_t c) { return f16_to_f32((uint16_t)c); }
static float widen_e4m3(uint32_t c) { return e4m3_to_f32((uint8_t)c); }
static float widen_e5m2(uint32_t c) { return e5m2_to_f32((uint8_t)c); }

static const format formats[] = {
    { "bf16", 8, 7, true, false, 0x1.fep127, narrow_bf16, widen_bf16 },
    { "fp16", 5, 10, true, false, 65504, narrow_f16, widen_f16 },
    { "e4m3", 4, 3, false, true, 448, narrow_e4m3, widen_e4m3 },
    { "e5m2", 5, 2, true, true, 57344, narrow_e5m2, widen_e5m2 },
};

/* ---- the slow reference ---------------------------------------------------------------------- */
static uint32_t sign_bit(const format *f) { return 1u << (f->exp_bits + f->man_bits); }

/* The value of a code; beyond the finite codes, what the next power of two would be. */
static double value_of(const format *f, uint32_t code) {
    uint32_t mag = code & (sign_bit(f) - 1), man = mag & ((1u << f->man_bits) - 1);
    int exp = (int)(mag >> f->man_bits), bias = (1 << (f->exp_bits - 1)) - 1;
    double v =
        exp ? ldexp(1 + ldexp(man, -f->man_bits), exp - bias) : ldexp(man, 1 - bias - f->man_bits);
    return code & sign_bit(f) ? -v : v;
}
static uint32_t top_code(const format *f) { /* the largest finite magnitude */
    uint32_t all = sign_bit(f) - 1;
    return f->has_inf ? all - (1u << f->man_bits) : all - 1;
}
static bool code_is_nan(const format *f, uint32_t code) {
    return (code & (sign_bit(f) - 1)) > top_code(f) + (f->has_inf ? 1 : 0);
}

/* The nearest code, ties to the even one. Codes of one sign are in the order of their values. */
static uint32_t nearest_code(const format *f, float x) {
    double mag = fabs((double)x);
    uint32_t lo = 0, hi = top_code(f) + 1, sign = signbit(x) ? sign_bit(f) : 0;
    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;
        if (value_of(f, mid) <= mag)
            lo = mid;
        else
            hi = mid;
    }
    double below = mag - value_of(f, lo), above = value_of(f, hi) - mag;
    uint32_t code = below < above ? lo : below > above ? hi : lo & 1 ? hi : lo;
    if (code > top_code(f) && f->saturates) code = top_code(f);
    return sign | code;
}

/* ---- tests ----------------------------------------------------------------------------------- */
static void the_largest_code_is_the_largest_value(void **state) {
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        assert_true(value_of(&formats[i], top_code(&formats[i])) == formats[i].max);
}

static void every_code_widens_to_its_value(void **state) {
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        const format *f = &formats[i];
        for (uint32_t c = 0; c < 2 * sign_bit(f); c++) {
            float got = f->widen(c);
            bool inf = f->has_inf && (c & (sign_bit(f) - 1)) == top_code(f) + 1;
            double want = inf ? (c & sign_bit(f) ? -INFINITY : INFINITY) : value_of(f, c);
            if (code_is_nan(f, c) ? !isnan(got)
                                  : (double)got != want || !signbit(got) != !signbit(want))
                fail_msg("%s code %x: got %a, expected %a", f->name, c, (double)got, want);
        }
    }
}

static void every_code_survives_a_round_trip(void **state) {
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        const format *f = &formats[i];
        for (uint32_t c = 0; c < 2 * sign_bit(f); c++) {
            float x = f->widen(c);
            uint32_t back = f->narrow(x);
            bool lost = f->saturates && isinf(x);
            uint32_t want = lost ? (c & sign_bit(f)) | top_code(f) : c;
            if (code_is_nan(f, c) ? !code_is_nan(f, back) : back != want)
                fail_msg("%s code %x became %x", f->name, c, back);
        }
    }
}

static void check_rounding(const format *f, float x) {
    uint32_t got = f->narrow(x), want = nearest_code(f, x);
    if (got != want) fail_msg("%s of %a: got code %x, expected %x", f->name, (double)x, got, want);
}

/* Each code, the point halfway to the next, and the floats on both sides of each: what rounding
 * can get wrong, subnormals, the step to infinity and both zeros among it. */
static void rounding_is_to_the_nearest_even(void **state) {
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        const format *f = &formats[i];
        for (uint32_t c = 0; c <= top_code(f); c++) {
            double v = value_of(f, c), half = v + (value_of(f, c + 1) - v) / 2;
            const float at[] = { (float)v, (float)half };
            for (int k = 0; k < 2; k++)
                for (int sign = 0; sign < 2; sign++) {
                    float x = sign ? -at[k] : at[k];
                    check_rounding(f, x);
                    if (isfinite(nextafterf(x, INFINITY)))
                        check_rounding(f, nextafterf(x, INFINITY));
                    if (isfinite(nextafterf(x, -INFINITY)))
                        check_rounding(f, nextafterf(x, -INFINITY));
                }
        }
    }
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void random_floats_round_to_the_nearest(void **state) {
    rng_key key = rng_key_of(1, 2);
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        for (uint64_t n = 0; n < 200000; n++) {
            float x = float_of(rng_u32(key, n));
            if (isfinite(x)) check_rounding(&formats[i], x);
        }
}

static void overflow_saturates_or_becomes_infinite(void **state) {
    const float beyond[] = { 0x1.fffffep127f, INFINITY };
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        for (int k = 0; k < 2; k++) {
            const format *f = &formats[i];
            float up = f->widen(f->narrow(beyond[k])), down = f->widen(f->narrow(-beyond[k]));
            double want = f->saturates ? f->max : INFINITY;
            assert_true((double)up == want && (double)down == -want);
        }
}

/* A NaN whose payload is all in the truncated bits must not become infinity. */
static void nan_stays_nan(void **state) {
    const uint32_t nans[] = { 0x7fc00000, 0x7f800001, 0x7fffffff, 0xffc00000, 0xff800001 };
    for (size_t i = 0; i < COUNT_OF(formats); i++)
        for (size_t k = 0; k < COUNT_OF(nans); k++)
            assert_true(code_is_nan(&formats[i], formats[i].narrow(float_of(nans[k]))));
}

static void arrays_convert_like_elements(void **state) {
    static const dtype types[] = { DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E5M2 };
    const float x[] = { 0, 1, -1.5f, 0.0625f, 16 };
    for (size_t t = 0; t < COUNT_OF(types); t++) {
        char raw[sizeof x];
        float back[COUNT_OF(x)];
        dt_from_f32(types[t], x, raw, COUNT_OF(x));
        dt_to_f32(types[t], raw, back, COUNT_OF(x));
        assert_memory_equal(back, x, sizeof x);
    }
}

static void types_are_found_by_name(void **state) {
    for (int t = DT_NONE + 1; t < DT_COUNT; t++) {
        assert_int_equal(dt_from_name(dt_name((dtype)t)), t);
        assert_int_equal(dt_from_safetensors(dt_safetensors((dtype)t)), t);
        assert_true(dt_size((dtype)t) > 0);
    }
    assert_int_equal(dt_from_name("float"), DT_NONE);
    assert_int_equal(dt_from_safetensors("F128"), DT_NONE);
    assert_true(dt_is_float(DT_E5M2) && !dt_is_float(DT_I32));
}

/* @return the signal that ended `run` in a process of its own; 0 when it returned. */
static int signal_of(void (*run)(void)) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        fclose(stderr);
        signal(SIGABRT, SIG_DFL);
        run();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}
static void widen_ints(void) {
    int32_t raw = 1;
    float wide = 0;
    dt_to_f32(DT_I32, &raw, &wide, 1);
}
static void narrow_to_ints(void) {
    int32_t raw = 0;
    float wide = 1;
    dt_from_f32(DT_I32, &wide, &raw, 1);
}
static void converting_integers_is_a_bug(void **state) {
    assert_int_equal(signal_of(widen_ints), SIGABRT);
    assert_int_equal(signal_of(narrow_to_ints), SIGABRT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_code_is_the_largest_value),
        cmocka_unit_test(every_code_widens_to_its_value),
        cmocka_unit_test(every_code_survives_a_round_trip),
        cmocka_unit_test(rounding_is_to_the_nearest_even),
        cmocka_unit_test(random_floats_round_to_the_nearest),
        cmocka_unit_test(overflow_saturates_or_becomes_infinite),
        cmocka_unit_test(nan_stays_nan),
        cmocka_unit_test(arrays_convert_like_elements),
        cmocka_unit_test(types_are_found_by_name),
        cmocka_unit_test(converting_integers_is_a_bug),
    };
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
