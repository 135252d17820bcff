/* Faults on purpose, for tests of what survives them. Without INGOT_FAULT in the environment every call here
 * returns at once.
 *
 *     INGOT_FAULT=ACTION:POINT[:rank=R][:hit=N][:attempt=A][:by=X]
 *
 *     kill:save.manifest:rank=0:hit=2     SIGKILL the second time rank 0 has written a manifest
 *     stop:step:rank=1:hit=5              SIGSTOP at the start of its fifth step
 *     hang:step:rank=1:hit=5              sleep forever there
 *     slow:step:rank=1:by=0.3             every step computes 30 % longer
 *     slow:task:rank=1:by=50              every task of a data command takes 50 times longer
 *     flip:weights:rank=2:hit=7           flip a bit of a weight after the seventh step
 *     flip:save.files:hit=any             leave a slice that rank 0 wrote out of every manifest
 *
 * Defaults: rank 0, the first hit (any: each of them), and the first attempt of `ingot launch` (INGOT_ATTEMPT;
 * any: all of them). */
#ifndef INGOT_FAULT_H
#define INGOT_FAULT_H

#include "util/util.h"

#define FAULT_POINTS(F)                                                                            \
    F(MEET, "meet")                       /* a rank that mpirun started joins the others */        \
    F(STEP, "step")                       /* a step begins */                                      \
    F(WEIGHTS, "weights")                 /* the weights of a step are final */                    \
    F(SAVE_BEGIN, "save.begin")           /* the temporary folder is there */                      \
    F(SAVE_FILE, "save.file")             /* a rank has written some of its files */               \
    F(SAVE_FILES, "save.files")           /* ... all of them */                                    \
    F(SAVE_MANIFEST, "save.manifest")     /* the manifest is written, the folder not renamed */    \
    F(SAVE_RENAMED, "save.renamed")       /* it is; older checkpoints are not removed */           \
    F(UPLOAD_FILE, "upload.file")         /* a file of a checkpoint is in the store */             \
    F(UPLOAD_MANIFEST, "upload.manifest") /* ... all but its manifest */                           \
    F(UPLOAD_DONE, "upload.done")         /* ... all; older ones are not removed there */          \
    F(ROLLBACK, "rollback")               /* later checkpoints are set aside, not in the store */  \
    F(TASK, "task")                       /* a task of a data command is done */                   \
    F(DOCTOR_MEMORY, "doctor.memory")     /* what a test has written; flip */                      \
    F(DOCTOR_GEMM, "doctor.gemm")         /* ... computed */                                       \
    F(DOCTOR_LINK, "doctor.link")         /* ... sends */
typedef enum {
#define FAULT_ENUM(id, name) FAULT_##id,
    FAULT_POINTS(FAULT_ENUM)
#undef FAULT_ENUM
        FAULT_POINT_COUNT
} fault_point_id;

/* Kills, stops or hangs the process where the environment asks for it here. */
void fault_point(fault_point_id point, int rank);
/* @return whether to flip a bit here, now. */
bool fault_flips(fault_point_id point, int rank);
/* @return what a slow rank adds to the time of its work, as a fraction; 0: nothing. */
double fault_slows(fault_point_id point, int rank);

#endif
