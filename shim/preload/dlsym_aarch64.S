/* dlsym_aarch64.S: dlsym and dlvsym: ask where to go, and jump there with arguments and return address untouched.
 * entry.c says why it must be a jump. */
#if defined(__aarch64__)

        .text

        .macro door name, route
        .globl  \name
        .type   \name, %function
        .p2align 4
\name:
        .cfi_startproc
        hint    #34 /* bti c */
        stp     x29, x30, [sp, #-48]!
        .cfi_def_cfa_offset 48
        .cfi_offset x29, -48
        .cfi_offset x30, -40
        stp     x0, x1, [sp, #16]
        str     x2, [sp, #32]
        bl      \route
        mov     x16, x0
        ldp     x0, x1, [sp, #16]
        ldr     x2, [sp, #32]
        ldp     x29, x30, [sp], #48
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        br      x16
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
