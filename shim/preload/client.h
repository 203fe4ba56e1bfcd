/* client.h: the shim's end of the daemon's socket (wire.h). */
#ifndef GPUSHARE_PRELOAD_CLIENT_H
#define GPUSHARE_PRELOAD_CLIENT_H

#include <stdbool.h>

#include "credit.h"
#include "message.h"
#include "wire.h"

/* How a request to the daemon ended. */
enum gs_outcome {
    GS_ANSWERED,    /* the answer's status says the rest */
    GS_NO_DAEMON,   /* there has been none since this process first needed one */
    GS_AWAY,        /* there was one; it does not come back in the time a caller can wait */
    GS_TURNED_AWAY, /* it has refused this process */
    GS_NO_ANSWER,   /* it is there, but did not answer within its own patience */
};

/* Send a frame of the process (type and body filled in) and wait for its answer, connecting if need be. Several
 * threads may wait at once. `waiting`, if not NULL, is said once when that takes more than a second. `guaranteed`: the
 * frame asks for memory within the request, so a daemon that is away is waited for as long as a claim waits. */
enum gs_outcome gs_client_request(struct gs_frame *frame, struct gs_answer *answer, const struct gs_text *waiting,
                                  bool guaranteed);

/* The longest that a claim waits, in milliseconds: within this time the daemon answers every frame. */
uint64_t gs_client_patience(void);

/* Tell the daemon something without waiting long for its answer. Does nothing if the daemon is away. */
void gs_client_tell(struct gs_frame *frame);

/* The page that the daemon gave us, or NULL. */
struct gs_page *gs_client_page(void);

/* In the child of a fork: close what is ours, unmap the page, know nothing. */
void gs_client_forget(void);

/* For tests: the descriptor of the connection now, or -1. */
int gs_client_descriptor(void);

#endif
