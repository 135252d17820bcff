/* Kernels on one core of a CPU. Blocks run one after another, those of a cluster together. The threads of a block are fibers: one
 * runs until it must wait for others, at a barrier or to exchange values within its warp, and then the
 * next one runs; on the same stack where the last one has ended. At random, blocks run forwards or
 * backwards, any thread begins, the others follow in either direction, and an asynchronous copy happens at
 * once or as late as it may. A kernel that lacks a barrier or a wait therefore reads values that are not
 * yet written, or already overwritten.
 *
 * Built with AddressSanitizer, which must be notified when the stack changes. The stacks of all threads are
 * contiguous and passed to it as one, so that switches within a block need no notification: those would
 * take a quarter of the time.
 */
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <machine_emulated.h>
#include <vector>

#include "switch.h"

enum { WARP = 32, MOST_THREADS = 1024, BARRIERS = 16, MOST_CLUSTER = 2 };
/* Not a power of two: frames of different threads would compete for the same lines of the cache. */
enum { STACK_BYTES = (64 << 10) + 17 * 64, STACK_GUARD = 4096 };
const size_t STACKS_BYTES = (size_t)MOST_THREADS * STACK_BYTES;
enum {
    SHARED_GUARD = 4096,
    MOST_SHARED = 227 << 10,
    MOST_ACROSS = 65535
}; /* of compute capability 9.0 */

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

/* Where threads wait for each other. */
struct gate {
    int arrived, threads;
    unsigned opened; /* times */
};

struct copy {
    void *to;
    const void *from;
    int set;
};

struct fiber {
    void *place; /* on its stack, while another one runs; NULL: has not begun */
    dim3 thread;
    int block; /* of the cluster */
    bool done;
    const gate *at; /* waits until it was opened once more; NULL: may run */
    unsigned opened;
    int sets; /* of copies that were ended */
    std::vector<copy> copies;
};

struct warp {
    gate meet;
    uint32_t value[2][WARP]; /* of this exchange, of the one before */
    uint32_t words[2][WARP][EMULATED_WORDS];
};

struct {
    void *home; /* where the caller of a block left its stack */
    const void *home_stack;
    size_t home_bytes;
    char *stacks;               /* | guard | stack 0 | guard | stack 1 | ... */
    void *fake_stack;           /* AddressSanitizer's for them */
    void *unused[MOST_THREADS]; /* where threads that ended left their stacks */
    int stacks_made, stacks_unused;
    bool entering;
    fiber fibers[MOST_THREADS];
    int now, threads, live; /* threads: of the cluster */
    int each;               /* threads of a block */
    bool backwards;
    gate barriers[MOST_CLUSTER][BARRIERS];
    gate event; /* opens with each */
    warp warps[MOST_THREADS / WARP];
    char *shared[MOST_CLUSTER];
    dim3 first; /* the cluster's first block */
    const std::function<void()> *thread;
} gpu;

fiber *self() { return &gpu.fibers[gpu.now]; }

/* ---- fibers -------------------------------------------------------------------------------------- */
void live();

/* @return what goes on at the beginning of live, on a stack that no thread has. */
void *take_stack() {
    if (gpu.stacks_unused) return gpu.unused[--gpu.stacks_unused];
    if (!gpu.stacks) {
        void *p = mmap(nullptr, STACKS_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) emulate_fault("no memory for stacks");
        gpu.stacks = (char *)p;
        madvise(p, STACKS_BYTES, MADV_HUGEPAGE); /* a switch would often miss in the TLB */
    }
    char *stack = gpu.stacks + (size_t)gpu.stacks_made++ * STACK_BYTES;
    __asan_poison_memory_region(stack, STACK_GUARD);
    return stack_new(stack, STACK_BYTES, live);
}

/* The last thread of a block returns to the caller of enter_block. */
void leave_block() {
    __sanitizer_start_switch_fiber(&gpu.fake_stack, gpu.home_stack, gpu.home_bytes);
    stack_switch(&gpu.unused[gpu.stacks_unused++], gpu.home);
}

/* On the stack of the thread that begins a block. */
void entered_block() {
    gpu.entering = false;
    __sanitizer_finish_switch_fiber(gpu.fake_stack, &gpu.home_stack, &gpu.home_bytes);
}

/* Runs the threads of a block, beginning with gpu.now. */
void enter_block() {
    void *fake_stack, *first = take_stack();
    gpu.entering = true;
    __sanitizer_start_switch_fiber(&fake_stack, gpu.stacks, STACKS_BYTES);
    stack_switch(&gpu.home, first);
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
}

void become() {
    threadIdx = self()->thread;
    blockIdx = gpu.first;
    blockIdx.x += (unsigned)self()->block;
}

bool may_run(const fiber *f) { return !f->done && (!f->at || f->at->opened != f->opened); }

/* The next of `count` threads from the first on that may run, after the one that runs now; -1: none. */
int next_of(int first, int count) {
    int at = gpu.now - first;
    for (int k = 0; k < count; k++) {
        at = gpu.backwards ? (at ? at : count) - 1 : at + 1 < count ? at + 1 : 0;
        if (may_run(&gpu.fibers[first + at])) return first + at;
    }
    return -1;
}

/* Chooses the thread that runs next: one of the same warp where there is one, so that a warp may be far
 * ahead of the others. */
void choose_next() {
    int first = gpu.now / WARP * WARP;
    int next = next_of(first, min((int)WARP, gpu.threads - first));
    if (next < 0) next = next_of(0, gpu.threads);
    if (next < 0) emulate_fault("threads wait for others that never come");
    gpu.now = next;
    become();
}

/* Another thread runs, until this one may again. */
void give_way() {
    fiber *from = self();
    choose_next();
    if (self() == from) return;
    stack_switch(&from->place, self()->place ? self()->place : take_stack());
}

/* Runs threads to their ends, one after another. */
void live() {
    for (;;) {
        if (gpu.entering) entered_block();
        (*gpu.thread)();
        if (!self()->copies.empty()) emulate_fault("a thread ends before its copies do");
        self()->done = true;
        if (!--gpu.live) {
            leave_block();
            continue;
        }
        choose_next();
        if (self()->place) stack_switch(&gpu.unused[gpu.stacks_unused++], self()->place);
    }
}

void wait_at(gate *g, int threads) {
    if (g->arrived && g->threads != threads) emulate_fault("threads disagree on how many they are");
    g->threads = threads;
    if (++g->arrived == threads) {
        g->arrived = 0;
        g->opened++;
        return;
    }
    self()->at = g;
    self()->opened = g->opened;
    give_way();
}

/* Shared memory of every launch is the same, for page faults take longer than most blocks. The kernel may
 * touch no byte more than was asked for. */
void make_shared(size_t bytes, int blocks) {
    const size_t block = MOST_SHARED + SHARED_GUARD;
    static char *whole = (char *)mmap(nullptr, SHARED_GUARD + MOST_CLUSTER * block,
                                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (whole == MAP_FAILED) emulate_fault("no memory for blocks");
    __asan_poison_memory_region(whole, SHARED_GUARD + MOST_CLUSTER * block);
    for (int i = 0; i < blocks; i++) {
        gpu.shared[i] = whole + SHARED_GUARD + (size_t)i * block;
        __asan_unpoison_memory_region(gpu.shared[i], bytes);
    }
}

/* Runs the blocks of a cluster. */
void run_cluster(size_t shared, int blocks) {
    int n = gpu.threads;
    gpu.live = n;
    gpu.backwards = emulate_draw() & 1;
    gpu.now = (int)(emulate_draw() % (unsigned)n);
    for (int i = 0; i < n; i++) {
        fiber *f = &gpu.fibers[i];
        f->place = nullptr;
        unsigned at = (unsigned)(i % gpu.each), x = at % blockDim.x, rest = at / blockDim.x;
        f->thread = dim3(x, rest % blockDim.y, rest / blockDim.y);
        f->block = i / gpu.each;
        f->done = false;
        f->at = nullptr;
        f->sets = 0;
    }
    for (int i = 0; i < blocks; i++) memset(gpu.shared[i], 0xff, shared); /* NaN in every type */
    become();
    enter_block();
}

} // namespace

/* ---- what kernels call --------------------------------------------------------------------------- */
uint32_t emulate_draw() {
    static uint32_t chance;
    chance = chance * 1664525u + 1013904223u;
    return chance >> 8;
}

void emulate_fault(const char *what) {
    fprintf(stderr, "kernel: %s: block %u %u %u, thread %u %u %u\n", what, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    __sanitizer_print_stack_trace();
    abort();
}

void *emulate_shared() { return gpu.shared[self()->block]; }
int emulate_block() { return self()->block; }
void *emulate_peer(void *p, int block) {
    if (block < 0 || block >= gpu.threads / gpu.each)
        emulate_fault("the cluster has no such block");
    return gpu.shared[block] + ((char *)p - (char *)emulate_shared());
}

void emulate_sync(int which, int threads) {
    if (which < 0 || which >= BARRIERS || threads < 0 || threads % WARP)
        emulate_fault("there is no such barrier");
    wait_at(&gpu.barriers[self()->block][which], threads ? threads : gpu.each);
}

/* flatten: most of the time is spent on switches within a warp */
__attribute__((flatten)) const uint32_t *emulate_warp(uint32_t value) {
    if (gpu.threads < (gpu.now / WARP + 1) * WARP) emulate_fault("a warp is not whole");
    warp *w = &gpu.warps[gpu.now / WARP];
    uint32_t *values = w->value[w->meet.opened & 1];
    values[gpu.now % WARP] = value;
    wait_at(&w->meet, WARP);
    return values;
}

const uint32_t (*emulate_warp_words(const uint32_t *value, int n))[EMULATED_WORDS] {
    warp *w = &gpu.warps[gpu.now / WARP];
    uint32_t(*words)[EMULATED_WORDS] = w->words[w->meet.opened & 1];
    memcpy(words[gpu.now % WARP], value, (size_t)n * sizeof *value);
    emulate_warp(0);
    return words;
}

uint32_t emulate_shuffle(uint32_t value, int lane) { return emulate_warp(value)[lane % WARP]; }
uint32_t emulate_shuffle_xor(uint32_t value, int by) {
    return emulate_warp(value)[(gpu.now ^ by) % WARP];
}
uint32_t emulate_shuffle_up(uint32_t value, int by) {
    const uint32_t *all = emulate_warp(value);
    int lane = gpu.now % WARP;
    return all[lane < by ? lane : lane - by];
}

void emulate_copy(void *to, const void *from) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) emulate_fault("a copy is not aligned");
    if (emulate_draw() & 1)
        memcpy(to, from, 16);
    else
        self()->copies.push_back({ to, from, self()->sets });
}

void emulate_copies_commit() { self()->sets++; }

void emulate_copies_wait(int after) {
    std::vector<copy> &copies = self()->copies;
    size_t left = 0;
    for (const copy &c : copies)
        if (c.set < self()->sets - after)
            memcpy(c.to, c.from, 16);
        else
            copies[left++] = c;
    copies.resize(left);
}

void emulate_event() { gpu.event.opened++; }

void emulate_await_event() {
    self()->at = &gpu.event;
    self()->opened = gpu.event.opened;
    give_way();
}

void emulate_cluster_sync() {
    static gate all;
    wait_at(&all, gpu.threads);
}

void emulate_run(dim3 blocks, dim3 threads, size_t shared, unsigned cluster,
                 const std::function<void()> &thread) {
    uint64_t n = (uint64_t)threads.x * threads.y * threads.z;
    gridDim = blocks, blockDim = threads;
    if (!blocks.x || !blocks.y || !blocks.z || blocks.x > INT32_MAX || blocks.y > MOST_ACROSS ||
        blocks.z > MOST_ACROSS || n < 1 || n * cluster > MOST_THREADS || shared > MOST_SHARED ||
        cluster < 1 || cluster > MOST_CLUSTER || blocks.x % cluster || (cluster > 1 && n % WARP))
        emulate_fault("no such launch");
    gpu.each = (int)n;
    gpu.threads = (int)(n * cluster);
    gpu.thread = &thread;
    make_shared(shared, (int)cluster);
    unsigned across = blocks.x / cluster;
    uint64_t all = (uint64_t)across * blocks.y * blocks.z;
    bool backwards = emulate_draw() & 1;
    for (uint64_t k = 0; k < all; k++) {
        uint64_t i = backwards ? all - 1 - k : k, rest = i / across;
        gpu.first = dim3((unsigned)(i % across) * cluster, (unsigned)(rest % blocks.y),
                         (unsigned)(rest / blocks.y));
        run_cluster(shared, (int)cluster);
    }
}
