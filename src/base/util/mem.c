/* Memory: small allocations that abort, large mappings that fail with an error, arenas. */
#include "util/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

void *mem_alloc(size_t bytes) {
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "ingot: out of memory asking for %zu bytes\n", bytes);
        abort();
    }
    return p;
}

void *mem_grow(void *p, size_t bytes) {
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q) {
        fprintf(stderr, "ingot: out of memory asking for %zu bytes\n", bytes);
        abort();
    }
    return q;
}

void *mem_alloc_large(size_t bytes) {
    enum { HUGE_PAGE = 2 << 20 };
    if (bytes < 2 * HUGE_PAGE) return mem_grow(NULL, bytes);
    void *p = aligned_alloc(HUGE_PAGE, align_up(bytes, HUGE_PAGE));
    if (!p) return mem_grow(NULL, bytes); /* which reports that there is none */
    madvise(p, bytes, MADV_HUGEPAGE);     /* advice only: failure costs speed, not correctness */
    return p;
}

void *mem_reserve(void *items, int *capacity, int count, size_t item_size) {
    if (count < *capacity) return items;
    int wider = *capacity ? *capacity * 2 : 16;
    char *grown = mem_grow(items, (size_t)wider * item_size);
    memset(grown + (size_t)*capacity * item_size, 0, (size_t)(wider - *capacity) * item_size);
    *capacity = wider;
    return grown;
}

/* Small buffers are not worth a look at the system's files. */
static err check_free(size_t bytes) {
    enum { SMALL = 64 << 20 };
    char want[32], have[32];
    if (bytes <= SMALL) return OK;
    size_t left = mem_free();
    if (bytes <= left) return OK;
    return ERR("%s of memory are needed, %s are free", str_bytes(want, sizeof want, (double)bytes),
               str_bytes(have, sizeof have, (double)left));
}

err mem_map(size_t bytes, void **out) {
    *out = NULL;
    if (!bytes) bytes = 1;
    TRY(check_free(bytes));
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        char size[32];
        return ERR("cannot reserve %s of memory: %s", str_bytes(size, sizeof size, (double)bytes),
                   strerror(errno));
    }
    madvise(p, bytes, MADV_HUGEPAGE); /* advice only: failure costs speed, not correctness */
    *out = p;
    return OK;
}

void mem_unmap(void *p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}

size_t mem_peak(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (size_t)use.ru_maxrss * 1024; /* the kernel counts in KiB */
}

bool mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* ---- arena: a list of chunks, newest first ---------------------------------------------- */
typedef struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    char bytes[];
} arena_chunk;
struct arena {
    arena_chunk *head;
};
enum { ARENA_CHUNK = 64 << 10 };

arena *arena_new(void) { return mem_alloc(sizeof(arena)); }

void *arena_alloc(arena *a, size_t bytes) {
    bytes = align_up(bytes ? bytes : 1, 16);
    if (!a->head || a->head->size - a->head->used < bytes) {
        size_t size = MAX(bytes, (size_t)ARENA_CHUNK);
        arena_chunk *c = mem_alloc(sizeof *c + size + 16);
        *c = (arena_chunk){ .next = a->head, .size = size };
        a->head = c;
    }
    char *base = (char *)align_up((size_t)a->head->bytes, 16);
    void *p = base + a->head->used;
    a->head->used += bytes;
    return p;
}

char *arena_strdup(arena *a, const char *s) {
    size_t n = strlen(s) + 1;
    return memcpy(arena_alloc(a, n), s, n);
}

char *arena_printf(arena *a, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    BUG_IF(n < 0);
    char *p = arena_alloc(a, (size_t)n + 1);
    vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    return p;
}

void arena_free(arena *a) {
    if (!a) return;
    for (arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}
