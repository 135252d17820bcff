/* Any bytes as token data. The first byte chooses the kind:
 *
 *     0  our own file   1  a .bin file (llm.c's, or raw ids)   2  Megatron's .idx   3  a folder's index.json
 *
 * Our own files are under checksums, which no mutation would get past, so theirs are put right first. What is
 * accepted is read to its end, through the document index too. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "shards/data.h"

static volatile int64_t sum;

static void read_all(const char *path) {
    data_source *s = NULL;
    err e = data_open(path, 0, &s);
    if (!e) {
        int64_t n = data_source_info(s)->tokens;
        for (int64_t i = 0; i < n; i++) sum += data_token(s, i);
        data_index_documents(s);
        for (int64_t d = 0; d < data_source_info(s)->documents; d++) sum += data_document(s, d).to;
    }
    err_free(e);
    data_close(s);
}

/* Header of 32 bytes, tokens, index, trailer of 48 bytes (of 32 in version 1): see data.h. */
static void seal(uint8_t *file, size_t n) {
    enum { HEADER = 32, TRAILER = 48, TRAILER_1 = 32, FRAME = 8 };
    uint64_t tokens, hash;
    if (n < HEADER + TRAILER) return;
    memcpy(file, "INGOTTOK", 8);
    bool first = file[8] == 1;
    size_t trailer = n - (first ? TRAILER_1 : TRAILER);
    uint16_t width;
    memcpy(&tokens, file + trailer, sizeof tokens);
    memcpy(&width, file + 12, sizeof width);
    if (!first && tokens < n && HEADER + tokens * width <= trailer) {
        size_t end = HEADER + (size_t)tokens * width;
        hash = hash_bytes(file + HEADER, end - HEADER, 0);
        memcpy(file + trailer + 16, &hash, sizeof hash);
        hash = hash_bytes(file + end, trailer - end, 0);
        memcpy(file + trailer + 32, &hash, sizeof hash);
    }
    hash = hash_bytes(file + trailer, n - FRAME - trailer, hash_bytes(file, HEADER, 0));
    memcpy(file + n - FRAME, &hash, sizeof hash);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char ids[4096];
    if (n < 2) return 0;
    log_set_level(LOG_ERROR);
    uint8_t *file = mem_alloc(n);
    memcpy(file, data + 1, n - 1);
    switch (data[0] % 4) {
    case 0:
        seal(file, n - 1);
        read_all(fuzz_write("a.tok", file, n - 1));
        break;
    case 1: read_all(fuzz_write("b.bin", file, n - 1)); break;
    case 2:
        fuzz_write("c.bin", ids, sizeof ids);
        read_all(fuzz_write("c.idx", file, n - 1));
        break;
    case 3:
        fuzz_write("index.json", file, n - 1);
        read_all(fuzz_folder());
        break;
    }
    free(file);
    return 0;
}
