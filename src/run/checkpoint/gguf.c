/* Writes a model as a GGUF file:
 *
 *     | "GGUF" version tensors pairs | key type value ... | name dims type offset ... | padding | tensor padding ... |
 *
 * Dimensions are listed from the contiguous one on. Vectors (norms, biases) are fp32 in every file; q8_0 stores 32
 * elements as one fp16 factor and 32 signed bytes, and falls to fp16 for rows that are not multiples of 32. */
#include "checkpoint/gguf_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

enum { VERSION = 3, ALIGNMENT = 32, BLOCK = 32, BLOCK_BYTES = 2 + BLOCK };

/* By gguf_type: its name, ggml's number of the element type, the file's type, and the type in memory. */
static const struct {
    const char *name;
    uint32_t ggml, file;
    dtype dt; /* DT_NONE: blocks */
} types[] = {
    [GGUF_F32] = { "fp32", 0, 0, DT_F32 },
    [GGUF_F16] = { "fp16", 1, 1, DT_F16 },
    [GGUF_BF16] = { "bf16", 30, 32, DT_BF16 },
    [GGUF_Q8_0] = { "q8_0", 8, 7, DT_NONE },
};

bool gguf_type_from_name(const char *name, gguf_type *out) {
    for (size_t i = 0; i < COUNT_OF(types); i++)
        if (!strcmp(types[i].name, name)) {
            *out = (gguf_type)i;
            return true;
        }
    return false;
}

static gguf_type type_for(const hf_tensor *t, gguf_type wanted) {
    if (t->ndim == 1 || str_ends(t->name, ".bias") || str_ends(t->name, GGUF_CONV)) return GGUF_F32;
    return wanted == GGUF_Q8_0 && t->dim[t->ndim - 1] % BLOCK ? GGUF_F16 : wanted;
}

static size_t gguf_bytes(const hf_tensor *t, gguf_type type) {
    if (type == GGUF_Q8_0) return (size_t)(t->count / BLOCK) * BLOCK_BYTES;
    return (size_t)t->count * dt_size(types[type].dt);
}

/* ---- tensors ------------------------------------------------------------------------------- */
/* The factors that frequencies are divided by, which llama.cpp reads as tensors of their own: one, or those of short and of
 * long contexts. */
typedef struct rope_tensors {
    hf_tensor t[2];
    int n;
} rope_tensors;
static rope_tensors frequencies_of(const model_config *c) {
    static const char *const listed[] = { "rope_factors_short.weight", "rope_factors_long.weight" };
    bool by_key =
        c->rope_scaling == ROPE_YARN || (c->rope_scaling == ROPE_LINEAR && c->rope_local != 0);
    bool beyond = c->rope_scaling == ROPE_LONG;
    rope_tensors out = { .n = beyond ? 2 : 1 };
    if (c->pos != POS_ROPE || c->rope_scaling == ROPE_PLAIN || by_key) out.n = 0;
    for (int i = 0; i < out.n; i++)
        out.t[i] = (hf_tensor){
            beyond ? listed[i] : "rope_freqs.weight", 1, { rope_dims(c) / 2 }, rope_dims(c) / 2
        };
    return out;
}

static void add_tensor_info(str *to, const hf_tensor *t, gguf_type type, uint64_t offset) {
    gguf_put_text(to, t->name);
    gguf_put(to, (uint64_t)t->ndim, 4);
    for (int k = t->ndim - 1; k >= 0; k--) gguf_put(to, (uint64_t)t->dim[k], 8);
    gguf_put(to, types[type].ggml, 4);
    gguf_put(to, offset, 8);
}

static err write_padding(io_writer *w, size_t written) {
    static const uint8_t zeros[ALIGNMENT];
    return io_writer_write(w, zeros, align_up(written, ALIGNMENT) - written);
}

static void quantize_block(const float *x, uint8_t *out) {
    float most = 0;
    for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(x[i]));
    float factor = most / 127, inverse = factor > 0 ? 1 / factor : 0;
    dt_from_f32(DT_F16, &factor, out, 1);
    for (int i = 0; i < BLOCK; i++) out[2 + i] = (uint8_t)(int8_t)lrintf(x[i] * inverse);
}

static err write_blocks(io_writer *w, const hf_tensor *t, const float *values) {
    uint8_t piece[128 * BLOCK_BYTES];
    size_t used = 0;
    for (int64_t at = 0; at < t->count; at += BLOCK) {
        float most = 0;
        for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(values[at + i]));
        if (!(most / 127 <= 65504))
            return err_hint(
                ERR("%s: element %lld or a near one is too large for q8_0", t->name, (long long)at),
                "export with --dtype=bf16 or --dtype=fp32");
        quantize_block(values + at, piece + used);
        used += BLOCK_BYTES;
        if (used < sizeof piece && at + BLOCK < t->count) continue;
        TRY(io_writer_write(w, piece, used));
        used = 0;
    }
    return OK;
}

static err write_elements(io_writer *w, const hf_tensor *t, const float *values, dtype dt) {
    uint8_t piece[4096];
    int64_t step = (int64_t)(sizeof piece / dt_size(dt));
    for (int64_t at = 0; at < t->count; at += step) {
        int64_t n = MIN(step, t->count - at);
        dt_from_f32(dt, values + at, piece, n);
        TRY(hf_check_narrow(t->name, dt, at, values + at, piece, n));
        TRY(io_writer_write(w, piece, (size_t)n * dt_size(dt)));
    }
    return OK;
}

static err write_tensors(io_writer *w, hf_tensors *x, gguf_type wanted) {
    for (int i = 0; i < hf_tensors_count(x); i++) {
        const hf_tensor *t = hf_tensors_at(x, i);
        gguf_type type = type_for(t, wanted);
        const float *values;
        TRY(hf_tensors_read(x, i, &values));
        if (type == GGUF_Q8_0)
            TRY(write_blocks(w, t, values));
        else
            TRY(write_elements(w, t, values, types[type].dt));
        TRY(write_padding(w, gguf_bytes(t, type)));
    }
    return OK;
}

/* @param length of the sequences that they are for */
static err write_frequencies(io_writer *w, const hf_tensor *t, const model_config *c,
                             int64_t length) {
    float *factor = mem_alloc((size_t)t->count * sizeof *factor);
    for (int64_t i = 0; i < t->count; i++)
        factor[i] = (float)(rope_frequency(c, i, 0) / rope_frequency(c, i, length));
    err e = write_elements(w, t, factor, DT_F32);
    free(factor);
    return e ? e : write_padding(w, gguf_bytes(t, GGUF_F32));
}

err gguf_family_for(const model_config *c, const char *wanted, const hf_family **family) {
    err first = OK;
    for (int i = 0; !wanted && hf_family_at(i); i++) {
        const hf_family *f = hf_family_at(i);
        const gguf_model *g = gguf_model_of(f, c);
        if (!g || !hf_expresses(f, c)) continue;
        *family = f;
        err e = gguf_check_model(g, c);
        if (!e) {
            err_free(first);
            return OK;
        }
        if (first)
            err_free(e);
        else
            first = e;
    }
    return first ? first : hf_family_for(c, wanted, family);
}

/* ---- the file ------------------------------------------------------------------------------ */
/* @return the model's name. llama.cpp gives tokens of Phi-3 other attributes by it, and reads no file that lacks one of them. */
static const char *gguf_model_name(const gguf_model *g, const model_config *c,
                                   const tokenizer *tok) {
    static const char *const tokens[] = { "</s>", "<unk>", "<s>", "<|endoftext|>" };
    const char *name = c->name[0] ? c->name : g->name;
    bool all = true;
    for (size_t i = 0; i < COUNT_OF(tokens); i++)
        all &= tokenizer_find(tok, tokens[i], strlen(tokens[i])) >= 0;
    bool phi = strstr(name, "phi3") || strstr(name, "phi-3");
    return phi && !all ? "ingot" : name;
}

static err describe_file(gguf_meta *m, const gguf_model *g, const hf_export *x, gguf_type type) {
    const model_config *c = model_conf(x->m);
    hf_tokens tokens;
    str chat = { 0 };
    gguf_add_text(m, "general.architecture", g->name);
    gguf_add_integer(m, "general.file_type", types[type].file);
    gguf_add_integer(m, "general.quantization_version", 2);
    gguf_add_model(m, g, c);
    if (!x->tok)
        return err_hint(ERR("the run has no tokenizer, without which llama.cpp reads no model"),
                        "copy its tokenizer.json into the run's folder");
    gguf_add_text(m, "general.name", gguf_model_name(g, c, x->tok));
    err e = hf_find_tokens(x, &tokens, &chat);
    if (!e && chat.len) gguf_add_text(m, "tokenizer.chat_template", chat.text);
    str_free(&chat);
    return e ? e : gguf_add_tokenizer(m, x->tok, tokens, c->vocab);
}

/* All that comes before the data, padded. */
static void list_file(str *head, const gguf_meta *meta, hf_tensors *x, gguf_type wanted,
                      const rope_tensors *frequencies) {
    int n = hf_tensors_count(x);
    uint64_t offset = 0;
    str_add_bytes(head, "GGUF", 4);
    gguf_put(head, VERSION, 4);
    gguf_put(head, (uint64_t)(n + frequencies->n), 8);
    gguf_put(head, meta->pairs, 8);
    str_add_bytes(head, meta->bytes.text, meta->bytes.len);
    for (int i = 0; i < n; i++) {
        const hf_tensor *t = hf_tensors_at(x, i);
        gguf_type type = type_for(t, wanted);
        add_tensor_info(head, t, type, offset);
        offset += align_up(gguf_bytes(t, type), ALIGNMENT);
    }
    for (int i = 0; i < frequencies->n; i++) {
        add_tensor_info(head, &frequencies->t[i], GGUF_F32, offset);
        offset += align_up(gguf_bytes(&frequencies->t[i], GGUF_F32), ALIGNMENT);
    }
    while (head->len % ALIGNMENT) gguf_put(head, 0, 1);
}

err gguf_export_file(const char *path, const hf_export *x, gguf_type type) {
    const model_config *c = model_conf(x->m);
    const gguf_model *g = gguf_model_of(x->family, c);
    const rope_tensors frequencies = frequencies_of(c);
    gguf_meta meta = { 0 };
    str head = { 0 };
    hf_tensors *tensors = NULL;
    io_writer *w = NULL;
    err e = OK;
    if (!g)
        return err_hint(
            ERR("models of the type %s are not written as GGUF files", hf_family_type(x->family)),
            "export to a Hugging Face folder instead");
    TRY(gguf_check_model(g, c));
    TRY_CLEAN(describe_file(&meta, g, x, type));
    TRY_CLEAN(hf_tensors_open(x->family, g->name, g->params, g->n_params, x->m,
                              (hf_getter){ x->get, x->ctx, false }, &tensors));
    list_file(&head, &meta, tensors, type, &frequencies);
    TRY_CLEAN(io_writer_open(path, &w));
    TRY_CLEAN(io_writer_write(w, head.text, head.len));
    TRY_CLEAN(write_tensors(w, tensors, type));
    for (int i = 0; i < frequencies.n; i++)
        TRY_CLEAN(write_frequencies(w, &frequencies.t[i], c, i ? c->rope_original + 1 : 1));
    e = io_writer_commit(w);
    w = NULL;
cleanup:
    io_writer_abort(w);
    hf_tensors_close(tensors);
    str_free(&head);
    str_free(&meta.bytes);
    return e;
}
