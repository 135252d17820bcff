/* The bytes of one input, decompressed (byte_reader.c, object_reader.c), and whether they are text (binary.c, charset.c). */
#ifndef INGOT_TEXT_BYTE_READER_INTERNAL_H
#define INGOT_TEXT_BYTE_READER_INTERNAL_H

#include "text/text.h"

typedef enum { /* state.json has these numbers */
               COMPRESSION_NONE,
               COMPRESSION_GZIP,
               COMPRESSION_ZSTD,
               COMPRESSION_DETECT,
               COMPRESSION_PARQUET, /* of outputs: not JSON lines, and compressed inside */
               COMPRESSION_BZIP2,   /* this one and those after it: of inputs only */
               COMPRESSION_XZ,
               COMPRESSION_LZ4,
               COMPRESSION_BROTLI,
} text_compression;
/* Detects the compression from the first bytes of a file. */
text_compression compression_of_bytes(const char *head, size_t n);
/* ... or from its name. *bare: length of the name without the ending of the compression. */
text_compression compression_of_name(const char *name, size_t *bare);
/* An error if the first bytes of an input are of a known format that is not text.
 * @param head after decompression, or before it to recognize other compressions. */
err refuse_known_binary(const char *path, const char *head, size_t n) MUST_USE;
/* The same, and if they look like any other data that is not text. @param head decompressed. */
err refuse_binary(const char *path, const char *head, size_t n) MUST_USE;
/* An error if they are text in another encoding than UTF-8: little of it would remain. */
err refuse_other_encoding(const char *path, const char *head, size_t n) MUST_USE;
typedef struct byte_reader byte_reader;
/* Opens a file ("-": standard input; "s3://...": an object). @param from, to byte range of a plain file; to < 0: up to
 * its end. @param path borrowed. */
err byte_reader_open(const char *path, text_compression compression, int64_t from, int64_t to,
                     byte_reader **out) MUST_USE;
/* Decompresses up to n bytes; *got is smaller only at the end. Bytes that cannot be decompressed
 * end the input and are reported by byte_reader_damage; only errors of the system are returned. */
err byte_reader_read(byte_reader *s, char *to, size_t n, size_t *got) MUST_USE;
/* @return bytes of the file consumed so far. */
int64_t byte_reader_consumed(const byte_reader *s);
/* @return why and where the input ended early; NULL: it did not. */
const char *byte_reader_damage(const byte_reader *s);
/* Makes the reader pass on only frames whose checksums are right, up to where the file ends; a frame that is damaged
 * ends the input. @param again the file can be read twice; else a long damaged frame is an error. */
void byte_reader_check_frames(byte_reader *s, bool again);
/* @return bytes of a damaged file that were not passed on: of the file, or of the text if more are known. */
int64_t byte_reader_lost(const byte_reader *s, int64_t file_bytes);
void byte_reader_close(byte_reader *s); /* takes NULL */
typedef struct object_reader object_reader;
/* @param url borrowed. @param to < 0: up to its end. */
err object_reader_open(const char *url, int64_t from, int64_t to, object_reader **out) MUST_USE;
/* Reads up to n bytes; *got is smaller only at the end. */
err object_reader_read(object_reader *r, char *to, size_t n, size_t *got) MUST_USE;
/* Reads exactly n bytes at an offset. */
err object_reader_read_at(object_reader *r, int64_t offset, void *to, size_t n) MUST_USE;
void object_reader_close(object_reader *r); /* takes NULL */

#endif
