/* Errors that network interfaces count, by the files the kernel has for them. Counters of traffic that was
 * merely dropped are left out: congestion is not a fault. */
#include <glob.h>
#include <stdio.h>

#include "observe/observe.h"

static const char *const counters[] = {
    "class/net/*/statistics/rx_errors",
    "class/net/*/statistics/tx_errors",
    "class/infiniband/*/ports/*/counters/symbol_error",
    "class/infiniband/*/ports/*/counters/link_error_recovery",
    "class/infiniband/*/ports/*/counters/link_downed",
    "class/infiniband/*/ports/*/counters/port_rcv_errors",
    "class/infiniband/*/ports/*/counters/local_link_integrity_errors",
};

double link_errors(const char *sys) {
    double sum = 0;
    size_t found = 0;
    for (size_t i = 0; i < COUNT_OF(counters); i++) {
        str pattern = { 0 };
        glob_t files = { 0 };
        str_add(&pattern, "%s/%s", sys ? sys : "/sys", counters[i]);
        if (glob(pattern.text, 0, NULL, &files) == 0)
            for (size_t k = 0; k < files.gl_pathc; k++, found++) {
                double n = 0;
                FILE *file = fopen(files.gl_pathv[k], "r");
                if (file && fscanf(file, "%lf", &n) == 1) sum += n;
                if (file) fclose(file);
            }
        globfree(&files);
        str_free(&pattern);
    }
    return found ? sum : NAN;
}
