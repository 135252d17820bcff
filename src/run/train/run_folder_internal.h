/* The folder of a run (run_folder.c): locked, taken over, watched, restored. */
#ifndef INGOT_TRAIN_RUN_FOLDER_INTERNAL_H
#define INGOT_TRAIN_RUN_FOLDER_INTERNAL_H

#include "io/io.h"

/* The folder of a run: see run_folder.c. */
typedef struct folder_id {
    uint64_t device, inode;
} folder_id;
typedef enum {
    FOLDER_THERE,
    FOLDER_AWAY,    /* out of reach, as when its disk is unmounted: it may come back */
    FOLDER_REMOVED, /* by someone: it does not come back */
    FOLDER_REPLACED /* another run is there now */
} folder_state;
typedef struct run_folder {
    char *path; /* owned */
    io_lock
        *lock;    /* NULL: the folder did not exist when it was opened, and the run has not begun */
    folder_id id; /* once the run has begun */
    int handle;   /* open on it since then; 0: not yet */
    folder_state state; /* after the last step, agreed upon by all ranks */
    bool has_previous;  /* the run that this one replaces is still there */
} run_folder;
/* Locks the folder if it is there: an error when another process has it. */
err folder_open(run_folder *f, const char *path) MUST_USE;
/* Makes and locks the folder, where that is not done yet. */
err folder_make_locked(run_folder *f) MUST_USE;
/* Makes the folder if need be and takes it over. @param fresh sets what an earlier run left aside. */
err folder_begin(run_folder *f, bool fresh) MUST_USE;
/* The new run has taken a step: removes the one it replaces. */
err folder_drop_previous(run_folder *f) MUST_USE;
/* @return whether the path still leads to the folder of this run. One that is back on another device is taken
 * over again. */
folder_state folder_look(run_folder *f);
/* Unlocks, and restores a run that was set aside and not removed. */
void folder_close(run_folder *f);

#endif
