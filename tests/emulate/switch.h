/* A switch of stacks. swapcontext would do, but takes 16 times as long under AddressSanitizer: it asks
 * the kernel for the signal mask, and the shadow of the other stack is cleared. */
#ifndef INGOT_EMULATE_SWITCH_H
#define INGOT_EMULATE_SWITCH_H

#include <stddef.h>
#include <stdint.h>

/* Continues where `to` was left; returns when someone switches to the stack pointer it writes to `from`.
 * Saves the registers that a call must preserve on the stack that it leaves. */
extern "C" void stack_switch(void **from, void *to);

#if defined(__aarch64__)
asm(R"(
    .text
    .globl stack_switch
    .type stack_switch, %function
stack_switch:
    stp x19, x20, [sp, #-160]!
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x19, x20, [sp], #160
    ret
    .size stack_switch, .-stack_switch
)");
enum { SAVED_WORDS = 20, SAVED_RETURN = 11 };
#elif defined(__x86_64__)
asm(R"(
    .text
    .globl stack_switch
    .type stack_switch, @function
stack_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size stack_switch, .-stack_switch
)");
enum { SAVED_WORDS = 8, SAVED_RETURN = 6 }; /* one more: a function is called off 16 bytes */
#else
#error "stack_switch is written for arm64 and x86-64"
#endif

/* @return what goes on at the beginning of `run`, which must not return. */
static inline void *stack_new(void *stack, size_t bytes, void (*run)()) {
    uintptr_t top = ((uintptr_t)stack + bytes) / 16 * 16;
    void **saved = (void **)top - SAVED_WORDS;
    for (int i = 0; i < SAVED_WORDS; i++) saved[i] = nullptr;
    saved[SAVED_RETURN] = (void *)run;
    return saved;
}

#endif
