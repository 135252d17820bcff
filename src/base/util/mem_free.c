/* Memory that is free. Linux grants more than there is and ends the process when it is touched, so
 * what a run will need is compared with this first. */
#include "util/util.h"

#include <stdlib.h>
#include <string.h>

/* @return the number after `key` in a file of "key value" lines; 0 when there is none. */
static size_t read_meminfo(const char *path, const char *key) {
    FILE *f = fopen(path, "r");
    char line[512];
    size_t value = 0, n = strlen(key);
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, n)) value = (size_t)strtoull(line + n, NULL, 10);
    if (f) fclose(f);
    return value;
}

/* @return the limit or use in one of a control group's files; SIZE_MAX for "max" or no file. */
static size_t read_amount(const char *folder, const char *name) {
    char path[768], text[64] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    char *end = text;
    size_t amount = f && fgets(text, sizeof text, f) ? (size_t)strtoull(text, &end, 10) : 0;
    if (f) fclose(f);
    return end == text ? SIZE_MAX : amount;
}

/* Returns the memory that a control group, as of a container or a batch job, still grants. */
static size_t left_in_group(const char *folder) {
    char stat[768];
    size_t most = read_amount(folder, "memory.max"), used = read_amount(folder, "memory.current");
    if (most == SIZE_MAX || used == SIZE_MAX) return SIZE_MAX;
    snprintf(stat, sizeof stat, "%s/memory.stat", folder);
    size_t cached = MIN(read_meminfo(stat, "inactive_file "), used); /* given up when asked for */
    return most > used - cached ? most - (used - cached) : 0;
}

/* The group of this process and those around it: each may set a limit. */
static size_t left_in_groups(void) {
    static const char root[] = "/sys/fs/cgroup";
    char line[512] = "", folder[640];
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof line, f) && strncmp(line, "0::", 3)) line[0] = '\0';
    if (f) fclose(f);
    line[strcspn(line, "\n")] = '\0';
    snprintf(folder, sizeof folder, "%s%s", root, line[0] ? line + 3 : "");
    size_t left = left_in_group(folder);
    for (char *slash; (slash = strrchr(folder, '/')) && slash > folder + sizeof root - 2;) {
        *slash = '\0';
        left = MIN(left, left_in_group(folder));
    }
    return left;
}

size_t mem_free(void) {
    size_t free_kib = read_meminfo("/proc/meminfo", "MemAvailable:");
    free_kib += read_meminfo("/proc/meminfo", "SwapFree:");
    size_t machine = free_kib ? free_kib * 1024 : SIZE_MAX;
    return MIN(machine, left_in_groups());
}
