/* Checkpoints of a run: when they are saved, and what happens when that fails.
 *
 * A save is begun after the step in which it is due and continues beside the following ones
 * (checkpoint/save.c). One is in flight at a time: where the next is due before it is complete, the
 * training waits (back-pressure) and the seconds are reported. A save that fails, because the disk is full,
 * read-only or gone, is an event and a warning; the last good one stays, and the save is tried again after
 * 1, 2, 4, ... steps, at most MOST_STEPS apart. What is trained meanwhile exists in memory alone, so this has an
 * end: a failure that would recur, the last save of a run, and MOST_FAILURES in a row over MOST_SECONDS are
 * errors that end the run.
 *
 * Rank 0 uploads completed saves to the object store of checkpoint.upload (checkpoint/upload.c), which makes
 * the training wait only at its end and, for seconds, when it goes back. */
#include "saving_internal.h"
#include "trainer_internal.h"

#include <math.h>

enum { MOST_STEPS = 64, MOST_FAILURES = 10, MOST_SECONDS = 2 * 3600 };

static const char *const kind_names[] = { [CKPT_FULL] = "save", [CKPT_WEIGHTS] = "save_weights" };

static ckpt_keep keep_of(const trainer *t, ckpt_kind kind) {
    if (kind == CKPT_WEIGHTS) return (ckpt_keep){ .latest = t->cfg->checkpoint.keep_weights };
    return (ckpt_keep){ .latest = t->cfg->checkpoint.keep_latest_k,
                        .every = t->cfg->checkpoint.keep_every_kth,
                        .best = t->cfg->checkpoint.keep_best };
}

void saving_upload(trainer *t, ckpt_kind kind, int64_t step) {
    ckpt_keep keep = keep_of(t, kind);
    ckpt_uploader_add(t->saves.uploader, kind, step, &keep);
}

/* ---- outcomes ------------------------------------------------------------------------------ */
/* Whether training waited for saves for too much of its time. */
static err check_stalls(trainer *t, double stalled) {
    run_saves *s = &t->saves;
    if (s->waits.from <= 0) s->waits.from = t->began;
    double share = monitor_save_share(&s->waits, time_now(), stalled);
    if (!is_first_rank(t) || isnan(share)) return OK;
    if (share > monitor_settings_of(t->alerts.m)->threshold[MONITOR_save_slow])
        return alerts_raise(t, MONITOR_save_slow, share, NULL, NULL);
    monitor_clear(t->alerts.m, MONITOR_save_slow);
    return OK;
}

static err log_completed(trainer *t, const ckpt_report *r, double stalled) {
    run_saves *s = &t->saves;
    s->stalled_s = 0;
    s->failures = s->retry_at = 0;
    if (r->kind == CKPT_FULL) s->saved = r->step;
    if (s->uploader) saving_upload(t, r->kind, r->step);
    return observe_event(t->log, kind_names[r->kind], r->step,
                         json_pack("{s:f, s:f}", "seconds", r->seconds, "stalled_s", stalled));
}

static err report_completed(trainer *t, const ckpt_report *r) {
    double stalled = t->saves.stalled_s;
    TRY(log_completed(t, r, stalled));
    return check_stalls(t, stalled);
}

bool saving_gives_up(int64_t failures, double seconds) {
    return failures >= MOST_FAILURES && seconds >= MOST_SECONDS;
}

/* Decides, on all ranks alike, whether a failed save ends the run. @param e of the save: borrowed. */
static err judge_failure(trainer *t, err e, bool *ends) {
    run_saves *s = &t->saves;
    double now = time_now(), lasting = err_is_lasting(e);
    TRY(ranks_share_clock(t, &now));
    TRY(comm_total(t->x.comm, &lasting, 1));
    if (s->failures++ == 0) s->failing_since = now;
    *ends = lasting > 0 || saving_gives_up(s->failures, now - s->failing_since);
    return OK;
}

/* @param e of the save: freed. @return the error that ends the run. */
static err end_unsaved(const trainer *t, err e) {
    if (err_is_echo(e)) return e;
    const run_saves *s = &t->saves;
    char last[32] = "none";
    if (s->saved >= 0) snprintf(last, sizeof last, "of step %lld", (long long)s->saved);
    err out = ERR("step %lld could not be saved, in %lld attempt%s: %s; the last save is %s",
                  (long long)t->state.step, (long long)s->failures, s->failures == 1 ? "" : "s",
                  err_message(e), last);
    if (*err_remedy(e)) out = err_hint(out, "%s", err_remedy(e));
    err_free(e);
    return out;
}

/* Raises an alert about an error, each time anew. @param e freed. */
static err raise_error(trainer *t, monitor_id id, const char *what, err e) {
    const char *remedy = *err_remedy(e) ? err_remedy(e) : NULL;
    monitor_clear(t->alerts.m, id);
    err raised = alerts_raise(t, id, NAN, what, remedy);
    err_free(e);
    return raised;
}

/* Finds the step after which the next full save is begun: the retry, a regular one before it, or the last step. A
 * batch that grows meanwhile may bring one that is due in tokens earlier, and one that is due in time cannot be foreseen.
 * @param polled what is due after this step is not begun yet. */
static int64_t next_attempt(const trainer *t, bool polled) {
    const int64_t end = MIN(t->saves.retry_at, t->len.stop), in_step = trainer_step_tokens(t);
    cadences every = t->len.every;
    int64_t step = t->state.step + 1, tokens = t->state.tokens + in_step;
    if (polled && t->last.due.save) return t->state.step;
    while (step < end && !cadences_due(&every, step, tokens, in_step, 0).save) {
        step++;
        tokens += in_step;
    }
    return MIN(step, end);
}

/* @param e of the save: freed. @param polled as in next_attempt. */
static err report_failed(trainer *t, err e, bool polled) {
    run_saves *s = &t->saves;
    int64_t wait = (int64_t)1 << MIN(s->failures, 6);
    bool ends;
    err failed = judge_failure(t, e, &ends);
    if (failed) {
        err_free(e);
        return failed;
    }
    if (ends) return end_unsaved(t, e);
    s->retry_at = t->state.step + MIN(wait, MOST_STEPS);
    s->stalled_s = 0;
    str what = { 0 };
    str_add(&what, "%s; training continues, the last save is ", err_message(e));
    if (s->saved >= 0)
        str_add(&what, "of step %lld", (long long)s->saved);
    else
        str_add(&what, "none");
    str_add(&what, ", and it is tried again after step %lld", (long long)next_attempt(t, polled));
    if (!is_first_rank(t) && !err_is_echo(e)) { /* the rank that failed reports it */
        log_mute_thread(false);
        log_warn("step %lld: %s. %s", (long long)t->state.step, what.text, err_remedy(e));
        log_mute_thread(true);
    }
    err raised = raise_error(t, MONITOR_save_failed, what.text, e);
    str_free(&what);
    return raised;
}

/* ---- uploads ------------------------------------------------------------------------------- */
err saving_open(trainer *t) {
    run_saves *s = &t->saves;
    if (!*t->cfg->checkpoint.upload) return OK;
    TRY(ckpt_uploader_open(t->dir, t->cfg->checkpoint.upload, &s->uploader));
    if (s->saved >= 0) saving_upload(t, CKPT_FULL, s->saved); /* an earlier process may not have */
    return OK;
}

err saving_upload_last(trainer *t) {
    TRY(saving_open(t));
    return t->saves.uploader ? ckpt_uploader_finish(t->saves.uploader) : OK;
}

static err poll_uploads(trainer *t) {
    ckpt_upload done;
    err failed;
    if (!t->saves.uploader) return OK;
    bool completed = ckpt_uploader_poll(t->saves.uploader, &done, &failed);
    if (failed) TRY(raise_error(t, MONITOR_upload_failed, err_message(failed), failed));
    if (!completed) return OK;
    return observe_event(
        t->log, done.kind == CKPT_FULL ? "upload" : "upload_weights", done.step,
        json_pack("{s:f, s:I}", "seconds", done.seconds, "bytes", (json_int_t)done.bytes));
}

/* A run that was asked to stop is saved, and ends with the code for that whatever becomes of the upload; so does one
 * that was done and is asked to stop while it uploads. */
err saving_finish_uploads(trainer *t) {
    if (!t->saves.uploader) return OK;
    err e = ckpt_uploader_finish(t->saves.uploader);
    err raised = poll_uploads(t);
    if (e && !t->stop_signal && t->opt->stop) t->stop_signal = *t->opt->stop;
    if (e && (t->stop_signal || t->alerts.stops)) {
        log_warn("%s. %s", err_message(e), err_remedy(e));
        err_free(e);
        e = OK;
    }
    if (!e) return raised;
    err_free(raised);
    return e;
}

/* ---- saving -------------------------------------------------------------------------------- */
/* Begins a save, after the one in flight. @return an error of either. */
static err begin_save(trainer *t, ckpt_kind kind, bool wait) {
    if (!t->saves.saver) t->saves.saver = ckpt_saver_new(t->dir, t->m, &t->x, t->o);
    ckpt_saver *v = t->saves.saver;
    ckpt_report report;
    double from = time_now();
    TRY(ckpt_saver_wait(v, &report));
    if (report.completed) TRY(report_completed(t, &report));
    if (t->folder.state == FOLDER_AWAY) /* a mount point without its disk is another's */
        return err_hint(
            ERR("%s is out of reach: step %lld cannot be saved", t->dir, (long long)t->state.step),
            "mount its disk again, or move the folder back");
    ckpt_state state = t->state;
    state.saves += kind == CKPT_FULL;
    state.held_out_loss = t->val_loss;
    json_t *run = json_copy(t->run);
    json_object_set_new(run, "monitor", alerts_state(t));
    ckpt_request r = { .kind = kind,
                       .state = &state,
                       .run = run,
                       .keep = keep_of(t, kind),
                       .wait = wait || !t->cfg->checkpoint.async };
    err e = ckpt_saver_begin(v, &r);
    json_decref(run);
    TRY(e);
    t->state.saves = state.saves;
    double waited = time_now() - from;
    t->saves.stalled_s += waited;
    t->ckpt_s += waited;
    return OK;
}

bool saving_is_due(const trainer *t, const due_events *due) {
    int64_t retry = t->saves.retry_at, next = t->state.step + 1;
    return due->save || due->weights || (retry && next >= retry);
}

err saving_after_step(trainer *t, const due_events *due) {
    run_saves *s = &t->saves;
    bool again = s->retry_at && t->state.step >= s->retry_at, full = due->save || again;
    if (!full && !due->weights) return OK;
    if (full && s->saved == t->state.step) return OK;
    err e = begin_save(t, full ? CKPT_FULL : CKPT_WEIGHTS, false);
    return e ? report_failed(t, e, false) : OK;
}

err saving_poll(trainer *t) {
    ckpt_report report;
    TRY(poll_uploads(t));
    if (!t->saves.saver) return OK;
    err e = ckpt_saver_poll(t->saves.saver, &report);
    if (e) return report_failed(t, e, true);
    return report.completed ? report_completed(t, &report) : OK;
}

err saving_settle(trainer *t) {
    ckpt_report report;
    if (!t->saves.saver) return OK;
    err e = ckpt_saver_wait(t->saves.saver, &report);
    if (e) return report_failed(t, e, true);
    return report.completed ? report_completed(t, &report) : OK;
}

err saving_now(trainer *t) {
    ckpt_report report;
    double from = time_now();
    TRY(saving_settle(t));
    if (t->saves.saved == t->state.step) return OK;
    TRY(begin_save(t, CKPT_FULL, true));
    TRY(ckpt_saver_wait(t->saves.saver, &report));
    t->ckpt_s = time_now() - from;
    return log_completed(t, &report, t->ckpt_s); /* no step waited for it: the training is over */
}
