/* manifest.json: what a checkpoint is. The format is described in checkpoint.h.
 *
 * A flipped bit in a number or a file name would still be valid JSON and would resume another run
 * than the one that was saved, so the manifest carries a checksum of itself: the hash of its members
 * in a canonical text (sorted keys, no spaces) without the member "checksum". Format 1, which has no
 * checksum, is still read, and so is format 2, whose files have one checksum each and no slices. */
#include "checkpoint/checkpoint_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void hash_print(uint64_t hash, hash_text out) {
    snprintf(out, sizeof(hash_text), "%016llx", (unsigned long long)hash);
}

err hash_read(const json_t *object, const char *name, const char *key, uint64_t *out) {
    const char *text;
    char *end;
    TRY(io_json_text(object, name, key, &text));
    *out = strtoull(text, &end, 16);
    return end == text + 16 && !*end
               ? OK
               : ERR("%s: \"%s\": expected sixteen hexadecimal digits", name, key);
}

/* ---- the checksum ------------------------------------------------------------------------ */
static void checksum_of(const json_t *doc, hash_text out) {
    json_t *rest = json_copy((json_t *)(uintptr_t)doc); /* shallow: jansson has no const here */
    json_object_del(rest, "checksum");
    char *text = json_dumps(rest, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    BUG_IF(!text); /* it was parsed from JSON, or made here */
    hash_print(hash_bytes(text, strlen(text), 0), out);
    free(text);
    json_decref(rest);
}

static err check_checksum(const json_t *doc, const char *path, int64_t format) {
    const char *want;
    hash_text got;
    if (format == CKPT_FORMAT_WITHOUT_CHECKSUM && !json_object_get(doc, "checksum")) return OK;
    TRY(io_json_text(doc, path, "checksum", &want));
    checksum_of(doc, got);
    if (!strcmp(got, want)) return OK;
    return err_hint(ERR("%s is damaged: its checksum is %s, it should be %s", path, got, want),
                    "restore it from a copy, or use another checkpoint");
}

err manifest_check(const json_t *doc, const char *name, int64_t *format) {
    int64_t found = 0;
    TRY(io_json_int(doc, name, "format", &found));
    if (found < 1 || found > CKPT_FORMAT)
        return err_hint(
            ERR("%s: format %lld; this version reads 1 to %d", name, (long long)found, CKPT_FORMAT),
            "use the version of ingot that wrote it");
    if (format) *format = found;
    return check_checksum(doc, name, found);
}

/* @return whether a folder is named after another step than its manifest's: someone renamed or copied it. */
static bool is_misnamed(const char *folder, const json_t *doc, int64_t *step) {
    size_t end = strlen(folder), begin;
    while (end > 1 && folder[end - 1] == '/') end--;
    for (begin = end; begin > 0 && folder[begin - 1] != '/';) begin--;
    char *name = strndup(folder + begin, end - begin);
    int64_t named = step_of_name(name);
    free(name);
    *step = json_integer_value(json_object_get(json_object_get(doc, "state"), "step"));
    return named >= 0 && named != *step;
}

err manifest_read(const char *folder, json_t **doc, int64_t *format) {
    const char *path = PATH_IN(folder, CKPT_MANIFEST_FILE);
    int64_t step;
    err e = io_is_dir(folder) && !io_exists(path)
                ? err_hint(ERR("%s is damaged: it has no %s", folder, CKPT_MANIFEST_FILE),
                           "restore it from a copy, or move the folder away")
                : io_json_read(path, doc);
    if (!e) e = manifest_check(*doc, path, format);
    if (!e && is_misnamed(folder, *doc, &step))
        e = err_hint(
            ERR("%s is the checkpoint of step %lld under another name", folder, (long long)step),
            "rename it step-%08lld, or move it away", (long long)step);
    return e;
}

bool manifest_is_foreign(const char *folder) {
    const char *path = PATH_IN(folder, CKPT_MANIFEST_FILE);
    json_t *doc = NULL;
    int64_t format = 0, step;
    err e = io_json_read(path, &doc);
    if (!e) e = io_json_int(doc, path, "format", &format);
    bool later = format > CKPT_FORMAT;
    if (!e && !later) e = manifest_check(doc, path, NULL);
    bool foreign = later || (!e && is_misnamed(folder, doc, &step));
    err_free(e);
    json_decref(doc);
    return foreign;
}

/* ---- files ------------------------------------------------------------------------------- */
err manifest_verify_file(const char *folder, const json_t *doc, const char *name) {
    json_t *files, *entry;
    const char *want;
    int64_t bytes;
    hash_text got;
    err e = OK;
    io_mapping map = { 0 };
    const char *manifest = PATH_IN(folder, CKPT_MANIFEST_FILE), *path = PATH_IN(folder, name);
    TRY_CLEAN(io_json_object(doc, manifest, "files", &files));
    TRY_CLEAN(io_json_object(files, manifest, name, &entry));
    TRY_CLEAN(io_json_text(entry, manifest, "xxh64", &want));
    TRY_CLEAN(io_json_int(entry, manifest, "bytes", &bytes));
    TRY_CLEAN(io_map(path, &map));
    hash_print(hash_bytes(map.data, map.size, 0), got);
    if ((int64_t)map.size != bytes || strcmp(got, want))
        e = err_hint(ERR("%s is damaged: it has %zu bytes with checksum %s; the manifest lists "
                         "%lld bytes with %s",
                         path, map.size, got, (long long)bytes, want),
                     "restore it from a copy, or use another checkpoint");
cleanup:
    io_unmap(&map);
    return e;
}

/* ---- state ------------------------------------------------------------------------------- */
static json_t *skips_json(const data_skips *s) {
    json_t *list = json_array();
    for (int i = 0; i < s->n; i++)
        json_array_append_new(
            list, json_pack("[I, I]", (json_int_t)s->at[i].from, (json_int_t)s->at[i].to));
    return list;
}

/* Checkpoints from before windows could be skipped have no list. */
static err read_skips(const json_t *state, const char *name, const char *key, data_skips *s) {
    *s = (data_skips){ 0 };
    json_t *list = json_object_get(state, key);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t from, to;
        if (json_unpack(json_array_get(list, i), "[I, I!]", &from, &to) || from < 0 || from >= to)
            return ERR("%s: \"%s\": expected pairs of numbers, the first the smaller", name, key);
        TRY(data_skips_add(s, (data_range){ from, to }, 0));
    }
    return OK;
}

/* Every number of a state, once: written and read by this table. */
typedef enum { AS_INT, AS_SEED, AS_REAL, AS_BOOL, AS_HASH } state_type;
static const struct state_field {
    const char *group, *key; /* group: the object it stands in, NULL: the state itself */
    state_type type;
    size_t at;
    bool added; /* older checkpoints lack it, which means 0 */
} state_fields[] = {
#define AT(member) offsetof(ckpt_state, member)
    { NULL, "step", AS_INT, AT(step) },
    { NULL, "updates", AS_INT, AT(updates) },
    { NULL, "tokens", AS_INT, AT(tokens) },
    { NULL, "windows", AS_INT, AT(windows) },
    { NULL, "epoch_offset", AS_BOOL, AT(epoch_offset), .added = true },
    { NULL, "seed", AS_SEED, AT(seed) },
    { NULL, "bytes", AS_BOOL, AT(bytes) },
    { NULL, "tokenizer", AS_HASH, AT(tokenizer), .added = true },
    { NULL, "prefixed", AS_BOOL, AT(prefixed), .added = true },
    { NULL, "skipped_updates", AS_INT, AT(skipped_updates), .added = true },
    { NULL, "saves", AS_INT, AT(saves), .added = true },
    { NULL, "seconds", AS_REAL, AT(seconds), .added = true },
    { NULL, "planned_steps", AS_INT, AT(planned_steps), .added = true },
    { NULL, "planned_seconds", AS_REAL, AT(planned_seconds), .added = true },
    { NULL, "position", AS_REAL, AT(position), .added = true },
    { "loss_scale", "scale", AS_REAL, AT(scaler.scale) },
    { "loss_scale", "good_steps", AS_INT, AT(scaler.good_steps) },
    { "loss_scale", "interval", AS_INT, AT(scaler.interval) },
    { "noise_scale", "g2", AS_REAL, AT(noise.g2) },
    { "noise_scale", "noise", AS_REAL, AT(noise.noise) },
    { "noise_scale", "decay", AS_REAL, AT(noise.decay) },
    { "noise_scale", "seen", AS_INT, AT(noise.seen) },
#undef AT
};

static json_t *field_json(const struct state_field *f, const ckpt_state *s) {
    const void *at = (const char *)s + f->at;
    hash_text hash;
    switch (f->type) {
    case AS_INT: return json_integer(*(const int64_t *)at);
    case AS_SEED: return json_integer((json_int_t) * (const uint64_t *)at);
    case AS_REAL: return json_real(*(const double *)at);
    case AS_BOOL: return json_boolean(*(const bool *)at);
    case AS_HASH: hash_print(*(const uint64_t *)at, hash); return json_string(hash);
    }
    BUG("unknown type of a state's field");
}

static err read_state_field(const json_t *o, const char *name, const struct state_field *f,
                            ckpt_state *s) {
    void *at = (char *)s + f->at;
    const char *hash;
    int64_t whole = 0;
    if (f->added && !json_object_get(o, f->key)) return OK;
    switch (f->type) {
    case AS_INT:
        TRY(io_json_int(o, name, f->key, at));
        if (*(int64_t *)at < 0) return ERR("%s: \"%s\" is negative", name, f->key);
        return OK;
    case AS_SEED:
        TRY(io_json_int(o, name, f->key, &whole));
        *(uint64_t *)at = (uint64_t)whole;
        return OK;
    case AS_REAL: return io_json_real(o, name, f->key, at);
    case AS_BOOL: return io_json_bool(o, name, f->key, at);
    case AS_HASH:
        TRY(io_json_text(o, name, f->key, &hash));
        *(uint64_t *)at = strtoull(hash, NULL, 16);
        return OK;
    }
    BUG("unknown type of a state's field");
}

static json_t *state_json(const ckpt_state *s) {
    json_t *state = json_object();
    for (size_t i = 0; i < COUNT_OF(state_fields); i++) {
        const struct state_field *f = &state_fields[i];
        if (f->group && !json_object_get(state, f->group))
            json_object_set_new(state, f->group, json_object());
        json_t *o = f->group ? json_object_get(state, f->group) : state;
        int failed = json_object_set_new(o, f->key, field_json(f, s));
        BUG_IF(failed); /* a number that is not finite */
    }
    json_object_set_new(state, "skipped", skips_json(&s->skips));
    if (s->replaced.n) json_object_set_new(state, "replaced", skips_json(&s->replaced));
    if (s->step > 0) /* an imported model has no loss */
        json_object_set_new(state, "loss", io_json_number(s->loss));
    if (isfinite(s->held_out_loss) && s->held_out_loss > 0) /* 0: none was measured */
        json_object_set_new(state, "held_out_loss", json_real(s->held_out_loss));
    return state;
}

static err read_state(const json_t *doc, const char *name, ckpt_state *s) {
    json_t *state;
    *s = (ckpt_state){ .loss = NAN, .held_out_loss = NAN };
    TRY(io_json_object(doc, name, "state", &state));
    for (size_t i = 0; i < COUNT_OF(state_fields); i++) {
        const struct state_field *f = &state_fields[i];
        json_t *o = state;
        if (f->group) TRY(io_json_object(state, name, f->group, &o));
        TRY(read_state_field(o, name, f, s));
    }
    const json_t *loss = json_object_get(state, "loss");
    if (json_is_number(loss)) s->loss = json_number_value(loss);
    const json_t *held_out = json_object_get(state, "held_out_loss");
    if (json_is_number(held_out)) s->held_out_loss = json_number_value(held_out);
    TRY(read_skips(state, name, "skipped", &s->skips));
    return read_skips(state, name, "replaced", &s->replaced);
}

bool manifest_loss_is_finite(const json_t *doc) {
    return !json_is_null(json_object_get(json_object_get(doc, "state"), "loss"));
}

err ckpt_check_tokenizer(const ckpt_state *s, const tokenizer *t, const char *path) {
    uint64_t got = tokenizer_hash(t);
    if (!s->tokenizer || s->bytes || got == s->tokenizer) return OK;
    return err_hint(ERR("%s is not the tokenizer this model was trained with: its hash is %016llx, "
                        "expected %016llx",
                        path, (unsigned long long)got, (unsigned long long)s->tokenizer),
                    "it was damaged or replaced: copy the right one there, such as that of the "
                    "training data");
}

err ckpt_open_tokenizer(const ckpt_state *s, const char *path, tokenizer **out) {
    TRY(tokenizer_open(path, NULL, out));
    if (!s->prefixed) {
        token_affixes a = *tokenizer_affixes(*out);
        a.n_prefix = 0;
        tokenizer_set_affixes(*out, &a);
    }
    err e = ckpt_check_tokenizer(s, *out, path);
    if (!e) return OK;
    tokenizer_free(*out);
    *out = NULL;
    return e;
}

/* ---- the whole --------------------------------------------------------------------------- */
/* Prints a value as lines, one for each member; what fits a line, or is a list of plain values, is one. */
static void print_lines(const json_t *value, int indent, str *out) {
    enum { LINE = 200 };
    const char *key;
    json_t *member;
    size_t i;
    char *line = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    BUG_IF(!line);
    bool plain = !json_is_object(value) && !json_is_array(json_array_get(value, 0)) &&
                 !json_is_object(json_array_get(value, 0));
    if (plain || (indent > 0 && strlen(line) <= LINE)) {
        str_add(out, "%s", line);
    } else if (json_is_object(value)) {
        int n = 0;
        str_add(out, "{");
        json_object_foreach((json_t *)(uintptr_t)value, key, member) {
            str_add(out, "%s\n%*s", n++ ? "," : "", indent + 2, "");
            io_json_add(out, json_string(key), 0);
            str_add(out, ": ");
            print_lines(member, indent + 2, out);
        }
        str_add(out, "\n%*s}", indent, "");
    } else {
        str_add(out, "[");
        json_array_foreach(value, i, member) {
            str_add(out, "%s\n%*s", i ? "," : "", indent + 2, "");
            print_lines(member, indent + 2, out);
        }
        str_add(out, "\n%*s]", indent, "");
    }
    free(line);
}

err manifest_write(const char *folder, const model_config *c, const ckpt_state *s,
                   const json_t *run, const json_t *tensors, const json_t *files, int64_t chunk) {
    const char *path = PATH_IN(folder, CKPT_MANIFEST_FILE);
    hash_text hash;
    str text = { 0 };
    json_t *doc = json_pack("{s:i, s:s, s:s, s:o, s:o, s:I, s:O, s:O}", "format", CKPT_FORMAT,
                            "ingot", INGOT_VERSION, "revision", build_revision(), "state",
                            state_json(s), "model", model_to_json(c), "chunk_bytes",
                            (json_int_t)chunk, "tensors", tensors, "files", files);
    BUG_IF(!doc);
    if (run) json_object_set(doc, "run", (json_t *)(uintptr_t)run);
    checksum_of(doc, hash);
    json_object_set_new(doc, "checksum", json_string(hash));
    print_lines(doc, 0, &text);
    str_add(&text, "\n");
    err e = io_write(path, text.text, text.len);
    str_free(&text);
    json_decref(doc);
    return e;
}

err ckpt_read_manifest(const char *path, model_config *c, ckpt_state *s, json_t **run) {
    json_t *doc = NULL, *model_object;
    err e = OK;
    const char *name = PATH_IN(path, CKPT_MANIFEST_FILE);
    if (run) *run = NULL;
    TRY_CLEAN(manifest_read(path, &doc, NULL));
    TRY_CLEAN(io_json_object(doc, name, "model", &model_object));
    TRY_CLEAN(model_from_json(model_object, name, c));
    TRY_CLEAN(read_state(doc, name, s));
    if (run) *run = json_incref(json_object_get(doc, "run"));
cleanup:
    json_decref(doc);
    return e;
}
