/* The inputs of a command, divided into segments (inputs.c), and datasets of the Hugging Face hub (hub.c). */
#ifndef INGOT_TEXT_INPUTS_INTERNAL_H
#define INGOT_TEXT_INPUTS_INTERNAL_H

#include <time.h>

#include "text/text.h"
#include "text/json_scan_internal.h"
#include "text/parser_internal.h"

bool hub_is_url(const char *path); /* hf://... */
/* *path: what an hf:// URL names in the local cache; owned (free). */
err hub_resolve(const char *url, char **path) MUST_USE;
/* @return the snapshot of "main", if the folder is a repository in the layout of the cache; owned. NULL: it is not. */
char *hub_snapshot(const char *folder);

struct input_file {
    const char *path;  /* arena */
    const char *given; /* arena: the input as the user named it, the default source */
    int64_t size;      /* on disk; 0 for a pipe */
    uint64_t content;  /* hash of its content, or of samples of it if `sampled` */
    bool sampled;
    struct timespec modified;
    text_compression compression;
    const text_format *format; /* NULL: a pipe, detected from its content when read */
    const char *damage;        /* arena: why nothing of it can be read; NULL: something can */
    bool pipe, used;           /* a pipe can be read only once */
};
struct input_segment {
    int file;
    /* bytes in which its records begin, [from, to); to < 0: up to the end of the file. Of a Parquet
     * file: row groups */
    int64_t from, to;
    int64_t bytes; /* of the file that it covers, about */
    bool
        warned; /* what cannot be read of it was reported: passes after the first do not repeat that */
};
struct text_inputs {
    arena *memory;
    text_input_options o; /* with defaults filled in; strings in the arena */
    json_want wants[6];
    int n_wants;
    input_file *files;
    int n_files, files_cap;
    char **folders; /* arena: input folders, resolved */
    int n_folders, folders_cap;
    input_segment *segments;
    int n_segments, segments_cap;
    int64_t bytes;
    bool pipes;      /* some input can be read only once */
    bool text_named; /* the user chose the member that holds the text */
    /* Documents that do not come from JSON carry their other members too: they will be written. */
    bool all_members;
    const char *left_out;      /* arena: columns of a file that are left out of them; NULL: none */
    const char *left_out_from; /* that file */
    int n_skipped;             /* files skipped in the folder being listed */
    /* arena: files of folders that were skipped, since their formats are not known */
    char **skipped;
    int skipped_files, skipped_cap;
};
/* Notes that nothing of the file that was listed last can be read: it is skipped and counted. @param why without the
 * file's name. @return an error instead, if damage is one. */
err inputs_skip_file(text_inputs *in, const char *why) MUST_USE;
/* Adds a segment of the file that was listed last. */
void inputs_add_segment(text_inputs *in, int64_t from, int64_t to, int64_t bytes);

#endif
