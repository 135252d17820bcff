/* foreign: what options are called elsewhere. Depends on util.
 *
 * Given `const char *key`, which is not one of our options:
 *
 *     const char *ours = foreign_option(key); // "--learning_rate": "optimizer.lr"
 *     if (!ours) return ERR("unknown option");
 *     return OK;
 *
 * A foreign_table lists every key that a system knows, each in one of four kinds, so that `ingot config convert`
 * (planning/convert.c) leaves none without an answer:
 *
 *     rules     becomes one option; the row has the source's default too
 *     read      several keys together become options: convert_SYSTEM.c does it
 *     idle      has no effect on what is trained: listed, with a count
 *     changes   has one, and lacks a counterpart: refused
 */
#ifndef INGOT_CONFIG_FOREIGN_H
#define INGOT_CONFIG_FOREIGN_H

#include "util/util.h"

typedef struct foreign_rule {
    const char *key;    /* theirs, with dots and underscores */
    const char *option; /* ours */
    const char *
        map; /* "theirs=ours,..."; an empty "ours" sets nothing; a value that is not in it has no equivalent; NULL
                 or an item "*": as it is */
    const char *otherwise; /* our value where the file sets the option by no key; NULL: none */
    const char *with;      /* that is only set where the file has this key; NULL: always */
} foreign_rule;

/* Keys in the lists are separated by blanks. "key" stands for all keys below it as well, "key.*" for these alone;
 * the longest entry that matches decides. In `changes`, "key=a|b" are values that mean what happens here anyway, as
 * do false, none and null. */
typedef struct foreign_table {
    const foreign_rule *rules; /* ends in { 0 } */
    const char *read, *idle, *changes;
} foreign_table;
extern const foreign_table foreign_megatron, foreign_deepspeed, foreign_neox, foreign_torchtitan,
    foreign_olmo, foreign_hf;

#define FOREIGN_BOOL "true=true,false=false,True=true,False=false"

typedef enum {
    FOREIGN_UNKNOWN,
    FOREIGN_RULE,
    FOREIGN_READ,
    FOREIGN_IDLE,
    FOREIGN_CHANGES
} foreign_kind;
/* Finds a key's kind. @param neutral the values after '=' of an entry of `changes`, up to a blank; "" without. */
foreign_kind foreign_find(const foreign_table *t, const char *key, const char **neutral);
/* @return whether the table has keys below this one, such as "zero_optimization". */
bool foreign_is_section(const foreign_table *t, const char *key);
/* Names every key of a table, in no particular order. @return whether there is an i-th. */
bool foreign_key(const foreign_table *t, int i, char *name, size_t size, foreign_kind *kind);

/* @return the option that some other system, or habit, calls by this name, whatever its section; NULL: none. */
const char *foreign_option(const char *key);

#endif
