/* The slots that ZeRO's gathers and reductions go through: they change no bit, and a list of instructions
 * that would use one at the wrong time is refused. */
#include "support/model.h"

#include "prog/step_list_internal.h"

/* When parameters are gathered, and how many are there at once, is a matter of time and memory alone. */
static void prefetching_changes_no_bit(void **state) {
    static const layout base[] = {
        { .name = "zero3 over 2 x tp2+sp", .dp = 2, .tp = 2, .sp = true, .zero = 3 },
        { .name = "hsdp, recompute", .replicas = 2, .dp = 2, .zero = 3, .keep_every = 2 },
        { .name = "zero3 over ring of 2", .cp = 2, .zero = 3, .context = CONTEXT_RING },
        { .name = "pp2 x zero3", .pp = 2, .dp = 2, .zero = 3, .micros = 4 },
        { .name = "pp2 interleaved x zero3",
          .pp = 2,
          .chunks = 2,
          .schedule = PIPE_INTERLEAVED,
          .dp = 2,
          .zero = 3,
          .micros = 4 },
    };
    model_config c = small_gpt2();
    c.kv_heads = c.heads;
    c.layers = 6;
    for (size_t i = 0; i < COUNT_OF(base); i++) {
        layout l = base[i];
        outcome none, o;
        l.prefetch = -1;
        run_layout(&c, &l, &none);
        for (int k = 1; k <= 4; k++) {
            l.prefetch = MIN(k, 3);
            l.keep_gathered = k == 4;
            run_layout(&c, &l, &o);
            same_bits(l.name, &o, &none);
            outcome_free(&o);
        }
        outcome_free(&none);
    }
}

/* Parameters in host memory come to the device through slots: what is computed with them is the same, at every
 * stage and on every axis. */
static void parameters_in_host_memory_change_no_bit(void **state) {
    static const layout base[] = {
        { .name = "one rank" },
        { .name = "one rank, bf16, recompute", .dt = DT_BF16, .keep_every = 1 },
        { .name = "one rank, small ones on the device", .whole_below = 200, .prefetch = -1 },
        { .name = "one rank, kept", .keep_gathered = true },
        { .name = "dp2", .dp = 2 },
        { .name = "zero1 over 2", .dp = 2, .zero = 1 },
        { .name = "zero2 over 2, buckets of 8 KiB", .dp = 2, .zero = 2, .bucket_bytes = 8192 },
        { .name = "zero3 over 2", .dp = 2, .zero = 3 },
        { .name = "zero3 over 2, narrow", .dp = 2, .zero = 3, .gather_wire = DT_BF16 },
        { .name = "zero1 over 4, bf16", .dp = 4, .zero = 1, .dt = DT_BF16 },
        { .name = "hsdp 2 x zero3 over 2", .replicas = 2, .dp = 2, .zero = 3, .prefetch = 2 },
        { .name = "zero2 over 2 x tp2+sp", .dp = 2, .tp = 2, .sp = true, .zero = 2 },
        { .name = "ring of 2, zero1", .cp = 2, .zero = 1, .context = CONTEXT_RING },
        { .name = "pp2", .pp = 2, .micros = 4 },
        { .name = "pp2, GPipe, zero3",
          .pp = 2,
          .schedule = PIPE_GPIPE,
          .dp = 2,
          .zero = 3,
          .micros = 4 },
        { .name = "pp2, Interleaved1F1B, zero1",
          .pp = 2,
          .chunks = 2,
          .schedule = PIPE_INTERLEAVED,
          .dp = 2,
          .zero = 1,
          .micros = 4 },
        { .name = "pp2, ZeroBubble, zero1",
          .pp = 2,
          .schedule = PIPE_ZERO_BUBBLE,
          .dp = 2,
          .zero = 1,
          .micros = 4 },
    };
    model_config models[] = { small_gpt2(), small_moe() };
    for (size_t k = 0; k < COUNT_OF(models); k++) {
        model_config c = models[k];
        c.kv_heads = c.heads;
        c.layers = 5;
        for (size_t i = 0; i < COUNT_OF(base); i++) {
            layout l = base[i];
            outcome here, host;
            run_layout(&c, &l, &here);
            l.offload_params = true;
            run_layout(&c, &l, &host);
            assert_true(host.replicas_agree);
            same_bits(l.name, &host, &here);
            outcome_free(&here);
            outcome_free(&host);
        }
    }
}

/* ---- lists of instructions that would read or write the wrong parameters ------------------------- */
static int find_instr(const step_list *l, instr_kind kind, int nth) {
    for (int i = 0; i < l->n; i++)
        if (l->list[i].kind == kind && nth-- == 0) return i;
    fail_msg("no such instruction");
    return -1;
}

static void drop_instr(step_list *l, int at) {
    memmove(&l->list[at], &l->list[at + 1], (size_t)(--l->n - at) * sizeof *l->list);
}

static void move_instr(step_list *l, int from, int to) {
    instr i = l->list[from];
    drop_instr(l, from);
    memmove(&l->list[to + 1], &l->list[to], (size_t)(l->n++ - to) * sizeof *l->list);
    l->list[to] = i;
}

enum { NO_FAULT, NO_WAIT, LATE_WAIT, WRONG_SLOT, NO_REDUCTION, NO_END, TOO_EARLY, SLOT_FAULTS };

static void break_list(step_list *l, int fault) {
    switch (fault) {
    case NO_WAIT: drop_instr(l, find_instr(l, DO_GATHERED, 2)); break;
    case LATE_WAIT: move_instr(l, find_instr(l, DO_GATHERED, 2), find_instr(l, DO_FWD, 2)); break;
    case WRONG_SLOT: l->list[find_instr(l, DO_FWD, 5)].gathered ^= 1; break;
    case NO_REDUCTION: drop_instr(l, find_instr(l, DO_REDUCE, 0)); break;
    case NO_END: drop_instr(l, find_instr(l, DO_REDUCED, 0)); break;
    case TOO_EARLY: move_instr(l, find_instr(l, DO_GATHER, 3), find_instr(l, DO_GATHER, 1)); break;
    default: break;
    }
}

static void a_slot_that_is_not_ready_is_refused(void **state) {
    static const char *const refused[SLOT_FAULTS] = {
        [NO_WAIT] = "before their gather has ended", [LATE_WAIT] = "before their gather has ended",
        [WRONG_SLOT] = "other parameters",           [NO_REDUCTION] = "not being reduced",
        [NO_END] = "overwrites gradients",           [TOO_EARLY] = "still writes",
    };
    model_config c = small_llama();
    c.layers = 5;
    mesh me = { .size = { [AX_DP_SHARD] = 2 } };
    model *m;
    chain ch;
    model_layout lay = { .mesh = me, .zero = 3, .prefetch = 1 };
    assert_ok(model_new(&c, &lay, &m));
    assert_ok(model_record(m, PROG_TRAIN, 32, 16, &ch));
    ch = chain_normal(&ch);
    for (int fault = 0; fault < SLOT_FAULTS; fault++) {
        step_list l;
        assert_ok(step_list_make(&ch, 0, 4, &l));
        break_list(&l, fault);
        err e = step_list_check_slots(&ch, 0, &l);
        if (refused[fault])
            assert_error(e, refused[fault]);
        else
            assert_ok(e);
        step_list_free(&l);
    }
    model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefetching_changes_no_bit),
        cmocka_unit_test(parameters_in_host_memory_change_no_bit),
        cmocka_unit_test(a_slot_that_is_not_ready_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
