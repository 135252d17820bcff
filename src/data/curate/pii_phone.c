/* Phone numbers as they are written in text, in three forms:
 *
 *     international    +49 30 1234567, +1 (212) 555-0123
 *     national         (212) 555-0123, 020 7946 0958, 01 23 45 67 89, 090-1234-5678, 138-0013-8000:
 *                      digits in groups whose lengths are those of a country
 *     after a label    Tel. 9876543210, 电话：13800138000
 *
 * Numbers in text are mostly not phone numbers, so a national number needs a form that other numbers
 * (dates, ISBN, ISSN, versions, postal codes, columns of a table) do not have: it begins with the trunk
 * prefix 0 or has parentheses, its groups have exact lengths, separators agree, and no further number
 * adjoins it. */
#include "curate/pii_internal.h"

enum { MOST_GROUPS = 5, FEWEST_DIGITS = 8, MOST_DIGITS = 15 };

/* ---- separators ------------------------------------------------------------------------------ */

/* @return bytes of the separator at i, 0: there is none; *kind: ' ', '-', '.' or '/'. */
static size_t separator_at(const masking *m, size_t i, int *kind) {
    static const struct {
        const char *bytes;
        size_t n;
        int kind;
    } known[] = {
        { " ", 1, ' ' },
        { "-", 1, '-' },
        { ".", 1, '.' },
        { "/", 1, '/' },
        { " / ", 3, '/' },
        { "\xC2\xA0", 2, ' ' },     /* no-break space */
        { "\xE2\x80\xAF", 3, ' ' }, /* narrow no-break space */
        { "\xE2\x80\x90", 3, '-' }, /* hyphen */
        { "\xE2\x80\x91", 3, '-' }, /* non-breaking hyphen */
        { "\xE2\x80\x93", 3, '-' }, /* en dash */
    };
    size_t longest = 0;
    for (size_t k = 0; k < COUNT_OF(known); k++)
        if (known[k].n > longest && pii_has(m, i, known[k].bytes)) {
            longest = known[k].n;
            *kind = known[k].kind;
        }
    return longest;
}

/* Whether a number that ends at `end` is part of a longer one, or of a word; *space: whether only a space
 * separates it from another number. */
static bool number_continues(const masking *m, size_t end, bool *space) {
    int kind = 0;
    size_t n = separator_at(m, end, &kind);
    bool number = n && pii_is_digit(pii_byte_at(m, end + n));
    *space = number && kind == ' ';
    return pii_letter_follows(m, end) || pii_is_digit(pii_byte_at(m, end)) || (number && !*space);
}

/* Likewise, for what precedes i. */
static bool number_begins_earlier(const masking *m, size_t i, bool *space) {
    int c = pii_byte_before(m, i);
    *space = i >= 2 && c == ' ' && pii_is_digit(pii_byte_at(m, i - 2));
    return pii_letter_precedes(m, i) || pii_is_digit(c) || pii_is_one_of(c, "-./$+_=#");
}

/* ---- international ---------------------------------------------------------------------------- */

/* A sign and a number with a decimal point: +2.66666667, +35236450.6. Domain registries write
 * +1.2125550123. */
static bool is_decimal(const masking *m, size_t i, size_t end, int digits) {
    size_t point = 0;
    for (size_t k = i + 1; k < end; k++) {
        int c = pii_byte_at(m, k);
        if (c == '.' && !point)
            point = k;
        else if (!pii_is_digit(c))
            return false;
    }
    return point && digits != 11;
}

/* 8 to 15 digits in groups. What is multiplied is a number. */
static size_t international_end(const masking *m, size_t i) {
    int c = pii_byte_at(m, i + 1);
    int before = pii_byte_before(m, i);
    if (pii_is_digit(before) || before == '+' || pii_letter_precedes(m, i)) return i;
    if (!pii_is_digit(c) && c != '(') return i;
    size_t end = i + 1, last = i;
    int digits = 0, apart = 0;
    for (; digits <= MOST_DIGITS; end++) {
        c = pii_byte_at(m, end);
        if (pii_is_digit(c)) {
            if (++digits == 1 && c == '0') return i;
            apart = 0;
            last = end + 1;
        } else if (!pii_is_one_of(c, " -.()/") || ++apart > 2) {
            break;
        }
    }
    bool fits = digits >= FEWEST_DIGITS && digits <= MOST_DIGITS && !is_decimal(m, i, last, digits);
    return fits && !pii_letter_follows(m, last) && pii_byte_at(m, last) != '*' ? last : i;
}

/* ---- groups of digits -------------------------------------------------------------------------- */

typedef struct phone_groups {
    size_t begin[MOST_GROUPS];
    int length[MOST_GROUPS], n, digits;
    int first, second; /* digits */
    bool brackets;     /* around the first group */
    int area,
        separator; /* after the first group, and between all others: a kind, 0: nothing, -1: mixed */
    size_t end;
} phone_groups;

static void read_group(const masking *m, phone_groups *g) {
    int n = 0;
    g->begin[g->n] = g->end;
    for (; pii_is_digit(pii_byte_at(m, g->end)) && n <= MOST_DIGITS; g->end++, n++) {
        int digit = pii_byte_at(m, g->end) - '0';
        if (g->digits == 0) g->first = digit;
        if (g->digits == 1) g->second = digit;
        g->digits++;
    }
    g->length[g->n++] = n;
}

/* Reads up to `most` groups from i on. @return false if the first character is not a digit. */
static bool read_groups(const masking *m, size_t i, int most, phone_groups *g) {
    *g = (phone_groups){ .end = i, .first = -1, .second = -1 };
    g->brackets = pii_byte_at(m, i) == '(';
    g->end += g->brackets;
    if (!pii_is_digit(pii_byte_at(m, g->end))) return false;
    read_group(m, g);
    if (g->brackets && pii_byte_at(m, g->end++) != ')') return false;
    while (g->n < most) {
        int kind = 0;
        size_t n = separator_at(m, g->end, &kind);
        if (!pii_is_digit(pii_byte_at(m, g->end + n)) || (!n && !(g->brackets && g->n == 1))) break;
        if (g->n == 1) g->area = kind;
        if (g->n == 2) g->separator = kind;
        if (g->n > 2 && kind != g->separator) g->separator = -1;
        g->end += n;
        read_group(m, g);
    }
    return true;
}

/* ---- national --------------------------------------------------------------------------------- */

/* Lengths of the groups of a number that begins with 0 and another digit. */
static const struct trunk_form {
    const char *lengths;
} trunk_forms[] = {
    { "2222"
      "2" },   /* FR 01 23 45 67 89 */
    { "244" }, /* JP 03-1234-5678, AU (02) 9876 5432 */
    { "334" },
    { "344" }, /* JP 045-123-4567, 090-1234-5678; UK 020 7946 0958; IN 011 2345 6789 */
    { "424" },
    { "514" }, /* JP 0123-45-6789, 01234-5-6789 */
    { "433" },
    { "434" }, /* JP 0120-123-456; UK 0161 496 0018; DE 0800 123 4567 */
    { "56" },
    { "533" }, /* UK 01632 960983, 07700 900 123; IN 01234-567890 */
    { "37" },
    { "38" }, /* CN 010-12345678; IN 080-12345678; DE 030 1234567 */
    { "46" },
    { "47" },
    { "48" }, /* CN 0755-12345678; IN 0422-2345678; DE 0221 1234567 */
    { "65" }, /* IN 098765 43210 */
    { "3322" },
    { "4322" }, /* CH 044 123 45 67; TR 0212 123 45 67 */
    { "2322" }, /* BE 02 123 45 67 */
};

static bool has_lengths(const phone_groups *g, const char *lengths) {
    int n = 0;
    for (; lengths[n]; n++)
        if (n >= g->n || g->length[n] != lengths[n] - '0') return false;
    return n == g->n;
}

/* Dots separate numbers of versions and dates: only the pairs of French numbers may have them. */
static bool separators_agree(const phone_groups *g) {
    bool dots = g->area == '.' || g->separator == '.';
    if (dots) return has_lengths(g, "22222") && g->area == g->separator && !g->brackets;
    return g->separator != '/' && g->separator != -1;
}

/* 01 02 03 04 05: bytes of a listing, not pairs of a number. */
static bool counts_up(const masking *m, const phone_groups *g) {
    for (int i = 1; i < g->n; i++)
        if (g->length[i] != 2 ||
            pii_byte_at(m, g->begin[i] + 1) != pii_byte_at(m, g->begin[i - 1] + 1) + 1)
            return false;
    return g->n > 2;
}

static bool is_trunk_number(const masking *m, const phone_groups *g) {
    if (g->first != 0 || g->second <= 0 || !separators_agree(g) || counts_up(m, g)) return false;
    for (size_t i = 0; i < COUNT_OF(trunk_forms); i++)
        if (has_lengths(g, trunk_forms[i].lengths)) return true;
    return false;
}

/* 030/123456, (0221) 12 34 56: a German area code that is marked as such, and any groups after it. */
static bool is_german_number(const masking *m, const phone_groups *g) {
    bool marked = g->brackets || g->area == '/';
    if (!marked || g->first != 0 || g->second < 2 || g->length[0] < 3 || g->length[0] > 5)
        return false;
    for (int i = 1; i < g->n; i++)
        if (g->length[i] < 2 && i + 1 < g->n) return false;
    int local = g->digits - g->length[0];
    return g->n > 1 && local >= 5 && local <= 9 && g->separator != '/' && g->separator != '.';
}

/* Whether an ideograph or the like adjoins the bytes from i to `end`, or precedes them by a space. */
static bool is_in_wide_text(const masking *m, size_t i, size_t end) {
    if (i > 0 && pii_is_one_of(pii_byte_before(m, i), " :")) i--;
    return pii_byte_at(m, end) >= 0xE3 ||
           (i > 0 && pii_byte_at(m, pii_character_before(m, i)) >= 0xE3);
}

/* 138 0013 8000; 13800138000 in Chinese text, elsewhere it may be any number. */
static bool is_chinese_mobile(const masking *m, const phone_groups *g) {
    if (g->first != 1 || g->second < 3 || g->brackets) return false;
    if (g->n == 1) return g->length[0] == 11 && is_in_wide_text(m, g->begin[0], g->end);
    return has_lengths(g, "344") && g->area == g->separator && g->area != '.' && g->area != '/';
}

/* 98765-43210, but not 60000-64999, a range. Separated by a space, they may be any two numbers. */
static bool is_indian_mobile(const masking *m, const phone_groups *g) {
    if (g->first < 6 || !has_lengths(g, "55") || g->area != '-') return false;
    bool round = pii_byte_at(m, g->begin[0] + 4) == '0';
    return !round || memcmp(m->text.at + g->begin[0], m->text.at + g->begin[1], 5) > 0;
}

/* (11) 91234-5678, (11) 1234-5678. */
static bool is_brazilian_number(const masking *m, const phone_groups *g) {
    if (!g->brackets || g->first == 0 || g->second <= 0 || g->separator != '-') return false;
    return has_lengths(g, "254") || has_lengths(g, "244");
}

/* Whether the separators are those of a number, not of pages and a year (259-264 1970) or of a clause of US
 * procurement law (252.227-7013). */
static bool is_american_style(const masking *m, const phone_groups *g) {
    if (g->brackets || g->area == g->separator) return true;
    return g->separator == '-' &&
           (g->area == ' ' || (g->area == '.' && !pii_has(m, g->begin[0], "252.2")));
}

/* (212) 555-0123, 212-555-0123, 212.555.0123, 1 212 555 0123. Groups separated only by spaces may be any
 * numbers, so these need the leading 1 or the parentheses. */
static size_t american_end(const masking *m, size_t i) {
    phone_groups g;
    int kind = 0;
    bool sure = pii_byte_at(m, i) == '1' && separator_at(m, i + 1, &kind) && kind != '/';
    size_t from = i + (sure ? 1 + separator_at(m, i + 1, &kind) : 0);
    if (!read_groups(m, from, 3, &g) || !has_lengths(&g, "334") || g.first < 2) return i;
    if (pii_byte_at(m, g.begin[1]) < '2' || g.area == '/' || g.separator == '/') return i;
    if (!is_american_style(m, &g)) return i;
    sure = sure || g.brackets || g.separator != ' ';
    bool space;
    return sure && !number_continues(m, g.end, &space) ? g.end : i;
}

/* A column of numbers is not a phone number: no other number may adjoin it. */
static size_t national_end(const masking *m, size_t i) {
    static bool (*const forms[])(const masking *, const phone_groups *) = {
        is_trunk_number, is_german_number, is_chinese_mobile, is_indian_mobile, is_brazilian_number
    };
    phone_groups g;
    bool before, after;
    if (!read_groups(m, i, MOST_GROUPS, &g) || number_continues(m, g.end, &after) || after)
        return i;
    if (number_begins_earlier(m, i, &before) || (before && !g.brackets)) return i;
    for (size_t k = 0; k < COUNT_OF(forms); k++)
        if (forms[k](m, &g)) return g.end;
    return i;
}

/* ---- after a label ----------------------------------------------------------------------------- */

/* Words before a number that make it a phone number; ASCII letters in lower case. */
static const char *const labels[] = {
    "tel",     "telephone", "phone",    "mobile",   "fax",     "whatsapp", "tél",  "téléphone",
    "telefon", "telefone",  "teléfono", "telefono", "celular", "handy",    "电话", "電話",
    "手机",    "手機",      "携帯",     "फ़ोन",      "फोन",     "मोबाइल",
};

static bool label_precedes(const masking *m, size_t i) {
    enum { MARKS = 4 };
    static const char wide_colon[] = "\xEF\xBC\x9A";
    for (int n = 0; n < MARKS && pii_is_one_of(pii_byte_before(m, i), " .:="); n++) i--;
    if (i >= 3 && pii_has(m, i - 3, wide_colon)) i -= 3;
    for (size_t k = 0; k < COUNT_OF(labels); k++) {
        size_t n = strlen(labels[k]);
        if (n > i || !pii_has_nocase(m, i - n, labels[k])) continue;
        bool ideographs = (unsigned char)labels[k][0] >= 0xE3;
        if (ideographs || !pii_letter_precedes(m, i - n)) return true;
    }
    return false;
}

/* Any groups of at least two digits. Years and the like have fewer than nine. */
static size_t labeled_end(const masking *m, size_t i) {
    enum { FEWEST = 9, MOST = 12 };
    phone_groups g;
    if (!label_precedes(m, i) || !read_groups(m, i, MOST_GROUPS, &g)) return i;
    for (int k = 0; k < g.n; k++)
        if (g.length[k] < 2) return i;
    bool space;
    return g.digits >= FEWEST && g.digits <= MOST && !number_continues(m, g.end, &space) ? g.end
                                                                                         : i;
}

size_t pii_phone_end(const masking *m, size_t i) {
    if (pii_byte_at(m, i) == '+') return international_end(m, i);
    size_t end = labeled_end(m, i);
    bool space;
    if (end > i || number_begins_earlier(m, i, &space)) return end;
    end = american_end(m, i);
    return end > i ? end : national_end(m, i);
}
