/* Locks on files, by fcntl: they end with the process, work over NFS, and the system knows who holds
 * one.
 *
 * A lock file may be removed by whoever holds it. Between opening and locking, the file under the
 * path can therefore have become another one, whose lock would mean nothing: a lock counts only when
 * the path still leads to the locked file. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/io_internal.h"

struct io_lock {
    char *path;
    int fd;
    bool made; /* the file was not there before, and is not signed */
    char signature[256];
};

static struct flock whole_file(short type) {
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET };
}

/* The file holds "PID on HOST since DATE"; the system knows the pid of a holder on this machine. */
static err held_by_another(const io_lock *l, const char *what) {
    char text[256] = "";
    struct flock holder = whole_file(F_WRLCK);
    ssize_t n = pread(l->fd, text, sizeof text - 1, 0);
    text[MAX(n, 0)] = '\0';
    text[strcspn(text, "\n")] = '\0';
    bool known =
        fcntl(l->fd, F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK && holder.l_pid > 0;
    if (known && strtol(text, NULL, 10) != holder.l_pid)
        snprintf(text, sizeof text, "%ld", (long)holder.l_pid);
    return err_hint(ERR("%s is in use by process %s", what, *text ? text : "of another machine"),
                    "wait for that process or end it, or choose another folder");
}

static bool leads_to(const char *path, int fd) {
    struct stat by_path, by_fd;
    return stat(path, &by_path) == 0 && fstat(fd, &by_fd) == 0 && by_path.st_ino == by_fd.st_ino &&
           by_path.st_dev == by_fd.st_dev;
}

/* One attempt. @param again true when the file was removed meanwhile. */
static err try_lock(io_lock *l, const char *what, bool *again) {
    struct flock mine = whole_file(F_WRLCK);
    *again = false;
    l->made = !io_exists(l->path);
    l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (l->fd < 0) return IO_ERR("lock", l->path);
    if (fcntl(l->fd, F_SETLK, &mine) != 0) {
        l->made = false;
        if (errno == EACCES || errno == EAGAIN) return held_by_another(l, what);
        return IO_ERR("lock", l->path);
    }
    *again = !leads_to(l->path, l->fd);
    return OK;
}

err io_lock_take(const char *path, const char *what, io_lock **out) {
    io_lock *l = mem_alloc(sizeof *l);
    *l = (io_lock){ .path = strdup(path), .fd = -1 };
    bool again = true;
    err e = OK;
    while (again && !e) {
        if (l->fd >= 0) close(l->fd);
        e = try_lock(l, what, &again);
    }
    if (e) {
        io_lock_free(l);
        return e;
    }
    *out = l;
    return OK;
}

err io_lock_sign(io_lock *l) {
    char host[128] = "", date[64] = "", *text = l->signature;
    time_t now = time(NULL);
    gethostname(host, sizeof host - 1);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", localtime(&now));
    int n = snprintf(text, sizeof l->signature, "%ld on %s since %s\n", (long)getpid(), host, date);
    l->made = false;
    if (ftruncate(l->fd, 0) != 0 || pwrite(l->fd, text, (size_t)n, 0) != n)
        return IO_ERR("write", l->path);
    return OK;
}

const char *io_lock_signature(const io_lock *l) { return l->signature; }

void io_lock_free(io_lock *l) {
    if (!l) return;
    if (l->made && l->fd >= 0) unlink(l->path);
    if (l->fd >= 0) close(l->fd);
    free(l->path);
    free(l);
}
