/* trim.h: what a borrower does when the daemon asks for memory back (credit.h: trim). */
#ifndef GPUSHARE_PRELOAD_TRIM_H
#define GPUSHARE_PRELOAD_TRIM_H

/* This process may borrow: from now on somebody waits for a trim to be asked for. Cheap when that is so already. */
void gs_trim_start(void);

void gs_trim_forget(void);

#endif
