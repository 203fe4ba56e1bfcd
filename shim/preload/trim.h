/* trim.h: what a borrower does when the daemon asks for memory back (credit.h: trim). */
#ifndef GPUSHARE_PRELOAD_TRIM_H
#define GPUSHARE_PRELOAD_TRIM_H

#include <stdbool.h>
#include <stdint.h>

#define GS_TRIM_REASON "memory that this job has borrowed, or does not use, is wanted for others"

/* A trim begins, and is over at `until` (of gs_now_ms); and it ends: what was given back is told in the lines. */
void gs_trim_begin(uint64_t until);
void gs_trim_end(void);

/* Whether no more is wanted; and what is done about it without help: what the driver's pools hold unused goes back. */
bool gs_trim_is_enough(void);
void gs_trim_pools(void);

/* The process ends: no call of a trim enters the driver any more. Waits for those that are in it. */
void gs_trim_stop(uint64_t until);
bool gs_trim_is_stopped(void);

/* For those that help with the trim that is under way: how many bytes are still wanted on this GPU, after giving back
 * what the driver's pools hold unused by now; 0 when it is over. And how long the daemon goes on waiting. */
uint64_t gs_trim_wanted(uint32_t gpu);
uint64_t gs_trim_left_ms(void);

/* Wait until no stream is captured, as long as the trim may take: a capture may have begun since it did. false: one
 * still is. Not with a lock that a capturing thread may need, such as Python's. */
bool gs_trim_await_captures(void);
bool gs_trim_captures_end(uint64_t until);

/* Around whatever calls the driver. Not to be called if gs_trim_enter says false: the process is ending. Left either
 * way. */
bool gs_trim_enter(void);
void gs_trim_leave(void);

#endif
