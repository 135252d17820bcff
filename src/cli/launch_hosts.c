/* The hosts of a launch: --hosts and --spares, and which of them has a rank. */
#include <string.h>

#include "cli/launch.h"

/* Reads one "name:slots" of n characters. */
static err read_host(const char *option, const char *text, size_t n, launch_hosts *h) {
    const char *digits = "0123456789";
    size_t name = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_");
    int64_t slots = 1;
    char number[16] = "";
    bool counted = name < n && text[name] == ':';
    size_t len = counted ? n - name - 1 : 0;
    if (counted && len < sizeof number) memcpy(number, text + name + 1, len);
    bool good =
        name > 0 && (counted ? len > 0 && len < 6 && strspn(number, digits) == len : name == n);
    if (good && counted) good = number_parse_int(number, &slots) && slots > 0;
    if (!good || h->n == LAUNCH_MAX_HOSTS || name >= LAUNCH_HOST)
        return err_hint(ERR_USAGE("%s: \"%.*s\" is not a host", option, (int)n, text),
                        "write %s a:8,b:8, each with the number of ranks it takes", option);
    launch_host *to = &h->at[h->n++];
    snprintf(to->name, sizeof to->name, "%.*s", (int)name, text);
    to->slots = (int)slots;
    return OK;
}

err launch_hosts_read(const char *option, const char *text, launch_hosts *out) {
    while (text) {
        size_t n = strcspn(text, ",");
        TRY(read_host(option, text, n, out));
        text = text[n] ? text + n + 1 : NULL;
    }
    return OK;
}

int launch_hosts_slots(const launch_hosts *h) {
    int all = 0;
    for (int i = 0; i < h->n; i++) all += h->at[i].slots;
    return all;
}

int launch_hosts_most(const launch_hosts *h) {
    int most = 0;
    for (int i = 0; i < h->n; i++) most = MAX(most, h->at[i].slots);
    return most;
}

void launch_hosts_print(const launch_hosts *h, bool slots, str *out) {
    for (int i = 0; i < h->n; i++) {
        str_add(out, "%s%s", i ? "," : "", h->at[i].name);
        if (slots) str_add(out, ":%d", h->at[i].slots);
    }
}

int launch_hosts_find_rank(const launch_hosts *h, int rank) {
    for (int i = 0; i < h->n && rank >= 0; i++) {
        if (rank < h->at[i].slots) return i;
        rank -= h->at[i].slots;
    }
    return -1;
}

int launch_hosts_find_name(const launch_hosts *h, const char *name) {
    for (int i = 0; i < h->n; i++)
        if (strcmp(h->at[i].name, name) == 0) return i;
    return -1;
}

bool launch_hosts_replace(launch_hosts *h, int index, launch_hosts *spares) {
    for (int i = 0; i < spares->n; i++) {
        if (spares->at[i].slots < h->at[index].slots) continue;
        memcpy(h->at[index].name, spares->at[i].name, LAUNCH_HOST);
        spares->n--;
        memmove(&spares->at[i], &spares->at[i + 1], (size_t)(spares->n - i) * sizeof spares->at[i]);
        return true;
    }
    return false;
}
