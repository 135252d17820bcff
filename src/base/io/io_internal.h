/* io, inside: errors of the system. */
#ifndef INGOT_IO_INTERNAL_H
#define INGOT_IO_INTERNAL_H

#include "io/io.h"

/* "cannot VERB PATH: reason" with the remedy for errno value `code`. */
err io_system_error(const char *file, int line, const char *verb, const char *path,
                    int code) MUST_USE;
#define IO_ERR(verb, path) io_system_error(__FILE__, __LINE__, verb, path, errno)

/* The folder that has a path's last component: owned (free). */
char *io_parent(const char *path);

#endif
