/* Writing files so that a target is at all times the old one or the whole new one: see the drawing in
 * io.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_internal.h"

enum { BUFFER_BYTES = 1 << 18, EAGER_BYTES = 8 << 20, MOST_TEMPORARIES = 1000 };

struct io_writer {
    char *path, *temporary;
    int fd;
    int64_t written,
        on_its_way; /* bytes given to the system; those it was asked to put on the disk */
    size_t used;    /* of buffer */
    unsigned char buffer[BUFFER_BYTES];
};

static err write_fully(int fd, const char *path, const void *bytes, size_t n) {
    const char *from = bytes;
    while (n > 0) {
        ssize_t done = write(fd, from, n);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return IO_ERR("write", path);
        from += done;
        n -= (size_t)done;
    }
    return OK;
}

char *io_parent(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

/* Opens a new file beside the target. The process id keeps writers apart; the number gets past what
 * a killed process of the same id left behind. */
static err open_temporary(io_writer *w) {
    for (int i = 0; i < MOST_TEMPORARIES; i++) {
        str name = { 0 };
        str_add(&name, "%s.%ld.%d.tmp", w->path, (long)getpid(), i);
        w->fd = open(name.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0) {
            w->temporary = name.text;
            return OK;
        }
        int code = errno;
        str_free(&name);
        if (code != EEXIST) return io_system_error(__FILE__, __LINE__, "write", w->path, code);
    }
    return err_hint(ERR("cannot write %s: too many temporary files beside it", w->path),
                    "remove the files ending in .tmp there, once no program writes them");
}

static void io_writer_free(io_writer *w) {
    if (w->fd >= 0) close(w->fd);
    free(w->temporary);
    free(w->path);
    free(w);
}

err io_refuse_url(const char *path) {
    const char *slashes = strstr(path, "://");
    if (!slashes || slashes == path || memchr(path, '/', (size_t)(slashes - path))) return OK;
    return err_hint(
        ERR("cannot write %s: it is an address, and files are written to folders only", path),
        "write to a folder, and copy it when it is complete, such as with `aws s3 sync`");
}

err io_writer_open(const char *path, io_writer **out) {
    struct stat st;
    TRY(io_refuse_url(path));
    bool exists = stat(path, &st) == 0;
    if (exists && S_ISDIR(st.st_mode))
        return io_system_error(__FILE__, __LINE__, "write", path, EISDIR);
    if (exists && !S_ISREG(st.st_mode))
        return err_hint(ERR("cannot write %s: it is a device or a pipe", path),
                        "give the path of a regular file");
    io_writer *w = mem_alloc(sizeof *w);
    w->path = strdup(path);
    err e = open_temporary(w);
    if (!e && exists && fchmod(w->fd, st.st_mode & 07777) != 0) e = IO_ERR("write", path);
    if (e) {
        io_writer_abort(w);
        return e;
    }
    *out = w;
    return OK;
}

/* The disk starts on what is written while the caller makes more, rather than with the fsync at the end. */
static err write_eagerly(io_writer *w, const void *bytes, size_t n) {
    TRY(write_fully(w->fd, w->path, bytes, n));
    w->written += (int64_t)n;
#ifdef SYNC_FILE_RANGE_WRITE
    if (w->written - w->on_its_way < EAGER_BYTES) return OK;
    (void)sync_file_range(w->fd, w->on_its_way, w->written - w->on_its_way, SYNC_FILE_RANGE_WRITE);
    w->on_its_way = w->written;
#endif
    return OK;
}

static err flush_buffer(io_writer *w) {
    size_t n = w->used;
    w->used = 0;
    return write_eagerly(w, w->buffer, n);
}

err io_writer_write(io_writer *w, const void *bytes, size_t n) {
    if (n > BUFFER_BYTES - w->used) TRY(flush_buffer(w));
    if (n >= BUFFER_BYTES) return write_eagerly(w, bytes, n);
    memcpy(w->buffer + w->used, bytes, n);
    w->used += n;
    return OK;
}

/* Some file systems cannot sync a folder; what it holds is then as safe as they make it. */
err io_sync_folder(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    err e = OK;
    if (fd >= 0 && fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        e = IO_ERR("sync the folder", path);
    if (fd >= 0) close(fd);
    return e;
}

err io_sync_parent(const char *path) {
    char *named = strdup(path);
    for (size_t n = strlen(named); n > 1 && named[n - 1] == '/'; n--) named[n - 1] = '\0';
    char *parent = io_parent(named);
    err e = io_sync_folder(parent);
    free(parent);
    free(named);
    return e;
}

static err finish_temporary(io_writer *w) {
    TRY(flush_buffer(w));
    if (fsync(w->fd) != 0) return IO_ERR("write", w->path);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0) return IO_ERR("write", w->path); /* where network disks report a full one */
    if (rename(w->temporary, w->path) != 0) return IO_ERR("write", w->path);
    return OK;
}

err io_writer_commit(io_writer *w) {
    err e = finish_temporary(w);
    if (e) {
        io_writer_abort(w);
        return e;
    }
    e = io_sync_parent(w->path);
    io_writer_free(w);
    return e;
}

void io_writer_abort(io_writer *w) {
    if (!w) return;
    if (w->temporary) unlink(w->temporary);
    io_writer_free(w);
}

err io_publish(const char *path, const void *bytes, size_t n) {
    io_writer *w = NULL;
    TRY(io_writer_open(path, &w));
    err e = write_fully(w->fd, path, bytes, n);
    if (!e && rename(w->temporary, path) != 0) e = IO_ERR("write", path);
    if (e)
        io_writer_abort(w);
    else
        io_writer_free(w);
    return e;
}

err io_write(const char *path, const void *bytes, size_t n) {
    io_writer *w = NULL;
    TRY(io_writer_open(path, &w));
    err e = io_writer_write(w, bytes, n);
    if (e) {
        io_writer_abort(w);
        return e;
    }
    return io_writer_commit(w);
}

err io_append_open(const char *path, int *fd) {
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    *fd = open(path, flags | O_EXCL, 0666);
    if (*fd >= 0) return io_sync_parent(path);
    *fd = open(path, flags, 0666);
    return *fd < 0 ? IO_ERR("open", path) : OK;
}

err io_append(int fd, const char *path, const void *bytes, size_t n) {
    return write_fully(fd, path, bytes, n);
}

err io_copy(const char *from, const char *to) {
    io_mapping m = { 0 };
    TRY(io_map(from, &m));
    err e = io_write(to, m.data, m.size);
    io_unmap(&m);
    return e;
}
