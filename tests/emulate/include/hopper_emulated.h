/* The functions of ops/cuda/hopper.cuh, for a CPU: TMA, its barriers, clusters, and wgmma. Copies complete as late as
 * barriers allow, so that memory that is read too early holds what it held before; products at once, or as late as the
 * thread waits for them; stores as late as the thread waits for their memory. */
#ifndef INGOT_EMULATE_HOPPER_H
#define INGOT_EMULATE_HOPPER_H

#include <machine_emulated.h>

#include <vector>

enum {
    GROUP_THREADS = 128,
    LINE_BYTES = 128,
    BOX_BYTES = 64 * LINE_BYTES,
    ALIGN = 1024,
    SUMS = 128,
    EMULATED_BLOCK = 512 /* threads of a block that is in a cluster, at most */
};
/* Numbers the threads of a cluster. */
static inline unsigned emulated_thread() {
    return (unsigned)emulate_block() * EMULATED_BLOCK + threadIdx.x;
}

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
    uint64_t commits; /* ever */
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
    return emulated_products_of[emulated_thread()];
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
    /* what the other block copies may arrive before this one expects it */
    if (e->missing < 0 || (!e->missing && e->bytes < 0))
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
static inline void barrier_arrive_at(uint64_t *b, int of) {
    barrier_arrive((uint64_t *)emulate_peer(b, of));
}
static inline void barrier_expect(uint64_t *b, int bytes) {
    emulated_barrier_at(b)->bytes += bytes;
    barrier_arrive(b);
}
static inline void barrier_expect_more(uint64_t *b, int bytes) {
    emulated_barrier_at(b)->bytes += bytes;
}
static inline void barriers_ready() {}
static inline int cluster_rank() { return emulate_block(); }
static inline void cluster_sync() { emulate_cluster_sync(); }
static inline void send_to(int *to, int value, uint64_t *b, int of) {
    *(int *)emulate_peer(to, of) = value;
    barrier_arrive_at(b, of);
}

/* ---- TMA ----------------------------------------------------------------------------------------- */
struct CUtensorMap {
    char *data;
    int64_t rows, cols, stride, groups;
    int lines, bytes; /* bytes: of an element */
};
/* Elements [x, x + LINE_BYTES / bytes) of some lines of matrix z. */
struct emulated_box {
    char *shared;
    CUtensorMap map;
    int x, y, z;
    uint64_t *full; /* of a copy */
    bool add;       /* of a store */
};
inline std::vector<emulated_box> emulated_boxes;

/* Calls each(global, shared) for every element of the box; global: NULL outside the matrix. Lines are swizzled. */
template <class F> static void emulated_each(const emulated_box &b, F each) {
    if (b.z < 0 || b.z >= b.map.groups) emulate_fault("a box of no matrix");
    int across = LINE_BYTES / b.map.bytes;
    for (int line = 0; line < b.map.lines; line++)
        for (int i = 0; i < across; i++) {
            int64_t row = b.y + line, col = b.x + i;
            bool inside = row >= 0 && row < b.map.rows && col >= 0 && col < b.map.cols;
            char *at = b.map.data + ((b.z * b.map.rows + row) * b.map.stride + col) * b.map.bytes;
            int byte = i * b.map.bytes, piece = (byte / 16 ^ line) & 7;
            each(inside ? at : nullptr, b.shared + line * LINE_BYTES + piece * 16 + byte % 16);
        }
}
static inline void emulated_check_box(const emulated_box &b, const void *block) {
    if ((b.shared - (const char *)block) % ALIGN) emulate_fault("a box is not aligned");
}
/* Elements outside the tensor read as zeros. */
static inline void emulated_copy_box(const emulated_box &b) {
    size_t n = (size_t)b.map.bytes;
    emulated_each(b, [=](const char *from, char *to) {
        memset(to, 0, n);
        if (from) memcpy(to, from, n);
    });
    emulated_barrier_at(b.full)->bytes -= b.map.lines * LINE_BYTES;
    emulated_barrier_settle(emulated_barrier_at(b.full));
}
/* To block `of` of the cluster; `to` and `full` are places in this one. A box of 32 lines may begin where half of one does. */
static inline void emulated_copy_to(char *to, const CUtensorMap *map, int x, int y, int z,
                                    uint64_t *full, int of) {
    if (shared_address(to) %
        (map->lines * LINE_BYTES % ALIGN ? ALIGN : min(map->lines, 8) * LINE_BYTES))
        emulate_fault("a box is not aligned");
    emulated_boxes.push_back(
        { (char *)emulate_peer(to, of), *map, x, y, z, (uint64_t *)emulate_peer(full, of), false });
    emulate_event();
}
static inline void copy_box_async(char *to, const CUtensorMap *map, int x, int y, int z,
                                  uint64_t *full) {
    emulated_copy_to(to, map, x, y, z, full, emulate_block());
}
static inline void copy_box_to_both(char *to, const CUtensorMap *map, int x, int y, int z,
                                    uint64_t *full) {
    for (int of = 0; of < 2; of++) emulated_copy_to(to, map, x, y, z, full, of);
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
static inline int receive(int *from, uint64_t *b, int phase) {
    barrier_wait(b, phase);
    return *from;
}
static inline bool encode_strided(CUtensorMap *map, const tensor *t, int64_t stride, int64_t groups,
                                  int lines) {
    *map = { (char *)t->data, t->dim[0] / groups, t->dim[1], stride, groups,
             lines,           (int)dt_size(t->dt) };
    return (uintptr_t)t->data % 16 == 0 && stride * (int64_t)dt_size(t->dt) % 16 == 0;
}
static inline bool encode_map(CUtensorMap *map, const tensor *t, int64_t groups, int lines) {
    return encode_strided(map, t, t->dim[1], groups, lines);
}
static inline bool is_aligned(const tensor *t) {
    return t->dim[1] % 8 == 0 && (uintptr_t)t->data % 16 == 0;
}

/* Boxes that a thread stores, in groups: as late as it waits for them. */
struct emulated_stores {
    std::vector<emulated_box> given;
    std::vector<size_t> ends;
};
inline emulated_stores emulated_stores_of[1024];
static inline emulated_stores &emulated_stores_here() {
    return emulated_stores_of[emulated_thread()];
}
template <class V> static V emulated_read(const char *p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void emulated_store_box(const emulated_box &b) {
    bool add = b.add;
    size_t n = (size_t)b.map.bytes;
    emulated_each(b, [=](char *to, const char *from) {
        if (!to) return;
        float sum = add ? emulated_read<float>(to) + emulated_read<float>(from) : 0;
        memcpy(to, add ? (const char *)&sum : from, n);
    });
}
static inline void emulated_give(const CUtensorMap *map, const char *from, int x, int y, int z,
                                 bool add) {
    if (shared_address(from) % ALIGN || (add && map->bytes != 4))
        emulate_fault("a box is not aligned");
    emulated_stores_here().given.push_back({ (char *)from, *map, x, y, z, nullptr, add });
}
static inline void store_box_async(const CUtensorMap *map, const char *from, int x, int y, int z) {
    emulated_give(map, from, x, y, z, false);
}
static inline void add_box_async(const CUtensorMap *map, const char *from, int x, int y, int z) {
    emulated_give(map, from, x, y, z, true);
}
static inline void stores_commit() {
    emulated_stores &s = emulated_stores_here();
    s.ends.push_back(s.given.size());
}
/* All but the last groups. */
static inline void emulated_stores_complete(size_t after) {
    emulated_stores &s = emulated_stores_here();
    if (s.ends.size() <= after) return;
    size_t groups = s.ends.size() - after, n = s.ends[groups - 1];
    for (size_t i = 0; i < n; i++) emulated_store_box(s.given[i]);
    s.given.erase(s.given.begin(), s.given.begin() + (ptrdiff_t)n);
    s.ends.erase(s.ends.begin(), s.ends.begin() + (ptrdiff_t)groups);
    for (size_t &end : s.ends) end -= n;
}
template <int AFTER> static void stores_wait_read() { emulated_stores_complete(AFTER); }
static inline void stores_wait() { emulated_stores_complete(0); }
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

static inline void store_transposed(char *line, const uint32_t (&v)[4]) {
    const uint32_t(*all)[EMULATED_WORDS] = emulate_warp_words(v, 4);
    int lane = (int)threadIdx.x % 32;
    for (int i = 0; i < 8; i++) { /* element i of this lane's line is of row i, column lane % 8 */
        uint32_t word = all[i * 4 + lane % 8 / 2][lane / 8];
        uint16_t value = (uint16_t)(word >> 16 * (lane % 2));
        memcpy(line + 2 * i, &value, sizeof value);
    }
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
    p.commits++;
    emulate_event();
    if (emulate_draw() % 2) p.complete(p.ends.size());
}
/* A product is of a whole warp group: it is complete for all of its threads at once, after all have begun it. */
template <int AFTER> static void multiply_wait() {
    uint64_t commits = emulated_products_here().commits;
    emulated_products *group =
        emulated_products_of + emulated_thread() / GROUP_THREADS * GROUP_THREADS;
    for (int i = 0; i < GROUP_THREADS; i++)
        while (group[i].commits + AFTER < commits) emulate_await_event();
    for (int i = 0; i < GROUP_THREADS; i++) {
        emulated_products &p = group[i];
        size_t left = p.commits + AFTER - commits;
        if (p.ends.size() > left) p.complete(p.ends.size() - left);
    }
}

/* Most of an emulated kernel's time is spent here: optimized, and without AddressSanitizer, whose part emulated_inside
 * does. Addresses are those before they are swizzled. */
#define EMULATED_PRODUCT __attribute__((optimize("O3"), no_sanitize("address", "undefined"))) static
template <class T> EMULATED_PRODUCT inline float emulated_operand(const char *shared, uint32_t at) {
    uint16_t bits = *(const uint16_t *)(shared + (at ^ (at >> 7 & 7) << 4));
    if (!std::is_same<T, __nv_bfloat16>::value) return f16_to_f32(bits);
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

/* One of a line's 64 elements; where `across`, the line is one of the depth instead of the result's, and the next 64 are
 * `wide` bytes on. */
static inline uint32_t emulated_place(int at, int depth, bool across, uint32_t wide) {
    return across ? (uint32_t)(at / 64) * wide + (uint32_t)(depth * LINE_BYTES + 2 * (at % 64))
                  : (uint32_t)(at * LINE_BYTES + 2 * depth);
}
template <class T, int N, int TA, int TB>
EMULATED_PRODUCT void emulated_shared(const char *shared, float *d, uint32_t a, uint32_t b,
                                      uint32_t wide, int add, int row, int column) {
    float left[2][16];
    for (int h = 0; h < 2; h++)
        for (int k = 0; k < 16; k++)
            left[h][k] = emulated_operand<T>(shared, a + emulated_place(row + 8 * h, k, TA, 0));
    for (int n = 0; n < N / 8; n++)
        for (int i = 0; i < 2; i++) {
            float sum[2] = { 0, 0 };
            for (int k = 0; k < 16; k++) {
                float right = emulated_operand<T>(
                    shared, b + emulated_place(8 * n + column + i, k, TB, wide));
                sum[0] += left[0][k] * right, sum[1] += left[1][k] * right;
            }
            for (int h = 0; h < 2; h++)
                d[4 * n + 2 * h + i] = sum[h] + (add ? d[4 * n + 2 * h + i] : 0);
        }
}
template <class T, int N, int TA, int TB>
static void emulated_multiply(float *d, uint64_t a, uint64_t b, int add) {
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x % GROUP_THREADS / 32 * 16 + lane / 4;
    uint32_t left = (uint32_t)a * 16, right = (uint32_t)b * 16, wide = (uint32_t)(b >> 32);
    emulated_inside(left, left + emulated_place(63, 15, TA, 0));
    emulated_inside(right, right + emulated_place(N - 1, 15, TB, wide));
    emulated_products_here().begun.push_back([=] {
        emulated_shared<T, N, TA, TB>((const char *)emulate_shared(), d, left, right, wide, add,
                                      row, lane % 4 * 2);
    });
}
template <class T, int N> struct shared_product {
    template <int TA, int TB>
    static void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
        emulated_multiply<T, N, TA, TB>(d, a, b, add);
    }
};
template <class T, int N> struct multiplier {
    template <int TA, int TB>
    static void multiply16(float (&d)[SUMS], uint64_t a, uint64_t b, int add) {
        emulated_multiply<T, N, TA, TB>(d, a, b, add);
    }
};
/* The widths of multiplier. */
/* clang-format off */
#define FOR_EACH_WIDTH(X)                                                                          \
    X(16, 0) X(32, 0) X(48, 0) X(64, 0) X(80, 0) X(96, 0) X(112, 0) X(128, 0) X(144, 0) X(160, 0)  \
    X(176, 0) X(192, 0) X(208, 0) X(224, 0) X(240, 0) X(256, 0)
/* clang-format on */

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
                float right =
                    emulated_operand<__nv_bfloat16>(shared, at + (uint32_t)(k * LINE_BYTES));
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
