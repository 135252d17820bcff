/* Options without an effect. NEEDS rows of options.def state what an option depends on; one that is
 * set although that does not hold is refused, since whoever set it expects something of it.
 *
 * An option counts as set if its value is not the default: a complete file, as `ingot config` prints,
 * states every option. Two kinds are only noted, not refused: an option of a file whose effect the
 * command line has taken away (a recipe with another optimizer), and one that an earlier version wrote
 * to a run's config.yaml. */
#include <string.h>
#include <unistd.h>

#include "config/config_internal.h"

/* Whether data may come from an object store: by its address, or by what a mix file lists. */
static bool may_be_remote(const char *path) {
    size_t n = strlen(path);
    return strncmp(path, "s3://", 5) == 0 || (n > 5 && strcmp(path + n - 5, ".yaml") == 0);
}

#define NEEDS(s, k, condition, text)                                                               \
    static bool has_effect_##s##_##k(const config *c) { return condition; }
#include "config/options.def"

static const struct {
    size_t offset;
    bool (*holds)(const config *c);
    const char *text;
} needs_table[] = {
#define NEEDS(s, k, condition, text) { offsetof(config, s.k), has_effect_##s##_##k, text },
#include "config/options.def"
};

const char *option_needs(const option *o) {
    for (size_t i = 0; i < COUNT_OF(needs_table); i++)
        if (needs_table[i].offset == o->offset) return needs_table[i].text;
    return NULL;
}

bool config_has_effect(const config *c, int at) {
    for (size_t i = 0; i < COUNT_OF(needs_table); i++)
        if (needs_table[i].offset == option_table[at].offset) return needs_table[i].holds(c);
    return true;
}

/* ---- what was set ---------------------------------------------------------------------------- */
static bool is_set(const config *c, const option *o) {
    str now = { 0 }, def = { 0 };
    if (!c->origin[option_index(o)]) return false;
    option_print(o, c, &now);
    option_print(o, &config_defaults, &def);
    bool differs = strcmp(now.text, def.text) != 0;
    str_free(&now);
    str_free(&def);
    return differs;
}

static const option *option_known(const char *name) {
    const option *o = option_find_name(name);
    BUG_IF(o == NULL);
    return o;
}

bool config_is_set(const config *c, const char *name) { return is_set(c, option_known(name)); }

static bool on_command_line(const config *c, const option *o) {
    const char *origin = c->origin[option_index(o)];
    return origin && !strcmp(origin, COMMAND_LINE);
}

/* Whether an option comes from the config.yaml of a run: other files that the run wrote are beside it. */
static bool written_by_run(const config *c, const option *o) {
    static const char name[] = "config.yaml";
    const char *origin = c->origin[option_index(o)], *colon = strrchr(origin, ':');
    size_t n = colon ? (size_t)(colon - origin) : 0, len = sizeof name - 1;
    if (n < len || strncmp(colon - len, name, len) != 0) return false;
    char path[4096];
    int dir = (int)(n - len);
    snprintf(path, sizeof path, "%.*smetrics.jsonl", dir, origin);
    if (access(path, F_OK) == 0) return true;
    snprintf(path, sizeof path, "%.*scheckpoints", dir, origin);
    return access(path, F_OK) == 0;
}

/* Keeps which options the file leaves without an effect by itself, as opposed to by the command line. */
void config_begin_overrides(config *c) {
    c->idle_in_file = arena_alloc(c->memory, (size_t)option_count * sizeof(bool));
    for (int i = 0; i < option_count; i++) {
        c->idle_in_file[i] = !config_has_effect(c, i);
        if (on_command_line(c, &option_table[i])) c->origin[i] = "settings";
    }
}

static err refuse_idle(const config *c, const option *o, bool noted, bool log, const char *needs) {
    const char *origin = c->origin[option_index(o)];
    if (!noted && !written_by_run(c, o))
        return err_hint(ERR("%s: %s has no effect: it needs %s", origin, o->name, needs),
                        "set that, or leave %s out", o->name);
    if (log) log_info("%s: %s is ignored: it needs %s", origin, o->name, needs);
    return OK;
}

err config_refuse_idle(const config *c, const char *name, const char *causes, bool log,
                       const char *needs) {
    const option *o = option_known(name);
    bool overridden = false;
    if (!is_set(c, o)) return OK;
    for (int i = 0; i < option_count; i++)
        overridden |= on_command_line(c, &option_table[i]) && config_list_names(causes, i);
    return refuse_idle(c, o, overridden && !on_command_line(c, o), log, needs);
}

/* Whether the option depends on a choice that optimizer.recipe=fast makes later: the optimizer, or the schedule. */
static bool is_for_recipe(const config *c, const option *o) {
    static const char *const sections[] = { "optimizer", "lr_scheduler" };
    char name[64];
    for (size_t i = 0; i < COUNT_OF(sections); i++) {
        snprintf(name, sizeof name, "%s.name", sections[i]);
        if (c->optimizer.recipe == CFG_RECIPE_FAST && !strcmp(o->section, sections[i]) &&
            !c->origin[option_index(option_known(name))])
            return true;
    }
    return false;
}

err config_check_effects(const config *c, bool log) {
    for (int i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        if (config_has_effect(c, i) || !is_set(c, o) || is_for_recipe(c, o)) continue;
        bool overridden = !on_command_line(c, o) && c->idle_in_file && !c->idle_in_file[i];
        TRY(refuse_idle(c, o, overridden, log, option_needs(o)));
    }
    return groups_check_effects(c);
}

void config_drop_idle(config *c) {
    for (int i = 0; i < option_count; i++) {
        if (config_has_effect(c, i)) continue;
        option_reset(c, &option_table[i]);
        c->origin[i] = NULL;
    }
}
