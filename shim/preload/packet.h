/* packet.h: one packet of the daemon's socket is one frame (wire.h), perhaps with a descriptor beside it. */
#ifndef GPUSHARE_PRELOAD_PACKET_H
#define GPUSHARE_PRELOAD_PACKET_H

#include "wire.h"

/* A connected socket, or -errno. Waits a moment: if many programs connect at once the daemon's queue is full. */
int gs_packet_connect(const char *path);

/* All of the frame's header but its type. */
void gs_packet_fill_header(struct gs_frame *frame, uint32_t seq);

/* 0, or -errno. Waits a little if the daemon is slow to read. `passed` is a descriptor to send along, or -1. */
long gs_packet_send(int fd, const struct gs_frame *frame, int passed);

/* > 0: a sound frame, and in `passed` a descriptor that came with it, or -1. 0: nothing is there now. < 0: the
 * connection has ended, or the other side does not speak our language. */
long gs_packet_receive(int fd, struct gs_frame *frame, int *passed);

/* Close a descriptor that has come, if one has. */
void gs_packet_drop(int passed);

#endif
