/* ingot eval: the loss of a trained model on texts, and its answers to questions. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "util/wait.h"
#include "cli/weights.h"
#include "io/io.h"

typedef struct eval_args {
    const char *data, *tasks, *core, *shots_from, *details, *dtype, *device;
    int64_t limit, shots, seq, rows, batches, index;
    bool json, watch, rolling;
} eval_args;

#define AT(member) offsetof(eval_args, member)
static const cli_arg args[] = {
    { "data", ARG_TEXT, AT(data), "FILE,...",
      "texts or token files: loss, perplexity and bits per byte of each" },
    { "rolling", ARG_FLAG, AT(rolling), "",
      "of --data: word, byte and bits-per-byte perplexity over rolling windows, every token included" },
    { "tasks", ARG_TEXT, AT(tasks), "[NAME=]FILE,...",
      "questions as JSON lines of a task; a NAME alone shows where to get it, list names all" },
    { "core", ARG_TEXT, AT(core), "FOLDER",
      "DCLM's CORE: 22 tasks of its evaluation bundle, and their centered mean" },
    { "limit", ARG_COUNT, AT(limit), "N", "only the first N questions of each file" },
    { "shots", ARG_COUNT, AT(shots), "N", "put N answered questions before each (default 0)" },
    { "shots-from", ARG_TEXT, AT(shots_from), "FILE",
      "file that --shots draws from, such as the training split (default: the file itself)" },
    { "batches", ARG_COUNT, AT(batches), "N", "only the first N batches of each text" },
    { "seq-len", ARG_COUNT, AT(seq), "N", "tokens of context (default: at most 1024)" },
    { "batch", ARG_COUNT, AT(rows), "N", "sequences at a time (default 2)" },
    { "dtype", ARG_TEXT, AT(dtype), "TYPE", "fp32 or bf16 (default fp32)" },
    { "details", ARG_TEXT, AT(details), "FILE",
      "write the likelihood of each answer as JSON lines" },
    { "json", ARG_FLAG, AT(json), "", "print a line of JSON instead of tables" },
    { "watch", ARG_FLAG, AT(watch), "", "evaluate each new checkpoint of the run, until stopped" },
    { "device", ARG_TEXT, AT(device), "NAME",
      "auto, cpu or cuda (default auto: the GPU if there is one)" },
    { "device.index", ARG_COUNT, AT(index), "N", "index of the GPU, from 0" },
};
const cli_spec cmd_eval_spec = { "eval",
                                 "MODEL [--data FILE,...] [--tasks [NAME=]FILE,...] [options]",
                                 CLI_ARGS(args), 1 };

/* ---- progress: a line that is rewritten on a terminal, a line every few seconds elsewhere -------- */
typedef struct shown_progress {
    const char *file, *what; /* "answers" */
    double last;
} shown_progress;

static void show_progress(void *ctx, int64_t done, int64_t of) {
    static const double LIVE_SECONDS = 0.5, PLAIN_SECONDS = 10;
    shown_progress *p = ctx;
    bool live = term_can_rewrite(stderr), ends = live && done == of;
    double now = time_now();
    if (!ends && now - p->last < (live ? LIVE_SECONDS : PLAIN_SECONDS)) return;
    p->last = now;
    fprintf(stderr, live ? "\r%s: %lld of %lld %s\033[K%s" : "%s: %lld of %lld %s\n%s", p->file,
            (long long)done, (long long)of, p->what, ends ? "\r\033[K" : "");
    fflush(stderr);
}

static eval_progress progress_of(shown_progress *p) {
    p->last = time_now();
    return (eval_progress){ show_progress, p };
}

/* ---- lists of files ---------------------------------------------------------------------------- */
/* Calls f for each name of a list separated by commas. */
static err for_each(const char *list, err (*f)(void *ctx, const char *path), void *ctx) {
    if (!list) return OK;
    char *copy = strdup(list), *rest = copy;
    err e = OK;
    for (char *name; !e && (name = strsep(&rest, ","));)
        if (*name) e = f(ctx, name);
    free(copy);
    return e;
}

typedef struct eval_run {
    const eval_args *a;
    weights *w;
    generation *gen; /* NULL: none is planned */
    const tokenizer *tok;
    FILE *details;
    json_t *result; /* "data" and "tasks", by file */
    bool headed;    /* the table's first line is printed */
} eval_run;

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* ---- texts --------------------------------------------------------------------------------------- */
/* Refuses text that could only be read as bytes, and files of another tokenizer: their loss would mean nothing. Ids of
 * unknown origin are taken as they are. */
static err check_tokens(const eval_run *r, const data_info *d) {
    const ckpt_state *s = &r->w->state;
    bool bytes = d->tokenizer == TOKENIZER_BYTES;
    uint64_t own = s->tokenizer ? s->tokenizer : r->tok ? tokenizer_hash(r->tok) : 0;
    if (bytes ? s->bytes : d->tokenizer_hash == 0 || d->tokenizer_hash == own) return OK;
    if (!own && d->vocab == model_conf(r->w->m)->vocab) return OK;
    if (bytes && !r->tok)
        return err_hint(ERR("%s has no tokenizer, and %s is text or bytes", r->w->path, d->path),
                        "put the tokenizer.json it was trained with into its folder, or give a "
                        "token file");
    return err_hint(ERR("%s was not tokenized with the tokenizer of %s", d->path, r->w->path),
                    "give its text, which is tokenized as the model knows it");
}

static err open_text(const eval_run *r, const char *path, data_source **source, loader **l) {
    char *tok = r->w->state.bytes ? NULL : ckpt_tokenizer_path(r->w->path);
    data_options o = { .vocab_limit = model_conf(r->w->m)->vocab,
                       .tokenizer = tok ? tok : "bytes",
                       .no_prefix = !r->w->state.prefixed };
    err e = data_open_paths(&path, 1, &o, source);
    free(tok);
    TRY(e);
    TRY(check_tokens(r, data_source_info(*source)));
    loader_options lo = { .seq_len = r->w->eval.on.seq,
                          .rows = r->w->eval.on.rows,
                          .vocab_limit = model_conf(r->w->m)->vocab,
                          .mask_documents = true,
                          .evaluation = true };
    return loader_new(*source, &lo, l);
}

/* Keeps a result under a file's path; bytes of the path that are not UTF-8 are replaced. */
static void add_result(const eval_run *r, const char *group, const char *path, json_t *one) {
    json_t *name = io_json_string(path, strlen(path));
    json_object_set_new(json_object_get(r->result, group), json_string_value(name), one);
    json_decref(name);
}

static void print_text(eval_run *r, const char *path, const eval_text *t) {
    double bits = eval_bits_per_byte(t);
    json_t *one = json_pack("{s:f, s:f, s:I, s:I}", "loss", t->loss, "perplexity", exp(t->loss),
                            "tokens", (json_int_t)t->tokens, "bytes", (json_int_t)t->bytes);
    if (!isnan(bits)) json_object_set_new(one, "bits_per_byte", json_real(bits));
    add_result(r, "data", path, one);
    if (r->a->json) return;
    if (!r->headed)
        printf("%-24s %9s %12s %10s %12s\n", "text", "loss", "perplexity", "bits/byte", "tokens");
    r->headed = true;
    char per_byte[32] = "-";
    if (!isnan(bits)) snprintf(per_byte, sizeof per_byte, "%.4f", bits);
    printf("%-24s %9.4f %12.4f %10s %12lld\n", file_name(path), t->loss, exp(t->loss), per_byte,
           (long long)t->tokens);
    fflush(stdout); /* the next file may take an hour, and who reads a pipe waits for this one */
}

static task_run run_of(const eval_run *r, shown_progress *p) {
    return (
        task_run){ &r->w->x, r->w->m, &r->w->eval.on, r->tok, r->details, progress_of(p), r->gen };
}

static err eval_one_rolling(eval_run *r, const char *path) {
    shown_progress p = { file_name(path), "bytes" };
    task_run run = run_of(r, &p);
    eval_rolling t;
    TRY(eval_rolling_file(&run, path, &t));
    double words = exp(-t.sum / (double)t.words), bytes = exp(-t.sum / (double)t.bytes);
    double bits = -t.sum / (double)t.bytes / log(2);
    add_result(r, "data", path,
               json_pack("{s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I}", "word_perplexity", words,
                         "byte_perplexity", bytes, "bits_per_byte", bits, "loss",
                         -t.sum / (double)t.tokens, "documents", (json_int_t)t.documents, "tokens",
                         (json_int_t)t.tokens, "words", (json_int_t)t.words, "bytes",
                         (json_int_t)t.bytes));
    if (r->a->json) return OK;
    if (!r->headed)
        printf("%-24s %15s %15s %10s %12s\n", "text", "word perplexity", "byte perplexity",
               "bits/byte", "tokens");
    r->headed = true;
    printf("%-24s %15.4f %15.4f %10.4f %12lld\n", file_name(path), words, bytes, bits,
           (long long)t.tokens);
    fflush(stdout);
    return OK;
}

static err eval_one_text(void *ctx, const char *path) {
    eval_run *r = ctx;
    if (r->a->rolling) return eval_one_rolling(r, path);
    data_source *source = NULL;
    loader *l = NULL;
    eval_text t;
    shown_progress p = { file_name(path), "batches" };
    err e = OK;
    TRY_CLEAN(open_text(r, path, &source, &l));
    TRY_CLEAN(eval_read_text(&r->w->x, r->w->m, r->w->eval.on.which, l, r->a->batches, r->tok,
                             progress_of(&p), &t));
    if (isnan(t.loss)) {
        e = err_hint(ERR("%s holds nothing to predict", path), "give a text of two tokens or more");
        goto cleanup;
    }
    print_text(r, path, &t);
cleanup:
    loader_free(l);
    data_close(source);
    return e;
}

/* ---- tasks ---------------------------------------------------------------------------------------- */
static void print_share(double share, int64_t n) {
    if (isnan(share))
        printf(" %15s", "-");
    else
        printf(" %6.4f ± %.4f", share, task_stderr(share, n));
}

static void print_task(eval_run *r, const char *path, const task_file *t, const task_score *s) {
    json_t *one = json_pack("{s:s, s:f, s:f, s:I, s:I}", "format", t->format, "acc", s->acc,
                            "acc_stderr", task_stderr(s->acc, s->questions), "questions",
                            (json_int_t)s->questions, "shots", (json_int_t)r->a->shots);
    if (!isnan(s->acc_norm)) {
        json_object_set_new(one, "acc_norm", json_real(s->acc_norm));
        json_object_set_new(one, "acc_norm_stderr",
                            json_real(task_stderr(s->acc_norm, s->questions)));
    }
    bool greedy = task_type_of(t->row) == TASK_GREEDY;
    if (greedy) json_object_set_new(one, "perplexity", json_real(exp(-s->likelihood)));
    add_result(r, "tasks", path, one);
    if (r->a->json) return;
    if (!r->headed)
        printf("%-24s %-14s %15s %15s %10s\n", "task", "format", "acc", "acc_norm", "questions");
    r->headed = true;
    printf("%-24s %-14s", file_name(path), t->format);
    print_share(s->acc, s->questions);
    print_share(s->acc_norm, s->questions);
    printf(" %10lld", (long long)s->questions);
    if (greedy) printf("   perplexity %.4f", exp(-s->likelihood));
    printf("\n");
    fflush(stdout);
}

static err add_shots(const eval_run *r, task_file *t) {
    task_file examples;
    if (!r->a->shots) return OK;
    if (!r->a->shots_from) return task_add_shots(t, t, r->a->shots, TASK_DRAW_HARNESS);
    TRY(task_read_as(t->row, r->a->shots_from, 0, &examples));
    err e = task_add_shots(t, &examples, r->a->shots, TASK_DRAW_HARNESS);
    task_free(&examples);
    return e;
}

static err warn_of_cuts(const eval_run *r, const char *path, const task_file *t) {
    int64_t longest, cut;
    TRY(task_lengths(r->tok, t, r->w->eval.on.seq, &longest, &cut));
    if (cut)
        log_warn("%s: %lld answers have more tokens than the context of %lld, so that their "
                 "beginnings are left out; the longest needs --seq-len %lld",
                 path, (long long)cut, (long long)r->w->eval.on.seq, (long long)longest);
    return OK;
}

/* Splits "NAME=FILE". @param row NULL: recognized by its members */
static err split_task_name(const char *text, const task_row **row, const char **path) {
    const char *equals = strchr(text, '=');
    char name[64];
    *row = NULL;
    *path = text;
    if (!equals || (size_t)(equals - text) >= sizeof name || io_exists(text)) return OK;
    snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
    *row = task_find(name);
    *path = equals + 1;
    if (*row) return OK;
    return err_hint(ERR_USAGE("--tasks: \"%s\" is not a task", name),
                    "`ingot eval MODEL --tasks list` names all");
}

/* Refuses a name that is not a file, with where to get the task's, before the first task is evaluated. */
static err check_task_file(void *ctx, const char *text) {
    const task_row *row;
    const char *path, *near = NULL;
    TRY(split_task_name(text, &row, &path));
    if (io_exists(path)) return OK;
    bool named = row != NULL;
    if (!named) row = task_find(path);
    for (int i = 0; !row && i < task_table_rows; i++)
        near = str_nearer(path, task_row_name(task_row_at(i)), near);
    err e = !named && row ? ERR_USAGE("--tasks: %s is a task, not a file", path)
                          : ERR_USAGE("--tasks: file %s does not exist", path);
    if (row)
        return err_hint(e,
                        "its questions are at %s; give them as JSON lines: --tasks %s=FILE.jsonl",
                        task_source(row), task_row_name(row));
    if (near) return err_hint(e, "did you mean the task %s? `--tasks list` names all", near);
    return err_hint(e, "check the path; `--tasks list` names the tasks");
}

static err eval_one_task(void *ctx, const char *text) {
    eval_run *r = ctx;
    task_file t = { 0 };
    task_score s;
    const task_row *row;
    const char *path;
    TRY(split_task_name(text, &row, &path));
    shown_progress p = { file_name(path), "answers" };
    task_run run = run_of(r, &p);
    err e = OK;
    TRY_CLEAN(task_read_as(row, path, r->a->limit, &t));
    TRY_CLEAN(add_shots(r, &t));
    if (task_type_of(t.row) != TASK_GENERATE) TRY_CLEAN(warn_of_cuts(r, path, &t));
    TRY_CLEAN(task_score_all(&run, &t, &s));
    print_task(r, path, &t, &s);
cleanup:
    task_free(&t);
    return e;
}

static err eval_core(eval_run *r) {
    json_t *tasks = json_object();
    double sum = 0;
    err e = OK;
    /* all files are read first: a fault in the last one is not to be found after hours */
    for (int i = 0; i < CORE_TASKS && !e; i++) {
        task_file t = { 0 };
        e = core_read(&core_table[i], r->a->core, r->a->limit, &t);
        task_free(&t);
    }
    if (!e && !r->a->json) printf("%-34s %15s %10s %10s\n", "CORE", "acc", "centered", "questions");
    for (int i = 0; i < CORE_TASKS && !e; i++) {
        const core_task *c = &core_table[i];
        shown_progress p = { c->name, "answers" };
        task_run run = run_of(r, &p);
        task_file t = { 0 };
        task_score s;
        e = core_read(c, r->a->core, r->a->limit, &t);
        if (!e) e = task_score_all(&run, &t, &s);
        task_free(&t);
        if (e) break;
        double centered = core_centered(c, s.acc);
        sum += centered;
        json_object_set_new(tasks, c->name,
                            json_pack("{s:f, s:f, s:f, s:I}", "acc", s.acc, "acc_stderr",
                                      task_stderr(s.acc, s.questions), "centered", centered,
                                      "questions", (json_int_t)s.questions));
        if (r->a->json) continue;
        printf("%-34s", c->name);
        print_share(s.acc, s.questions);
        printf(" %10.4f %10lld\n", centered, (long long)s.questions);
        fflush(stdout);
    }
    if (!e && !r->a->json) printf("%-34s %15s %10.4f\n", "CORE", "", sum / CORE_TASKS);
    if (!e)
        json_object_set_new(r->result, "core",
                            json_pack("{s:f, s:O}", "score", sum / CORE_TASKS, "tasks", tasks));
    json_decref(tasks);
    return e;
}

/* ---- the run's own held-out data -------------------------------------------------------------------- */
static err eval_own_source(eval_run *r, const char *name, data_source *source, data_range range) {
    loader *l = NULL;
    loader_options o = { .seq_len = r->w->eval.on.seq,
                         .rows = r->w->eval.on.rows,
                         .vocab_limit = model_conf(r->w->m)->vocab,
                         .mask_documents = true,
                         .evaluation = true,
                         .range = range };
    eval_text t;
    shown_progress p = { name, "batches" };
    TRY(loader_new(source, &o, &l));
    err e = eval_read_text(&r->w->x, r->w->m, r->w->eval.on.which, l, r->a->batches, r->tok,
                           progress_of(&p), &t);
    if (!e) print_text(r, name, &t);
    loader_free(l);
    return e;
}

/* One entry of a run's data: the shards that were held out, else the part that the run split off. */
static err eval_own_entry(eval_run *r, const config *c, const mix_entry *m, bool given) {
    char *tok = r->w->state.bytes ? NULL : ckpt_tokenizer_path(r->w->path);
    data_options o = { .vocab_limit = model_conf(r->w->m)->vocab,
                       .tokenizer = tok ? tok : "bytes",
                       .no_prefix = !r->w->state.prefixed,
                       .held_out = !given,
                       .raw_dtype = c->data.raw_dtype };
    data_source *d = NULL;
    data_range rest = { 0, 0 }, part;
    err e = data_open_paths(m->paths, m->n_paths, &o, &d);
    o.held_out = false;
    if (!e && !d && c->data.validation_fraction > 0) {
        e = data_open_paths(m->paths, m->n_paths, &o, &d);
        if (!e) e = data_split(d, c->data.validation_fraction, c->training.seq_len, &part, &rest);
    }
    if (!e && d) e = check_tokens(r, data_source_info(d));
    if (!e && d) e = eval_own_source(r, m->name, d, rest);
    data_close(d);
    free(tok);
    return e;
}

static err eval_own_paths(eval_run *r, const config *c, const char *path, bool given) {
    mix_entry only = { .name = path, .paths = &path, .n_paths = 1 };
    mix_file file = { .entries = &only, .n = 1 };
    bool is_mix = mix_file_is(path);
    err e = is_mix ? mix_file_read(path, &file) : OK;
    for (int i = 0; i < file.n && !e; i++) e = eval_own_entry(r, c, &file.entries[i], given);
    if (is_mix) mix_file_free(&file);
    return e;
}

static err eval_own_data(eval_run *r) {
    config c;
    char *path = ckpt_file(r->w->path, "config.yaml");
    if (!path)
        return err_hint(
            ERR_USAGE(
                "eval: nothing to evaluate on: %s has no config.yaml that names held-out data",
                r->w->path),
            "give --data TEXT, --tasks QUESTIONS.jsonl, or both");
    config_init(&c);
    err e = config_load(&c, path);
    free(path);
    if (!e && *c.data.validation) {
        e = eval_own_paths(r, &c, c.data.validation, true);
    } else if (!e && *c.data.train) {
        e = eval_own_paths(r, &c, c.data.train, false);
    } else if (!e) {
        data_source *d = NULL;
        data_range part, rest = { 0, 0 };
        e = data_open_synth((uint64_t)c.training.seed, c.data.synth_documents, &d);
        if (!e) e = data_split(d, c.data.validation_fraction, c.training.seq_len, &part, &rest);
        if (!e) e = eval_own_source(r, "synthetic corpus", d, rest);
        data_close(d);
    }
    config_free(&c);
    return e;
}

/* ---- one model ------------------------------------------------------------------------------------- */
static err eval_weights(const eval_args *a, const char *path, FILE *details, weights *w,
                        generation *gen) {
    tokenizer *tok = NULL;
    char n[32];
    eval_run r = { .a = a, .w = w, .gen = gen, .details = details };
    r.result = json_pack("{s:o, s:I, s:{}, s:{}}", "model", io_json_string(path, strlen(path)),
                         "step", (json_int_t)w->state.updates, "data", "tasks");
    err e = OK;
    TRY_CLEAN(weights_tokenizer(w, &tok));
    if (!tok && (a->tasks || a->core || a->rolling))
        TRY_CLEAN(err_hint(ERR("%s has no tokenizer: questions cannot be read", w->path),
                           "put the tokenizer.json it was trained with into its folder"));
    r.tok = tok;
    if (!a->json)
        printf("%s: %s parameters, step %lld\n", path,
               str_count(n, sizeof n, (double)model_count(model_conf(w->m))),
               (long long)w->state.updates);
    fflush(stdout);
    TRY_CLEAN(for_each(a->data, eval_one_text, &r));
    r.headed = false;
    TRY_CLEAN(for_each(a->tasks, eval_one_task, &r));
    if (a->core) TRY_CLEAN(eval_core(&r));
    if (!a->data && !a->tasks && !a->core) TRY_CLEAN(eval_own_data(&r));
    if (a->json) {
        io_json_print(stdout, json_incref(r.result), JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (fflush(stdout)) e = ERR("cannot write: %s", strerror(errno));
    }
cleanup:
    json_decref(r.result);
    tokenizer_free(tok);
    return e;
}

static err eval_model(const eval_args *a, const char *path, const ops_choice *on, dtype dt,
                      FILE *details) {
    enum { EVAL_SEQUENCES = 8 }; /* answers that are generated together */
    weights w = { 0 };
    w.eval.on.rows = a->rows;
    w.eval.on.seq = a->seq;
    w.dt = dt;
    generator g;
    bool generates = a->tasks || a->core; /* some of them do */
    if (generates) w.generate.g = &g;
    w.eval.shares = generates;
    w.generate.slots = EVAL_SEQUENCES;
    err e = weights_open(path, on, &w);
    generation *d = !e && generates ? generation_new(&g, &w.x) : NULL;
    if (!e) e = eval_weights(a, path, details, &w, d);
    generation_free(d);
    weights_free(&w);
    return e;
}

/* Checkpoints as they appear; ends when it is interrupted. */
static err watch_run(const eval_args *a, const char *run, const ops_choice *on, dtype dt,
                     FILE *details) {
    enum { SECONDS = 5 };
    char *done = NULL;
    err e = OK;
    bool there = io_exists(run);
    if (there && !io_is_dir(run))
        return err_hint(ERR("%s is a file", run), "give the folder of a run, such as runs/tiny");
    log_info("evaluating each new checkpoint of %s%s, until Ctrl-C", run,
             there ? "" : ", which does not exist yet");
    for (;; wait_seconds(SECONDS)) {
        char *path = NULL;
        TRY_CLEAN(ckpt_latest(run, &path));
        if (!path || (done && strcmp(done, path) == 0)) {
            free(path);
            continue;
        }
        free(done);
        done = path;
        TRY_CLEAN(eval_model(a, path, on, dt, details));
    }
cleanup:
    free(done);
    return e;
}

static err check_list(const char *option, const char *list) {
    if (!list || list[strspn(list, ",")]) return OK;
    return err_hint(ERR_USAGE("--%s: names no file", option), "give one, or leave the option out");
}

static err check_args(const eval_args *a, dtype *dt) {
    TRY(check_list("data", a->data));
    TRY(check_list("tasks", a->tasks));
    if (a->shots_from && !a->shots)
        return err_hint(ERR_USAGE("--shots-from: needs --shots"), "give both");
    if (a->shots && !a->tasks) return ERR_USAGE("--shots: needs --tasks");
    if (a->rolling && !a->data) return ERR_USAGE("--rolling: needs --data");
    TRY(weights_dtype(a->dtype, dt));
    if (a->rows < 1) return ERR_USAGE("--batch: at least 1");
    return OK;
}

err cmd_eval(int argc, char **argv) {
    eval_args a = { .rows = 2 };
    const char *path;
    ops_choice on;
    dtype dt = DT_F32;
    FILE *details = NULL;
    TRY(cli_parse(&cmd_eval_spec, argc - 1, argv + 1, &a, &path));
    TRY(check_args(&a, &dt));
    if (a.tasks && !strcmp(a.tasks, "list")) {
        for (int i = 0; i < task_table_rows; i++)
            printf("%-16s %s\n", task_row_name(task_row_at(i)), task_source(task_row_at(i)));
        return OK;
    }
    TRY(for_each(a.tasks, check_task_file, NULL));
    TRY(weights_device(a.device, a.index, &on));
    if (a.details && !(details = fopen(a.details, "w")))
        return ERR("cannot write %s: %s", a.details, strerror(errno));
    err e =
        a.watch ? watch_run(&a, path, &on, dt, details) : eval_model(&a, path, &on, dt, details);
    if (details && fclose(details) && !e)
        e = ERR("cannot write %s: %s", a.details, strerror(errno));
    return e;
}
