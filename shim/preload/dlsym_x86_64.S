/* dlsym_x86_64.S: dlsym and dlvsym: ask where to go, and jump there with arguments and return address untouched.
 * entry.c says why it must be a jump. */
#if defined(__x86_64__)

        .text

/* The three pushes keep the stack aligned for the call. */
        .macro door name, route
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        call    \route
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        jmp     *%rax
        .cfi_endproc
        .size   \name, . - \name
        .endm

        door    dlsym, gs_route_dlsym
        door    dlvsym, gs_route_dlvsym
        door    dlmopen, gs_route_dlmopen

        .hidden gs_route_dlsym
        .hidden gs_route_dlvsym
        .hidden gs_route_dlmopen

#endif

        .section .note.GNU-stack, "", %progbits
