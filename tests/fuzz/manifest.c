/* Any bytes as a checkpoint's manifest, beside the files of the fixture: everything that it names is read
 * and verified. A manifest is under a checksum of its own, which no mutation would get past, so what is
 * JSON gets the right one first. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint_internal.h"
#include "io/io.h"

static void copy_files(void) {
    static const char *const names[] = { CKPT_MODEL_FILE, CKPT_OPTIM_FILE };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *from = io_join(FIXTURES "/checkpoint2", names[i]);
        char *text;
        size_t n;
        err e = io_read(from, 1 << 20, &text, &n);
        BUG_IF(e);
        fuzz_write(names[i], text, n);
        free(text);
        free(from);
    }
}

/* @return the document as text with its checksum, owned; NULL: it is not an object. */
static char *seal(const uint8_t *data, size_t n) {
    json_t *doc = NULL;
    hash_text hash;
    err e = io_json_parse((const char *)data, n, "fuzz", &doc);
    if (e || !json_is_object(doc)) {
        err_free(e);
        json_decref(doc);
        return NULL;
    }
    json_object_del(doc, "checksum");
    char *text = json_dumps(doc, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    hash_print(hash_bytes(text, strlen(text), 0), hash);
    free(text);
    json_object_set_new(doc, "checksum", json_string(hash));
    text = json_dumps(doc, JSON_REAL_PRECISION(17));
    json_decref(doc);
    return text;
}

static void read_tensors(const char *folder) {
    enum { MOST = 4096 };
    static float values[MOST];
    ckpt_reader *r = NULL;
    err e = ckpt_open(folder, &r);
    for (int i = 0; !e && i < ckpt_tensors(r); i++)
        err_free(ckpt_read(r, i, 0, MIN(ckpt_tensor_at(r, i).count, (int64_t)MOST), values));
    err_free(e);
    ckpt_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static bool copied;
    if (!copied) copy_files();
    copied = true;
    log_set_level(LOG_ERROR);
    char *text = seal(data, n);
    fuzz_write(CKPT_MANIFEST_FILE, text ? text : (const char *)data, text ? strlen(text) : n);
    free(text);
    ckpt_info info;
    ckpt_state state;
    model_config c;
    json_t *run = NULL;
    err_free(ckpt_describe(fuzz_folder(), &info));
    err e = ckpt_read_manifest(fuzz_folder(), &c, &state, &run);
    if (!e) json_decref(run);
    err_free(e);
    err_free(ckpt_verify(fuzz_folder(), 0, 1, NULL));
    read_tensors(fuzz_folder());
    return 0;
}
