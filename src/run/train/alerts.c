/* Alerts of a run: what the monitor is shown after each step, and how what it finds is reported.
 *
 * Losses, norms and loads are those of all ranks, so that every rank finds the same alerts and decides the
 * same; ranks compare what they decided with the next step (ranks_agree). What rank 0's clock shows is judged by
 * rank 0 alone, and only ever reported, or passed on as a wish to stop. */
#include "alerts_internal.h"
#include "trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the beginning and the end ------------------------------------------------------------------- */
err alerts_open(trainer *t) {
    const config *c = t->cfg;
    monitor_settings s;
    TRY(monitor_settings_read(c->monitor.preset, c->monitor.thresholds, c->alerts.policy, &s));
    t->alerts.m = monitor_new(&s);
    t->alerts.activation = mem_alloc((size_t)t->mc.layers * 2 * sizeof(double));
    t->alerts.sampled = mem_alloc((size_t)t->mc.layers * sizeof *t->alerts.sampled);
    t->alerts.comm_s = ranks_comm_wait(t);
    if (t->mc.experts) t->alerts.expert = mem_alloc(3 * (size_t)t->mc.layers * sizeof(double));
    if (t->start.resume) TRY(alerts_load_state(t, t->start.run));
    if (!is_first_rank(t)) return OK;
    char *webhook;
    TRY(config_secret("alerts.webhook", c->alerts.webhook, &webhook));
    err e = monitor_sender_new(&(monitor_sender_options){ .command = c->alerts.command,
                                                          .webhook = webhook ? webhook : "",
                                                          .seconds = c->alerts.seconds },
                               &t->alerts.sender);
    free(webhook);
    return e;
}

void alerts_free(trainer *t) {
    run_alerts *a = &t->alerts;
    monitor_sender_free(a->sender);
    monitor_free(a->m);
    free(a->row_loss);
    free(a->activation);
    for (int l = 0; a->sampled && l < t->mc.layers; l++) plan_drop(t->p, &a->sampled[l].ticket);
    free(a->sampled);
    free(a->expert);
    str_free(&a->op);
}

json_t *alerts_state(const trainer *t) {
    json_t *state = monitor_save(t->alerts.m);
    json_object_set_new(state, "cool_from", json_integer(t->alerts.cool_from));
    json_object_set_new(state, "attempts", json_integer(t->alerts.attempts));
    json_object_set_new(state, "last_alert", json_integer(t->alerts.last_alert));
    return state;
}

err alerts_load_state(trainer *t, const json_t *run) {
    const json_t *state = json_object_get(run, "monitor");
    TRY(monitor_load(t->alerts.m, state, t->start.path ? t->start.path : t->dir));
    t->alerts.cool_from = json_integer_value(json_object_get(state, "cool_from"));
    /* Checkpoints of earlier versions lack these two: the next rollback counts as the first. */
    t->alerts.attempts = json_integer_value(json_object_get(state, "attempts"));
    t->alerts.last_alert = json_integer_value(json_object_get(state, "last_alert"));
    return OK;
}

/* ---- documents ------------------------------------------------------------------------------------- */
enum { NAMED = 4, TEXT_TOKENS = 32 };

static json_t *text_json(const trainer *t, const data_source *d, int64_t token) {
    int32_t ids[TEXT_TOKENS];
    str text = { 0 };
    int64_t n = MIN(TEXT_TOKENS, data_source_info(d)->tokens - token);
    err e = data_hold(d, token, n);
    if (e) {
        err_free(e);
        return json_null();
    }
    data_read(d, token, n, ids);
    data_release(d, token, n);
    tokenizer_decode(t->data.tokenizer, ids, (size_t)n, true, &text);
    json_t *clean = io_json_string(text.text ? text.text : "", text.len);
    str_free(&text);
    return clean;
}

/* Sequences are named by their place in the data, skipped ones included, as data.skip and rollbacks count them. */
static int64_t sequence_at(const trainer *t, int64_t consumed) {
    return data_skips_position(&t->state.skips, consumed);
}

static json_t *document_json(const trainer *t, int64_t row, double loss) {
    loader_place at = loader_find(t->data.batches, t->alerts.from + row);
    const run_source *s = &t->data.sources[at.source];
    int64_t number;
    data_range r = data_look_up_document(s->data, at.token, &number);
    json_t *o = json_pack("{s:I, s:o, s:I, s:[I, I]}", "sequence",
                          (json_int_t)sequence_at(t, t->alerts.from + row), "source",
                          io_json_string(s->name, strlen(s->name)), "token", (json_int_t)at.token,
                          "document_tokens", (json_int_t)r.from, (json_int_t)r.to);
    if (number >= 0) json_object_set_new(o, "document", json_integer(number));
    if (isfinite(loss)) json_object_set_new(o, "loss", json_real(loss));
    if (t->data.tokenizer) json_object_set_new(o, "text", text_json(t, s->data, at.token));
    return o;
}

/* The sequences of the last step with the highest losses: what is not finite counts as highest. All ranks
 * together; rank 0 gets them. */
static err add_documents(trainer *t, json_t *details) {
    int64_t n = t->state.windows - t->alerts.from;
    double *loss = mem_alloc((size_t)MAX(n, 1) * sizeof *loss);
    if (exec_has_result(&t->x, t->train_id))
        memcpy(loss, t->alerts.row_loss, (size_t)n * sizeof *loss);
    err e = ranks_sum_rows(t, loss, n);
    json_t *list = json_array();
    for (int k = 0; k < NAMED && k < n && !e && is_first_rank(t); k++) {
        int64_t worst = 0;
        for (int64_t i = 0; i < n; i++)
            if (!(loss[i] <= loss[worst]) && !isnan(loss[worst])) worst = i;
        if (loss[worst] == -INFINITY) break;
        json_array_append_new(list, document_json(t, worst, loss[worst] / (double)t->len.seq));
        loss[worst] = -INFINITY;
    }
    free(loss);
    json_object_set_new(details, "documents", list);
    return e;
}

/* ---- reporting ---------------------------------------------------------------------------------------- */
static void set_number(json_t *o, const char *key, double v) {
    if (isfinite(v)) json_object_set_new(o, key, json_real(v));
}

static json_t *describe_alert(const trainer *t, const monitor_alert *a, const char *what,
                              const char *remedy) {
    const monitor_row *row = &monitor_table[a->id];
    str text = { 0 };
    if (what)
        str_add(&text, "%s", what);
    else
        monitor_describe(monitor_settings_of(t->alerts.m), a, &text);
    if (a->id == MONITOR_nonfinite && t->alerts.op.len) str_add(&text, "; %s", t->alerts.op.text);
    json_t *o = json_pack(
        "{s:s, s:s, s:o, s:s}", "alert", row->name, "policy", monitor_policy_name(a->policy),
        "message", io_json_string(text.text, text.len), "remedy", remedy ? remedy : row->remedy);
    BUG_IF(!o);
    set_number(o, "value", a->value);
    set_number(o, "limit", a->limit);
    set_number(o, "mean", a->mean);
    set_number(o, "deviation", a->deviation);
    if (a->block >= 0) json_object_set_new(o, "block", json_integer(a->block));
    str_free(&text);
    return o;
}

static void print_alert(const trainer *t, const monitor_alert *a, const json_t *o) {
    const char *message = json_string_value(json_object_get(o, "message"));
    const json_t *from = json_object_get(o, "from_sequence"),
                 *to = json_object_get(o, "to_sequence");
    str where = { 0 };
    str_add(&where, "%s", "");
    if (from)
        str_add(&where, "; sequences %lld to %lld", (long long)json_integer_value(from),
                (long long)json_integer_value(to));
    if (monitor_table[a->id].level == MONITOR_NOTE)
        progress_note(t->show, "step %lld: %s: %s", (long long)a->step, monitor_table[a->id].name,
                      message);
    else
        log_warn("step %lld: %s: %s%s; policy %s. %s", (long long)a->step,
                 monitor_table[a->id].name, message, where.text, monitor_policy_name(a->policy),
                 json_string_value(json_object_get(o, "remedy")));
    str_free(&where);
}

/* For whom it is delivered to, which run this is. */
static void send_alert(const trainer *t, const monitor_alert *a, const json_t *o) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    json_t *sent = json_pack("{s:s, s:o, s:o, s:I}", "event", "alert", "run",
                             io_json_string(t->dir, strlen(t->dir)), "host",
                             io_json_string(host, strlen(host)), "step", (json_int_t)a->step);
    BUG_IF(!sent);
    json_object_update(sent, (json_t *)(uintptr_t)o);
    monitor_send(t->alerts.sender, sent);
    json_decref(sent);
}

err alerts_report(trainer *t, const monitor_alert *a, const char *what, const char *remedy) {
    const monitor_row *row = &monitor_table[a->id];
    json_t *o = describe_alert(t, a, what, remedy);
    err e = OK;
    if (row->scope == MONITOR_STEP) {
        int64_t last = sequence_at(t, t->state.windows - 1);
        json_object_set_new(o, "from_sequence", json_integer(sequence_at(t, t->alerts.from)));
        json_object_set_new(o, "to_sequence", json_integer(last + 1));
        if (row->level == MONITOR_ALERT) e = add_documents(t, o);
    }
    if (!is_first_rank(t) || e) {
        json_decref(o);
        return e;
    }
    print_alert(t, a, o);
    if (row->level == MONITOR_ALERT) send_alert(t, a, o);
    return observe_event(t->log, row->level == MONITOR_ALERT ? "alert" : "note", a->step, o);
}

err alerts_raise(trainer *t, monitor_id id, double value, const char *what, const char *remedy) {
    monitor_alert a;
    if (!monitor_raise(t->alerts.m, id, t->state.step, value, &a)) return OK;
    healing_decide(t, &a);
    return alerts_report(t, &a, what, remedy);
}

/* ---- a step ------------------------------------------------------------------------------------------- */
/* Of rank 0's clock: the shares of the step that were spent waiting. Of steps of a few milliseconds, which any
 * other process can hold up, nothing is concluded. */
static void show_clock(trainer *t, const observe_step *o, monitor_step *s) {
    const double least = 0.05; /* seconds */
    double waited = ranks_comm_wait(t), in_step = waited - t->alerts.comm_s;
    t->alerts.comm_s = waited;
    if (!is_first_rank(t) || !(o->step_s > 0) || t->average_s < least) return;
    s->data_share = o->data_s / o->step_s;
    if (mesh_world(&t->mesh) > 1) s->comm_share = in_step / o->step_s;
    if (isfinite(t->peak.published)) s->mfu = o->mfu;
}

static monitor_step show_step(trainer *t, const observe_step *o) {
    monitor_step s = monitor_step_none();
    s.step = t->state.step;
    s.loss = o->loss;
    s.grad_norm = o->grad_norm;
    s.max_norm = t->cfg->training.max_norm;
    s.loss_scale = o->loss_scale;
    s.blocks = t->mc.layers;
    s.expert_least = t->alerts.expert;
    s.expert_most = t->alerts.expert ? t->alerts.expert + t->mc.layers : NULL;
    if (o->detail) {
        s.block_grad = o->detail->grad_norm;
        s.block_param = o->detail->param_norm;
        s.activation_rms = t->alerts.activation;
        s.fp8_saturated = t->alerts.fp8_saturated;
    }
    show_clock(t, o, &s);
    return s;
}

err alerts_after_step(trainer *t, observe_step *o) {
    run_alerts *r = &t->alerts;
    monitor_alert found[MONITOR_ALERTS];
    monitor_step s = show_step(t, o);
    int n = monitor_add(r->m, &s, found);
    o->is_spike = monitor_is_spike(r->m);
    o->spike_count = (double)monitor_spikes(r->m);
    r->decided = r->n_act = 0;
    for (int i = 0; i < n; i++) {
        const monitor_row *row = &monitor_table[found[i].id];
        if (row->scope != MONITOR_MACHINE)
            r->decided = (r->decided * MONITOR_ALERTS + found[i].id + 1) % 1000003;
        healing_decide(t, &found[i]);
    }
    for (int i = 0; i < n; i++)
        if (!healing_waits(&found[i])) TRY(alerts_report(t, &found[i], NULL, NULL));
    return OK;
}
