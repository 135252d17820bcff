/* What the passes over programs share. */
#ifndef INGOT_PROG_INTERNAL_H
#define INGOT_PROG_INTERNAL_H

#include "prog/prog.h"

/* Bits of prog.param_written. */
enum { WROTE_EARLIER = 1, WROTE_HERE = 2 };

/* ---- record.c: values and ops ------------------------------------------------------------ */
val val_new(prog *p, val_class cls, dtype dt, int ndim, const int64_t *dim, placement pl);
/* A value over the bytes of another, from `offset` bytes on. */
val val_alias(prog *p, val base, size_t offset, dtype dt, int ndim, const int64_t *dim,
              placement pl);
/* The value whose bytes v is; aliases are followed. */
val val_root(const prog *p, val v);
size_t val_bytes(const prog_val *v);
tensor val_tensor(const prog_val *v); /* shape only */
prog_op *op_emit(prog *p, op_code op);
void list_push(op_list *l, const prog_op *op);
/* Keeps the first error, prefixed with program, op and the recording place. */
void prog_fail(prog *p, const char *hint, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* x as dt: by asking its producer to emit it, or through a cast. */
val val_as(prog *p, val x, dtype dt);
/* Where this parameter's gradient is accumulated; the first writer of a program stores. */
val param_grad(prog *p, val param, op_acc *acc);
/* The bucket as programs read it, gathered when it is stored in slices. */
val bucket_read(prog *p, int bucket);
val emit_comm(prog *p, val x, axis_set axes, place to, op_when when);

/* ---- the passes, in order ---------------------------------------------------------------- */
err pass_backward(prog *p);                /* backward.c */
void pass_fp8(prog *p);                    /* fp8.c: marked linear layers in fp8 */
err pass_save(prog *p);                    /* recompute.c: what is saved, what is made again */
void pass_split_comm(prog *p, op_list *l); /* comm_split.c */
void pass_memory(prog *p);                 /* memory.c */

#endif
