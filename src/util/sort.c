/* A stable merge sort: elements that compare equal keep their order, on every machine. (C's qsort promises neither that
 * nor to accept no elements at NULL; glibc's was stable before 2.37 and is not since.) */
#include <stdlib.h>
#include <string.h>

#include "util/util.h"

typedef struct sorting {
    size_t size;
    int (*compare)(const void *, const void *);
    char *spare; /* half as many elements, rounded down */
} sorting;

static void merge_sort(const sorting *s, char *at, size_t n) {
    if (n < 2) return;
    size_t half = n / 2 * s->size, bytes = n * s->size;
    merge_sort(s, at, n / 2);
    merge_sort(s, at + half, n - n / 2);
    if (s->compare(at + half - s->size, at + half) <= 0) return;
    memcpy(s->spare, at, half);
    size_t left = 0, right = half;
    for (size_t to = 0; left < half; to += s->size) {
        bool first = right == bytes || s->compare(s->spare + left, at + right) <= 0;
        memcpy(at + to, first ? s->spare + left : at + right, s->size);
        *(first ? &left : &right) += s->size;
    }
}

void sort_array(void *at, size_t n, size_t size, int (*compare)(const void *, const void *)) {
    if (n < 2) return;
    sorting s = { size, compare, mem_alloc(n / 2 * size) };
    merge_sort(&s, at, n);
    free(s.spare);
}
