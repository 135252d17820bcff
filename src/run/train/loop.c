/* The training loop: queue a step, finish the previous one, and do what is due after it: validation, a
 * sample, a checkpoint. */
#include "setup_internal.h"
#include "trainer_internal.h"

#include <math.h>
#include <signal.h>
#include <string.h>

#include "io/io.h"
#include "util/fault.h"

/* ---- now and then ------------------------------------------------------------------------ */
static err validate_sets(trainer *t, observe_step *s) {
    double from = time_now();
    TRY(datasets_validate(t, &t->val_loss));
    t->eval_s += time_now() - from;
    if (!t->ops->device && is_first_rank(t))
        trainer_measure_peak(t); /* the machine may have been busy before */
    s->val_loss = t->val_loss;
    progress_note(t->show, "step %lld: held-out loss %.4f (perplexity %.2f)",
                  (long long)t->state.step, t->val_loss, exp(t->val_loss));
    json_t *details = json_pack("{s:f}", "loss", isfinite(t->val_loss) ? t->val_loss : -1.0);
    json_t *sets = t->data.n_sets > 1 ? json_object() : NULL;
    for (int i = 0; i < t->data.n_sets && sets; i++) {
        const run_source *set = &t->data.sets[i];
        progress_note(t->show, "    %-20s %.4f", set->name, set->loss);
        json_object_set_new(sets, set->name, json_real(isfinite(set->loss) ? set->loss : -1.0));
    }
    if (sets) json_object_set_new(details, "sets", sets);
    return observe_event(t->log, "validation", t->state.step, details);
}

static bool take_text(void *ctx, const char *text, size_t n) {
    str_add_bytes(ctx, text, n);
    return true;
}

static err write_sample(trainer *t) {
    const config *c = t->cfg;
    double from = time_now();
    str text = { 0 };
    sample_options o = { .tokens = c->sample.tokens,
                         .temperature = c->sample.temperature,
                         .top_k = c->sample.top_k,
                         .top_p = c->sample.top_p,
                         .seed = t->state.seed + (uint64_t)t->state.step };
    generation *d = generation_new(&t->gen, &t->x);
    err e = generate_text(d, t->data.tokenizer, c->sample.prompt, &o, take_text, &text, NULL);
    generation_free(d);
    if (!e) {
        progress_note(t->show, "step %lld, sample: %s%s", (long long)t->state.step,
                      c->sample.prompt, text.text ? text.text : "");
        e = observe_text(t->log, t->state.step, text.text, text.len);
    }
    t->sample_s = time_now() - from;
    str_free(&text);
    return e;
}

/* ---- the loop ----------------------------------------------------------------------------
 * On a device the loop runs a step ahead of what it knows: a step is finished (read, logged) when
 * the next one has been queued. Where something is to be done with a step's weights it is finished
 * first. */
static bool last_step(const trainer *t) { return t->state.step == t->len.stop; }

static err report_away(trainer *t) {
    str what = { 0 };
    str_add(
        &what,
        "%s is out of reach; training continues, nothing is saved meanwhile, and the last save is ",
        t->dir);
    if (t->saves.saved >= 0)
        str_add(&what, "of step %lld", (long long)t->saves.saved);
    else
        str_add(&what, "none");
    err e = alerts_raise(t, MONITOR_folder_gone, NAN, what.text, NULL);
    str_free(&what);
    return e;
}

/* Removes the files of a save that failed, and tries it again at once. */
static err report_back(trainer *t) {
    run_saves *s = &t->saves;
    monitor_clear(t->alerts.m, MONITOR_folder_gone);
    if (s->retry_at) s->retry_at = t->state.step;
    if (!is_first_rank(t)) return OK;
    observe_take_folder(t->log);
    log_warn("step %lld: %s is back", (long long)t->state.step, t->dir);
    if (!s->saver || !ckpt_saver_is_busy(s->saver)) err_free(ckpt_recover(t->dir));
    return observe_event(t->log, "folder_back", t->state.step, NULL);
}

/* A run continues without a folder that may come back. One whose folder was removed under it is saved there once
 * more and ends, rather than train for days into files that have no name. */
static err check_folder(trainer *t, folder_state now) {
    folder_state before = t->folder.state;
    t->folder.state = now;
    if (now == FOLDER_AWAY) return before == now ? OK : report_away(t);
    if (now == FOLDER_THERE) return before == FOLDER_AWAY ? report_back(t) : OK;
    if (now == FOLDER_REPLACED)
        return err_hint(ERR("%s is not the folder that this run began in", t->dir),
                        "nothing was written to it; move the run's own folder back and continue "
                        "from its last checkpoint");
    t->saves.saved = -1;
    ckpt_saver_free(t->saves.saver); /* the next makes its folders anew */
    t->saves.saver = NULL;
    TRY(saving_now(t));
    return err_hint(ERR("%s was removed while the run was using it", t->dir),
                    "the model of step %lld was saved there again, without earlier checkpoints and "
                    "metrics; the same command continues",
                    (long long)t->state.step);
}

/* Moves the seconds of what came between this step and the last line into the step. */
static void take_seconds(double *from, double *to) {
    if (*from > 0) *to = *from;
    *from = 0;
}

static err log_step(trainer *t, observe_step *s) {
    datasets_measure(t, s);
    take_seconds(&t->eval_s, &s->eval_s);
    take_seconds(&t->sample_s, &s->sample_s);
    take_seconds(&t->ckpt_s, &s->ckpt_s);
    s->tensorboard = t->last.due.tensorboard;
    TRY(observe_log(t->log, s));
    err failed = observe_take_failure(t->log);
    if (!failed) {
        monitor_clear(t->alerts.m, MONITOR_log_failed);
        return OK;
    }
    err e = alerts_raise(t, MONITOR_log_failed, NAN, err_message(failed), NULL);
    err_free(failed);
    return e;
}

/* How long ranks wait for one another inside a step after a signal: much longer than steps have taken. Between steps,
 * ranks wait while others write a checkpoint, which may take any time. */
static void set_patience(trainer *t, bool in_step) {
    comm_set_stop_patience(t->x.comm, in_step && t->average_s > 0 ? 10 + 20 * t->average_s : 0);
}

static err finish_step(trainer *t) {
    observe_step s = OBSERVE_STEP_NONE;
    TRY(trainer_finish_step(t, &s));
    profile_step_end(t);
    watchdog_note_step(t);
    folder_state folder = is_first_rank(t) ? folder_look(&t->folder) : FOLDER_THERE;
    TRY(ranks_agree(t, &folder));
    TRY(check_folder(t, folder));
    if (folder == FOLDER_THERE) TRY(folder_drop_previous(&t->folder));
    TRY(saving_poll(t));
    TRY(straggler_step(t, &s));
    TRY(replicas_check(t, t->last.due.save || last_step(t)));
    int64_t step = t->state.step;
    if (t->last.due.detail) TRY(detail_measure(t, &s));
    TRY(stage_times_after_step(t));
    TRY(alerts_after_step(t, &s));
    if (t->alerts.interrupts) return OK; /* healing_act decides about it */
    set_patience(t, false);
    bool validates = t->data.n_sets && t->len.every.validate.length > 0;
    if (validates && (last_step(t) || t->last.due.validate)) TRY(validate_sets(t, &s));
    if (t->questions.n && (last_step(t) || t->last.due.tasks)) TRY(questions_answer(t, &s));
    TRY(log_step(t, &s));
    bool due = t->last.due.log || last_step(t) || step == 1;
    if (due || progress_is_live(t->show)) progress_show(t->show, &s);
    if (due && t->show) progress_log(&s);
    if (t->last.due.sample) TRY(write_sample(t));
    if (!last_step(t)) TRY(saving_after_step(t, &t->last.due));
    TRY(profile_after_step(t, last_step(t)));
    t->since = time_now();
    return OK;
}

/* @return the signal that ends the run; 0: none. One rank alone can look at it at any time. */
static int stop_signal(const trainer *t) {
    bool alone = mesh_world(&t->mesh) == 1;
    if (!alone) return t->stop_signal;
    return t->opt->stop ? *t->opt->stop : 0;
}

/* Whether the step just queued may stay under way while the next one is queued. All ranks answer the same.
 * A step is finished where the next one's first losses are taken, which only the last stage of a pipeline does. */
static bool may_run_on(const trainer *t) {
    const due_events *due = &t->last.due;
    bool waits = due->detail || due->validate || due->sample || saving_is_due(t, due);
    bool in_stages = mesh_stages(&t->mesh) > 1;
    waits |= trainer_clock_is_open(t);
    waits |= (due->tasks && t->questions.n) || profile_is_near(t);
    return t->ops->device && !in_stages && !waits && t->state.step + 1 < t->len.stop;
}

static err finish_and_act(trainer *t) {
    if (t->last.open) TRY(finish_step(t));
    set_patience(t, false);
    return t->alerts.interrupts ? healing_act(t) : trainer_clock_settle(t);
}

static err one_step(trainer *t) {
    fault_point(FAULT_STEP, t->mesh.rank);
    TRY(profile_step_begin(t));
    straggler_begin(t);
    set_patience(t, true);
    TRY(trainer_queue_step(t, finish_step));
    straggler_end(t);
    TRY(watchdog_check(t));
    return t->last.open && may_run_on(t) ? OK : finish_and_act(t);
}

/* Whether another step is to be queued. */
static bool goes_on(const trainer *t) {
    return t->state.step + t->last.open < t->len.stop && !stop_signal(t) && !t->alerts.stops;
}

static err run_steps(trainer *t) {
    err e = OK;
    t->since = time_now();
    watchdog_start(t);
    while (!e && (goes_on(t) || t->last.open)) e = goes_on(t) ? one_step(t) : finish_and_act(t);
    watchdog_stop(t);
    progress_end(t->show);
    TRY(e);
    TRY(profile_after_step(t, true));
    if (!last_step(t)) TRY(replicas_check(t, true)); /* a signal ends it */
    TRY(saving_now(t));
    t->stop_signal = stop_signal(t);
    TRY(saving_finish_uploads(t));
    if (t->alerts.stops) return healing_stop(t);
    if (t->stop_signal)
        progress_note(t->show, "stopped after step %lld and saved; the same command continues",
                      (long long)t->state.step);
    else
        progress_note(t->show, "done: %lld steps in %s", (long long)t->state.step, t->dir);
    return OK;
}

/* Rank 0 takes the folder over; the others wait until it has. */
static err begin_run(trainer *t) {
    err e = OK;
    if (is_first_rank(t)) {
        TRY(trainer_begin(t));
        t->show = progress_new(stdout);
        trainer_measure_peak(t);
        trainer_describe(t);
        trainer_report_changes(t);
        if (t->cfg->debug.dump_programs) e = trainer_write_programs(t);
    }
    return comm_agree(t->x.comm, e);
}

/* Logs what ended the run, for those who look at it later. @return e. */
static err log_run_end(trainer *t, err e) {
    if (!t->log) return e;
    if (!e && last_step(t)) return observe_event(t->log, "finish", t->state.step, NULL);
    if (!e)
        return observe_event(t->log, "stop", t->state.step,
                             json_pack("{s:s, s:s}", "message",
                                       t->stop_signal == SIGINT ? "by Ctrl-C" : "by a signal",
                                       "remedy", "the same command continues"));
    const char *message = err_message(e), *remedy = err_remedy(e);
    str line = { 0 };
    str_add(&line, "error: %s", message);
    log_line(line.text);
    str_free(&line);
    bool on_alert = err_exit_code(e) == EXIT_ALERT; /* stopped and saved, as its policy demands */
    json_t *details =
        json_pack("{s:o, s:o, s:b}", "message", io_json_string(message, strlen(message)), "remedy",
                  io_json_string(remedy, strlen(remedy)), "on_alert", (int)on_alert);
    err_free(observe_event(t->log, on_alert ? "stop" : "failure", t->state.step,
                           details)); /* it ends with e anyway */
    return e;
}

err train_rank(trainer *t) {
    TRY(trainer_setup(t));
    if (t->state.step >= t->len.stop) {
        if (is_first_rank(t))
            printf("already at step %lld of %lld: nothing to do. Raise training.steps to continue, "
                   "or pass --fresh to start over.\n",
                   (long long)t->state.step, (long long)t->len.stop);
        if (is_first_rank(t)) TRY(saving_upload_last(t));
        return OK;
    }
    TRY(comm_agree(t->x.comm, OK)); /* all have read what the folder holds */
    TRY(begin_run(t));
    TRY(profile_memory(t));
    return log_run_end(t, run_steps(t));
}
