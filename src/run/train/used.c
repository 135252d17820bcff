/* The config as it was used: every choice that was left to the program, made. RUN/config.yaml records
 * it, so that the file records what the run did, and continues it on a machine that would choose
 * otherwise. */
#include "setup_internal.h"
#include "trainer_internal.h"

#include <string.h>

#include "io/io.h"

static void set_batch(cfg_amount *to, int64_t sequences) {
    *to = (cfg_amount){ (double)sequences, CFG_SEQUENCES };
}

void trainer_used_config(const trainer *t, config *used) {
    config_copy(used, t->cfg);
    model_to_config(&t->mc, used);
    used->run.dir = t->dir;
    used->optimizer.recipe = t->recipe;
    used->device.kind = t->ops->device ? OPS_CUDA : OPS_CPU;
    dtype dt = model_lay(t->m)->dt;
    used->precision.dtype = dt == DT_BF16 ? CFG_BF16 : dt == DT_F16 ? CFG_FP16 : CFG_FP32;
    bool copied = t->data.tokenizer && !datasets_are_bytes(t);
    if (!strcmp(used->data.tokenizer, "auto"))
        used->data.tokenizer =
            copied ? arena_printf(used->memory, "%s/tokenizer.json", t->dir) : "bytes";
    set_batch(&used->training.local_batch_size, t->len.rows);
    set_batch(&used->training.global_batch_size, t->len.ramp.full);
    set_batch(&used->training.batch_ramp_start, t->len.ramp.start);
    set_batch(&used->training.batch_ramp_increment, t->len.ramp.increment);
    config_drop_idle(used);
}

err trainer_write_config(const trainer *t) {
    config used;
    str text = { 0 };
    const char *path = PATH_IN(t->dir, "config.yaml");
    trainer_used_config(t, &used);
    config_print_used(&used, &text);
    err e = io_write(path, text.text, text.len);
    config_free(&used);
    str_free(&text);
    return e;
}
