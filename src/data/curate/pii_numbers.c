/* Account numbers that carry a check: payment cards (Luhn), IBANs (ISO 7064, mod 97), and US social
 * security numbers, which have none but a fixed form and ranges that are never issued. Each function
 * returns where the number that begins at i ends; i if there is none. */
#include "curate/pii_internal.h"

/* ---- payment cards --------------------------------------------------------------------------- */

/* Prefixes of card numbers and how many digits they have. */
static const struct card_range {
    int low, high; /* of the first four digits */
    int digits;
} card_ranges[] = {
    { 4000, 4999, 16 }, { 4000, 4999, 13 }, { 4000, 4999, 19 }, /* Visa */
    { 5100, 5599, 16 }, { 2221, 2720, 16 },                     /* Mastercard */
    { 3400, 3499, 15 }, { 3700, 3799, 15 },                     /* American Express */
    { 6011, 6011, 16 }, { 6440, 6599, 16 },                     /* Discover */
    { 3528, 3589, 16 },                                         /* JCB */
    { 3000, 3059, 14 }, { 3600, 3699, 14 }, { 3800, 3899, 14 }, /* Diners Club */
};

static bool is_card_prefix(int prefix, int digits) {
    for (size_t i = 0; i < COUNT_OF(card_ranges); i++)
        if (digits == card_ranges[i].digits && prefix >= card_ranges[i].low &&
            prefix <= card_ranges[i].high)
            return true;
    return false;
}

static bool passes_luhn(const int *digit, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        int d = digit[n - 1 - i] * (i % 2 + 1);
        sum += d > 9 ? d - 9 : d;
    }
    return sum % 10 == 0;
}

size_t pii_card_end(const masking *m, size_t i) {
    enum { MAX_DIGITS = 19, GROUP = 4 };
    int digit[MAX_DIGITS], n = 0;
    size_t end = i;
    int c = pii_byte_before(m, i);
    if (pii_is_alnum(c) || pii_is_one_of(c, "-./$+_=#")) return i;
    int separator = 0;
    for (;; end++) {
        c = pii_byte_at(m, end);
        if (pii_is_digit(c)) {
            if (n == MAX_DIGITS) return i;
            digit[n++] = c - '0';
            continue;
        }
        /* groups of four or more, all separated alike */
        bool grouped = n >= GROUP && (c == ' ' || c == '-') && (!separator || separator == c) &&
                       pii_is_digit(pii_byte_at(m, end + 1));
        if (!grouped) break;
        separator = c;
    }
    if (n < GROUP || pii_is_alnum(c)) return i;
    int prefix = digit[0] * 1000 + digit[1] * 100 + digit[2] * 10 + digit[3];
    return is_card_prefix(prefix, n) && passes_luhn(digit, n) ? end : i;
}

/* ---- IBAN ------------------------------------------------------------------------------------- */

static bool is_upper(int c) { return c >= 'A' && c <= 'Z'; }

/* Appends a letter or digit to a number mod 97, letters as 10 to 35. */
static int append_mod97(int rest, int c) {
    return pii_is_digit(c) ? (rest * 10 + c - '0') % 97 : (rest * 100 + c - 'A' + 10) % 97;
}

enum { IBAN_HEAD = 4, IBAN_SHORTEST = 15, IBAN_LONGEST = 34 };

/* Whether n characters are a whole IBAN: the head, moved to the end, makes the number 1 mod 97. */
static bool is_iban(const int *head, int n, int rest) {
    for (int k = 0; k < IBAN_HEAD && n >= IBAN_SHORTEST; k++) rest = append_mod97(rest, head[k]);
    return n >= IBAN_SHORTEST && rest == 1;
}

/* A space after a group of four may continue the number or end it, so the longest one counts. */
size_t pii_iban_end(const masking *m, size_t i) {
    int head[IBAN_HEAD] = { 0 }, n = 0, rest = 0;
    size_t end = i, found = i;
    if (pii_is_alnum(pii_byte_before(m, i))) return i;
    for (; n <= IBAN_LONGEST; end++) {
        int c = pii_byte_at(m, end);
        if (pii_is_digit(c) || is_upper(c)) {
            if (n < IBAN_HEAD && is_upper(c) != (n < 2)) return i;
            if (n < IBAN_HEAD)
                head[n] = c;
            else
                rest = append_mod97(rest, c);
            n++;
            continue;
        }
        if (!pii_is_alnum(c) && is_iban(head, n, rest)) found = end;
        if (c != ' ' || n == 0 || n % 4 != 0) break;
    }
    return found;
}

/* ---- US social security numbers --------------------------------------------------------------- */

size_t pii_ssn_end(const masking *m, size_t i) {
    static const char form[] = "ddd-dd-dddd";
    int value[3] = { 0 }, part = 0;
    int c = pii_byte_before(m, i);
    if (pii_is_alnum(c) || pii_is_one_of(c, "-./$+_=")) return i;
    for (size_t k = 0; k < sizeof form - 1; k++) {
        c = pii_byte_at(m, i + k);
        if (form[k] == '-' ? c != '-' : !pii_is_digit(c)) return i;
        if (form[k] == '-')
            part++;
        else
            value[part] = value[part] * 10 + c - '0';
    }
    size_t end = i + sizeof form - 1;
    c = pii_byte_at(m, end);
    bool longer = pii_is_alnum(c) || (c == '-' && pii_is_alnum(pii_byte_at(m, end + 1)));
    bool issued = value[0] > 0 && value[0] != 666 && value[0] < 900 && value[1] > 0 && value[2] > 0;
    return issued && !longer ? end : i;
}
