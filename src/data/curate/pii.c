/* Personal data recognized by its form: public IP addresses here, e-mail addresses (pii_email.c), phone
 * numbers (pii_phone.c) and account numbers (pii_numbers.c).
 * Each kind has a function that returns where it ends, given a position where it may begin (for
 * e-mail, the position of the @). All of them look at a bounded number of bytes, so masking is
 * linear in the text. */
#include "curate/pii_internal.h"

#include <arpa/inet.h>
#include <string.h>

static bool is_hex(int c) {
    return pii_is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* ---- IP addresses ---------------------------------------------------------------------------- */

/* Excludes networks that are not on the public Internet (RFC 6890, documentation, multicast). */
static bool is_public4(uint32_t ip) {
    static const struct {
        uint32_t network;
        int bits;
    } apart[] = { { 0x00000000, 8 },  { 0x0A000000, 8 },  { 0x64400000, 10 }, { 0x7F000000, 8 },
                  { 0xA9FE0000, 16 }, { 0xAC100000, 12 }, { 0xC0000000, 24 }, { 0xC0000200, 24 },
                  { 0xC0A80000, 16 }, { 0xC6120000, 15 }, { 0xC6336400, 24 }, { 0xCB007100, 24 },
                  { 0xE0000000, 3 } };
    for (size_t i = 0; i < COUNT_OF(apart); i++)
        if ((ip ^ apart[i].network) >> (32 - apart[i].bits) == 0) return false;
    return true;
}

/* Parses the n bytes at i as an address of the family. */
static bool parse_ip(const masking *m, size_t i, size_t n, int family, void *out) {
    char text[INET6_ADDRSTRLEN];
    if (n >= sizeof text) return false;
    memcpy(text, m->text.at + i, n);
    text[n] = 0;
    return inet_pton(family, text, out) == 1;
}

static size_t ip4_end(const masking *m, size_t i) {
    size_t end = i;
    while (end - i < 16 && (pii_is_digit(pii_byte_at(m, end)) || pii_byte_at(m, end) == '.')) end++;
    if (end > i && pii_byte_at(m, end - 1) == '.') end--;
    uint8_t ip[4];
    if (pii_is_alnum(pii_byte_at(m, end)) || !parse_ip(m, i, end - i, AF_INET, ip)) return i;
    bool open =
        is_public4((uint32_t)ip[0] << 24 | (uint32_t)ip[1] << 16 | (uint32_t)ip[2] << 8 | ip[3]);
    return open ? end : i;
}

/* Global unicast, 2000::/3, except the documentation network. */
static size_t ip6_end(const masking *m, size_t i) {
    size_t end = i;
    while (end - i < INET6_ADDRSTRLEN &&
           (is_hex(pii_byte_at(m, end)) || pii_is_one_of(pii_byte_at(m, end), ":.")))
        end++;
    if (pii_is_alnum(pii_byte_at(m, end))) return i;
    uint8_t ip[16];
    for (; end > i; end--) { /* it may be followed by a colon or full stop of the sentence */
        if (parse_ip(m, i, end - i, AF_INET6, ip)) break;
        if (!pii_is_one_of(pii_byte_at(m, end - 1), ":.")) return i;
    }
    bool open = end > i && (ip[0] & 0xE0) == 0x20 && memcmp(ip, "\x20\x01\x0D\xB8", 4) != 0;
    return open ? end : i;
}

static size_t ip_end(const masking *m, size_t i) {
    int c = pii_byte_before(m, i);
    if (pii_is_alnum(c) || pii_is_one_of(c, "._:")) return i;
    bool four_hex = is_hex(pii_byte_at(m, i)) && is_hex(pii_byte_at(m, i + 1)) &&
                    is_hex(pii_byte_at(m, i + 2)) && is_hex(pii_byte_at(m, i + 3)) &&
                    pii_byte_at(m, i + 4) == ':';
    return four_hex ? ip6_end(m, i) : ip4_end(m, i);
}

/* ---- masking --------------------------------------------------------------------------------- */

static const bool interesting[256] = {
    ['@'] = true, ['+'] = true, ['('] = true, ['0'] = true, ['1'] = true,
    ['2'] = true, ['3'] = true, ['4'] = true, ['5'] = true, ['6'] = true,
    ['7'] = true, ['8'] = true, ['9'] = true,
};

/* Finds what the byte at i belongs to. @return its kind; -1: nothing. */
static int find_pii(const masking *m, size_t i, const char *const *masks, size_t *begin,
                    size_t *end) {
    if (pii_byte_at(m, i) == '@')
        return masks[PII_email] && pii_find_email(m, i, begin, end) ? PII_email : -1;
    bool iban = masks[PII_iban] && i >= m->done + 2 && pii_is_letter(pii_byte_before(m, i));
    if (iban && (*end = pii_iban_end(m, i - 2)) > i) return *begin = i - 2, PII_iban;
    *begin = i;
    if (masks[PII_card] && pii_is_digit(pii_byte_at(m, i)) && (*end = pii_card_end(m, i)) > i)
        return PII_card;
    if (masks[PII_ssn] && (*end = pii_ssn_end(m, i)) > i) return PII_ssn;
    if (masks[PII_ip] && pii_is_digit(pii_byte_at(m, i)) && (*end = ip_end(m, i)) > i)
        return PII_ip;
    if (masks[PII_phone] && (*end = pii_phone_end(m, i)) > i) return PII_phone;
    return -1;
}

bool pii_mask(text_span text, const char *const *masks, str *out, int64_t *count) {
    masking m = { .text = text };
    for (size_t i = 0; i < text.len; i++) {
        if (!interesting[(unsigned char)text.at[i]]) continue;
        size_t begin = i, end = i;
        int kind = find_pii(&m, i, masks, &begin, &end);
        if (kind >= 0) {
            str_add_bytes(out, text.at + m.done, begin - m.done);
            str_add_bytes(out, masks[kind], strlen(masks[kind]));
            count[kind]++;
            m.done = end;
            i = end - 1;
        } else {
            while (pii_is_digit(pii_byte_at(&m, i)) && pii_is_digit(pii_byte_at(&m, i + 1))) i++;
        }
    }
    if (m.done == 0) return false;
    str_add_bytes(out, text.at + m.done, text.len - m.done);
    return true;
}
