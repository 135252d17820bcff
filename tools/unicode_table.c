/* Writes the table of src/text/text.h's code point classes, made from utf8proc at build time:
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

static uint8_t classify(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    uint8_t class = (size_t)category < sizeof class_of ? class_of[category] : 0;
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
