/* The functions of ops/cuda/hopper.cuh that attention uses, for a CPU: TMA, its barriers, and wgmma. Copies complete as late
 * as barriers allow, so that memory that is read too early holds what it held before; products at once, or as late as the
 * thread waits for them. */
#ifndef INGOT_EMULATE_HOPPER_H
#define INGOT_EMULATE_HOPPER_H

#include <machine_emulated.h>

#include <vector>

enum { GROUP_THREADS = 128, LINE_BYTES = 128, BOX_BYTES = 64 * LINE_BYTES, ALIGN = 1024 };

static inline uint32_t shared_address(const void *p) {
    return (uint32_t)((const char *)p - (const char *)emulate_shared());
}
template <int N> static void registers_keep() {}
template <int N> static void registers_take() {}

/* ---- products that are not complete --------------------------------------------------------------- */
/* The products that a thread has begun, and where each of its sets ends. */
struct emulated_products {
    std::vector<std::function<void()>> begun;
    std::vector<size_t> ends;
    void complete(size_t sets) {
        if (!sets) return;
        size_t n = ends[sets - 1];
        for (size_t i = 0; i < n; i++) begun[i]();
        begun.erase(begun.begin(), begun.begin() + (ptrdiff_t)n);
        ends.erase(ends.begin(), ends.begin() + (ptrdiff_t)sets);
        for (size_t &end : ends) end -= n;
    }
};
inline emulated_products emulated_products_of[1024];
static inline emulated_products &emulated_products_here() {
    return emulated_products_of[threadIdx.x];
}
static inline void emulated_products_awaited() {
    for (const emulated_products &p : emulated_products_of)
        if (!p.begun.empty()) emulate_fault("a block ended before its products");
}

/* ---- barriers ------------------------------------------------------------------------------------ */
/* As the 64 bits of a barrier. A phase ends when all have arrived and all bytes have come. */
struct emulated_barrier {
    int32_t bytes;
    int16_t arrivals, missing; /* of each phase; of this one */
};
/* The parity of the phase is the sign of `arrivals`. */
static inline emulated_barrier *emulated_barrier_at(uint64_t *b) { return (emulated_barrier *)b; }
static inline void barrier_init(uint64_t *b, int arrivals) {
    emulated_products_awaited(); /* of the block before */
    *emulated_barrier_at(b) = { 0, (int16_t)arrivals, (int16_t)arrivals };
}
static inline void emulated_barrier_settle(emulated_barrier *e) {
    if (e->missing < 0 || e->bytes < 0)
        emulate_fault("more has arrived at a barrier than it expects");
    if (e->missing || e->bytes) return;
    e->arrivals = (int16_t)-e->arrivals;
    e->missing = (int16_t)(e->arrivals < 0 ? -e->arrivals : e->arrivals);
    emulate_event();
}
static inline void barrier_arrive(uint64_t *b) {
    emulated_barrier_at(b)->missing--;
    emulated_barrier_settle(emulated_barrier_at(b));
}
static inline void barrier_expect(uint64_t *b, int bytes) {
    emulated_barrier_at(b)->bytes += bytes;
    barrier_arrive(b);
}
static inline void barrier_expect_more(uint64_t *b, int bytes) {
    emulated_barrier_at(b)->bytes += bytes;
}
static inline void barriers_ready() {}

/* ---- TMA ----------------------------------------------------------------------------------------- */
struct CUtensorMap {
    char *data;
    int64_t rows, cols;
    int lines, bytes; /* bytes: of an element */
};
struct emulated_box {
    char *to;
    CUtensorMap map;
    int x, y;
    uint64_t *full;
};
inline std::vector<emulated_box> emulated_boxes;

/* Rows and columns past the tensor are zeros. Lines of 128 bytes are swizzled. */
static inline void emulated_copy_box(const emulated_box &b) {
    for (int line = 0; line < b.map.lines; line++)
        for (int piece = 0; piece < 8; piece++) {
            char *to = b.to + line * LINE_BYTES + ((piece ^ line) & 7) * 16;
            int64_t row = b.y + line, col = b.x + piece * 8;
            for (int i = 0; i < 8; i++) {
                bool inside = row < b.map.rows && col + i < b.map.cols;
                const char *from = b.map.data + (row * b.map.cols + col + i) * 2;
                uint16_t value = 0;
                if (inside) memcpy(&value, from, sizeof value);
                memcpy(to + 2 * i, &value, sizeof value);
            }
        }
    emulated_barrier_at(b.full)->bytes -= b.map.lines * LINE_BYTES;
    emulated_barrier_settle(emulated_barrier_at(b.full));
}
static inline void copy_box_async(char *to, const CUtensorMap *map, int x, int y, int z,
                                  uint64_t *full) {
    if (shared_address(to) % ALIGN || z || map->bytes != 2) emulate_fault("a box is not aligned");
    emulated_boxes.push_back({ to, *map, x, y, full });
    emulate_event();
}
static inline void barrier_wait(uint64_t *b, int parity) {
    while ((emulated_barrier_at(b)->arrivals < 0) == (parity != 0)) {
        if (emulated_boxes.empty()) {
            emulate_await_event();
            continue;
        }
        emulated_box first = emulated_boxes.front();
        emulated_boxes.erase(emulated_boxes.begin());
        emulated_copy_box(first);
    }
}
static inline bool encode_map(CUtensorMap *map, const tensor *t, int64_t groups, int lines) {
    *map = { (char *)t->data, t->dim[0], t->dim[1], lines, (int)dt_size(t->dt) };
    return groups == 1;
}

/* Boxes of fp32 that are added to a tensor: as late as the thread that gave them waits for them. */
struct emulated_sum {
    unsigned thread;
    const char *from;
    CUtensorMap map;
    int x, y;
};
inline std::vector<emulated_sum> emulated_sums_given;
static inline void emulated_add_box(const emulated_sum &b) {
    for (int line = 0; line < b.map.lines && b.y + line < b.map.rows; line++)
        for (int i = 0; i < LINE_BYTES / 4 && b.x + i < b.map.cols; i++) {
            float value;
            memcpy(&value, b.from + line * LINE_BYTES + ((i / 4 ^ line) & 7) * 16 + i % 4 * 4, 4);
            ((float *)b.map.data)[(b.y + line) * b.map.cols + b.x + i] += value;
        }
}
static inline void add_box_async(const CUtensorMap *map, const char *from, int x, int y, int z) {
    if (shared_address(from) % ALIGN || z || map->bytes != 4) emulate_fault("a box is not aligned");
    emulated_sums_given.push_back({ threadIdx.x, from, *map, x, y });
}
static inline void stores_commit() {}
static inline void stores_wait() {
    std::vector<emulated_sum> others;
    for (const emulated_sum &b : emulated_sums_given)
        if (b.thread == threadIdx.x)
            emulated_add_box(b);
        else
            others.push_back(b);
    emulated_sums_given = others;
}
template <int AFTER> static void stores_wait_read() {
    static_assert(AFTER == 0, "an earlier group alone");
    stores_wait();
}
static inline void fence_async() {}

/* ---- writing ------------------------------------------------------------------------------------- */
static inline char *swizzled(char *chunk, int line, int piece) {
    return chunk + line * LINE_BYTES + ((piece ^ line) & 7) * 16;
}
/* Lane i of a warp gives the address of line i % 8 of matrix i / 8, and has elements lane % 4 * 2 and the next of line
 * lane / 4 of each. */
static inline void store_matrices(char *line, const uint32_t (&v)[4]) {
    const uint32_t(*all)[EMULATED_WORDS] = emulate_warp_words(v, 4);
    int lane = (int)threadIdx.x % 32;
    for (int i = 0; i < 4; i++) memcpy(line + 4 * i, &all[lane % 8 * 4 + i][lane / 8], 4);
}

/* ---- wgmma --------------------------------------------------------------------------------------- */
/* Where an operand begins, in units of 16 bytes, and the bytes from 64 columns to the next. */
static inline uint64_t smem_descriptor(const char *p, int wide) {
    if (shared_address(p) % ALIGN % LINE_BYTES) emulate_fault("an operand is not aligned");
    return shared_address(p) / 16 | (uint64_t)wide << 32;
}
static inline void multiply_begin() {}
static inline void multiply_commit() {
    emulated_products &p = emulated_products_here();
    p.ends.push_back(p.begun.size());
    if (emulate_draw() % 2) p.complete(p.ends.size());
}
template <int AFTER> static void multiply_wait() {
    emulated_products &p = emulated_products_here();
    if (p.ends.size() > AFTER) p.complete(p.ends.size() - AFTER);
}

/* Most of an emulated kernel's time is spent here: optimized, and without AddressSanitizer, whose part emulated_inside
 * does. Addresses are those before they are swizzled. */
#define EMULATED_PRODUCT __attribute__((optimize("O3"), no_sanitize("address", "undefined"))) static
EMULATED_PRODUCT inline float emulated_operand(const char *shared, uint32_t at) { /* bf16 */
    uint16_t bits = *(const uint16_t *)(shared + (at ^ (at >> 7 & 7) << 4));
    float value;
    uint32_t word = (uint32_t)bits << 16;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}
static inline void emulated_inside(uint32_t first, uint32_t last) {
    volatile char touched = ((const char *)emulate_shared())[first];
    touched = ((const char *)emulate_shared())[last];
    (void)touched;
}

/* One of a line's 64 elements; where `across`, the line is one of the depth instead of the result's. */
static inline uint32_t emulated_place(int at, int depth, bool across) {
    return (uint32_t)((across ? depth : at) * LINE_BYTES + 2 * (across ? at : depth));
}
template <int N, int TA, int TB>
EMULATED_PRODUCT void emulated_shared(const char *shared, float *d, uint32_t a, uint32_t b, int add,
                                      int row, int column) {
    float left[2][16];
    for (int h = 0; h < 2; h++)
        for (int k = 0; k < 16; k++)
            left[h][k] = emulated_operand(shared, a + emulated_place(row + 8 * h, k, TA));
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 2; i++) {
            float sum[2] = { 0, 0 };
            for (int k = 0; k < 16; k++) {
                float right =
                    emulated_operand(shared, b + emulated_place(8 * n + column + i, k, TB));
                sum[0] += left[0][k] * right, sum[1] += left[1][k] * right;
            }
            for (int h = 0; h < 2; h++)
                d[4 * n + 2 * h + i] = sum[h] + (add ? d[4 * n + 2 * h + i] : 0);
        }
}
template <class T, int N> struct shared_product {
    template <int TA, int TB>
    static void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
        static_assert(!TB || N <= 64, "the next 64 columns lie elsewhere");
        int lane = (int)threadIdx.x % 32,
            row = (int)threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 4;
        uint32_t left = (uint32_t)a * 16, right = (uint32_t)b * 16;
        emulated_inside(left, left + (TA ? 15 : 63) * LINE_BYTES);
        emulated_inside(right, right + (TB ? 15 : N - 1) * LINE_BYTES);
        float *sums = d;
        emulated_products_here().begun.push_back([=] {
            emulated_shared<N, TA, TB>((const char *)emulate_shared(), sums, left, right, add, row,
                                       lane % 4 * 2);
        });
    }
};

struct emulated_rows { /* of a left operand in registers: those of a thread's results */
    float row[2][16];
};
template <int N>
EMULATED_PRODUCT void emulated_sums(const char *shared, float *d, const emulated_rows &left,
                                    uint32_t b, uint32_t wide, int column) {
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 2; i++) {
            uint32_t at = b + (uint32_t)(n / 8) * wide + (uint32_t)(n % 8 * 16 + 2 * (column + i));
            float sum[2] = { 0, 0 };
            for (int k = 0; k < 16; k++) {
                float right = emulated_operand(shared, at + (uint32_t)(k * LINE_BYTES));
                sum[0] += left.row[0][k] * right, sum[1] += left.row[1][k] * right;
            }
            d[4 * n + i] += sum[0], d[4 * n + 2 + i] += sum[1];
        }
}
template <class T, int N> struct sum_product {
    static void add(float (&d)[N / 2], const uint32_t *a, uint64_t b) {
        const uint32_t(*all)[EMULATED_WORDS] = emulate_warp_words(a, 4);
        int lane = (int)threadIdx.x % 32;
        uint32_t from = (uint32_t)b * 16, wide = (uint32_t)(b >> 32);
        emulated_rows left;
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < 16; k++)
                left.row[h][k] =
                    emulated_half_word<T>(all[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + h], k % 2);
        emulated_inside(from, from + (N - 1) / 64 * wide + 15 * LINE_BYTES);
        float *sums = d;
        emulated_products_here().begun.push_back([=] {
            emulated_sums<N>((const char *)emulate_shared(), sums, left, from, wide, lane % 4 * 2);
        });
    }
};

#endif
