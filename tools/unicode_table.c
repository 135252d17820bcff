/* Writes the table of src/data/text/text.h's code point classes, made from utf8proc at build time:
 * 256 code points to a page, equal pages stored once.
 *
 *     unicode_table > unicode_table.c
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

enum { LETTER = 1, NUMBER = 2, SPACE = 4, MARK = 8, UPPER = 16, LOWER = 32, PUNCT = 64, SYM = 128 };

static const uint8_t class_of[] = {
    [UTF8PROC_CATEGORY_LU] = LETTER | UPPER,
    [UTF8PROC_CATEGORY_LL] = LETTER | LOWER,
    [UTF8PROC_CATEGORY_LT] = LETTER | UPPER,
    [UTF8PROC_CATEGORY_LM] = LETTER,
    [UTF8PROC_CATEGORY_LO] = LETTER,
    [UTF8PROC_CATEGORY_MN] = MARK,
    [UTF8PROC_CATEGORY_MC] = MARK,
    [UTF8PROC_CATEGORY_ME] = MARK,
    [UTF8PROC_CATEGORY_ND] = NUMBER,
    [UTF8PROC_CATEGORY_NL] = NUMBER,
    [UTF8PROC_CATEGORY_NO] = NUMBER,
    [UTF8PROC_CATEGORY_PC] = PUNCT,
    [UTF8PROC_CATEGORY_PD] = PUNCT,
    [UTF8PROC_CATEGORY_PS] = PUNCT,
    [UTF8PROC_CATEGORY_PE] = PUNCT,
    [UTF8PROC_CATEGORY_PI] = PUNCT,
    [UTF8PROC_CATEGORY_PF] = PUNCT,
    [UTF8PROC_CATEGORY_PO] = PUNCT,
    [UTF8PROC_CATEGORY_SM] = SYM,
    [UTF8PROC_CATEGORY_SC] = SYM,
    [UTF8PROC_CATEGORY_SK] = SYM,
    [UTF8PROC_CATEGORY_SO] = SYM,
    [UTF8PROC_CATEGORY_CO] = 0,
};

/* White_Space of the Unicode character database: few, and the same since version 6.3. */
static int is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* Assigned in Unicode 15.1 and 16, for a utf8proc that does not know them yet: tokenizers of others
 * do. */
static const struct {
    uint32_t first, last;
    uint8_t class;
} later[] = {
    { 0x897, 0x897, MARK },
    { 0x1B4E, 0x1B4F, PUNCT },
    { 0x1B7F, 0x1B7F, PUNCT },
    { 0x1C89, 0x1C89, LETTER | UPPER },
    { 0x1C8A, 0x1C8A, LETTER | LOWER },
    { 0x2427, 0x2429, SYM },
    { 0x2FFC, 0x2FFF, SYM },
    { 0x31E4, 0x31E5, SYM },
    { 0x31EF, 0x31EF, SYM },
    { 0xA7CB, 0xA7CC, LETTER | UPPER },
    { 0xA7CD, 0xA7CD, LETTER | LOWER },
    { 0xA7DA, 0xA7DA, LETTER | UPPER },
    { 0xA7DB, 0xA7DB, LETTER | LOWER },
    { 0xA7DC, 0xA7DC, LETTER | UPPER },
    { 0x105C0, 0x105F3, LETTER },
    { 0x10D40, 0x10D49, NUMBER },
    { 0x10D4A, 0x10D4F, LETTER },
    { 0x10D50, 0x10D65, LETTER | UPPER },
    { 0x10D69, 0x10D6D, MARK },
    { 0x10D6E, 0x10D6E, PUNCT },
    { 0x10D6F, 0x10D6F, LETTER },
    { 0x10D70, 0x10D85, LETTER | LOWER },
    { 0x10D8E, 0x10D8F, SYM },
    { 0x10EC2, 0x10EC4, LETTER },
    { 0x10EFC, 0x10EFC, MARK },
    { 0x11380, 0x11389, LETTER },
    { 0x1138B, 0x1138B, LETTER },
    { 0x1138E, 0x1138E, LETTER },
    { 0x11390, 0x113B5, LETTER },
    { 0x113B7, 0x113B7, LETTER },
    { 0x113B8, 0x113C0, MARK },
    { 0x113C2, 0x113C2, MARK },
    { 0x113C5, 0x113C5, MARK },
    { 0x113C7, 0x113CA, MARK },
    { 0x113CC, 0x113D0, MARK },
    { 0x113D1, 0x113D1, LETTER },
    { 0x113D2, 0x113D2, MARK },
    { 0x113D3, 0x113D3, LETTER },
    { 0x113D4, 0x113D5, PUNCT },
    { 0x113D7, 0x113D8, PUNCT },
    { 0x113E1, 0x113E2, MARK },
    { 0x116D0, 0x116E3, NUMBER },
    { 0x11BC0, 0x11BE0, LETTER },
    { 0x11BE1, 0x11BE1, PUNCT },
    { 0x11BF0, 0x11BF9, NUMBER },
    { 0x11F5A, 0x11F5A, MARK },
    { 0x13460, 0x143FA, LETTER },
    { 0x16100, 0x1611D, LETTER },
    { 0x1611E, 0x1612F, MARK },
    { 0x16130, 0x16139, NUMBER },
    { 0x16D40, 0x16D6C, LETTER },
    { 0x16D6D, 0x16D6F, PUNCT },
    { 0x16D70, 0x16D79, NUMBER },
    { 0x18CFF, 0x18CFF, LETTER },
    { 0x1CC00, 0x1CCEF, SYM },
    { 0x1CCF0, 0x1CCF9, NUMBER },
    { 0x1CD00, 0x1CEB3, SYM },
    { 0x1E5D0, 0x1E5ED, LETTER },
    { 0x1E5EE, 0x1E5EF, MARK },
    { 0x1E5F0, 0x1E5F0, LETTER },
    { 0x1E5F1, 0x1E5FA, NUMBER },
    { 0x1E5FF, 0x1E5FF, PUNCT },
    { 0x1F8B2, 0x1F8BB, SYM },
    { 0x1F8C0, 0x1F8C1, SYM },
    { 0x1FA89, 0x1FA89, SYM },
    { 0x1FA8F, 0x1FA8F, SYM },
    { 0x1FABE, 0x1FABE, SYM },
    { 0x1FAC6, 0x1FAC6, SYM },
    { 0x1FADC, 0x1FADC, SYM },
    { 0x1FADF, 0x1FADF, SYM },
    { 0x1FAE9, 0x1FAE9, SYM },
    { 0x1FBCB, 0x1FBEF, SYM },
    { 0x2EBF0, 0x2EE5D, LETTER },
};

static uint8_t classify(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    uint8_t class = (size_t)category < sizeof class_of ? class_of[category] : 0;
    for (size_t i = 0; category == UTF8PROC_CATEGORY_CN && i < sizeof later / sizeof later[0]; i++)
        if (c >= later[i].first && c <= later[i].last) class = later[i].class;
    return (uint8_t)(class | (is_space(c) ? SPACE : 0));
}

int main(void) {
    enum { PAGES = 0x1100 };
    static uint8_t pages[PAGES][256];
    static int number[PAGES];
    int n = 0;
    for (uint32_t p = 0; p < PAGES; p++) {
        for (uint32_t i = 0; i < 256; i++) pages[n][i] = classify(p * 256 + i);
        int same = 0;
        while (memcmp(pages[same], pages[n], 256) != 0) same++;
        number[p] = same;
        n += same == n;
    }
    printf("#include \"text/text.h\"\n\nconst uint16_t unicode_pages[0x1100] = {");
    for (int p = 0; p < PAGES; p++) printf("%s%d,", p % 16 ? " " : "\n    ", number[p]);
    printf("\n};\nconst uint8_t unicode_classes[] = {");
    for (int i = 0; i < n * 256; i++)
        printf("%s%d,", i % 32 ? " " : "\n    ", pages[i / 256][i % 256]);
    printf("\n};\n");
    return 0;
}
