/* Limits of the control groups of Linux that this process is in: those of a container or a batch job, in either version. */
#include "util/util.h"

#include <stdlib.h>
#include <string.h>

static const char ROOT[] = "/sys/fs/cgroup";

size_t control_group_number(const char *folder, const char *name, int which) {
    char path[1280], text[128] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    char *at = f && fgets(text, sizeof text, f) ? text : NULL, *end = NULL;
    if (f) fclose(f);
    for (; at && which > 0; which--) at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
    size_t number = at && *at != '-' ? (size_t)strtoull(at, &end, 10) : 0;
    return !end || end == at ? SIZE_MAX : number;
}

/* Whether a list such as "cpu,cpuacct" has a word. */
static bool lists(const char *list, const char *word) {
    size_t n = strlen(word);
    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (strcspn(list, ",") == n && !strncmp(list, word, n)) return true;
    return false;
}

size_t control_group_least(const char *controller, size_t (*of)(const char *folder)) {
    size_t least = SIZE_MAX;
    char line[1024], folder[1152];
    FILE *f = fopen("/proc/self/cgroup", "r");
    /* lines are number:controllers:path, without controllers in version 2 */
    while (f && fgets(line, sizeof line, f)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        bool second = !*++list;
        if (!second && !lists(list, controller)) continue;
        int root = snprintf(folder, sizeof folder, "%s%s%s", ROOT, second ? "" : "/",
                            second ? "" : controller);
        snprintf(folder + root, sizeof folder - (size_t)root, "%s", path);
        /* the group itself and those around it; in a container the path is the host's, and the root the container's */
        for (char *slash = NULL;; *slash = '\0') {
            least = MIN(least, of(folder));
            slash = strrchr(folder, '/');
            if (!slash || slash < folder + root) break;
        }
    }
    if (f) fclose(f);
    return least;
}
