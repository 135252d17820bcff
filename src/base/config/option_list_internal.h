/* Options that are lists of sections, in YAML's flow style: [{match: embed, lr: 0.3}, {match: head}]. What both styles of a
 * file become, and what option_groups.c and option_phases.c read. */
#ifndef INGOT_CONFIG_OPTION_LIST_INTERNAL_H
#define INGOT_CONFIG_OPTION_LIST_INTERNAL_H

#include <yaml.h>

#include "config/config_internal.h"

/* One list being read. */
typedef struct list_reader {
    const char *label;   /* the option, as the user wrote it */
    const char *item;    /* what an entry is called: "group" */
    const char *example; /* of a list: what a remedy shows */
    int most;            /* entries */
    /* Reads one key of entry number `i`, from 0. */
    err (*read_key)(const struct list_reader *r, int i, const char *key, const yaml_node_t *value);
    /* Begins entry i, before its keys are read (NULL: nothing to do); ends it after. */
    err (*begin)(const struct list_reader *r, int i), (*end)(const struct list_reader *r, int i);
    void *ctx;
    yaml_document_t *doc; /* set while the list is read */
} list_reader;

/* Reads every entry. @param n their number */
err list_read(list_reader *r, const char *text, int *n) MUST_USE;
/* @return the text of a plain value; NULL: it is a list or a section, or has a NUL inside */
const char *list_text(const yaml_node_t *value);
/* Reads a value with the type and the range of the option `in.key`, to `at`. @param name the entry's key */
err list_read_value(const list_reader *r, int i, const char *in, const char *key, const char *name,
                    const yaml_node_t *value, void *at) MUST_USE;

#endif
