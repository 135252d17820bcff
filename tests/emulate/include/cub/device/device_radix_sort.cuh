/* CUB's stable sort of pairs by some bits of their keys. */
#ifndef INGOT_EMULATE_CUB_H
#define INGOT_EMULATE_CUB_H

#include <machine_emulated.h>
#include <stdint.h>

#include <algorithm>

namespace cub {
struct DeviceRadixSort {
    /* @param workspace NULL: only returns how many bytes it needs. */
    static cudaError_t SortPairs(void *workspace, size_t &bytes, const int32_t *key,
                                 int32_t *key_out, const int32_t *value, int32_t *value_out, int n,
                                 int from = 0, int to = 32, cudaStream_t s = nullptr) {
        int *order = (int *)workspace;
        uint32_t mask = (uint32_t)(((uint64_t)1 << to) - ((uint64_t)1 << from));
        bytes = (size_t)n * sizeof *order;
        if (!workspace) return cudaSuccess;
        emulate_queue(s, [=] {
            for (int i = 0; i < n; i++) order[i] = i;
            std::stable_sort(order, order + n, [=](int a, int b) {
                return ((uint32_t)key[a] & mask) < ((uint32_t)key[b] & mask);
            });
            for (int i = 0; i < n; i++) key_out[i] = key[order[i]], value_out[i] = value[order[i]];
        });
        return cudaSuccess;
    }
};
} // namespace cub

#endif
