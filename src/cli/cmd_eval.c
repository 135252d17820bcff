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
    const char *data, *tasks, *shots_from, *details, *dtype, *device;
    int64_t limit, shots, seq, rows, batches, index;
    bool json, watch;
} eval_args;

#define AT(member) offsetof(eval_args, member)
static const cli_arg args[] = {
    { "data", ARG_TEXT, AT(data), "FILE,...",
      "texts or token files: loss, perplexity and bits per byte of each" },
    { "tasks", ARG_TEXT, AT(tasks), "FILE,...",
      "questions with several answers (JSON lines of HellaSwag, ARC, PIQA, MMLU)" },
    { "limit", ARG_COUNT, AT(limit), "N", "only the first N questions of each file" },
    { "shots", ARG_COUNT, AT(shots), "N", "put N answered questions before each (default 0)" },
    { "shots-from", ARG_TEXT, AT(shots_from), "FILE",
      "file whose first N questions are used for --shots" },
    { "batches", ARG_COUNT, AT(batches), "N", "only the first N batches of each text" },
    { "seq-len", ARG_COUNT, AT(seq), "N", "tokens of context (default: at most 1024)" },
    { "batch", ARG_COUNT, AT(rows), "N", "sequences at a time (default 4)" },
    { "dtype", ARG_TEXT, AT(dtype), "TYPE", "fp32 or bf16 (default fp32)" },
    { "details", ARG_TEXT, AT(details), "FILE",
      "write the likelihood of each answer as JSON lines" },
    { "json", ARG_FLAG, AT(json), "", "print a line of JSON instead of tables" },
    { "watch", ARG_FLAG, AT(watch), "", "evaluate each new checkpoint of the run, until stopped" },
    { "device", ARG_TEXT, AT(device), "NAME",
      "auto, cpu or cuda (default auto: the GPU if there is one)" },
    { "device.index", ARG_COUNT, AT(index), "N", "index of the GPU, from 0" },
};
const cli_spec cmd_eval_spec = { "eval", "MODEL [--data FILE,...] [--tasks FILE,...] [options]",
                                 args, (int)COUNT_OF(args), 1 };

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
static err open_text(const eval_run *r, const char *path, data_source **source, loader **l) {
    char *tok = r->w->state.bytes ? NULL : ckpt_tokenizer_path(r->w->path);
    data_options o = { .vocab_limit = model_conf(r->w->m)->vocab,
                       .tokenizer = tok ? tok : "bytes",
                       .no_prefix = !r->w->state.prefixed };
    err e = data_open_paths(&path, 1, &o, source);
    free(tok);
    TRY(e);
    loader_options lo = { .seq_len = r->w->eval.seq,
                          .rows = r->w->eval.rows,
                          .vocab_limit = model_conf(r->w->m)->vocab,
                          .mask_documents = true,
                          .evaluation = true };
    return loader_new(*source, &lo, l);
}

static void print_text(eval_run *r, const char *path, const eval_text *t) {
    double bits = eval_bits_per_byte(t);
    json_t *one = json_pack("{s:f, s:f, s:I, s:I}", "loss", t->loss, "perplexity", exp(t->loss),
                            "tokens", (json_int_t)t->tokens, "bytes", (json_int_t)t->bytes);
    if (!isnan(bits)) json_object_set_new(one, "bits_per_byte", json_real(bits));
    json_object_set_new(json_object_get(r->result, "data"), path, one);
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

static err eval_one_text(void *ctx, const char *path) {
    eval_run *r = ctx;
    data_source *source = NULL;
    loader *l = NULL;
    eval_text t;
    shown_progress p = { file_name(path), "batches" };
    err e = OK;
    TRY_CLEAN(open_text(r, path, &source, &l));
    TRY_CLEAN(eval_read_text(&r->w->x, r->w->m, r->w->eval.id, l, r->a->batches, r->tok,
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
static void print_task(eval_run *r, const char *path, const task_file *t, const task_score *s) {
    double acc = task_stderr(s->acc, s->questions), norm = task_stderr(s->acc_norm, s->questions);
    json_object_set_new(json_object_get(r->result, "tasks"), path,
                        json_pack("{s:s, s:f, s:f, s:f, s:f, s:I, s:I}", "format", t->format, "acc",
                                  s->acc, "acc_stderr", acc, "acc_norm", s->acc_norm,
                                  "acc_norm_stderr", norm, "questions", (json_int_t)s->questions,
                                  "shots", (json_int_t)r->a->shots));
    if (r->a->json) return;
    if (!r->headed)
        printf("%-24s %-10s %15s %15s %10s\n", "task", "format", "acc", "acc_norm", "questions");
    r->headed = true;
    printf("%-24s %-10s %6.4f ± %.4f %6.4f ± %.4f %10lld\n", file_name(path), t->format, s->acc,
           acc, s->acc_norm, norm, (long long)s->questions);
    fflush(stdout);
}

static err add_shots(const eval_run *r, task_file *t) {
    task_file examples;
    if (!r->a->shots) return OK;
    TRY(task_read(r->a->shots_from, r->a->shots, &examples));
    err e = OK;
    if (examples.n < r->a->shots)
        e = err_hint(ERR("%s holds %d questions, fewer than --shots %lld", r->a->shots_from,
                         examples.n, (long long)r->a->shots),
                     "use --shots %d", examples.n);
    else if (strcmp(examples.format, t->format) != 0)
        e = err_hint(ERR("%s holds questions of %s, not of %s", r->a->shots_from, examples.format,
                         t->format),
                     "give examples of the same task");
    else
        task_add_examples(t, &examples, r->a->shots);
    task_free(&examples);
    return e;
}

static err warn_of_cuts(const eval_run *r, const char *path, const task_file *t) {
    int64_t longest, cut;
    TRY(task_lengths(r->tok, t, r->w->eval.seq, &longest, &cut));
    if (cut)
        log_warn("%s: %lld answers have more tokens than the context of %lld, so that their "
                 "beginnings are left out; the longest needs --seq-len %lld",
                 path, (long long)cut, (long long)r->w->eval.seq, (long long)longest);
    return OK;
}

static err eval_one_task(void *ctx, const char *path) {
    eval_run *r = ctx;
    task_file t = { 0 };
    task_score s;
    shown_progress p = { file_name(path), "answers" };
    task_run run = { &r->w->x,       r->w->m, r->w->eval.id, r->w->eval.rows,
                     r->w->eval.seq, r->tok,  r->details,    progress_of(&p) };
    err e = OK;
    TRY_CLEAN(task_read(path, r->a->limit, &t));
    TRY_CLEAN(add_shots(r, &t));
    TRY_CLEAN(warn_of_cuts(r, path, &t));
    TRY_CLEAN(task_score_all(&run, &t, &s));
    print_task(r, path, &t, &s);
cleanup:
    task_free(&t);
    return e;
}

/* ---- one model ------------------------------------------------------------------------------------- */
static err need_tokenizer(const eval_args *a, const weights *w, const tokenizer *t) {
    if (t || !a->tasks) return OK;
    return err_hint(ERR("%s has no tokenizer: questions cannot be read", w->path),
                    "put the tokenizer.json it was trained with into its folder");
}

static err print_json(eval_run *r) {
    char *text = json_dumps(r->result, JSON_COMPACT | JSON_REAL_PRECISION(9));
    printf("%s\n", text);
    free(text);
    return fflush(stdout) ? ERR("cannot write: %s", strerror(errno)) : OK;
}

static err eval_weights(const eval_args *a, const char *path, FILE *details, weights *w) {
    tokenizer *tok = NULL;
    char n[32];
    eval_run r = { .a = a, .w = w, .details = details };
    r.result = json_pack("{s:s, s:I, s:{}, s:{}}", "model", path, "step",
                         (json_int_t)w->state.updates, "data", "tasks");
    err e = OK;
    TRY_CLEAN(weights_tokenizer(w, &tok));
    TRY_CLEAN(need_tokenizer(a, w, tok));
    r.tok = tok;
    if (!a->json)
        printf("%s: %s parameters, step %lld\n", path,
               str_count(n, sizeof n, (double)model_count(model_conf(w->m))),
               (long long)w->state.updates);
    fflush(stdout);
    TRY_CLEAN(for_each(a->data, eval_one_text, &r));
    r.headed = false;
    TRY_CLEAN(for_each(a->tasks, eval_one_task, &r));
    if (a->json) e = print_json(&r);
cleanup:
    json_decref(r.result);
    tokenizer_free(tok);
    return e;
}

static err eval_model(const eval_args *a, const char *path, const ops_choice *on, dtype dt,
                      FILE *details) {
    weights w = { 0 };
    w.eval.rows = a->rows;
    w.eval.seq = a->seq;
    w.eval.dt = dt;
    err e = weights_open(path, on, NULL, 0, &w);
    if (!e) e = eval_weights(a, path, details, &w);
    weights_free(&w);
    return e;
}

/* Checkpoints as they appear; ends when it is interrupted. */
static err watch_run(const eval_args *a, const char *run, const ops_choice *on, dtype dt,
                     FILE *details) {
    enum { SECONDS = 5 };
    char *done = NULL;
    err e = OK;
    log_info("evaluating each new checkpoint of %s, until Ctrl-C", run);
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

static err check_args(const eval_args *a, dtype *dt) {
    if (!a->data && !a->tasks)
        return err_hint(ERR_USAGE("eval: nothing to evaluate on"),
                        "give --data TEXT, --tasks QUESTIONS.jsonl, or both");
    if ((a->shots > 0) != (a->shots_from != NULL))
        return err_hint(ERR_USAGE("--shots and --shots-from belong together"), "give both");
    *dt = a->dtype ? dt_from_name(a->dtype) : DT_F32;
    if (*dt != DT_F32 && *dt != DT_BF16)
        return err_hint(ERR_USAGE("--dtype: expected fp32 or bf16; got \"%s\"", a->dtype),
                        "choose one of the two");
    if (a->rows < 1) return ERR_USAGE("--batch: at least 1");
    return OK;
}

err cmd_eval(int argc, char **argv) {
    eval_args a = { .rows = 4 };
    const char *path;
    ops_choice on;
    dtype dt = DT_F32;
    FILE *details = NULL;
    TRY(cli_parse(&cmd_eval_spec, argc - 1, argv + 1, &a, &path));
    TRY(check_args(&a, &dt));
    TRY(weights_device(a.device, a.index, &on));
    if (a.details && !(details = fopen(a.details, "w")))
        return ERR("cannot write %s: %s", a.details, strerror(errno));
    err e =
        a.watch ? watch_run(&a, path, &on, dt, details) : eval_model(&a, path, &on, dt, details);
    if (details && fclose(details) && !e)
        e = ERR("cannot write %s: %s", a.details, strerror(errno));
    return e;
}
