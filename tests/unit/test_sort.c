/* Sorting: the order of keys, and of what compares equal. */
#include "support/test.h"

typedef struct row {
    uint32_t key, place; /* where it was */
} row;

static int by_key(const void *a, const void *b) {
    const row *x = a, *y = b;
    return x->key < y->key ? -1 : x->key > y->key;
}

static void equal_keys_keep_their_order(void **state) {
    enum { MOST = 300 };
    row rows[MOST];
    for (uint32_t n = 0; n <= MOST; n++) {
        uint64_t sum = 0, sorted_sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            rows[i] = (row){ (i * 2654435761u) >> 28, i };
            sum += rows[i].key * 1000 + i;
        }
        sort_array(rows, n, sizeof *rows, by_key);
        for (uint32_t i = 0; i < n; i++) {
            sorted_sum += rows[i].key * 1000 + rows[i].place;
            if (i == 0) continue;
            assert_true(rows[i - 1].key <= rows[i].key);
            if (rows[i - 1].key == rows[i].key) assert_true(rows[i - 1].place < rows[i].place);
        }
        assert_int_equal(sum, sorted_sum); /* none is lost */
    }
}

static void nothing_can_be_sorted(void **state) {
    sort_array(NULL, 0, sizeof(row), by_key);
    row one = { 7, 0 };
    sort_array(&one, 1, sizeof one, by_key);
    assert_int_equal(one.key, 7);
}

static void elements_of_any_size(void **state) {
    double numbers[] = { 3, -1, 2, -1, 1e9, 0 };
    sort_array(numbers, COUNT_OF(numbers), sizeof *numbers, compare_doubles);
    for (size_t i = 1; i < COUNT_OF(numbers); i++) assert_true(numbers[i - 1] <= numbers[i]);
    struct {
        row key;
        char more[120];
    } large[50];
    for (uint32_t i = 0; i < COUNT_OF(large); i++) {
        large[i].key = (row){ i * 7 % 10, i };
        memset(large[i].more, (int)i, sizeof large[i].more);
    }
    sort_array(large, COUNT_OF(large), sizeof *large, by_key);
    for (uint32_t i = 0; i < COUNT_OF(large); i++) {
        assert_int_equal(large[i].key.key, i / 5);
        assert_true(i % 5 == 0 || large[i - 1].key.place < large[i].key.place);
        assert_int_equal(large[i].more[119], large[i].key.place);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_keys_keep_their_order),
        cmocka_unit_test(nothing_can_be_sorted),
        cmocka_unit_test(elements_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
