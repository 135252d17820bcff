/* Planting: copies, near copies and spoiled documents in known numbers at known indices, so that
 * filters can be measured against the truth. */
#include "shards/synth_internal.h"

#include <string.h>

static const char *const PLANT_NAMES[PLANT_COUNT] = {
    [PLANT_NONE] = "none",
    [PLANT_DUPLICATE] = "duplicate",
    [PLANT_NEAR_DUPLICATE] = "near_duplicate",
    [PLANT_BOILERPLATE] = "boilerplate",
    [PLANT_MARKUP] = "markup",
    [PLANT_GARBAGE] = "garbage",
};

const char *plant_name(plant_kind kind) {
    BUG_IF((int)kind < 0 || kind >= PLANT_COUNT);
    return PLANT_NAMES[kind];
}

err synth_options_check(const synth_options *o) {
    double sum = 0;
    for (int k = PLANT_NONE + 1; k < PLANT_COUNT; k++) {
        if (!(o->plant[k] >= 0 && o->plant[k] <= 1))
            return ERR("the fraction of %s documents is %g, expected 0 to 1", PLANT_NAMES[k],
                       o->plant[k]);
        sum += o->plant[k];
    }
    if (sum > 1)
        return err_hint(ERR("the fractions of planted documents add up to %g", sum),
                        "they may not exceed 1 together");
    return OK;
}

/* ---- which documents ------------------------------------------------------------------------- */

static const uint64_t DRAWS_PLANT = (uint64_t)0x706c616e74 << 20; /* "plant" */

/* Multiples of the golden ratio fill [0, 1) evenly, so any run of documents has close to its share
 * of each kind, and still document i needs to know nothing of the others. */
static plant_kind plant_kind_of(uint64_t seed, int64_t index, const synth_options *o) {
    rng_key key = rng_key_of(seed, DRAWS_PLANT);
    uint64_t offset = (uint64_t)rng_u32(key, 0) << 32 | rng_u32(key, 1);
    uint64_t turn = offset + (uint64_t)index * 0x9E3779B97F4A7C15u;
    double u = (double)(turn >> 11) * 0x1p-53;
    for (int k = PLANT_NONE + 1; k < PLANT_COUNT; k++) {
        if (u < o->plant[k]) return (plant_kind)k;
        u -= o->plant[k];
    }
    return PLANT_NONE;
}

static synth_choice synth_choose(uint64_t seed, int64_t index, const synth_options *o) {
    synth_choice choice = { PLANT_NONE, -1 };
    if (!o) return choice;
    choice.kind = plant_kind_of(seed, index, o);
    if (choice.kind != PLANT_DUPLICATE && choice.kind != PLANT_NEAR_DUPLICATE) return choice;
    synth_draw d = { .key = rng_key_of(seed, DRAWS_PLANT + 1 + (uint64_t)index) };
    for (int attempt = 0; index > 0 && attempt < 64; attempt++) {
        int64_t of = (int64_t)synth_below(&d, (uint64_t)index);
        if (plant_kind_of(seed, of, o) != PLANT_NONE) continue;
        choice.of = of;
        return choice;
    }
    choice.kind = PLANT_NONE; /* nothing before it to copy */
    return choice;
}

/* ---- how they are spoiled -------------------------------------------------------------------
 * One draw per statement: C leaves the order in which arguments are evaluated to the compiler, and
 * the corpus must be the same bytes on every machine. */

static const char *one_of(synth_draw *d, const char *const *from, size_t n) {
    return from[synth_below(d, n)];
}
#define ONE_OF(d, array) one_of(d, array, COUNT_OF(array))

/* Leaves out one word in about 80 and adds one in about 80: few enough that most runs of five
 * words are shared with the original. */
static void spoil_near(synth_draw *d, const str *clean, str *out) {
    static const char *const extra[] = { "really ", "also ", "then ", "even ", "only " };
    const char *p = clean->text, *end = p + clean->len;
    uint64_t next = 8 + synth_below(d, 30); /* words until the next change */
    bool changed = false;
    while (p < end) {
        size_t n = strcspn(p, " \n"), with_gap = n + strspn(p + n, " \n");
        bool here = next-- == 0 || (!changed && p + with_gap >= end);
        if (here) {
            changed = true;
            next = 20 + synth_below(d, 40);
            if (synth_below(d, 2)) str_add(out, "%s%.*s", ONE_OF(d, extra), (int)with_gap, p);
        } else {
            str_add_bytes(out, p, with_gap);
        }
        p += with_gap;
    }
}

static void spoil_boilerplate(synth_draw *d, const str *clean, str *out) {
    static const char *const menu[] = {
        "Home | News | About us | Contact | Log in",
        "Skip to main content\nMenu\nSearch\nHome\nShop\nHelp",
        "Home > Blog > Stories > Page 1 of 12",
    };
    static const char *const notice[] = {
        "We use cookies on this site. By using it, you accept our cookie policy.",
        "Please enable javascript in your browser to see this page.",
        "Sign up for our newsletter and never miss a story again!",
    };
    static const char *const foot[] = {
        "Share this page: Facebook Twitter Email Print",
        "Read more...\nRelated posts\nLeave a comment\nYour email address will not be published.",
        "Click here to read the terms of use and the privacy policy.",
    };
    str_add(out, "%s\n\n", ONE_OF(d, menu));
    str_add(out, "%s\n\n", ONE_OF(d, notice));
    str_add_bytes(out, clean->text, clean->len);
    str_add(out, "\n\n%s\n\n", ONE_OF(d, foot));
    str_add(out, "Copyright %d. All rights reserved.", 2001 + (int)synth_below(d, 24));
}

static void spoil_markup(synth_draw *d, const str *clean, str *out) {
    static const char *const tag[] = { "p", "div", "span" };
    const char *p = clean->text, *name = ONE_OF(d, tag);
    str_add(out, "<html><body class=\"page-%d\">\n", (int)synth_below(d, 100));
    str_add(out, "<script>var id = %d; track(id);</script>\n", (int)synth_below(d, 100000));
    while (*p) {
        size_t n = strcspn(p, "\n");
        str_add(out, "<%s>", name);
        for (size_t i = 0; i < n; i++) {
            if (p[i] == '"')
                str_add(out, "&quot;");
            else if (p[i] == ' ' && synth_below(d, 24) == 0)
                str_add(out, "&nbsp;");
            else
                str_add_bytes(out, &p[i], 1);
        }
        str_add(out, "</%s>\n", name);
        p += n + strspn(p + n, "\n");
    }
    str_add(out, "<a href=\"/page/%d\">next</a>\n</body></html>", (int)synth_below(d, 1000));
}

static void garbage_symbols(synth_draw *d, str *out) {
    static const char symbols[] = "#@$%&*+=/\\<>{}[]^~_|0123456789abcdefXYZQ";
    for (uint64_t n = 200 + synth_below(d, 600); n > 0; n--)
        str_add(out, "%c", symbols[synth_below(d, sizeof symbols - 1)]);
}

static void garbage_repeats(synth_draw *d, str *out) {
    static const char *const phrase[] = { "buy now cheap best price ", "click click click ",
                                          "free download free ", "lorem ipsum dolor sit amet " };
    const char *p = ONE_OF(d, phrase);
    for (uint64_t n = 20 + synth_below(d, 40); n > 0; n--) str_add(out, "%s", p);
    str_add(out, "now");
}

/* Text that was decoded with the wrong character set, several times over. */
static void garbage_mojibake(synth_draw *d, str *out) {
    static const char *const piece[] = { "Ã¤", "Ã¶", "â€œ", "Ã©", "Â ", "ï»¿", "Ã‚Â°", "x", "q" };
    for (uint64_t n = 100 + synth_below(d, 300); n > 0; n--) {
        str_add(out, "%s", ONE_OF(d, piece));
        if (synth_below(d, 7) == 0) str_add(out, " ");
    }
}

static void spoil_garbage(synth_draw *d, const str *clean, str *out) {
    static void (*const kinds[])(synth_draw *, str *) = { garbage_symbols, garbage_repeats,
                                                          garbage_mojibake };
    kinds[synth_below(d, COUNT_OF(kinds))](d, out);
}

/* Spoils a clean text in the way of `kind`, which is neither NONE nor DUPLICATE. */
static void synth_spoil(plant_kind kind, synth_draw *d, const str *clean, str *out) {
    static void (*const spoilers[PLANT_COUNT])(synth_draw *, const str *, str *) = {
        [PLANT_NEAR_DUPLICATE] = spoil_near,
        [PLANT_BOILERPLATE] = spoil_boilerplate,
        [PLANT_MARKUP] = spoil_markup,
        [PLANT_GARBAGE] = spoil_garbage,
    };
    BUG_IF(spoilers[kind] == NULL);
    spoilers[kind](d, clean, out);
}

synth_info data_synth_document(uint64_t seed, int64_t index, const synth_options *o, str *out) {
    synth_choice choice = synth_choose(seed, index, o);
    synth_info info = { .planted = choice.kind, .of = choice.of };
    int64_t original = choice.of >= 0 ? choice.of : index;
    if (choice.kind == PLANT_NONE || choice.kind == PLANT_DUPLICATE) {
        info.source = synth_write(seed, original, out);
        return info;
    }
    str clean = { 0 };
    info.source = synth_write(seed, original, &clean);
    synth_draw d = { .key = rng_key_of(seed, (DRAWS_PLANT << 1) + (uint64_t)index) };
    synth_spoil(choice.kind, &d, &clean, out);
    str_free(&clean);
    return info;
}
