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

/* @param cached the key of what is given up when it is asked for */
static size_t left_of(const char *folder, const char *limit, const char *use, const char *cached) {
    char stat[1280];
    size_t most = control_group_number(folder, limit, 0),
           used = control_group_number(folder, use, 0);
    if (most == SIZE_MAX || used == SIZE_MAX) return SIZE_MAX;
    snprintf(stat, sizeof stat, "%s/memory.stat", folder);
    used -= MIN(read_meminfo(stat, cached), used);
    return most > used ? most - used : 0;
}
static size_t left_in_group(const char *folder) {
    return MIN(
        left_of(folder, "memory.max", "memory.current", "inactive_file "),
        left_of(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "));
}

size_t mem_free(void) {
    size_t free_kib = read_meminfo("/proc/meminfo", "MemAvailable:");
    free_kib += read_meminfo("/proc/meminfo", "SwapFree:");
    size_t machine = free_kib ? free_kib * 1024 : SIZE_MAX;
    return MIN(machine, control_group_least("memory", left_in_group));
}
