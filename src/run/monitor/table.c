/* The table of alerts, and what a config changes of it. */
#include <string.h>

#include "monitor/monitor.h"

/* The columns of monitor.def; off has the numbers of normal for what it still judges. */
CHOICE_DECIDED(monitor_preset, 4);
#define BY_PRESET(loose, normal, strict)                                                           \
    {                                                                                              \
        [MONITOR_LOOSE] = (loose), [MONITOR_NORMAL] = (normal), [MONITOR_STRICT] = (strict),       \
        [MONITOR_OFF] = (normal)                                                                   \
    }

const monitor_row monitor_table[MONITOR_ALERTS] = {
#define ALERT(name, level, scope, policy, loose, normal, strict, meaning, remedy)                  \
    [MONITOR_##name] = { #name,                                                                    \
                         MONITOR_##level,                                                          \
                         MONITOR_##scope,                                                          \
                         MONITOR_##policy,                                                         \
                         BY_PRESET(loose, normal, strict),                                         \
                         meaning,                                                                  \
                         remedy },
#include "monitor/monitor.def"
};

static const char *const policy_names[MONITOR_POLICIES] = { [MONITOR_LOG] = "log",
                                                            [MONITOR_SKIP] = "skip",
                                                            [MONITOR_COOL_DOWN] = "cool_down",
                                                            [MONITOR_ROLLBACK] = "rollback",
                                                            [MONITOR_STOP] = "stop" };
/* Which policies there are for what. */
#define POLICY(p) (1u << (MONITOR_##p))
static const unsigned scope_policies[] = {
    [MONITOR_STEP] =
        POLICY(LOG) | POLICY(SKIP) | POLICY(COOL_DOWN) | POLICY(ROLLBACK) | POLICY(STOP),
    [MONITOR_STATE] = POLICY(LOG) | POLICY(COOL_DOWN) | POLICY(ROLLBACK) | POLICY(STOP),
    [MONITOR_MACHINE] = POLICY(LOG) | POLICY(STOP),
};

const char *monitor_policy_name(monitor_policy p) { return policy_names[p]; }

/* ---- the lists of a config -------------------------------------------------------------------- */
static err find_alert(const char *option, const char *name, monitor_id *out) {
    const char *near = NULL;
    for (*out = 0; *out < MONITOR_ALERTS; ++*out) {
        if (!strcmp(monitor_table[*out].name, name)) return OK;
        near = str_nearer(name, monitor_table[*out].name, near);
    }
    return err_hint(ERR("%s: no alert is called \"%s\"", option, name),
                    near ? "did you mean %s? `ingot config --alerts` lists them all"
                         : "`ingot config --alerts` lists them all",
                    near);
}

static err set_threshold(monitor_settings *s, monitor_id id, const char *text) {
    const char *name = monitor_table[id].name;
    double v;
    if (!strcmp(text, "off")) {
        s->off[id] = true;
        return OK;
    }
    if (monitor_table[id].threshold[MONITOR_NORMAL] == 0)
        return err_hint(ERR("monitor.thresholds: %s has no threshold", name),
                        "\"%s=off\" turns it off", name);
    if (!number_parse_real(text, &v) || !(v > 0))
        return err_hint(ERR("monitor.thresholds: %s: expected a positive number or off, got \"%s\"",
                            name, text),
                        "write it like %s=%g", name, s->threshold[id]);
    s->threshold[id] = v;
    return OK;
}

static err set_policy(monitor_settings *s, monitor_id id, const char *text) {
    const monitor_row *row = &monitor_table[id];
    str all = { 0 };
    for (int p = 0; p < MONITOR_POLICIES; p++) {
        if (!(scope_policies[row->scope] & 1u << p)) continue;
        if (!strcmp(policy_names[p], text)) {
            s->policy[id] = (monitor_policy)p;
            str_free(&all);
            return OK;
        }
        str_add(&all, "%s%s", all.len ? ", " : "", policy_names[p]);
    }
    err e = err_hint(ERR("alerts.policy: %s has no policy \"%s\"", row->name, text),
                     "use one of %s", all.text);
    str_free(&all);
    return e;
}

/* Reads "name=value, name=value". */
static err read_alert_list(const char *option, const char *text, monitor_settings *s,
                           err (*set)(monitor_settings *s, monitor_id id, const char *value)) {
    while (*text) {
        char item[96], *value;
        size_t n = strcspn(text, ","), from = strspn(text, " "), len;
        monitor_id id = MONITOR_ALERTS;
        if (from > n) from = n;
        for (len = n - from; len && text[from + len - 1] == ' ';) len--;
        snprintf(item, sizeof item, "%.*s", (int)MIN(len, sizeof item - 1), text + from);
        value = strchr(item, '=');
        if (!value || len >= sizeof item)
            return err_hint(ERR("%s: \"%s\" is not a list of NAME=VALUE", option, item),
                            "write it like loss_spike=%s",
                            set == set_policy ? "rollback" : "2.5, plateau=off");
        *value++ = '\0';
        TRY(find_alert(option, item, &id));
        TRY(set(s, id, value));
        text += n + (text[n] == ',');
    }
    return OK;
}

err monitor_settings_read(monitor_preset preset, const char *thresholds, const char *policies,
                          monitor_settings *out) {
    monitor_settings s = { 0 };
    for (int i = 0; i < MONITOR_ALERTS; i++) {
        s.threshold[i] = monitor_table[i].threshold[preset];
        s.policy[i] = monitor_table[i].policy;
        s.off[i] = preset == MONITOR_OFF;
    }
    static const monitor_id always[] = { MONITOR_nonfinite, MONITOR_save_failed,
                                         MONITOR_upload_failed, MONITOR_log_failed,
                                         MONITOR_folder_gone };
    for (size_t i = 0; i < COUNT_OF(always); i++) s.off[always[i]] = false;
#define PRESET(key, loose, normal, strict, ...)                                                    \
    s.key = (const double[])BY_PRESET(loose, normal, strict)[preset];
#include "monitor/monitor.def"
    TRY(read_alert_list("monitor.thresholds", thresholds, &s, set_threshold));
    TRY(read_alert_list("alerts.policy", policies, &s, set_policy));
    *out = s;
    return OK;
}

/* ---- messages ------------------------------------------------------------------------------------ */
/* Appends a row's meaning, with `threshold` where it has a %g. */
static void add_meaning(str *out, const monitor_row *r, const char *threshold) {
    const char *at = strstr(r->meaning, "%g");
    if (at)
        str_add(out, "%.*s%s%s", (int)(at - r->meaning), r->meaning, threshold, at + 2);
    else
        str_add(out, "%s", r->meaning);
}

void monitor_describe(const monitor_settings *s, const monitor_alert *a, str *out) {
    char threshold[32];
    snprintf(threshold, sizeof threshold, "%g", s->threshold[a->id]);
    add_meaning(out, &monitor_table[a->id], threshold);
    if (isnan(a->value)) /* its sign means nothing */
        str_add(out, ": NaN");
    else if (monitor_table[a->id].threshold[MONITOR_NORMAL] > 0 || isinf(a->value))
        str_add(out, ": %.4g", a->value);
    if (isfinite(a->limit) && a->limit > 0 && a->limit != s->threshold[a->id])
        str_add(out, " (limit %.4g)", a->limit);
    if (a->block >= 0) str_add(out, ", block %d", a->block);
}

/* ---- docs --------------------------------------------------------------------------------------- */
void monitor_docs(str *out) {
    str_add(
        out,
        "| alert | when | t: loose, normal, strict | policy | remedy |\n|---|---|---|---|---|\n");
    for (int i = 0; i < MONITOR_ALERTS; i++) {
        const monitor_row *r = &monitor_table[i];
        str_add(out, "| `%s`%s | ", r->name, r->level == MONITOR_NOTE ? " (note)" : "");
        add_meaning(out, r, "**t**");
        if (r->threshold[MONITOR_NORMAL] > 0)
            str_add(out, " | %g, %g, %g", r->threshold[MONITOR_LOOSE], r->threshold[MONITOR_NORMAL],
                    r->threshold[MONITOR_STRICT]);
        else
            str_add(out, " | ");
        str_add(out, " | %s | %s |\n", policy_names[r->policy], r->remedy);
    }
    str_add(out, "\n| shared | loose | normal | strict | |\n|---|---|---|---|---|\n");
#define PRESET(key, loose, normal, strict, meaning)                                                \
    str_add(out, "| %s | %g | %g | %g | %s |\n", #key, (double)(loose), (double)(normal),          \
            (double)(strict), meaning);
#include "monitor/monitor.def"
}
