/* Lists the inputs (files, folders, globs, standard input), detects compression and format of
 * each file, and splits files into segments. The list is made once, before anything is read, so
 * that a transform can tell whether it is resumed on the same inputs. */
#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "store/store.h"
#include "store/vfs.h"
#include "text/inputs_internal.h"
#include "text/output_internal.h"

enum { HEAD_BYTES = 4096, LONGEST_PATH = 200 };
static const size_t SEGMENT_BYTES = (size_t)256 << 20, BLOCK_BYTES = (size_t)1 << 20,
                    DOCUMENT_BYTES = (size_t)64 << 20;

/* ---- one file -------------------------------------------------------------------------------- */
static input_file *new_file(text_inputs *in, const char *path, const char *given) {
    input_file *f = &LIST_ADD(in->files, in->n_files, in->files_cap);
    *f = (input_file){ .path = arena_strdup(in->memory, path),
                       .given = arena_strdup(in->memory, given) };
    return f;
}

void inputs_add_segment(text_inputs *in, int64_t from, int64_t to, int64_t bytes) {
    LIST_ADD(in->segments, in->n_segments, in->segments_cap) =
        (input_segment){ .file = in->n_files - 1, .from = from, .to = to, .bytes = bytes };
}

err inputs_skip_file(text_inputs *in, const char *why) {
    input_file *f = &in->files[in->n_files - 1];
    if (in->o.strict)
        return err_hint(
            ERR("%s is damaged: %s", f->path, why),
            "get the file again; without --strict, `ingot data` commands skip and count it");
    f->damage = arena_strdup(in->memory, why);
    return OK;
}

static err add_segments(text_inputs *in, const input_file *f) {
    if (f->damage) return inputs_add_segment(in, 0, -1, f->size), OK;
    if (f->format->reader) return f->format->reader->add_segments(in, f);
    int64_t step = (int64_t)in->o.segment_bytes, from = 0;
    if (f->compression == COMPRESSION_NONE && f->format->look_back)
        for (; f->size - from > step; from += step) inputs_add_segment(in, from, from + step, step);
    inputs_add_segment(in, from, -1, f->size - from);
    return OK;
}

typedef struct file_head {
    char bytes[HEAD_BYTES];
    size_t n;
} file_head;
static err read_head(const char *path, text_compression compression, file_head *head) {
    byte_reader *s = NULL;
    TRY(byte_reader_open(path, compression, 0, -1, &s));
    err e = byte_reader_read(s, head->bytes, HEAD_BYTES, &head->n);
    byte_reader_close(s);
    return e;
}

/* Detects the compression and the format of a regular file. */
static err detect_format(text_inputs *in, input_file *f) {
    text_compression named;
    file_head head;
    const text_format *by_extension = format_of_path(f->path, &named);
    TRY(read_head(f->path, COMPRESSION_NONE, &head));
    TRY(refuse_known_binary(f->path, head.bytes, head.n));
    /* The extension decides: other content in a .gz file is damage, not text. */
    f->compression = named == COMPRESSION_NONE ? compression_of_bytes(head.bytes, head.n) : named;
    f->format = in->o.format ? format_by_name(in->o.format) : by_extension;
    if (f->compression != COMPRESSION_NONE) TRY(read_head(f->path, f->compression, &head));
    if (format_of_content(head.bytes, head.n) == &format_parquet) {
        f->format = &format_parquet; /* it could not be read as anything else */
        return OK;
    }
    if (f->format == &format_parquet)
        return inputs_skip_file(in,
                                "it begins neither as a Parquet file, with PAR1, nor as an Arrow "
                                "file or stream, with ARROW1 or FF FF FF FF");
    /* A file system leaves zeros of a file that was being written when the machine lost power. */
    size_t zeros = 0;
    while (zeros < head.n && head.bytes[zeros] == 0) zeros++;
    if (head.n >= 16 && zeros == head.n) {
        f->format = f->format ? f->format : &format_text;
        return inputs_skip_file(in, "it begins with zeros");
    }
    if (f->format != &format_tar) TRY(refuse_binary(f->path, head.bytes, head.n));
    f->format = f->format ? format_refine(f->format, head.bytes, head.n, in->o.text_field)
                          : format_of_content(head.bytes, head.n);
    bool decodes = f->format->decodes || in->o.format;
    return decodes ? OK : refuse_other_encoding(f->path, head.bytes, head.n);
}

/* Hashes a file of up to three pieces whole, and of a longer one the first, middle and last piece:
 * enough to notice that it was replaced, without reading it all. */
static err hash_content(input_file *f) {
    enum { PIECE = 64 << 10, PIECES = 3 };
    char *piece = mem_grow(NULL, PIECE);
    err e = OK;
    f->sampled = f->size > PIECE * PIECES;
    for (int64_t i = 0; i < PIECES && !e; i++) {
        int64_t at = f->sampled ? (f->size - PIECE) * i / (PIECES - 1) : i * PIECE;
        byte_reader *r = NULL;
        size_t got = 0;
        if (at >= f->size) break;
        e = byte_reader_open(f->path, COMPRESSION_NONE, at, f->size, &r);
        if (!e) e = byte_reader_read(r, piece, PIECE, &got);
        if (!e) f->content = hash_bytes(piece, got, f->content);
        byte_reader_close(r);
    }
    free(piece);
    return e;
}

static err add_pipe(text_inputs *in, const char *path) {
    input_file *f = new_file(in, path, strcmp(path, "-") == 0 ? "stdin" : path);
    f->pipe = in->pipes = true;
    f->compression = COMPRESSION_DETECT;
    f->format = in->o.format ? format_by_name(in->o.format) : NULL;
    inputs_add_segment(in, 0, -1, 0);
    return OK;
}

static err add_file(text_inputs *in, const char *path, const char *given) {
    struct stat st;
    if (stat(path, &st) != 0)
        return err_hint(ERR("cannot read %s: %s", path, strerror(errno)), "check the path");
    if (!S_ISREG(st.st_mode)) return add_pipe(in, path);
    input_file *f = new_file(in, path, given);
    f->size = (int64_t)st.st_size;
    f->modified = st.st_mtim;
    TRY(detect_format(in, f));
    TRY(hash_content(f));
    in->bytes += f->size;
    return add_segments(in, f);
}

/* ---- folders --------------------------------------------------------------------------------- */
typedef struct ancestor {
    const struct ancestor *up;
    dev_t device;
    ino_t node;
} ancestor;

static err add_folder(text_inputs *in, const char *path, const char *given, const ancestor *up);

/* The JSON files of a folder of token shards are not documents. */
static err refuse_shards(const char *folder) {
    vfs_info there;
    TRY(vfs_stat(NULL, PATH_IN(folder, "train-00000.tok"), &there));
    if (!there.found) return OK;
    return err_hint(ERR("%s holds token shards, not texts", folder),
                    "pass it on its own, to ingot train, data stats or data inspect");
}

static err add_object_input(text_inputs *in, const char *url, const char *given,
                            const store_object *o);

/* Adds a file of a folder, or an object below a URL. @param o NULL: a file. */
static err add_folder_file(text_inputs *in, const char *folder, const char *path, const char *name,
                           const char *given, const store_object *o) {
    text_compression compression;
    if (strcmp(name, "state.json") == 0) return parts_verify(NULL, folder, path);
    if (strcmp(name, "index.json") == 0) TRY(refuse_shards(folder));
    if (format_of_path(name, &compression))
        return o ? add_object_input(in, path, given, o) : add_file(in, path, given);
    if (str_ends(name, ".report") || str_ends(name, ".tmp") || strcmp(name, CARD_NAME) == 0)
        return OK; /* written by transforms */
    in->n_skipped++;
    LIST_ADD(in->skipped, in->skipped_files, in->skipped_cap) = arena_strdup(in->memory, path);
    return OK;
}

static err add_folder(text_inputs *in, const char *path, const char *given, const ancestor *up) {
    struct stat st;
    char **names = NULL;
    int n = 0;
    if (stat(path, &st) != 0) return ERR("cannot read %s: %s", path, strerror(errno));
    for (const ancestor *a = up; a; a = a->up)
        if (a->device == st.st_dev && a->node == st.st_ino)
            return OK; /* a link to a parent folder */
    ancestor here = { up, st.st_dev, st.st_ino };
    TRY(io_list(path, &names, &n));
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        const char *entry = PATH_IN(path, names[i]);
        if (names[i][0] == '.' || names[i][0] == '_') continue;
        e = io_is_dir(entry) ? add_folder(in, entry, given, &here)
                             : add_folder_file(in, path, entry, names[i], given, NULL);
    }
    io_list_free(names, n);
    return e;
}

static char *resolve_new_path(const char *path);

static void note_folder(text_inputs *in, const char *path) {
    char *real = resolve_new_path(path);
    if (!real) return; /* listing it will fail */
    LIST_ADD(in->folders, in->n_folders, in->folders_cap) = arena_strdup(in->memory, real);
    free(real);
}

static void report_skipped(const text_inputs *in, const char *folder) {
    if (in->n_skipped)
        log_info("%s: skipped %d file%s of unknown format%s %s", folder, in->n_skipped,
                 in->n_skipped == 1 ? "" : "s", in->n_skipped == 1 ? ":" : ", the last of them",
                 in->skipped[in->skipped_files - 1]);
}

static err add_whole_folder(text_inputs *in, const char *folder, const char *given) {
    int before = in->n_files;
    char *snapshot = hub_snapshot(folder); /* the other ones have the same texts again */
    const char *path = arena_strdup(in->memory, snapshot ? snapshot : folder);
    free(snapshot);
    in->n_skipped = 0;
    note_folder(in, path);
    TRY(add_folder(in, path, given, NULL));
    report_skipped(in, path);
    if (in->n_files > before) return OK;
    return err_hint(
        ERR("%s contains no file with a known extension", path),
        "known extensions are .parquet, .arrow, .feather and .ipc, and .txt, .md, .jsonl, .json, .csv, .tsv, .html, .tar, .warc and "
        ".wet, plus .gz, .zst, .bz2, .xz, .lz4 or .br");
}

/* ---- objects in a store ------------------------------------------------------------------------ */
/* Its ETag stands for its content. */
static err add_object_input(text_inputs *in, const char *url, const char *given,
                            const store_object *o) {
    input_file *f = new_file(in, url, given);
    f->size = o->bytes;
    f->modified = (struct timespec){ .tv_sec = (time_t)o->modified };
    f->content = o->etag_hash;
    TRY(detect_format(in, f));
    in->bytes += f->size;
    return add_segments(in, f);
}

/* As in folders, names that begin with a dot or underscore are skipped, and so are folders of such names. */
static bool is_hidden(const char *name) {
    return *name == '.' || *name == '_' || strstr(name, "/.") || strstr(name, "/_");
}

static err add_store_folder(text_inputs *in, store *s, const char *url) {
    store_list l;
    int before = in->n_files;
    in->n_skipped = 0;
    note_folder(in, url);
    TRY(store_list_folder(s, url, &l));
    err e = OK;
    for (int i = 0; i < l.n && !e; i++) {
        const store_object *o = &l.at[i];
        const char *slash = strrchr(o->url, '/');
        if (is_hidden(o->name) || !slash[1]) continue; /* "folder/" marks a folder for some tools */
        char *folder = strndup(o->url, (size_t)(slash - o->url));
        e = add_folder_file(in, folder, o->url, slash + 1, url, o);
        free(folder);
    }
    store_list_free(&l);
    TRY(e);
    report_skipped(in, url);
    if (in->n_files > before) return OK;
    return err_hint(
        ERR("%s: the object does not exist, and none with a known extension is below it", url),
        "check the path");
}

static err add_store(text_inputs *in, const char *url) {
    store *s = NULL;
    store_object o;
    bool found = false;
    TRY(store_open(&s));
    err e = str_ends(url, "/") ? OK : store_head(s, url, &found, &o);
    if (!e) e = found ? add_object_input(in, url, url, &o) : add_store_folder(in, s, url);
    store_close(s);
    return e;
}

/* ---- what the user named --------------------------------------------------------------------- */
static err add_glob(text_inputs *in, const char *pattern) {
    glob_t g;
    int rc = glob(pattern, GLOB_NOSORT, NULL, &g);
    if (rc == GLOB_NOMATCH)
        return err_hint(ERR("%s: no such file, and no file matches the pattern", pattern),
                        "check the path");
    if (rc != 0) return ERR("cannot list %s: %s", pattern, strerror(errno));
    sort_array(g.gl_pathv, g.gl_pathc, sizeof *g.gl_pathv, compare_texts);
    err e = OK;
    for (size_t i = 0; i < g.gl_pathc && !e; i++) {
        const char *path = g.gl_pathv[i];
        e = io_is_dir(path) ? add_whole_folder(in, path, pattern) : add_file(in, path, pattern);
    }
    globfree(&g);
    return e;
}

static err add_hub(text_inputs *in, const char *url) {
    char *path = NULL;
    TRY(hub_resolve(url, &path));
    err e = io_is_dir(path) ? add_whole_folder(in, path, url) : add_file(in, path, url);
    free(path);
    return e;
}

static err add_input(text_inputs *in, const char *path) {
    if (strcmp(path, "-") == 0) return add_pipe(in, path);
    if (store_is_url(path)) return add_store(in, path);
    if (hub_is_url(path)) return add_hub(in, path);
    if (io_is_dir(path)) return add_whole_folder(in, path, path);
    if (!io_exists(path) && strpbrk(path, "*?[")) return add_glob(in, path);
    return add_file(in, path, path);
}

/* ---- options --------------------------------------------------------------------------------- */
static const char *copy_option(text_inputs *in, const char *text, const char *otherwise) {
    const char *s = text && *text ? text : otherwise;
    return s ? arena_strdup(in->memory, s) : NULL;
}

static err want_member(text_inputs *in, const char *path, int result) {
    if (!path) return OK;
    if (strlen(path) > LONGEST_PATH)
        return ERR("the name of a JSON member: expected at most %d bytes; \"%s\" has %zu",
                   LONGEST_PATH, path, strlen(path));
    in->wants[in->n_wants++] = (json_want){ path, result };
    return OK;
}

static err copy_input_options(text_inputs *in, const text_input_options *o) {
    text_input_options *t = &in->o;
    *t = *o;
    in->text_named = o->text_field && *o->text_field;
    t->text_field = copy_option(in, o->text_field, "text");
    t->id_field = copy_option(in, o->id_field, "id");
    t->url_field = copy_option(in, o->url_field, "url");
    t->source_field = copy_option(in, o->source_field, "source");
    t->license_field = copy_option(in, o->license_field, NULL);
    t->sources = copy_option(in, o->sources, NULL);
    t->not_sources = copy_option(in, o->not_sources, NULL);
    t->licenses = copy_option(in, o->licenses, NULL);
    t->not_licenses = copy_option(in, o->not_licenses, NULL);
    t->format = copy_option(in, o->format, NULL);
    t->segment_bytes = o->segment_bytes ? o->segment_bytes : SEGMENT_BYTES;
    t->block_bytes = o->block_bytes ? o->block_bytes : BLOCK_BYTES;
    t->document_bytes = o->document_bytes ? o->document_bytes : DOCUMENT_BYTES;
    TRY(want_member(in, t->text_field, FIELD_TEXT));
    TRY(want_member(in, t->id_field, FIELD_ID));
    TRY(want_member(in, t->url_field, FIELD_URL));
    TRY(want_member(in, t->source_field, FIELD_SOURCE));
    TRY(want_member(in, t->license_field ? t->license_field : "license", FIELD_LICENSE));
    if (!t->license_field) TRY(want_member(in, "licence", FIELD_LICENSE));
    if (t->format && !format_by_name(t->format))
        return err_hint(ERR("unknown format \"%s\"", t->format), "the formats are " TEXT_FORMATS);
    return OK;
}

err text_inputs_open(const char *const *paths, int n, const text_input_options *o,
                     text_inputs **out) {
    text_inputs *in = mem_alloc(sizeof *in);
    in->memory = arena_new();
    err e = copy_input_options(in, o);
    if (!e && n == 0)
        e = err_hint(ERR("no input given"),
                     "name files, folders or globs, or - for standard input");
    for (int i = 0; i < n && !e; i++) e = add_input(in, paths[i]);
    if (e) {
        text_inputs_close(in);
        return e;
    }
    *out = in;
    return OK;
}

void text_inputs_keep_members(text_inputs *in) { in->all_members = true; }

int text_segments(const text_inputs *in) { return in->n_segments; }

const char *text_segment_path(const text_inputs *in, int segment) {
    BUG_IF(segment < 0 || segment >= in->n_segments);
    return in->files[in->segments[segment].file].path;
}

int64_t text_segment_bytes(const text_inputs *in, int segment) {
    return in->segments[segment].bytes;
}

int text_inputs_files(const text_inputs *in) { return in->n_files; }
int64_t text_inputs_bytes(const text_inputs *in) { return in->bytes; }

int64_t text_inputs_segment_bytes(const text_inputs *in) { return (int64_t)in->o.segment_bytes; }

/* A run ends with the segment that fills it. */
int text_segments_divide(const text_inputs *in, int *first, int64_t *bytes) {
    enum { RUNS = 64, PARTS_OF_SEGMENT = 16 };
    int64_t most = text_inputs_segment_bytes(in), least = MAX(most / PARTS_OF_SEGMENT, (int64_t)1);
    int64_t full = MIN(MAX(text_inputs_bytes(in) / RUNS, least), most), filled = 0;
    int n = 0;
    for (int i = 0; i < text_segments(in); i++) {
        if (filled == 0) first[n++] = i;
        filled += MAX(text_segment_bytes(in, i), (int64_t)1);
        bytes[n - 1] = filled;
        if (filled >= full) filled = 0;
    }
    first[n] = text_segments(in);
    return n;
}

bool text_inputs_have_pipe(const text_inputs *in) { return in->pipes; }

uint64_t text_inputs_hash(const text_inputs *in) {
    const text_input_options *o = &in->o;
    const char *texts[] = { o->text_field,    o->id_field, o->url_field,   o->source_field,
                            o->license_field, o->sources,  o->not_sources, o->licenses,
                            o->not_licenses,  o->format };
    str all = { 0 };
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        str_add(&all, "%d:%s\n", texts[i] != NULL, texts[i] ? texts[i] : "");
    str_add(&all, "%d %d %zu %zu %zu\n", (int)o->invalid, o->strict, o->segment_bytes,
            o->block_bytes, o->document_bytes);
    for (int i = 0; i < in->n_files; i++)
        str_add(&all, "%s %lld %016llx\n", in->files[i].path, (long long)in->files[i].size,
                (unsigned long long)in->files[i].content);
    uint64_t hash = hash_bytes(all.text, all.len, 0);
    str_free(&all);
    return hash;
}

/* A store gives whole seconds: an input of the same second is then as old. */
static err time_of_path(const char *path, struct timespec *out) {
    struct stat st;
    vfs_info there = { 0 };
    *out = (struct timespec){ .tv_sec = INT64_MAX }; /* not there: nothing is newer */
    if (!store_is_url(path)) {
        if (stat(path, &st) == 0) *out = st.st_mtim;
        return OK;
    }
    TRY(vfs_stat(NULL, path, &there));
    if (there.found) *out = (struct timespec){ (time_t)there.modified, 999999999 };
    return OK;
}

err text_inputs_newer(const text_inputs *in, const char *path, const char **newer) {
    struct timespec then;
    *newer = NULL;
    TRY(time_of_path(path, &then));
    for (int i = 0; i < in->n_files && !*newer; i++) {
        const input_file *f = &in->files[i];
        const struct timespec *a = &f->modified;
        bool later =
            a->tv_sec > then.tv_sec || (a->tv_sec == then.tv_sec && a->tv_nsec > then.tv_nsec);
        if (f->sampled && later) *newer = f->path;
    }
    return OK;
}

/* @return the real path of a file or folder that may not exist yet, or a URL without slashes at its end; owned, NULL if
 * there is none. */
static char *resolve_new_path(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (store_is_url(path)) return strndup(path, n);
    char *real = realpath(path, NULL);
    if (real || errno != ENOENT) return real;
    const char *slash = memrchr(path, '/', n);
    char *parent = slash ? strndup(path, MAX((size_t)(slash - path), (size_t)1)) : strdup(".");
    char *above = resolve_new_path(parent), *joined = NULL;
    const char *name = slash ? slash + 1 : path;
    if (above && n > (size_t)(name - path)) {
        char *last = strndup(name, n - (size_t)(name - path));
        joined = io_join(above, last);
        free(last);
    }
    free(above);
    free(parent);
    return joined;
}

/* Whether the resolved `path` is `folder` or is inside it. */
static bool is_below(const char *path, const char *folder) {
    size_t n = strlen(folder);
    if (strcmp(folder, "/") == 0) return true;
    return strncmp(path, folder, n) == 0 && (path[n] == '/' || !path[n]);
}

static err refuse_output(const text_inputs *in, const char *path, const char *there) {
    for (int i = 0; i < in->n_files; i++) {
        const char *at = in->files[i].path;
        char *file = store_is_url(at) ? strdup(at) : realpath(at, NULL);
        bool inside = file && is_below(file, there), same = inside && strcmp(file, there) == 0;
        free(file);
        if (inside)
            return err_hint(ERR("cannot write to %s: it %s the input %s", path,
                                same ? "is" : "contains", in->files[i].path),
                            "choose another output path");
    }
    for (int i = 0; i < in->n_folders; i++)
        if (is_below(there, in->folders[i]))
            return err_hint(
                ERR("cannot write to %s: it is inside the input folder %s", path, in->folders[i]),
                "choose a path outside of it; the next run would read it as input");
    return OK;
}

err text_inputs_check_output(const text_inputs *in, const char *path) {
    char *there = path ? resolve_new_path(path) : NULL;
    err e = there ? refuse_output(in, path, there) : OK;
    free(there);
    return e;
}

void text_inputs_close(text_inputs *in) {
    if (!in) return;
    free(in->files);
    free(in->skipped);
    free(in->segments);
    free(in->folders);
    arena_free(in->memory);
    free(in);
}
