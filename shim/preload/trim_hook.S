/* The text of gpushare/trim_hook.py, ending with a zero byte; for python.c. In a file of its own, because link-time optimisation
 * would assemble it where the path is not known. */
    .section .rodata
    .globl gs_trim_hook
    .hidden gs_trim_hook
    .type gs_trim_hook, %object
gs_trim_hook:
    .incbin "../gpushare/trim_hook.py"
    .byte 0
    .size gs_trim_hook, . - gs_trim_hook

    .section .note.GNU-stack,"",%progbits
