/* The synthetic corpus, inside. A document is a frame filled in: a skeleton of paragraphs whose
 * words are chosen by a counter-based generator. All of it is data, in this notation:
 *
 *     [a|b|c]     one of the three, chosen anew each time; may be empty, may nest
 *     {name}      the value of a slot: the same throughout the document
 *     {:list}     an entry of a list, chosen anew each time and expanded in turn
 *     `           a quotation mark
 *
 * A row binds several slots at once, its values separated by ';', so facts that belong together
 * stay together. Values are expanded when bound. Characters A, B and C bind their pronouns too:
 * {A} {A.kind} {A.he} {A.him} {A.his}. Capital letters at the start of sentences and "an" before
 * a vowel are put in at the end.
 */
#ifndef INGOT_SYNTH_INTERNAL_H
#define INGOT_SYNTH_INTERNAL_H

#include "shards/data.h"

/* Who plays; with both bits set either may. */
enum { CAST_NONE = 0, CAST_CHILDREN = 1, CAST_ANIMALS = 2, CAST_ANY = 3 };

enum { FRAME_TABLES = 3, FRAME_PARAGRAPHS = 8 };
/* Unused entries are NULL. */
typedef struct synth_table {
    const char *columns;     /* slot names, separated by ';' */
    const char *const *rows; /* NULL-terminated */
} synth_table;
typedef struct synth_frame {
    int cast;
    synth_table tables[FRAME_TABLES];
    const char *paragraphs[FRAME_PARAGRAPHS];
} synth_frame;
typedef struct synth_list {
    const char *name;
    const char *const *entries; /* NULL-terminated */
} synth_list;

extern const synth_frame SYNTH_STORIES[], SYNTH_ARTICLES[];
extern const int SYNTH_STORY_COUNT, SYNTH_ARTICLE_COUNT;
extern const synth_list SYNTH_LISTS[]; /* ends with a NULL name */
/* The cast, in rows of SYNTH_PERSON. The first index is 0 for children, 1 for animals. */
#define SYNTH_PERSON "; .kind; .he; .him; .his"
extern const char *const *const SYNTH_HE[2], *const *const SYNTH_SHE[2], *const *const SYNTH_OLD[2];
extern const char *const *const SYNTH_HOMES[2]; /* home; place */
extern const char *const SYNTH_TRAITS[];        /* trait; habit */
extern const char *const SYNTH_KEEPSAKES[];     /* keep: what the hero wears */

/* ---- synth.c ------------------------------------------------------------------------------- */
/* Random choices of one document, in order. */
typedef struct synth_draw {
    rng_key key;
    uint64_t count;
} synth_draw;
uint64_t synth_below(synth_draw *d, uint64_t n);
/* Writes the document itself, nothing planted. @return its source, static. */
const char *synth_write(uint64_t seed, int64_t index, str *out);

/* ---- plant.c ---------------------------------------------------------------------------------- */
typedef struct synth_choice {
    plant_kind kind;
    int64_t of;
} synth_choice;

#endif
