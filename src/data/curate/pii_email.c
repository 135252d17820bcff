/* E-mail addresses, also internationalized ones (RFC 6531): jörg@müller.de, почта@пример.рф, 用户@例子.公司.
 * Where a script does not separate words, an address in Latin letters ends where these end:
 * 请写信给ann@example.com谢谢. */
#include "curate/pii_internal.h"

enum { LOCAL_BYTES = 64, DOMAIN_BYTES = 255 };

/* Top-level domains that are not in Latin letters. */
static const char *const other_domains[] = {
    "рф",     "рус",   "бел",      "бг",     "ею",       "мкд",     "мон",    "орг",    "онлайн",
    "сайт",   "срб",   "укр",      "қаз",    "ком",      "москва",  "дети",   "ελ",     "ευ",
    "հայ",    "გე",    "中国",     "中國",   "公司",     "网络",    "网址",   "网站",   "在线",
    "中文网", "商城",  "商店",     "公益",   "政务",     "机构",    "集团",   "香港",   "台湾",
    "台灣",   "澳門",  "新加坡",   "移动",   "世界",     "佛山",    "广东",   "娱乐",   "游戏",
    "企业",   "信息",  "みんな",   "コム",   "クラウド", "ストア",  "한국",   "삼성",   "닷넷",
    "닷컴",   "भारत",  "संगठन",     "नेट",     "कॉम",      "ভারত",    "বাংলা",  "ਭਾਰਤ",   "ભારત",
    "இந்தியா", "இலங்கை", "சிங்கப்பூர்", "భారత్",    "ಭಾರತ",     "ഭാരതം",   "ලංකා",   "ไทย",    "คอม",
    "ລາວ",    "ישראל", "קום",      "امارات", "السعودية", "مصر",     "المغرب", "الاردن", "الجزائر",
    "تونس",   "سورية", "عمان",     "فلسطين", "قطر",      "پاکستان", "ایران",  "بھارت",  "شبكة",
    "موقع",   "كوم",   "عراق"
};

static bool is_local_part_char(int c) {
    return pii_is_digit(c) || pii_is_letter(c) || pii_is_one_of(c, "._%+-'&~!#$*=?^`{|}");
}
static bool is_label_char(int c) {
    return pii_is_digit(c) || pii_is_letter(c) || c == '-' || c >= 0x80;
}
/* Whether punctuation begins at i: of the blocks General Punctuation, CJK, and full-width forms. */
static bool is_wide_punctuation(const masking *m, size_t i) {
    int c = pii_byte_at(m, i), d = pii_byte_at(m, i + 1), e = pii_byte_at(m, i + 2);
    bool full_width =
        c == 0xEF && d == 0xBC && ((e >= 0x80 && e <= 0x8F) || (e >= 0x9A && e <= 0xA0));
    return c == 0xC2 || c == 0xE2 || (c == 0xE3 && d == 0x80) || full_width;
}

/* @return the end of a top-level domain that begins at i; i if there is none. */
static size_t top_domain_end(const masking *m, size_t i) {
    if (pii_is_letter(pii_byte_at(m, i)) && pii_is_letter(pii_byte_at(m, i + 1))) {
        size_t end = i;
        while (is_label_char(pii_byte_at(m, end)) && pii_byte_at(m, end) < 0x80) end++;
        while (pii_byte_at(m, end - 1) == '-') end--;
        return pii_letter_follows(m, end) ? i : end;
    }
    size_t best = i;
    for (size_t k = 0; k < COUNT_OF(other_domains); k++) {
        size_t end = i + strlen(other_domains[k]);
        if (end > best && pii_has(m, i, other_domains[k]) && !pii_letter_follows(m, end))
            best = end;
    }
    return best;
}

/* @return the end of the domain that begins at i, with at least one dot; i if there is none. */
static size_t domain_end(const masking *m, size_t i) {
    size_t end = i, at = i;
    while (at - i < DOMAIN_BYTES) {
        size_t label = at;
        while (is_label_char(pii_byte_at(m, at)) && !is_wide_punctuation(m, at)) at++;
        if (at == label || pii_byte_at(m, label) == '-') break;
        if (label > i && top_domain_end(m, label) > label) end = top_domain_end(m, label);
        if (pii_byte_at(m, at++) != '.') break;
    }
    return end - i <= DOMAIN_BYTES ? end : i;
}

/* @return where the local part that ends before `sign` begins. Letters of other scripts belong to it; those
 * of scripts that do not separate words only if the part ends in one. */
static size_t local_part_begin(const masking *m, size_t sign) {
    size_t i = sign;
    bool wide = sign > 0 && pii_byte_before(m, sign) >= 0x80;
    while (i > m->done && sign - i < LOCAL_BYTES) {
        size_t k = pii_character_before(m, i);
        int c = pii_byte_at(m, k);
        bool belongs = c < 0x80 ? is_local_part_char(c)
                                : pii_is_letter_lead(c) || (wide && !is_wide_punctuation(m, k));
        if (!belongs || k < m->done) break;
        i = k;
    }
    return i;
}

bool pii_find_email(const masking *m, size_t sign, size_t *begin, size_t *end) {
    size_t i = local_part_begin(m, sign);
    while (i < sign && !pii_is_alnum(pii_byte_at(m, i))) i++;
    if (i == sign || pii_byte_at(m, sign - 1) == '.') return false;
    *begin = i;
    *end = domain_end(m, sign + 1);
    return *end > sign + 1;
}
