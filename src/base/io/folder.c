/* Folders: making, listing, removing. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/io_internal.h"

/* A name is on the disk when its folder is: without that, a power failure takes a new folder and all that was written into
 * it. */
static err make_one(const char *path) {
    if (mkdir(path, 0777) == 0) return io_sync_parent(path);
    if (errno != EEXIST) return IO_ERR("make the folder", path);
    if (io_is_dir(path)) return OK;
    return err_hint(ERR("cannot make the folder %s: a file of that name is in the way", path),
                    "remove it, or choose another place");
}

err io_make_dirs(const char *path) {
    TRY(io_refuse_url(path));
    char *part = strdup(path);
    err e = OK;
    for (char *p = part + 1; !e && part[0] && *p; p++) {
        if (*p != '/') continue;
        *p = '\0';
        e = make_one(part);
        *p = '/';
    }
    if (!e) e = make_one(path);
    free(part);
    return e;
}

err io_list(const char *path, char ***names, int *n) {
    DIR *d = opendir(path);
    if (!d) return IO_ERR("list the folder", path);
    char **list = NULL;
    int count = 0, capacity = 0;
    errno = 0;
    for (struct dirent *entry; (entry = readdir(d)); errno = 0) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        LIST_ADD(list, count, capacity) = strdup(entry->d_name);
    }
    err e = errno ? IO_ERR("list the folder", path) : OK;
    closedir(d);
    if (e) {
        io_list_free(list, count);
        return e;
    }
    sort_array(list, (size_t)count, sizeof(char *), compare_texts);
    *names = list;
    *n = count;
    return OK;
}

void io_list_free(char **names, int n) {
    for (int i = 0; i < n; i++) free(names[i]);
    free(names);
}

/* Resolves all of `path` but its last part, which may be a link. @return owned; NULL: cannot. */
static char *resolve_but_last(const char *path) {
    char *copy = strdup(path);
    size_t n = strlen(copy);
    while (n > 1 && copy[n - 1] == '/') copy[--n] = '\0';
    const char *slash = strrchr(copy, '/'), *last = slash ? slash + 1 : copy;
    char *parent = io_parent(copy), *real = realpath(parent, NULL);
    str out = { 0 };
    bool named = last[0] && strcmp(last, ".") != 0 && strcmp(last, "..") != 0;
    if (named && real) str_add(&out, "%s/%s", strcmp(real, "/") == 0 ? "" : real, last);
    free(real);
    free(parent);
    free(copy);
    return out.text;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where) {
    return remove(path);
}

err io_remove_tree(const char *root, const char *path) {
    enum { OPEN_AT_ONCE = 32 };
    struct stat st;
    if (lstat(path, &st) != 0 && errno == ENOENT) return OK;
    char *real_root = realpath(root, NULL);
    if (!real_root) return IO_ERR("find the folder", root);
    char *real = resolve_but_last(path);
    err e = OK;
    size_t n = strlen(real_root);
    bool inside = real && str_starts(real, real_root) && real[n] == '/' && real[n + 1];
    if (!inside)
        e = ERR("refused to remove %s: it is not inside %s", path, root);
    else if (nftw(real, remove_entry, OPEN_AT_ONCE, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) != 0)
        e = IO_ERR("remove", path);
    free(real);
    free(real_root);
    return e;
}

/* renameat2 is Linux's; elsewhere, and on file systems without it, nothing is exchanged. */
#ifdef RENAME_EXCHANGE
static bool swap_paths(const char *a, const char *b) {
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
}
#else
static bool swap_paths(const char *a, const char *b) { return false; }
#endif

err io_replace_tree(const char *root, const char *from, const char *to, const char *aside) {
    if (io_exists(to) && swap_paths(from, to)) {
        TRY(io_sync_folder(root));
        return io_remove_tree(root, from);
    }
    /* Without a `to`, `aside` may be all that an earlier attempt left: it stays until the new one has its name. */
    bool replaces = io_exists(to);
    if (replaces) TRY(io_remove_tree(root, aside));
    if (replaces && rename(to, aside) != 0) return IO_ERR("rename", to);
    if (rename(from, to) != 0) {
        err e = IO_ERR("rename", from);
        if (replaces && rename(aside, to) != 0)
            e = err_hint(e, "what was there before is in %s now", aside);
        return e;
    }
    TRY(io_sync_folder(root));
    return io_remove_tree(root, aside);
}

err io_rename(const char *from, const char *to) {
    if (rename(from, to) != 0)
        return err_hint(ERR("cannot rename %s to %s: %s", from, to, strerror(errno)),
                        "check that the folder is writable, and the disk it is on");
    TRY(io_sync_parent(from));
    return io_sync_parent(to);
}

char *io_join(const char *folder, const char *name) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = mem_alloc(n);
    snprintf(path, n, "%s/%s", folder, name);
    return path;
}

char *io_join_into(char to[IO_PATH_BYTES], const char *folder, const char *name) {
    snprintf(to, IO_PATH_BYTES, "%s/%s", folder, name);
    return to;
}

char *io_cache_folder(void) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    str path = { 0 };
    if (cache && cache[0] == '/')
        str_add(&path, "%s/ingot", cache);
    else if (home && home[0] == '/')
        str_add(&path, "%s/.cache/ingot", home);
    else
        return NULL;
    err e = io_make_dirs(path.text);
    if (!e) return path.text;
    err_free(e);
    str_free(&path);
    return NULL;
}
