/* Programs as text, for people and for golden tests:
 *
 *     r:%12 bf16[256,768] dp:S0, ... = rmsnorm(x:%3, delta:%4, w:norm1.w) eps=1e-05  @norm
 *
 * Operands and results go by their names in the op table; what follows @ is the function of the model's
 * source that recorded the op.
 */
#include "prog_internal.h"

static const char *const class_name[] = {
    [VC_TEMP] = "",
    [VC_SAVED] = "saved",
    [VC_BLOCK_INPUT] = "block_input",
    [VC_PARAM] = "param",
    [VC_GATHERED] = "gathered",
    [VC_GRAD] = "grad",
    [VC_WHOLE_GRAD] = "whole_grad",
    [VC_INPUT] = "input",
    [VC_REGION] = "stored",
    [VC_STATE] = "state",
    [VC_BOUNDARY] = "boundary",
    [VC_CARRIED] = "carried",
    [VC_ALIAS] = "",
};

const char *const prog_list_names[] = { "gather", "forward", "backward", "weights", "reduce" };

static void dump_val(const prog *p, const char *name, val v, str *out) {
    const prog_val *x = &p->val[v];
    char pl[64];
    str_add(out, "%s:%%%d %s[", name, v, dt_name(x->dt));
    for (int i = 0; i < x->ndim; i++) str_add(out, i ? ",%lld" : "%lld", (long long)x->dim[i]);
    str_add(out, "] %s", placement_str(pl, sizeof pl, x->pl));
    const prog_val *r = &p->val[val_root(p, v)];
    if (class_name[r->cls][0]) str_add(out, " %s", class_name[r->cls]);
}

static void dump_ref(const prog *p, const char *name, val v, str *out) {
    const prog_val *x = &p->val[v];
    bool named = x->name && (x->param >= 0 || x->cls == VC_INPUT || x->cls == VC_BOUNDARY ||
                             x->cls == VC_CARRIED || x->cls == VC_PARAM || x->cls == VC_REGION);
    str_add(out, "%s:", name);
    if (named)
        str_add(out, "%s", x->name);
    else
        str_add(out, "%%%d", v);
}

static void dump_op(const prog *p, const prog_op *o, str *out) {
    static const char *const phase[] = { "", " start", " wait", " late" };
    static const char *const acc[] = { "", " +=micro", " +=" };
    static const char *const when[] = {
        [WHEN_ALWAYS] = "", [WHEN_LAST] = " last", [WHEN_UNSCALED] = " unscaled"
    };
    op_signature sig = op_signature_of(o->op);
    str_add(out, "    ");
    for (int i = 0, n = 0; i < sig.outs; i++) {
        if (o->out[i] == VAL_NONE) continue;
        if (n++) str_add(out, ", ");
        if (o->phase == COMM_WAIT)
            dump_ref(p, sig.out[i].name, o->out[i], out);
        else
            dump_val(p, sig.out[i].name, o->out[i], out);
    }
    str_add(out, " = %s%s(", op_name(o->op), phase[o->phase]);
    for (int i = 0, n = 0; i < sig.ins; i++) {
        if (o->in[i] == VAL_NONE) continue;
        if (n++) str_add(out, ", ");
        dump_ref(p, sig.in[i].name, o->in[i], out);
    }
    str_add(out, ")");
    op_attrs_print(o->op, &o->attr, out);
    if (op_flags(o->op) & OPF_EXTERN) {
        str_add(out, " %s over", move_name(op_move_kind(o)));
        for (int a = 0; a <= AX_COUNT; a++)
            if (o->attr.comm.axes & AXIS(a)) str_add(out, " %s", mesh_axis_name[a]);
        if (o->attr.comm.wire) str_add(out, " as %s", dt_name(o->attr.comm.wire));
    }
    str_add(out, "%s%s  @%s\n", acc[o->acc], when[o->when], o->site.function);
}

void prog_dump(const prog *p, str *out) {
    static const char *const modes[] = { "train", "eval", "decode", "update" };
    char temp[32], saved[32];
    str_add(out, "program %s %s: temp %s, saved %s\n", p->name, modes[p->mode],
            str_bytes(temp, sizeof temp, (double)p->temp_bytes),
            str_bytes(saved, sizeof saved, (double)p->saved_bytes));
    for (int k = 0; k < PROG_LISTS; k++) {
        if (p->list[k].n) str_add(out, "  %s\n", prog_list_names[k]);
        for (int i = 0; i < p->list[k].n; i++) dump_op(p, &p->list[k].op[i], out);
    }
}
