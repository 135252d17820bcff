/* The folder of a fuzz target: in memory, removed at the end. */
#include "fuzz/fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"

static char folder[64];

static void remove_folder(void) {
    char root[sizeof folder];
    strcpy(root, folder);
    *strrchr(root, '/') = '\0';
    if (io_remove_tree(root, folder)) abort();
}

const char *fuzz_folder(void) {
    if (*folder) return folder;
    strcpy(folder, "/dev/shm/ingot-fuzz-XXXXXX");
    if (!mkdtemp(folder)) {
        strcpy(folder, "/tmp/ingot-fuzz-XXXXXX");
        if (!mkdtemp(folder)) abort();
    }
    atexit(remove_folder);
    return folder;
}

/* Without a sync, which io_write makes: it would be most of the time. */
const char *fuzz_write(const char *name, const void *data, size_t n) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    close(fd);
    return path;
}
