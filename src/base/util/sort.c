/* A stable merge sort: elements that compare equal keep their order, on every machine. (C's qsort promises neither that
 * nor to accept no elements at NULL; glibc's was stable before 2.37 and is not since.) */
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

typedef struct sorting {
    size_t size;
    int (*compare)(const void *, const void *);
    char *spare;   /* half as many elements, rounded down */
    bool pointers; /* elements are pointers to what is compared */
} sorting;

static bool in_order(const sorting *s, const char *a, const char *b) {
    return (s->pointers ? s->compare(*(void *const *)a, *(void *const *)b) : s->compare(a, b)) <= 0;
}

static void merge_sort(const sorting *s, char *at, size_t n) {
    if (n < 2) return;
    size_t half = n / 2 * s->size, bytes = n * s->size;
    merge_sort(s, at, n / 2);
    merge_sort(s, at + half, n - n / 2);
    if (in_order(s, at + half - s->size, at + half)) return;
    memcpy(s->spare, at, half);
    size_t left = 0, right = half;
    for (size_t to = 0; left < half; to += s->size) {
        bool first = right == bytes || in_order(s, s->spare + left, at + right);
        memcpy(at + to, first ? s->spare + left : at + right, s->size);
        *(first ? &left : &right) += s->size;
    }
}

/* Sorts pointers to large elements, which then move once. */
static void sort_large(char *at, size_t n, size_t size,
                       int (*compare)(const void *, const void *)) {
    const char **order = mem_alloc(n * sizeof *order);
    char *sorted = mem_alloc(n * size);
    for (size_t i = 0; i < n; i++) order[i] = at + i * size;
    sorting s = { sizeof *order, compare, mem_alloc(n / 2 * sizeof *order), true };
    merge_sort(&s, (char *)order, n);
    for (size_t i = 0; i < n; i++) memcpy(sorted + i * size, order[i], size);
    memcpy(at, sorted, n * size);
    free(s.spare);
    free(sorted);
    free(order);
}

void sort_array(void *at, size_t n, size_t size, int (*compare)(const void *, const void *)) {
    enum { LARGE = 64 };
    if (n < 2) return;
    if (size > LARGE) {
        sort_large(at, n, size, compare);
        return;
    }
    sorting s = { size, compare, mem_alloc(n / 2 * size), false };
    merge_sort(&s, at, n);
    free(s.spare);
}

int compare_uint32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int compare_texts(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}
