/* Spill files: see dedup_internal.h for the layout. Numbers are little-endian, as on every
 * machine we support. Every page and the index carry a hash, so a damaged file is an error,
 * never a wrong result. */
#include "curate/dedup_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { PAGE = 2048 * GROUP_RECORD_BYTES, MAX_SECTIONS = 1 << 16 };
#define SPILL_MAGIC 0x315C6C6970737400u

typedef struct page_entry {
    uint64_t offset, hash;
    uint32_t bytes, section;
} page_entry;
_Static_assert(sizeof(page_entry) == 24, "the index is written as it is in memory");

typedef struct footer {
    uint64_t magic, settings, sections;
    uint64_t index, pages, index_hash; /* index: its offset */
} footer;
_Static_assert(sizeof(footer) == 48, "the footer is written as it is in memory");

/* ---- writing --------------------------------------------------------------------------------- */

struct spill_writer {
    io_writer *file;
    footer foot;
    char *buffer; /* [sections, PAGE] */
    uint32_t *used;
    page_entry *index;
    int n, cap;
};

err spill_create(const char *path, int sections, uint64_t settings, spill_writer **out) {
    BUG_IF(sections < 1 || sections > MAX_SECTIONS);
    *out = NULL;
    io_writer *file = NULL;
    TRY(io_writer_open(path, &file));
    spill_writer *w = mem_alloc(sizeof *w);
    w->file = file;
    w->foot = (footer){ SPILL_MAGIC, settings, (uint64_t)sections };
    w->buffer = mem_grow(NULL, (size_t)sections * PAGE);
    w->used = mem_alloc((size_t)sections * sizeof *w->used);
    *out = w;
    return OK;
}

static err write_page(spill_writer *w, int section) {
    uint32_t n = w->used[section];
    if (n == 0) return OK;
    const char *bytes = w->buffer + (size_t)section * PAGE;
    LIST_ADD(w->index, w->n, w->cap) =
        (page_entry){ w->foot.index, hash_bytes(bytes, n, w->foot.index), n, (uint32_t)section };
    w->foot.index += n;
    w->used[section] = 0;
    return io_writer_write(w->file, bytes, n);
}

err spill_write(spill_writer *w, int section, const void *bytes, size_t n) {
    for (const char *from = bytes; n > 0;) {
        uint32_t *used = &w->used[section];
        size_t part = MIN(n, (size_t)(PAGE - *used));
        memcpy(w->buffer + (size_t)section * PAGE + *used, from, part);
        *used += (uint32_t)part;
        from += part;
        n -= part;
        if (*used == PAGE) TRY(write_page(w, section));
    }
    return OK;
}

SORT_ORDER(compare_section, page_entry, RISING(section) RISING(offset));

static void spill_writer_free(spill_writer *w) {
    free(w->buffer);
    free(w->used);
    free(w->index);
    free(w);
}

static err write_end(spill_writer *w) {
    for (int i = 0; i < (int)w->foot.sections; i++) TRY(write_page(w, i));
    sort_array(w->index, (size_t)w->n, sizeof *w->index, compare_section);
    size_t bytes = (size_t)w->n * sizeof *w->index;
    w->foot.pages = (uint64_t)w->n;
    w->foot.index_hash = hash_bytes(w->index, bytes, 0);
    TRY(io_writer_write(w->file, w->index, bytes));
    return io_writer_write(w->file, &w->foot, sizeof w->foot);
}

err spill_commit(spill_writer *w) {
    err e = write_end(w);
    if (e)
        io_writer_abort(w->file);
    else
        e = io_writer_commit(w->file);
    spill_writer_free(w);
    return e;
}

void spill_abort(spill_writer *w) {
    if (!w) return;
    io_writer_abort(w->file);
    spill_writer_free(w);
}

/* ---- the folder ------------------------------------------------------------------------------ */

char *spill_path(char to[IO_PATH_BYTES], const char *folder, const char *name, int number) {
    snprintf(to, IO_PATH_BYTES, "%s/%s-%06d.spill", folder, name, number);
    return to;
}

err spill_clear(const char *folder, const char *name) {
    if (!io_is_dir(folder)) return OK;
    char **files = NULL;
    int n = 0, left = 0;
    TRY(io_list(folder, &files, &n));
    for (int i = 0; i < n; i++) { /* temporary files of killed runs too */
        bool ours = str_starts(files[i], name) && files[i][strlen(name)] == '-' &&
                    strstr(files[i], ".spill");
        if (!ours || unlink(PATH_IN(folder, files[i])) != 0) left++;
    }
    io_list_free(files, n);
    if (left == 0 && rmdir(folder) != 0)
        return ERR("cannot remove %s: %s", folder, strerror(errno));
    return OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct spill {
    char *path;
    page_entry *index;
    size_t *first; /* [sections + 1] pages of each section in the index */
};

static err damaged_error(const char *path) {
    return err_hint(ERR("%s is damaged: its checksum does not match", path),
                    "remove its folder, or pass --fresh, and run again");
}

static err spill_read_at(int fd, const char *path, void *into, size_t n, uint64_t offset) {
    for (char *to = into; n > 0;) {
        ssize_t got = pread(fd, to, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ERR("cannot read %s: %s", path, strerror(errno));
        if (got == 0) return damaged_error(path);
        to += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return OK;
}

/* Counts the pages of each section and checks that they are before the index. */
static err take_index(spill *s, const footer *f) {
    for (uint64_t i = 0; i < f->pages; i++) {
        const page_entry *p = &s->index[i];
        if (p->section >= f->sections || p->bytes == 0 || p->bytes > PAGE || p->offset > f->index ||
            p->bytes > f->index - p->offset || (i && compare_section(p - 1, p) > 0))
            return damaged_error(s->path);
        s->first[p->section + 1]++;
    }
    for (uint64_t i = 0; i < f->sections; i++) s->first[i + 1] += s->first[i];
    return OK;
}

static err spill_read_index(spill *s, int fd, uint64_t size, int sections, uint64_t settings,
                            bool *other) {
    footer f;
    if (size < sizeof f) return damaged_error(s->path);
    TRY(spill_read_at(fd, s->path, &f, sizeof f, size - sizeof f));
    if (f.magic != SPILL_MAGIC) return damaged_error(s->path);
    *other = f.settings != settings || f.sections != (uint64_t)sections;
    if (*other) return OK;
    uint64_t bytes = size - sizeof f;
    if (f.index > bytes || (bytes - f.index) % sizeof(page_entry) ||
        (bytes - f.index) / sizeof(page_entry) != f.pages)
        return damaged_error(s->path);
    s->index = mem_alloc((size_t)f.pages * sizeof *s->index);
    s->first = mem_alloc(((size_t)sections + 1) * sizeof *s->first);
    TRY(spill_read_at(fd, s->path, s->index, (size_t)f.pages * sizeof *s->index, f.index));
    if (hash_bytes(s->index, (size_t)f.pages * sizeof *s->index, 0) != f.index_hash)
        return damaged_error(s->path);
    return take_index(s, &f);
}

static err open_spill_file(const char *path, int *fd) {
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? OK : ERR("cannot open %s: %s", path, strerror(errno));
}

err spill_open(const char *path, int sections, uint64_t settings, spill **out) {
    *out = NULL;
    if (!io_exists(path)) return OK;
    int64_t size = 0;
    int fd = -1;
    bool other = false;
    TRY(io_size(path, &size));
    TRY(open_spill_file(path, &fd));
    spill *s = mem_alloc(sizeof *s);
    s->path = strdup(path);
    err e = spill_read_index(s, fd, (uint64_t)size, sections, settings, &other);
    close(fd);
    if (e || other)
        spill_close(s);
    else
        *out = s;
    return e;
}

uint64_t spill_bytes(const spill *s, int section) {
    uint64_t sum = 0;
    for (size_t i = s->first[section]; i < s->first[section + 1]; i++) sum += s->index[i].bytes;
    return sum;
}

void spill_close(spill *s) {
    if (!s) return;
    free(s->path);
    free(s->index);
    free(s->first);
    free(s);
}

err spill_reader_open(const spill *s, int section, spill_reader *out) {
    *out = (spill_reader){ 0 };
    int fd = -1;
    if (s->first[section] < s->first[section + 1]) TRY(open_spill_file(s->path, &fd));
    *out = (spill_reader){ .from = s,
                           .fd = fd,
                           .page = s->first[section],
                           .end = s->first[section + 1],
                           .buffer = mem_alloc(PAGE) };
    return OK;
}

static err next_page(spill_reader *r) {
    if (r->page == r->end) return damaged_error(r->from->path);
    const page_entry *p = &r->from->index[r->page++];
    TRY(spill_read_at(r->fd, r->from->path, r->buffer, p->bytes, p->offset));
    if (hash_bytes(r->buffer, p->bytes, p->offset) != p->hash) return damaged_error(r->from->path);
    r->used = 0;
    r->len = p->bytes;
    return OK;
}

err spill_read(spill_reader *r, void *into, size_t n) {
    for (char *to = into; n > 0;) {
        if (r->used == r->len) TRY(next_page(r));
        size_t part = MIN(n, r->len - r->used);
        memcpy(to, r->buffer + r->used, part);
        r->used += part;
        to += part;
        n -= part;
    }
    return OK;
}

err spill_read_str(spill_reader *r, size_t n, str *out) {
    /* piecewise, so that a wrong length fails at the end of the section instead of exhausting
     * memory */
    char piece[4096];
    for (out->len = 0; n > 0;) {
        size_t part = MIN(n, sizeof piece);
        TRY(spill_read(r, piece, part));
        str_add_bytes(out, piece, part);
        n -= part;
    }
    return OK;
}

void spill_reader_close(spill_reader *r) {
    if (r->buffer && r->fd >= 0) close(r->fd);
    free(r->buffer);
    *r = (spill_reader){ 0 };
}
