/* Published peaks, the 100 % of MFU: dense (without sparsity), TFLOP/s, from the vendor's data sheets. */
#include <string.h>

#include "observe/observe.h"

enum {
    FP32,
    TF32,
    HALF,
    FP8,
    RATES
}; /* fp16 and bf16 have the same rate on all of the chips below */

/* The first row whose words all occur in the driver's name for the chip: special cases come first. */
static const struct {
    const char *word, *variant;
    double rate[RATES]; /* 0: the chip has no such unit */
} chips[] = {
    { "GB200", "", { 80, 1250, 2500, 5000 } },     { "B200", "", { 75, 1125, 2250, 4500 } },
    { "H200", "NVL", { 60, 418, 835, 1671 } },     { "H200", "", { 67, 494.7, 989.4, 1978.9 } },
    { "GH200", "", { 67, 494.7, 989.4, 1978.9 } }, { "H100", "PCIe", { 51, 378, 756, 1513 } },
    { "H100", "NVL", { 60, 418, 835, 1671 } },     { "H100", "", { 67, 494.7, 989.4, 1978.9 } },
    { "H800", "", { 67, 494.7, 989.4, 1978.9 } },  { "A100", "", { 19.5, 156, 312, 0 } },
    { "A800", "", { 19.5, 156, 312, 0 } },         { "L40S", "", { 91.6, 183, 362, 733 } },
    { "L4", "", { 30.3, 60, 121, 242 } },          { "A10G", "", { 35, 35, 70, 0 } },
    { "A10", "", { 31.2, 62.5, 125, 0 } },         { "RTX 4090", "", { 82.6, 82.6, 165.2, 330.3 } },
    { "RTX 3090", "", { 35.6, 35.6, 71, 0 } },
};

/* Whether `word` occurs in `name` as a word of its own: "L4" is not in "L40S". */
static bool has_word(const char *name, const char *word) {
    size_t n = strlen(word);
    for (const char *at = strstr(name, word); at; at = strstr(at + 1, word)) {
        bool starts = at == name || strchr(" -", at[-1]), ends = !at[n] || strchr(" -", at[n]);
        if (starts && ends) return true;
    }
    return false;
}

double chip_peak(const char *name, const char *dtype) {
    static const struct {
        const char *name;
        int rate;
    } types[] = {
        { "fp32", FP32 }, { "tf32", TF32 }, { "fp16", HALF }, { "bf16", HALF }, { "fp8", FP8 }
    };
    for (size_t i = 0; i < COUNT_OF(chips); i++) {
        if (!has_word(name, chips[i].word)) continue;
        if (*chips[i].variant && !has_word(name, chips[i].variant)) continue;
        for (size_t k = 0; k < COUNT_OF(types); k++)
            if (!strcmp(types[k].name, dtype) && chips[i].rate[types[k].rate] > 0)
                return 1e12 * chips[i].rate[types[k].rate];
        return NAN;
    }
    return NAN;
}
