/* training.batch_schedule: batch sizes of the first parts of a run, each with the length from the beginning of the run at
 * which it ends:
 *
 *     [{batch: 4M tokens, until: 252M tokens}, {batch: 8M tokens, until: 2.87T tokens}]
 *
 * After the last one the batch is training.global_batch_size. Sizes and lengths are those of the batch ramp's options. */
#include <string.h>

#include "config/option_list_internal.h"

static err read_phase_key(const list_reader *r, int i, const char *key, const yaml_node_t *value) {
    cfg_batch_phase *out = (cfg_batch_phase *)r->ctx + i;
    if (!strcmp(key, "batch"))
        return list_read_value(r, i, "training", "batch_ramp_start", key, value, &out->batch);
    if (!strcmp(key, "until"))
        return list_read_value(r, i, "training", "batch_ramp", key, value, &out->until);
    return err_hint(ERR("%s: phase %d: unknown key \"%.60s\"", r->label, i + 1, key),
                    "a phase has batch and until");
}

static err end_phase(const list_reader *r, int i) {
    const cfg_batch_phase *s = (const cfg_batch_phase *)r->ctx + i;
    if (s->batch.value > 0 && s->until.value > 0) return OK;
    return err_hint(ERR("%s: phase %d: %s is %s", r->label, i + 1,
                        s->batch.value > 0 ? "until" : "batch", "missing, or 0"),
                    "write %s", r->example);
}

static err parse_phases(const char *text, const char *label, cfg_batch_phase *out, int *n) {
    list_reader r = { .label = label,
                      .item = "phase",
                      .example = "[{batch: 32, until: 20%}, {batch: 64, until: 1e9 tokens}]",
                      .most = CFG_MAX_BATCH_PHASES,
                      .read_key = read_phase_key,
                      .end = end_phase,
                      .ctx = out };
    memset(out, 0, CFG_MAX_BATCH_PHASES * sizeof *out);
    return list_read(&r, text, n);
}

err phases_normalize(const char *text, const char *label, str *out) {
    cfg_batch_phase s[CFG_MAX_BATCH_PHASES];
    int n;
    TRY(parse_phases(text, label, s, &n));
    str_add(out, "[");
    for (int i = 0; i < n; i++) {
        str_add(out, "%s{batch: ", i ? ", " : "");
        option_print_value(option_find("training", "batch_ramp_start"), &s[i].batch, out);
        str_add(out, ", until: ");
        option_print_value(option_find("training", "batch_ramp"), &s[i].until, out);
        str_add(out, "}");
    }
    str_add(out, "]");
    return OK;
}

int config_batch_phases(const char *text, cfg_batch_phase out[CFG_MAX_BATCH_PHASES]) {
    int n;
    err e = parse_phases(text, "training.batch_schedule", out, &n);
    BUG_IF(e); /* it was checked when it was set */
    return n;
}
