/* Refuses inputs that are not text. Every byte sequence can be decoded as text with enough U+FFFD,
 * so without this check an archive or an image would be read as one long strange document. The
 * content decides, not the name: known formats by their magic number, UTF-16 by its byte order
 * mark, anything else by its share of control characters, and text in other encodings by its share of
 * invalid UTF-8. Checks the first bytes of every input, decompressed. */
#include <string.h>

#include "text/parser_internal.h"

typedef struct magic {
    const char *bytes;
    size_t n, offset;
    const char *name, *remedy;
} magic;
#define TABLES  "convert it to Parquet or JSON lines, for instance with pyarrow or duckdb"
#define EXTRACT "extract it, and pass the text files in it"
#define DECODE  "decompress it, or recompress it as .zst or .gz"
#define NO_TEXT "pass text, JSON lines, Parquet, Arrow, WARC or WET files"
static const magic magics[] = {
    { "\x02\x21\x4C\x18", 4, 0, "LZ4 data of the legacy format", DECODE },
    { "PK\x03\x04", 4, 0, "a zip archive", EXTRACT },
    { "7z\xBC\xAF\x27\x1C", 6, 0, "a 7z archive", EXTRACT },
    { "PARE", 4, 0, "an encrypted Parquet file", "decrypt it with the program that wrote it" },
    { "FEA1", 4, 0, "a Feather file of version 1", TABLES },
    { "Obj\x01", 4, 0, "an Avro file", TABLES },
    { "SQLite format 3", 15, 0, "an SQLite database", TABLES },
    { "\x89HDF", 4, 0, "an HDF5 file", TABLES },
    { "\x93NUMPY", 6, 0, "a NumPy array", "pass token files to ingot train or data stats" },
    { "INGOTTOK", 8, 0, "a token shard", "pass token files to ingot train or data stats" },
    { "%PDF-", 5, 0, "a PDF file", "extract its text, for instance with pdftotext" },
    { "\x89PNG", 4, 0, "a PNG image", NO_TEXT },
    { "\xFF\xD8\xFF", 3, 0, "a JPEG image", NO_TEXT },
    { "GIF89a", 6, 0, "a GIF image", NO_TEXT },
    { "GIF87a", 6, 0, "a GIF image", NO_TEXT },
    { "\x7F"
      "ELF",
      4, 0, "an ELF program", NO_TEXT },
    { "\xFF\xFE", 2, 0, "UTF-16 or UTF-32 text", "convert it: iconv -f UTF-16 -t UTF-8 IN > OUT" },
    { "\xFE\xFF", 2, 0, "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 IN > OUT" },
};

/* More than one byte in fifty. Random bytes have five, UTF-16 of most languages has many more; a
 * text with a few stray control characters has fewer. */
static bool looks_binary(const char *head, size_t n) {
    size_t odd = 0;
    for (const unsigned char *c = (const unsigned char *)head, *end = c + n; c < end; c++)
        odd += *c < 0x20 && !(*c >= '\b' && *c <= '\r') && *c != 0x1B; /* not used by text */
    return odd > 3 && odd * 50 > n;
}

err refuse_known_binary(const char *path, const char *head, size_t n) {
    for (size_t i = 0; i < COUNT_OF(magics); i++) {
        const magic *m = &magics[i];
        if (n < m->offset + m->n || memcmp(head + m->offset, m->bytes, m->n) != 0) continue;
        return err_hint(ERR("%s is %s, which ingot does not read", path, m->name), "%s", m->remedy);
    }
    return OK;
}

err refuse_binary(const char *path, const char *head, size_t n) {
    TRY(refuse_known_binary(path, head, n));
    bool warc = n >= 5 && memcmp(head, "WARC/", 5) == 0; /* its records may be images */
    if (warc || tar_has_magic(head, n) || !looks_binary(head, n)) return OK;
    return err_hint(ERR("%s is not text: its beginning is full of control characters", path),
                    "pass UTF-8 text; iconv converts UTF-16 and other encodings");
}

/* More than one byte in ten. Nearly every letter of Cyrillic, Greek or East Asian text is invalid, and one
 * in five bytes of Chinese UTF-16; Latin text of a Western encoding has fewer and is repaired. */
err refuse_other_encoding(const char *path, const char *head, size_t n) {
    str repaired = { 0 };
    int64_t bad = utf8_repair(head, n, &repaired);
    str_free(&repaired);
    if (bad < 8 || (size_t)bad * 10 <= n) return OK;
    return err_hint(
        ERR("%s is not UTF-8: %lld of its first %zu bytes are invalid", path, (long long)bad, n),
        "convert it, for example with iconv -f GB18030 -t UTF-8 IN > OUT; --format reads "
        "it as it is");
}
