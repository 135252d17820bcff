/* Looks up names of options in other systems. Each system's table is a file of its own, foreign_SYSTEM.c; `ingot
 * config convert` reads a whole config by it, and the error for an unknown option looks in all of them, and among
 * habits, for the name that somebody is used to. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "config/foreign.h"

/* Names that several systems and many scripts share, and abbreviations. */
static const foreign_rule habits[] = {
    { "learning_rate", "optimizer.lr" },
    { "max_lr", "optimizer.lr" },
    { "min_lr", "lr_scheduler.min_lr_factor" },
    { "batch_size", "training.global_batch_size" },
    { "train_batch_size", "training.global_batch_size" },
    { "micro_batch_size", "training.local_batch_size" },
    { "per_device_train_batch_size", "training.local_batch_size" },
    { "gradient_accumulation_steps", "training.global_batch_size" },
    { "grad_accum_steps", "training.global_batch_size" },
    { "max_steps", "training.steps" },
    { "max_iters", "training.steps" },
    { "train_iters", "training.steps" },
    { "num_steps", "training.steps" },
    { "num_train_epochs", "training.steps" },
    { "epochs", "training.steps" },
    { "max_tokens", "training.steps" },
    { "warmup_steps", "lr_scheduler.warmup" },
    { "warmup_iters", "lr_scheduler.warmup" },
    { "warmup_ratio", "lr_scheduler.warmup" },
    { "lr_scheduler_type", "lr_scheduler.name" },
    { "optim", "optimizer.name" },
    { "max_grad_norm", "training.max_norm" },
    { "grad_clip", "training.max_norm" },
    { "gradient_clipping", "training.max_norm" },
    { "gradient_checkpointing", "activation_checkpoint.mode" },
    { "block_size", "training.seq_len" },
    { "context_length", "training.seq_len" },
    { "sequence_length", "training.seq_len" },
    { "max_seq_length", "training.seq_len" },
    { "hidden_size", "model.dim" },
    { "hidden_dim", "model.dim" },
    { "hidden", "model.dim" },
    { "width", "model.dim" },
    { "n_embd", "model.dim" },
    { "d_model", "model.dim" },
    { "depth", "model.layers" },
    { "n_layer", "model.layers" },
    { "n_layers", "model.layers" },
    { "num_layers", "model.layers" },
    { "num_hidden_layers", "model.layers" },
    { "n_head", "model.heads" },
    { "n_heads", "model.heads" },
    { "num_heads", "model.heads" },
    { "num_attention_heads", "model.heads" },
    { "n_kv_heads", "model.kv_heads" },
    { "num_key_value_heads", "model.kv_heads" },
    { "intermediate_size", "model.ffn_dim" },
    { "tp", "parallelism.tensor_parallel_degree" },
    { "tp_size", "parallelism.tensor_parallel_degree" },
    { "tensor_model_parallel_size", "parallelism.tensor_parallel_degree" },
    { "pp", "parallelism.pipeline_parallel_degree" },
    { "pp_size", "parallelism.pipeline_parallel_degree" },
    { "pipeline_model_parallel_size", "parallelism.pipeline_parallel_degree" },
    { "dp", "parallelism.data_parallel_shard_degree" },
    { "dp_size", "parallelism.data_parallel_shard_degree" },
    { "cp", "parallelism.context_parallel_degree" },
    { "ep", "parallelism.expert_parallel_degree" },
    { "output_dir", "run.dir" },
    { "out_dir", "run.dir" },
    { "save_steps", "checkpoint.every" },
    { "save_interval", "checkpoint.every" },
    { "eval_steps", "validation.every" },
    { "eval_interval", "validation.every" },
    { "logging_steps", "metrics.log_every" },
    { "log_interval", "metrics.log_every" },
    { 0 },
};

/* ---- tables of keys ---- */
/* Steps over the entries of a list. @return false at its end. */
static bool next_entry(const char **at, const char **entry, size_t *len) {
    *entry = *at + strspn(*at, " ");
    *len = strcspn(*entry, " ");
    *at = *entry + *len;
    return *len > 0;
}

/* @return how many characters of `key` an entry of a list decides by; 0: it does not match. */
static size_t match_entry(const char *entry, size_t len, const char *key) {
    const char *equals = memchr(entry, '=', len);
    size_t n = equals ? (size_t)(equals - entry) : len, key_len = strlen(key);
    bool below = n > 2 && !strncmp(entry + n - 2, ".*", 2);
    if (below) n -= 2;
    if (key_len < n || strncmp(entry, key, n) != 0) return 0;
    if (key[n] == '.') return below ? n + 2 : n + 1; /* "a.*" knows more of a.b than "a" does */
    return key_len == n && !below ? n + 1 : 0;
}

static size_t match_list(const char *list, const char *key, const char **neutral) {
    const char *entry;
    size_t len, best = 0;
    while (next_entry(&list, &entry, &len)) {
        size_t n = match_entry(entry, len, key);
        if (n <= best) continue;
        const char *equals = memchr(entry, '=', len);
        best = n;
        if (neutral) *neutral = equals ? equals + 1 : "";
    }
    return best;
}

foreign_kind foreign_find(const foreign_table *t, const char *key, const char **neutral) {
    for (const foreign_rule *r = t->rules; r->key; r++)
        if (!strcmp(r->key, key)) return FOREIGN_RULE;
    const char *values = "";
    size_t read = match_list(t->read, key, NULL), idle = match_list(t->idle, key, NULL),
           changes = match_list(t->changes, key, &values);
    size_t best = MAX(read, MAX(idle, changes));
    if (neutral) *neutral = best && best == changes ? values : "";
    return !best          ? FOREIGN_UNKNOWN
           : best == read ? FOREIGN_READ
           : best == idle ? FOREIGN_IDLE
                          : FOREIGN_CHANGES;
}

bool foreign_key(const foreign_table *t, int i, char *name, size_t size, foreign_kind *kind) {
    static const foreign_kind kinds[] = { FOREIGN_READ, FOREIGN_IDLE, FOREIGN_CHANGES };
    const char *const lists[] = { t->read, t->idle, t->changes };
    for (const foreign_rule *r = t->rules; r->key; r++)
        if (i-- == 0) {
            snprintf(name, size, "%s", r->key);
            *kind = FOREIGN_RULE;
            return true;
        }
    for (size_t k = 0; k < COUNT_OF(lists); k++) {
        const char *at = lists[k], *entry;
        size_t len;
        while (next_entry(&at, &entry, &len)) {
            if (i-- != 0) continue;
            snprintf(name, size, "%.*s", (int)MIN(strcspn(entry, "=*"), len), entry);
            if (str_ends(name, ".")) name[strlen(name) - 1] = '\0';
            *kind = kinds[k];
            return true;
        }
    }
    return false;
}

bool foreign_is_section(const foreign_table *t, const char *key) {
    const char *const lists[] = { t->read, t->idle, t->changes };
    size_t n = strlen(key), len;
    for (const foreign_rule *r = t->rules; r->key; r++)
        if (!strncmp(r->key, key, n) && r->key[n] == '.') return true;
    for (size_t k = 0; k < COUNT_OF(lists); k++)
        for (const char *at = lists[k], *entry; next_entry(&at, &entry, &len);)
            if (len > n && !strncmp(entry, key, n) && entry[n] == '.') return true;
    return false;
}

/* ---- suggestions ---- */
static const char *last_part(const char *key) {
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* Whether two names are the same but for case and the kind of dash. */
static bool same_foreign_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++) {
        int x = *a == '-' ? '_' : tolower((unsigned char)*a);
        int y = *b == '-' ? '_' : tolower((unsigned char)*b);
        if (x != y) return false;
    }
    return !*a && !*b;
}

const char *foreign_option(const char *key) {
    const foreign_rule *const tables[] = {
        habits,
        foreign_hf.rules,
        foreign_megatron.rules,
        foreign_neox.rules,
        foreign_torchtitan.rules,
        foreign_deepspeed.rules,
        foreign_olmo.rules,
    };
    for (size_t t = 0; t < COUNT_OF(tables); t++)
        for (const foreign_rule *r = tables[t]; r->key; r++)
            if (r->option && same_foreign_name(last_part(r->key), last_part(key))) return r->option;
    return NULL;
}
