/* A power failure leaves a run that resumes: every folder that is made and every entry that is renamed is synced in the folder that names
 * it. The calls of the program are replaced by ones that note them. */
#include "support/train.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- notes ------------------------------------------------------------------------------------------- */
enum { MOST_NOTES = 1 << 14 };
typedef struct note {
    char path[256]; /* of an entry that got its name here; of a folder that was synced */
    bool synced;
} note;
static note *notes;
static int n_notes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void add_note(const char *path, bool synced) {
    pthread_mutex_lock(&lock);
    if (notes) {
        assert_true(n_notes < MOST_NOTES);
        note *now = &notes[n_notes++];
        now->synced = synced;
        snprintf(now->path, sizeof now->path, "%s", path);
    }
    pthread_mutex_unlock(&lock);
}

int mkdir(const char *path, mode_t mode) {
    int rc = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    if (rc == 0) add_note(path, false);
    return rc;
}
int rename(const char *from, const char *to) {
    int rc = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (rc == 0) add_note(to, false);
    return rc;
}
int fsync(int fd) {
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0) add_note(path, true);
    return (int)syscall(SYS_fsync, fd);
}

/* ---- the test ------------------------------------------------------------------------------------------ */
/* Whether the folder of entry i is synced after it got its name. */
static bool is_synced(int i) {
    char parent[256];
    snprintf(parent, sizeof parent, "%s", notes[i].path);
    char *slash = strrchr(parent, '/');
    if (!slash) return true; /* in the test's own folder */
    *slash = '\0';
    for (int k = i + 1; k < n_notes; k++)
        if (notes[k].synced && strcmp(notes[k].path, parent) == 0) return true;
    return false;
}

/* A run that saves, removes older checkpoints, continues, and starts over. */
static void names_are_synced(void **state) {
    test_folder *f = *state;
    notes = mem_alloc(MOST_NOTES * sizeof *notes);
    settings common = { SETTINGS_OF_ONE("1") };
    settings own = {
        "training.steps", "4", "checkpoint.every", "2", "checkpoint.keep_latest_k", "1"
    };
    settings longer = { "training.steps",           "8", "checkpoint.every", "2",
                        "checkpoint.keep_latest_k", "1" };
    assert_ok(run_with(f, "runs/of/today", common, own));
    assert_ok(run_with(f, "runs/of/today", common, longer));
    assert_ok(run_with_options(f, "runs/of/today", common, own,
                               &(train_options){ .quiet = true, .fresh = true }));
    int entries = 0;
    for (int i = 0; i < n_notes; i++) {
        if (notes[i].synced) continue;
        if (str_ends(notes[i].path, "/status.json"))
            continue; /* io_publish: shows the present only */
        entries++;
        if (!is_synced(i)) fail_msg("%s is named, and its folder is not synced", notes[i].path);
    }
    assert_true(entries > 10);
    free(notes);
    notes = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_are_synced, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
