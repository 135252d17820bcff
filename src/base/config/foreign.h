/* foreign: what options are called elsewhere. Depends on util.
 *
 * Given `const char *key`, which is not one of our options:
 *
 *     const char *ours = foreign_option(key); // "--learning_rate": "optimizer.lr"
 *     if (!ours) return ERR("unknown option");
 *     return OK;
 */
#ifndef INGOT_CONFIG_FOREIGN_H
#define INGOT_CONFIG_FOREIGN_H

#include "util/util.h"

typedef struct foreign_rule {
    const char *key;    /* theirs, with dots and underscores */
    const char *option; /* ours; NULL: it does not affect the training */
    const char *
        map; /* "theirs=ours,..."; a value that is not in it has no equivalent; NULL or "*": as it is */
} foreign_rule;
/* Keys that `ingot config convert` reads, one table per system; each ends in { 0 }. */
extern const foreign_rule foreign_megatron[];
extern const foreign_rule foreign_deepspeed[];
extern const foreign_rule foreign_neox[];
extern const foreign_rule foreign_torchtitan[];
extern const foreign_rule foreign_olmo[];
extern const foreign_rule foreign_hf[];

/* @return the option that some other system, or habit, calls by this name, whatever its section; NULL: none. */
const char *foreign_option(const char *key);

#endif
