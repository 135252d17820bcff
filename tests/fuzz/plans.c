/* Any bytes as each kind of file that planning, sweeps and `ingot config convert` read: runs for a fit, a catalogue of hardware, a
 * scaling law, a sweep, and the configs of other systems, of which one that is converted must be a config of ours. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "cli/sweep.h"
#include "planning/planning.h"

static err read_hardware(const char *path) {
    hardware h;
    const accelerator *found;
    TRY(hardware_open(path, &h));
    for (int i = 0; i < h.n_accelerators; i++)
        err_free(hardware_find(&h, h.accelerators[i].name, &found));
    hardware_free(&h);
    return OK;
}

static err read_law(const char *path) {
    scaling_law law;
    TRY(law_read(path, &law));
    law_free(&law);
    return OK;
}

static err read_runs(const char *path) {
    fit_run *runs = NULL;
    law_fit fit = { 0 };
    int n = 0;
    err e = fit_read(path, &runs, &n);
    if (!e) e = law_fit_runs(runs, n, 0, 1, &fit);
    law_fit_free(&fit);
    fit_runs_free(runs, n);
    return e;
}

static err read_sweep_file(const char *path) {
    sweep s = { 0 };
    err e = sweep_open(path, &s);
    if (!e) {
        str text = { 0 };
        for (int i = 0; i < s.n; i++) sweep_option_text(&text, s.run[i].options);
        str_free(&text);
    }
    sweep_free(&s);
    return e;
}

static err read_foreign(const char *system, const char *text, size_t n) {
    str out = { 0 }, notes = { 0 };
    err e =
        convert_config(text, n, "foreign", &(convert_options){ .format = system }, &out, &notes);
    if (!e) {
        config c;
        config_init(&c);
        err refused = config_parse(&c, out.text, out.len, "converted");
        if (refused) err_print(stderr, refused, false);
        BUG_IF(refused);
        config_free(&c);
    }
    str_free(&out);
    str_free(&notes);
    return e;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char shape[] = "model: {layers: 2, dim: 64, heads: 2}\n";
    static const char *const systems[] = { "megatron",   "deepspeed", "neox",
                                           "torchtitan", "olmo",      "hf" };
    log_set_level(LOG_ERROR);
    fuzz_write("config.yaml", shape, sizeof shape - 1);
    fuzz_write("metrics.jsonl", data, n);
    err_free(read_runs(fuzz_folder()));
    const char *path = fuzz_write("file.yaml", data, n);
    err_free(read_runs(path));
    err_free(read_hardware(path));
    err_free(read_law(path));
    err_free(read_sweep_file(path));
    char *text = strndup((const char *)data, n);      /* ends in a NUL, as what io_read reads */
    err_free(read_foreign(NULL, text, strlen(text))); /* recognized */
    err_free(read_foreign(systems[n ? data[n / 2] % COUNT_OF(systems) : 0], text, strlen(text)));
    free(text);
    return 0;
}
