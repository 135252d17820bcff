/* Options shared by the data commands: see data_common.h. */
#include "cli/data_common.h"
#include "comm/comm.h"
#include "io/io.h"
#include "store/store.h"

#include <string.h>

enum {
    LONGEST = 64 << 20,   /* of a record, without a memory limit */
    LEAST = 1 << 16,      /* ... and at least this, however small the limit */
    PART_OF_MEMORY = 256, /* the longest record is this fraction of the limit */
    COPIES = 6,       /* copies of a record held while reading and writing: raw, decoded, written */
    BLOCK = 1 << 20,  /* bytes that text/ reads at a time ... */
    BLOCK_COPIES = 4, /* ... raw, decoded, written, compressed */
    PROGRAM = 16 << 20, /* code, libraries, stacks, codecs */
    MOST_THREADS = 1024,
    LEAST_PART = 64 << 10,
};

static err check_choice(const char *option, const char *value, const char *const *names, int n) {
    if (!value) return OK;
    str list = { 0 };
    for (int i = 0; i < n; i++) {
        if (strcmp(value, names[i]) == 0) return str_free(&list), OK;
        str_add(&list, "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", names[i]);
    }
    err e = ERR_USAGE("--%s: \"%s\" is not %s", option, value, list.text);
    str_free(&list);
    return e;
}

static const char *const file_endings[] = { ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", NULL };

static bool ends_in_one_of(const char *path, const char *const *endings) {
    for (; *endings; endings++)
        if (str_ends(path, *endings)) return true;
    return false;
}

/* States what a rerun of the command does; printed on Ctrl-C. */
static const char *rerun_text(const char *out) {
    static const char *const models[] = { ".json", ".bin", ".ftz", NULL };
    if (ends_in_one_of(out, models)) return "stopped by Ctrl-C; nothing was written";
    if (strcmp(out, "-") == 0 || str_ends(out, ".tok") || ends_in_one_of(out, file_endings))
        return "stopped by Ctrl-C; the same command starts over: with a folder as --out it would "
               "continue";
    return "stopped by Ctrl-C; the same command continues where it was stopped";
}

/* "s3://bucket/a/" is the folder "s3://bucket/a": in the key of an object a slash counts. @param url an argument of the
 * program. */
static void strip_slashes(const char *url) {
    char *text = (char *)(uintptr_t)url;
    if (!store_is_url(url)) return;
    for (size_t n = strlen(text); text[n - 1] == '/'; n--) text[n - 1] = '\0';
}

err data_common_check(data_common *c) {
    static const char *const invalid[] = { "repair", "refuse" };
    static const char *const compress[] = { "zst", "gz", "none", "parquet" };
    strip_slashes(c->out);
    strip_slashes(c->dropped);
    if (c->work && store_is_url(c->work))
        return err_hint(ERR_USAGE("--work: spill files are on a disk; %s is an address", c->work),
                        "name a local folder, with several ranks one that all hosts see");
    if (c->out) cli_on_interrupt(rerun_text(c->out));
    TRY(check_choice("invalid", c->invalid, invalid, 2));
    TRY(check_choice("compress", c->compress, compress, 4));
    if (c->compress &&
        (!c->out || strcmp(c->out, "-") == 0 || ends_in_one_of(c->out, file_endings)))
        return err_hint(ERR_USAGE("--compress has no effect: it is for the parts of a folder"),
                        "the name of a file says how it is compressed, such as clean.jsonl.gz");
    if (c->in.format && !text_format_exists(c->in.format))
        return ERR_USAGE("--format: \"%s\" is not " TEXT_FORMATS, c->in.format);
    c->in.invalid = c->invalid && strcmp(c->invalid, "refuse") == 0 ? TEXT_REFUSE : TEXT_REPAIR;
    if (c->longest == 0) {
        c->longest = LONGEST;
        if (c->memory) c->longest = MIN(c->longest, MAX(LEAST, c->memory / PART_OF_MEMORY));
    }
    if (c->longest > INT32_MAX)
        return ERR_USAGE("--longest: %lld is too large; the maximum is 2 GiB",
                         (long long)c->longest);
    if (c->threads > MOST_THREADS)
        return ERR_USAGE("--threads: %lld is more than %d", (long long)c->threads, MOST_THREADS);
    if (c->part && c->part < LEAST_PART)
        return ERR_USAGE("--part: %lld is too small; the minimum is 64Ki", (long long)c->part);
    c->in.segment_bytes = (size_t)c->part;
    c->in.document_bytes = (size_t)c->longest;
    if (c->memory) c->in.page_bytes = (size_t)c->longest * 2 + BLOCK;
    return OK;
}

err data_common_check_held_out(double fraction) {
    if (fraction < 1) return OK;
    return err_hint(ERR_USAGE("--held-out: 1 leaves nothing to train on"),
                    "write the part to hold out, such as 0.005");
}

err data_common_refuse_dropped(const data_common *c, const char *command) {
    if (!c->dropped) return OK;
    return err_hint(ERR_USAGE("--dropped has no effect: data %s drops no documents", command),
                    "leave it out");
}

err data_common_fit(const data_common *c, size_t fixed, size_t per_byte, int *threads) {
    int cores = thread_cores() / (c->comm ? comm_core_sharers(c->comm) : 1);
    *threads = c->threads ? (int)c->threads : MIN(MAX(cores, 1), MOST_THREADS);
    if (!c->memory) return OK;
    if (store_is_url(c->out) || store_is_url(c->dropped)) fixed += STORE_UPLOAD_BYTES;
    double each = (double)c->longest * (double)(COPIES + per_byte) + BLOCK * BLOCK_COPIES;
    double left = (double)c->memory - (double)fixed - PROGRAM;
    if (left < each) {
        char cap[32], need[32], record[32], tables[32];
        str taken = { 0 };
        if (fixed)
            str_add(&taken, "besides %s for tables ",
                    str_bytes(tables, sizeof tables, (double)fixed));
        err e =
            ERR_USAGE("--memory: %s is too small; %sone thread needs %s for records of up to %s",
                      str_bytes(cap, sizeof cap, (double)c->memory), taken.len ? taken.text : "",
                      str_bytes(need, sizeof need, PROGRAM + each),
                      str_bytes(record, sizeof record, (double)c->longest));
        str_free(&taken);
        return err_hint(e, "raise --memory, or lower --longest");
    }
    *threads = (int)MIN((double)*threads, left / each);
    return OK;
}

text_transform_options data_common_transform(const data_common *c, int threads) {
    return (text_transform_options){ .out = c->out,
                                     .dropped = c->dropped,
                                     .compress = c->compress,
                                     .threads = threads,
                                     .fresh = c->fresh,
                                     .quiet = c->quiet,
                                     .comm = c->comm,
                                     .given = c->given };
}

void data_common_pass(const data_common *c, pass_options *o) {
    o->own_work = !c->work && store_is_url(c->out) && comm_world(c->comm) > 1;
    o->work = curate_work_folder(c->work, c->out, o->own_work ? comm_rank(c->comm) : -1);
    o->keep_work = c->keep_work;
    o->fresh = c->fresh;
    o->quiet = c->quiet;
    o->comm = c->comm;
}

FILE *data_common_to(const data_common *c) {
    return !c->out || strcmp(c->out, "-") == 0 ? stderr : stdout;
}

void data_common_print(const data_common *c, const text_transform *s,
                       const text_transform_report *r, json_t *found) {
    FILE *to = data_common_to(c);
    if (!data_common_prints(c)) {
        json_decref(found);
        return;
    }
    if (!c->json) {
        text_transform_print(s, r, to);
        json_decref(found);
        return;
    }
    json_t *all = text_transform_json(s, r);
    if (found) json_object_set_new(all, "found", found);
    io_json_print(to, all, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
}
