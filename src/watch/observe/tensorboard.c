/* TensorBoard event files, written without its libraries.
 *
 * A file is a sequence of records, each a serialized Event (tensorboard/compat/proto/event.proto):
 *
 *     | length, u64 | masked CRC-32C of it, u32 | Event | masked CRC-32C of the Event, u32 |
 *
 * all little-endian. A step's events are appended with one write, so that a crash truncates at most the
 * last ones. Every process begins a file of its own, and another when that has ROTATE bytes; names sort in
 * the order in which they were written, as TensorBoard expects.
 *
 * Resuming: events of steps that will run again are removed from the files (files of theirs alone are
 * deleted), so that every reader finds each step once. A TensorBoard that is running has read them
 * already; the new file's SessionLog START makes it forget them. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"
#include "observe_internal.h"

#define PREFIX "events.out.tfevents."
enum { ROTATE = 64 << 20 }; /* bytes */

struct tb_writer {
    char *dir, *path; /* RUN/tb; the file that is open */
    int fd;
    int64_t bytes, rotate; /* of the file; of a file at most, but for its last step */
    int64_t seconds;       /* of the name of the last file */
    int number;            /* ... and its place among all */
    str record, event, summary, value, inner;
};

/* ---- protocol buffers ---------------------------------------------------------------------- */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void add_varint(str *s, uint64_t v) {
    do {
        uint8_t byte = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
        str_add_bytes(s, &byte, 1);
        v >>= 7;
    } while (v);
}
static void add_tag(str *s, int field, int type) { add_varint(s, (uint64_t)(field << 3 | type)); }
static void add_int(str *s, int field, int64_t v) {
    add_tag(s, field, VARINT);
    add_varint(s, (uint64_t)v);
}
static void proto_bytes(str *s, int field, const void *bytes, size_t n) {
    add_tag(s, field, BYTES);
    add_varint(s, n);
    str_add_bytes(s, bytes ? bytes : "", n);
}
static void proto_text(str *s, int field, const char *text) {
    proto_bytes(s, field, text, strlen(text));
}
static void add_fixed64(str *s, double v) {
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    bits = htole64(bits);
    str_add_bytes(s, &bits, sizeof bits);
}
static void add_double(str *s, int field, double v) {
    add_tag(s, field, FIXED64);
    add_fixed64(s, v);
}
static void add_float(str *s, int field, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    bits = htole32(bits);
    add_tag(s, field, FIXED32);
    str_add_bytes(s, &bits, sizeof bits);
}
static void add_doubles(str *s, int field, const double *v, int n) {
    add_tag(s, field, BYTES);
    add_varint(s, (uint64_t)n * 8);
    for (int i = 0; i < n; i++) add_fixed64(s, v[i]);
}
/* Appends `from` as a submessage and empties it. */
static void move_message(str *to, int field, str *from) {
    proto_bytes(to, field, from->text, from->len);
    from->len = 0;
}

/* ---- records -------------------------------------------------------------------------------- */
static uint32_t masked_crc(const void *bytes, size_t n) {
    uint32_t crc = crc32c(0, bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void tfrecord_add(str *to, const void *event, size_t n) {
    uint64_t length = htole64((uint64_t)n);
    uint32_t crc = htole32(masked_crc(&length, sizeof length));
    str_add_bytes(to, &length, sizeof length);
    str_add_bytes(to, &crc, sizeof crc);
    str_add_bytes(to, event, n);
    crc = htole32(masked_crc(event, n));
    str_add_bytes(to, &crc, sizeof crc);
}

enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
static void begin_event(tb_writer *w, int64_t step) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    w->event.len = 0;
    add_double(&w->event, EVENT_TIME, (double)now.tv_sec + (double)now.tv_nsec / 1e9);
    add_int(&w->event, EVENT_STEP, step);
}
static void end_event(tb_writer *w) { tfrecord_add(&w->record, w->event.text, w->event.len); }

/* Appends the records that are ready. */
static err write_records(tb_writer *w) {
    struct stat before;
    bool known = fstat(w->fd, &before) == 0;
    err e = io_append(w->fd, w->path, w->record.text, w->record.len);
    if (e && known && ftruncate(w->fd, before.st_size) != 0) /* half a record hides what follows */
        log_warn("%s may end in half a record", w->path);
    if (!e) w->bytes += (int64_t)w->record.len;
    w->record.len = 0;
    return e;
}

/* ---- summaries ------------------------------------------------------------------------------ */
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_HISTOGRAM = 5, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
static void end_value(tb_writer *w) { move_message(&w->summary, 1, &w->value); }

static void end_summary(tb_writer *w) {
    move_message(&w->event, EVENT_SUMMARY, &w->summary);
    end_event(w);
}

static void add_scalar(void *ctx, const metric *m, const char *item, double v) {
    tb_writer *w = ctx;
    if (!*m->sink) return;
    w->inner.len = 0;
    metric_sink_name(m, item, &w->inner);
    move_message(&w->value, VALUE_TAG, &w->inner);
    add_float(&w->value, VALUE_SIMPLE, (float)v);
    end_value(w);
}

/* 30 buckets of equal width, as TensorBoard itself shows them. */
static void add_histogram(tb_writer *w, const observe_sample *s) {
    enum { BUCKETS = 30 };
    double low = INFINITY, high = -INFINITY, n = 0, sum = 0, squares = 0;
    for (int64_t i = 0; i < s->n; i++) {
        double v = s->value[i];
        if (!isfinite(v)) continue;
        low = MIN(low, v), high = MAX(high, v);
        n++, sum += v, squares += v * v;
    }
    if (n == 0) return;
    double width = (high > low ? high - low : 1) / BUCKETS, limit[BUCKETS], count[BUCKETS] = { 0 };
    for (int i = 0; i < BUCKETS; i++) limit[i] = low + width * (i + 1);
    limit[BUCKETS - 1] = MAX(limit[BUCKETS - 1], high);
    for (int64_t i = 0; i < s->n; i++)
        if (isfinite(s->value[i])) count[MIN((int)((s->value[i] - low) / width), BUCKETS - 1)]++;
    const double facts[] = { low, high, n, sum, squares };
    w->inner.len = 0;
    str_add(&w->inner, "train/%s", s->name);
    move_message(&w->value, VALUE_TAG, &w->inner);
    for (int i = 0; i < (int)COUNT_OF(facts); i++) add_double(&w->inner, i + 1, facts[i]);
    add_doubles(&w->inner, 6, limit, BUCKETS);
    add_doubles(&w->inner, 7, count, BUCKETS);
    move_message(&w->value, VALUE_HISTOGRAM, &w->inner);
    end_value(w);
}

/* SummaryMetadata { plugin_data { plugin_name, content }, data_class } */
static void add_metadata(tb_writer *w, const char *plugin, const str *content, int data_class) {
    str data = { 0 };
    proto_text(&data, 1, plugin);
    if (content) proto_bytes(&data, 2, content->text, content->len);
    move_message(&w->inner, 1, &data);
    if (data_class) add_int(&w->inner, 4, data_class);
    move_message(&w->value, VALUE_METADATA, &w->inner);
    str_free(&data);
}

/* TensorProto { dtype, tensor_shape { dim { size } }, string_val } */
static void add_tensor(tb_writer *w, int dtype, int64_t size, const char *text, size_t n) {
    str shape = { 0 }, dim = { 0 };
    add_int(&dim, 1, size);
    move_message(&shape, 2, &dim);
    add_int(&w->inner, 1, dtype);
    move_message(&w->inner, 2, &shape);
    if (text) proto_bytes(&w->inner, 8, text, n);
    move_message(&w->value, VALUE_TENSOR, &w->inner);
    str_free(&shape);
    str_free(&dim);
}

/* ---- hyperparameters: the plugin "hparams" --------------------------------------------------- */
/* Value { number_value = 2 | string_value = 3 | bool_value = 4 } */
static void add_hparam_value(str *to, const char *text) {
    double number;
    bool truth = strcmp(text, "true") == 0;
    if (number_parse_real(text, &number)) {
        add_double(to, 2, number);
    } else if (truth || strcmp(text, "false") == 0) {
        add_int(to, 4, truth);
    } else {
        size_t n = strlen(text);
        bool quoted = n > 1 && text[0] == '"' && text[n - 1] == '"';
        proto_bytes(to, 3, text + quoted, n - 2 * quoted);
    }
}

static void add_hparam_event(tb_writer *w, const char *tag, int field, str *message) {
    str data = { 0 };
    add_int(&data, 1, 0); /* version */
    move_message(&data, field, message);
    begin_event(w, 0);
    proto_text(&w->value, VALUE_TAG, tag);
    add_metadata(w, "hparams", &data, 0);
    enum { DT_FLOAT = 1 };
    add_tensor(w, DT_FLOAT, 0, NULL, 0);
    end_value(w);
    end_summary(w);
    str_free(&data);
}

static void add_hparams(tb_writer *w, const json_t *hparams) {
    str start = { 0 }, entry = { 0 }, value = { 0 };
    const char *name;
    json_t *text;
    json_object_foreach((json_t *)(uintptr_t)hparams, name, text) { /* which does not change it */
        const char *as_text = json_string_value(text);
        if (!as_text) continue;
        proto_text(&entry, 1, name);
        add_hparam_value(&value, as_text);
        move_message(&entry, 2, &value);
        move_message(&start, 1, &entry);
    }
    add_double(&start, 5, (double)time(NULL));
    add_hparam_event(w, "_hparams_/session_start_info", 3, &start);
    str_free(&start);
    str_free(&entry);
    str_free(&value);
}

/* ---- files ---------------------------------------------------------------------------------- */
/* Begins the next file. */
static err next_file(tb_writer *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
    w->seconds = MAX(w->seconds, (int64_t)time(NULL)); /* whatever the clock does, names rise */
    w->number++;
    str name = { 0 };
    str_add(&name, "%s/" PREFIX "%010lld.%05d.ingot", w->dir, (long long)w->seconds, w->number);
    free(w->path);
    w->path = name.text;
    TRY(io_append_open(w->path, &w->fd));
    w->bytes = 0;
    begin_event(w, 0);
    proto_text(&w->event, EVENT_VERSION, "brain.Event:2");
    end_event(w);
    return write_records(w);
}

/* @return the step of an event, INT64_MAX when it is not one. */
static int64_t step_of_event(const uint8_t *p, size_t n) {
    if (n < 10 || p[0] != (EVENT_TIME << 3 | FIXED64)) return INT64_MAX;
    if (p[9] != (EVENT_STEP << 3 | VARINT)) return 0; /* a step of 0 may be left out */
    uint64_t v = 0;
    for (size_t i = 10; i < n && i < 20; i++) {
        v |= (uint64_t)(p[i] & 127) << (7 * (i - 10));
        if (!(p[i] & 128)) return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
    return INT64_MAX;
}

/* @return how many bytes of a file are whole records of steps before `first`; steps only rise in it.
 * @param n how many records. */
static size_t kept_bytes(const uint8_t *p, size_t size, int64_t first, int *n) {
    size_t at = 0;
    for (*n = 0; size - at >= 16; (*n)++) {
        uint64_t length;
        uint32_t crc, of_length;
        memcpy(&length, p + at, 8);
        memcpy(&of_length, p + at + 8, 4);
        if (le32toh(of_length) != masked_crc(&length, 8)) break;
        length = le64toh(length);
        if (length > size - at - 16) break;
        memcpy(&crc, p + at + 12 + length, 4);
        if (le32toh(crc) != masked_crc(p + at + 12, (size_t)length)) break;
        if (step_of_event(p + at + 12, (size_t)length) >= first) break;
        at += 16 + (size_t)length;
    }
    return at;
}

static err truncate_event_file(const char *dir, const char *path, int64_t first) {
    io_mapping m;
    int records;
    TRY(io_map(path, &m));
    size_t size = m.size, kept = m.data ? kept_bytes(m.data, m.size, first, &records) : 0;
    io_unmap(&m);
    if (kept == 0 || records == 1) return io_remove_tree(dir, path); /* the version alone */
    if (kept == size) return OK;
    if (truncate(path, (off_t)kept) == 0) return OK;
    return err_hint(ERR("cannot shorten %s: %s", path, strerror(errno)),
                    "check that the run folder is writable");
}

/* Removes later events from the files that are there, and notes the last name. */
static err truncate_event_files(tb_writer *w, int64_t first) {
    char **names = NULL;
    int n = 0;
    TRY(io_list(w->dir, &names, &n));
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        long long seconds = 0;
        int number = 0;
        if (sscanf(names[i], PREFIX "%lld.%d.ingot", &seconds, &number) != 2) continue;
        w->seconds = MAX(w->seconds, seconds);
        w->number = MAX(w->number, number);
        e = truncate_event_file(w->dir, PATH_IN(w->dir, names[i]), first);
    }
    io_list_free(names, n);
    return e;
}

err tb_open(const observe_options *o, tb_writer **out) {
    tb_writer *w = mem_alloc(sizeof *w);
    err e = OK;
    w->fd = -1;
    w->dir = io_join(o->dir, "tb");
    w->rotate = o->rotate_bytes ? o->rotate_bytes : ROTATE;
    TRY_CLEAN(io_make_dirs(w->dir));
    TRY_CLEAN(truncate_event_files(w, o->first_step));
    TRY_CLEAN(next_file(w));
    if (o->first_step > 0) {
        begin_event(w, o->first_step);
        add_int(&w->inner, 1, 1); /* START */
        move_message(&w->event, EVENT_SESSION, &w->inner);
        end_event(w);
    }
    if (o->hparams) add_hparams(w, o->hparams);
    if (w->record.len) TRY_CLEAN(write_records(w));
    *out = w;
    return OK;
cleanup:
    tb_close(w);
    return e;
}

err tb_step(tb_writer *w, const observe_step *s) {
    if (w->bytes > w->rotate) TRY(next_file(w));
    begin_event(w, s->step);
    metric_visit(s, add_scalar, w);
    for (size_t i = 0; s->detail && i < COUNT_OF(s->detail->sample); i++)
        add_histogram(w, &s->detail->sample[i]);
    end_summary(w);
    return write_records(w);
}

err tb_text(tb_writer *w, const char *tag, int64_t step, const char *text, size_t n) {
    enum { DATA_CLASS_TENSOR = 2, DT_STRING = 7 };
    begin_event(w, step);
    proto_text(&w->value, VALUE_TAG, tag);
    add_tensor(w, DT_STRING, 1, text, n);
    add_metadata(w, "text", NULL, DATA_CLASS_TENSOR);
    end_value(w);
    end_summary(w);
    return write_records(w);
}

void tb_close(tb_writer *w) {
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    str *buffers[] = { &w->record, &w->event, &w->summary, &w->value, &w->inner };
    for (size_t i = 0; i < COUNT_OF(buffers); i++) str_free(buffers[i]);
    free(w->dir);
    free(w->path);
    free(w);
}
