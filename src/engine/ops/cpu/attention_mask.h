/* Dropout of attention on CPUs: draws the decisions of ATT_LANES queries side by side, for the sixteen keys
 * that share a counter (ops/attention_drop.h). Keys are taken in increasing order; their ids are
 * consecutive in a document, so that most of them find their words drawn.
 *
 *     att_drawn drawn = { .counter_of = -1 };
 *     for each key:  att_draw_key(&drawn, mask, q0, id of the key);
 *                    probabilities of VEC queries from q0 + lane on:  (vu)p & att_kept(&drawn, lane)
 */
#ifndef INGOT_OPS_CPU_ATTENTION_MASK_H
#define INGOT_OPS_CPU_ATTENTION_MASK_H

#include "attention_internal.h"
#include "philox.h"

_Static_assert((int)LANES == (int)ATT_LANES, "a draw is that of one block of queries");

typedef struct att_drawn {
    int64_t counter_of; /* the keys drawn: their ids / 16; -1: none yet */
    uint32_t word[4][ATT_LANES];
    int of_key, shift; /* of the key at hand: its word, and the byte of it */
    uint32_t below;
} att_drawn;

/* Turns to another key of queries [q0, q0 + ATT_LANES). */
static inline void att_draw_key(att_drawn *d, const att_mask *m, int q0, int64_t key_id) {
    int byte = (int)((uint64_t)key_id % ATTENTION_DROP_KEYS);
    int64_t keys = (int64_t)((uint64_t)key_id / ATTENTION_DROP_KEYS);
    d->of_key = byte / 4;
    d->shift = byte % 4 * 8;
    d->below = m->drop->below;
    if (keys == d->counter_of) return;
    d->counter_of = keys;
    uint32_t last = attention_drop_counter(m->drop, m->head, key_id);
    for (int l = 0; l < ATT_LANES; l++) {
        d->word[0][l] = m->drop->site;
        d->word[1][l] = m->id_low[q0 + l];
        d->word[2][l] = m->id_high[q0 + l];
        d->word[3][l] = last;
    }
    philox_lanes(m->key, ATTENTION_DROP_ROUNDS, d->word);
}

/* @return all ones where the key is kept by VEC queries from `lane` on, else zeros. */
VEC_INLINE vu att_kept(const att_drawn *d, int lane) {
    vu word;
    memcpy(&word, d->word[d->of_key] + lane, sizeof word);
    return (vu)(((word >> d->shift) & 0xff) >= d->below);
}

#endif
