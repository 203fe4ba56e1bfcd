/* trim.h: what a borrower does when the daemon asks for memory back (credit.h: trim). */
#ifndef GPUSHARE_PRELOAD_TRIM_H
#define GPUSHARE_PRELOAD_TRIM_H

#include <stdbool.h>
#include <stdint.h>

#define GS_TRIM_REASON "memory that this job has borrowed, or does not use, is wanted for others"

/* Begin a trim that may last until `until` (by gs_now_ms). */
void gs_trim_begin(uint64_t until);

/* End it: write into the lines how much was given back. */
void gs_trim_end(void);

/* Whether no more is wanted. */
bool gs_trim_is_enough(void);

/* Give back what the driver's pools hold unused. */
void gs_trim_pools(void);

/* The process ends: no call of a trim enters the driver any more. Waits for those that are in it. */
void gs_trim_stop(uint64_t until);
bool gs_trim_is_stopped(void);

/* Give back what the driver's pools of this GPU hold unused by now. Returns the bytes that the trim still wants there;
 * 0 when it is over. */
uint64_t gs_trim_wanted(uint32_t gpu);

/* How long the daemon still waits for the present trim. */
uint64_t gs_trim_left_ms(void);

/* Wait until no stream is captured, at most until `until`. false: one still is. Do not call this with a lock that a
 * capturing thread may need, such as Python's. */
bool gs_trim_captures_end(uint64_t until);

/* The same, as long as the present trim may take. */
bool gs_trim_await_captures(void);

/* Call these around each call of the driver. If gs_trim_enter returns false, the process is ending: do not call the
 * driver, but call gs_trim_leave all the same. */
bool gs_trim_enter(void);
void gs_trim_leave(void);

#endif
