/* packets.h: the daemon's end of many connections at once: a frame from each, a frame to each. Only gpushare._layout
 * includes this file.
 *
 * From Python a system call costs three times its work, and when a hundred programs ask in the same moment, the last
 * of them waits for all of these.
 */
#ifndef GPUSHARE_PACKETS_H
#define GPUSHARE_PACKETS_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "wire.h"

#define GS_MOST_DESCRIPTORS 253 /* beside one packet: SCM_MAX_FD of the kernel */

/* At most one packet of each socket, none of which is waited for. sizes: as received, 0 at the end of a connection,
 * more than GS_FRAME_BYTES for what is longer than a frame, -1 where there is nothing.
 *
 * All descriptors that come along are taken (daemon/gpushared/system/descriptors.py says why), and whose they are must
 * be plain: returns after the first packet that has any. Returns how many sockets were looked at. */
static inline int gs_receive_frames(const int *sockets, int count, struct gs_frame *frames, int *sizes,
                                    int *descriptors, int *descriptor_count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(GS_MOST_DESCRIPTORS * sizeof(int))];
    } control;
    *descriptor_count = 0;
    for (int i = 0; i < count; i++) {
        struct iovec into = {.iov_base = &frames[i], .iov_len = sizeof frames[i]};
        struct msghdr message = {
            .msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        ssize_t size = recvmsg(sockets[i], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (size < 0) {
            sizes[i] = errno == EAGAIN || errno == EINTR ? -1 : 0;
            continue;
        }
        sizes[i] = message.msg_flags & MSG_TRUNC ? GS_FRAME_BYTES + 1 : (int)size;
        for (struct cmsghdr *beside = CMSG_FIRSTHDR(&message); beside != NULL; beside = CMSG_NXTHDR(&message, beside)) {
            if (beside->cmsg_level != SOL_SOCKET || beside->cmsg_type != SCM_RIGHTS)
                continue;
            size_t bytes = beside->cmsg_len - CMSG_LEN(0);
            memcpy(descriptors + *descriptor_count, CMSG_DATA(beside), bytes);
            *descriptor_count += (int)(bytes / sizeof(int));
        }
        if (*descriptor_count > 0)
            return i + 1;
    }
    return count;
}

/* One frame to each socket. errors: why not, else 0. Returns how many could not be sent. */
static inline int gs_send_frames(const int *sockets, int count, const struct gs_frame *frames, int *errors) {
    int failed = 0;
    for (int i = 0; i < count; i++) {
        ssize_t size = send(sockets[i], &frames[i], sizeof frames[i], MSG_DONTWAIT | MSG_NOSIGNAL);
        errors[i] = size < 0 ? errno : 0;
        failed += size < 0;
    }
    return failed;
}

#endif
