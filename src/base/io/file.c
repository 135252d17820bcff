/* Reading files, whole or mapped, and the errors of the system with their remedies. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_internal.h"

static const struct {
    int code;
    const char *remedy;
} remedies[] = {
    { ENOENT, "check the path" },
    { ENOTDIR, "a part of this path is a file where a folder is needed: check the path" },
    { EISDIR, "this is a folder: give the path of a file" },
    { EACCES, "check who owns it and its permissions, or choose another place" },
    { EPERM, "check who owns it and its permissions, or choose another place" },
    { EROFS, "this disk is mounted read-only: choose another place" },
    { ENOSPC,
      "free some space on that disk, or choose another one; what was there before is intact" },
    { EDQUOT, "your quota on that disk is used up: free some space, or choose another disk" },
    { EFBIG, "raise the limit on the size of files (ulimit -f), or choose another disk" },
    { EMFILE, "too many files are open: raise the limit (ulimit -n)" },
    { ENFILE, "too many files are open on this machine" },
    { ENAMETOOLONG, "choose a shorter path" },
    { EIO, "the disk reports a fault: check its health and the system log" },
};

err io_system_error(const char *file, int line, const char *verb, const char *path, int code) {
    err e = err_make(file, line, "cannot %s %s: %s", verb, path, strerror(code));
    for (size_t i = 0; i < COUNT_OF(remedies); i++)
        if (remedies[i].code == code) return err_hint(e, "%s", remedies[i].remedy);
    return e;
}

/* Opens a regular file for reading and returns its size. */
static err open_regular(const char *path, int *fd, size_t *size) {
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return IO_ERR("open", path);
    err e = OK;
    if (fstat(*fd, &st) != 0)
        e = IO_ERR("inspect", path);
    else if (S_ISDIR(st.st_mode))
        e = io_system_error(__FILE__, __LINE__, "read", path, EISDIR);
    else if (!S_ISREG(st.st_mode))
        e = err_hint(ERR("cannot read %s: it is a device or a pipe", path), "give a regular file");
    if (!e) {
        *size = (size_t)st.st_size;
        return OK;
    }
    close(*fd);
    *fd = -1;
    return e;
}

/* Reads exactly n bytes. A file that shrank meanwhile is an error. */
static err read_fully(int fd, const char *path, char *to, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = read(fd, to + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return IO_ERR("read", path);
        if (got == 0)
            return ERR("cannot read %s: expected %zu bytes; it ended after %zu", path, n, done);
        done += (size_t)got;
    }
    return OK;
}

err io_read(const char *path, size_t max, char **text, size_t *len) {
    int fd = -1;
    size_t size = 0;
    TRY(open_regular(path, &fd, &size));
    err e = OK;
    char *bytes = NULL;
    if (size > max) {
        char have[32], limit[32];
        e = ERR("%s: expected a file of at most %s; it has %s", path,
                str_bytes(limit, sizeof limit, (double)max),
                str_bytes(have, sizeof have, (double)size));
    } else {
        bytes = malloc(size + 1);
        e = bytes ? read_fully(fd, path, bytes, size)
                  : io_system_error(__FILE__, __LINE__, "read", path, ENOMEM);
    }
    close(fd);
    if (e) {
        free(bytes);
        return e;
    }
    bytes[size] = '\0';
    *text = bytes;
    if (len) *len = size;
    return OK;
}

/* ---- mappings ------------------------------------------------------------------------------
 * All that are open, as a list that a signal handler can walk at any moment: entries are added at its
 * head and never removed, only marked as free and used again. Its head is the one variable of this
 * folder: a handler has no context. */
typedef struct map_entry {
    struct map_entry *next;
    _Atomic(const uint8_t *) data; /* NULL: free */
    size_t size;
    char *path;
} map_entry;
static _Atomic(map_entry *) first_entry;
static pthread_mutex_t entries_lock = PTHREAD_MUTEX_INITIALIZER;

static void remember_mapping(const char *path, const io_mapping *m) {
    pthread_mutex_lock(&entries_lock);
    map_entry *e = atomic_load(&first_entry);
    while (e && atomic_load(&e->data)) e = e->next;
    bool fresh = !e;
    if (fresh) e = mem_alloc(sizeof *e);
    free(e->path);
    e->path = strdup(path);
    e->size = m->size;
    atomic_store(&e->data, m->data);
    if (fresh) {
        e->next = atomic_load(&first_entry);
        atomic_store(&first_entry, e);
    }
    pthread_mutex_unlock(&entries_lock);
}

static void forget_mapping(const io_mapping *m) {
    pthread_mutex_lock(&entries_lock);
    for (map_entry *e = atomic_load(&first_entry); e; e = e->next)
        if (atomic_load(&e->data) == m->data) atomic_store(&e->data, NULL);
    pthread_mutex_unlock(&entries_lock);
}

const char *io_mapped_path(const void *address) {
    const uint8_t *at = address;
    for (map_entry *e = atomic_load(&first_entry); e; e = e->next) {
        const uint8_t *data = atomic_load(&e->data);
        if (data && at >= data && at - data < (ptrdiff_t)e->size) return e->path;
    }
    return NULL;
}

err io_map(const char *path, io_mapping *out) {
    int fd = -1;
    size_t size = 0;
    *out = (io_mapping){ 0 };
    TRY(open_regular(path, &fd, &size));
    err e = OK;
    if (size > 0) { /* the system does not map empty files */
        void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            e = IO_ERR("map", path);
        else
            *out = (io_mapping){ p, size };
        if (!e) remember_mapping(path, out);
    }
    close(fd);
    return e;
}

void io_unmap(io_mapping *m) {
    if (m->data) {
        forget_mapping(m);
        munmap((void *)(uintptr_t)m->data, m->size);
    }
    *m = (io_mapping){ 0 };
}

bool io_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool io_has(const char *folder, const char *name) { return io_exists(PATH_IN(folder, name)); }

bool io_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

err io_size(const char *path, int64_t *bytes) {
    struct stat st;
    if (stat(path, &st) != 0) return IO_ERR("inspect", path);
    *bytes = (int64_t)st.st_size;
    return OK;
}
