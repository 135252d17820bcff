/* Gopher's repetition rules. Runs of n words are compared by hash, for n from 2 to 10. A run of
 * n words can repeat only if its first n - 1 and its last n - 1 words repeat, so each pass looks
 * only at the runs that survived the one before. Ordinary text has few of them, so nine passes
 * cost about as much as two. */
#include "curate/filter_internal.h"

#include <stdlib.h>
#include <string.h>

/* A flag in a slot's count, above any possible count of words. */
#define SEEN_BEFORE 0x80000000u

/* ---- sets of hashes -------------------------------------------------------------------------- */

void seen_clear(seen_set *s, int64_t n) {
    uint64_t least = MAX(64, (uint64_t)n + (uint64_t)n / 2), size = 64;
    while (size < least) size *= 2;
    if (s->capacity < size) {
        free(s->slots);
        s->slots = mem_alloc(size * sizeof *s->slots);
        s->capacity = size;
        s->stamp = 0;
    }
    s->mask = size - 1;    /* only as many slots as are needed: they stay in the cache */
    if (++s->stamp == 0) { /* wrapped around: old stamps would look current */
        memset(s->slots, 0, s->capacity * sizeof *s->slots);
        s->stamp = 1;
    }
}

uint32_t seen_add(seen_set *s, uint64_t key) {
    uint64_t i = (key ^ key >> 32) & s->mask;
    for (;; i = (i + 1) & s->mask) {
        seen_slot *slot = &s->slots[i];
        if (slot->stamp != s->stamp) {
            *slot = (seen_slot){ .key = key, .stamp = s->stamp, .count = 1 };
            return (uint32_t)i;
        }
        if (slot->key == key) {
            slot->count++;
            return (uint32_t)i;
        }
    }
}

uint32_t seen_count(seen_set *s, uint64_t key) { return s->slots[seen_add(s, key)].count; }

void seen_free(seen_set *s) { free(s->slots); }

/* ---- lines and paragraphs -------------------------------------------------------------------- */

static void count_repeat(seen_set *seen, const char *at, size_t bytes, int64_t chars, repeats *r) {
    uint32_t slot = seen_add(seen, hash_bytes(at, bytes, 0));
    if (seen->slots[slot].count == 1) return;
    r->count++;
    r->chars += chars;
}

repeats filter_repeated_lines(filter_worker *w, const scan *s) {
    repeats r = { 0 };
    seen_clear(&w->seen, s->n_lines);
    for (int64_t i = 0; i < s->n_lines; i++)
        count_repeat(&w->seen, s->text.at + s->lines[i].at, s->lines[i].bytes, s->lines[i].chars,
                     &r);
    return r;
}

static repeats repeated_paragraphs(filter_worker *w, const scan *s, int64_t *paragraphs) {
    repeats r = { 0 };
    *paragraphs = 0;
    seen_clear(&w->seen, s->n_lines);
    for (int64_t i = 0, next; i < s->n_lines; i = next) {
        for (next = i + 1; next < s->n_lines && !s->lines[next].paragraph;) next++;
        const scan_line *last = &s->lines[next - 1];
        const char *at = s->text.at + s->lines[i].at;
        size_t bytes = last->at + last->bytes - s->lines[i].at;
        count_repeat(&w->seen, at, bytes, utf8_length(at, bytes), &r);
        ++*paragraphs;
    }
    return r;
}

static bool drops_lines(judgment *j, const scan *s) {
    int64_t paragraphs;
    repeats p = repeated_paragraphs(j->w, s, &paragraphs);
    double chars = (double)s->chars;
    if (judgment_fails(j, FILTER_repeat_paragraphs,
                       safe_ratio((double)p.count, (double)paragraphs)) ||
        judgment_fails(j, FILTER_repeat_paragraph_chars, safe_ratio((double)p.chars, chars)))
        return true;
    repeats l = filter_repeated_lines(j->w, s);
    return judgment_fails(j, FILTER_repeat_lines,
                          safe_ratio((double)l.count, (double)s->n_lines)) ||
           judgment_fails(j, FILTER_repeat_line_chars, safe_ratio((double)l.chars, chars));
}

/* ---- runs of words --------------------------------------------------------------------------- */

repeat_run *runs_reserve(filter_worker *w, int64_t n) {
    if (w->runs_capacity < n) {
        w->runs_capacity = MAX(1024, n + n / 2);
        free(w->runs);
        w->runs = mem_alloc((size_t)w->runs_capacity * sizeof *w->runs);
    }
    return w->runs;
}

word_runs runs_begin(filter_worker *w, const run_words *s) {
    repeat_run *run = runs_reserve(w, s->n);
    for (int64_t i = 0; i < s->n; i++)
        run[i] = (repeat_run){ .hash = s->hash[i], .at = (uint32_t)i };
    return (word_runs){ .run = run, .n = s->n, .words = 1 };
}

void runs_extend(word_runs *r, seen_set *seen, const run_words *s) {
    r->words++;
    while (r->n > 0 && r->run[r->n - 1].at + r->words > s->n) r->n--;
    seen_clear(seen, r->n);
    for (int64_t i = 0; i < r->n; i++) {
        repeat_run *run = &r->run[i];
        uint64_t h = run->hash, next = s->hash[run->at + (uint32_t)r->words - 1];
        run->hash = ((h << 23 | h >> 41) ^ next) * 0xD6E8FEB86659FD93u;
        run->slot = seen_add(seen, run->hash);
    }
}

void runs_narrow(word_runs *r, const seen_set *seen) {
    int64_t kept = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const repeat_run *run = &r->run[i];
        if (seen->slots[run->slot].count < 2) continue;
        bool next = i + 1 < r->n && run[1].at == run->at + 1 && seen->slots[run[1].slot].count > 1;
        if (next) r->run[kept++] = *run;
    }
    r->n = kept;
}

int64_t top_run_chars(const word_runs *r, const seen_set *seen, const run_words *s) {
    if (s->n < r->words) return 0;
    uint32_t at = 0, most = 1; /* if none repeats, the first of the text */
    for (int64_t i = 0; i < r->n; i++) {
        uint32_t count = seen->slots[r->run[i].slot].count;
        if (count > most) at = r->run[i].at, most = count;
    }
    return (run_chars(s, at, r->words) + r->words - 1) * most;
}

/* @return characters of words in runs that occurred before, none counted twice: the search
 * continues after such a run. */
static int64_t repeated_run_chars(const word_runs *r, seen_set *seen, const run_words *s) {
    int64_t chars = 0, from = 0;
    for (int64_t i = 0; i < r->n; i++) {
        uint32_t *count = &seen->slots[r->run[i].slot].count;
        if (r->run[i].at < from || *count == 1) continue;
        if (*count & SEEN_BEFORE) {
            chars += run_chars(s, r->run[i].at, r->words);
            from = (int64_t)r->run[i].at + r->words;
        }
        *count |= SEEN_BEFORE;
    }
    return chars;
}

bool filter_gopher_repetition(judgment *j) {
    enum { FIRST_TOP = 2, FIRST_REPEAT = 5, LAST = 10 };
    const scan *s = judgment_scan(j);
    if (drops_lines(j, s)) return true;
    seen_set *seen = &j->w->seen;
    run_words words = { .hash = s->hash, .chars = s->word_chars, .n = s->words };
    word_runs r = runs_begin(j->w, &words);
    for (int n = FIRST_TOP; n <= LAST; n++) {
        runs_extend(&r, seen, &words);
        bool top = n < FIRST_REPEAT;
        int rule = top ? FILTER_top_2gram + n - FIRST_TOP : FILTER_repeat_5gram + n - FIRST_REPEAT;
        int64_t chars =
            top ? top_run_chars(&r, seen, &words) : repeated_run_chars(&r, seen, &words);
        if (judgment_fails(j, rule, safe_ratio((double)chars, (double)s->chars))) return true;
        runs_narrow(&r, seen);
    }
    return false;
}
