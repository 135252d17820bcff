/* Options that hold a secret, or what refers to one. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_internal.h"

static bool refers(const char *given) {
    return str_starts(given, "env:") || str_starts(given, "file:");
}

const char *secret_shown(const char *given) {
    return !*given || refers(given) ? given : CONFIG_WITHHELD;
}

static err read_secret_file(const char *name, const char *path, char **out) {
    enum { MOST = 4096 };
    char line[MOST] = "";
    FILE *f = fopen(path, "r");
    if (!f)
        return err_hint(ERR("%s: cannot read %s: %s", name, path, strerror(errno)),
                        "write the secret to that file, readable by you alone (chmod 600)");
    bool read = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    size_t n = strcspn(line, "\r\n");
    if (!read || n == 0 || n + 1 >= sizeof line)
        return err_hint(ERR("%s: the first line of %s is %s", name, path,
                            n ? "longer than 4094 bytes" : "empty"),
                        "write the secret alone on its first line");
    line[n] = '\0';
    *out = strdup(line);
    return OK;
}

err config_secret(const char *name, const char *given, char **out) {
    *out = NULL;
    if (!strcmp(given, CONFIG_WITHHELD))
        log_warn(
            "%s was given as text, which config.yaml does not keep, and is left out: pass it again, as "
            "--%s=env:NAME or file:PATH to have it kept",
            name, name);
    if (!*given || !strcmp(given, CONFIG_WITHHELD)) return OK;
    if (str_starts(given, "file:")) return read_secret_file(name, given + 5, out);
    const char *text = str_starts(given, "env:") ? getenv(given + 4) : given;
    if (!text || !*text)
        return err_hint(
            ERR("%s: the environment has no variable %.100s, or it is empty", name, given + 4),
            "export it, for every rank, or use file:PATH");
    *out = strdup(text);
    return OK;
}

bool config_line_is_secret(const char *line) {
    line += strspn(line, " ");
    for (int i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        size_t n = strlen(o->key);
        if (o->type == OPT_SECRET && !strncmp(line, o->key, n) && line[n] == ':') return true;
    }
    return false;
}
