/* moments.h: functions of several modules that run at one moment.
 *
 * The module that knows the moment must not know all the modules above it. So each of them registers its function,
 * and the linker puts them into one array: nothing runs when the library is loaded, and nothing is written at run time.
 */
#ifndef GPUSHARE_PRELOAD_MOMENTS_H
#define GPUSHARE_PRELOAD_MOMENTS_H

typedef void gs_function(void);

/* GS_AT(fork) { ... }: runs in the child of a fork. The moments are fork (process.c), borrow and
 * attached (account.c), and look (borrower.c). */
#define GS_AT(moment)                                                                                                  \
    static gs_function at_##moment;                                                                                    \
    static gs_function *const entry_##moment __attribute__((used, section("gs_at_" #moment))) = at_##moment;           \
    static void at_##moment(void)

/* Run the functions of a moment, in no particular order. Weak: there may be none. */
#define GS_RUN(moment)                                                                                                 \
    do {                                                                                                               \
        extern gs_function *const __start_gs_at_##moment[] __attribute__((weak, visibility("hidden")));                \
        extern gs_function *const __stop_gs_at_##moment[] __attribute__((weak, visibility("hidden")));                 \
        for (gs_function *const *function_ = __start_gs_at_##moment; function_ < __stop_gs_at_##moment; function_++)   \
            (*function_)();                                                                                            \
    } while (0)

#endif
