/* Memory of a process that other processes of its host map: a memfd, opened by others as
 * /proc/PID/fd/FD. It has no name in any file system, so nothing is left over when a process dies. */
#include "comm_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static err map_fd(int fd, size_t bytes, void **at) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return ERR("cannot map shared memory: %s", strerror(errno));
    madvise(p, bytes, MADV_HUGEPAGE); /* advice only */
    *at = p;
    return OK;
}

err segment_new(size_t bytes, shared_segment *out, void **at) {
    *at = NULL;
    *out = (shared_segment){ .pid = getpid(),
                             .fd = memfd_create("ingot", MFD_CLOEXEC),
                             .bytes = bytes };
    if (out->fd < 0) return ERR("cannot create shared memory: %s", strerror(errno));
    char size[32];
    err e = OK;
    if (ftruncate(out->fd, (off_t)bytes) != 0)
        e = ERR("cannot reserve %s of shared memory: %s",
                str_bytes(size, sizeof size, (double)bytes), strerror(errno));
    if (!e) e = map_fd(out->fd, bytes, at);
    if (e) close(out->fd);
    return e;
}

err segment_map(const shared_segment *s, void **at) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", s->pid, s->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return err_hint(
            ERR("cannot open the shared memory of process %d: %s", s->pid, strerror(errno)),
            "comm.shared_memory=false lets ranks of a host exchange messages instead");
    err e = map_fd(fd, s->bytes, at);
    close(fd);
    return e;
}

void segment_free(shared_segment *s, void *at) {
    if (!at) return;
    munmap(at, s->bytes);
    if (s->pid == getpid()) close(s->fd);
}
