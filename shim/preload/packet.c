/* packet.c: sends and receives frames with the kernel's socket calls. */
#include "packet.h"

#include <string.h>

#include "descriptor.h"
#include "system.h"

#define QUEUE_MS         250 /* in the daemon's queue of connections */
#define SEND_PATIENCE_MS 5000

int gs_packet_connect(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (path[0] == '\0')
        return -ENOENT;
    memcpy(address.sun_path, path, strlen(path)); /* options.c keeps it short enough */
    long fd = GS_CALL(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return (int)fd;
    struct timeval most = {.tv_usec = QUEUE_MS * 1000};
    long result = GS_CALL(SYS_setsockopt, fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    if (result == 0)
        result = GS_CALL(SYS_connect, fd, &address, sizeof address);
    if (result == 0)
        result = GS_CALL(SYS_fcntl, fd, F_SETFL, O_NONBLOCK);
    if (result < 0) {
        GS_CALL(SYS_close, fd);
        return (int)result;
    }
    return gs_descriptor_move_high((int)fd);
}

void gs_packet_fill_header(struct gs_frame *frame, uint32_t seq) {
    frame->magic = GS_WIRE_MAGIC;
    frame->version = GS_WIRE_VERSION;
    frame->size = GS_FRAME_BYTES;
    frame->seq = seq;
}

long gs_packet_send(int fd, const struct gs_frame *frame, int passed) {
    struct iovec part = {(void *)frame, sizeof *frame};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (passed >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &passed, sizeof passed);
    }
    uint64_t until = gs_now_ms() + SEND_PATIENCE_MS;
    for (;;) {
        long sent = GS_CALL(SYS_sendmsg, fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            return 0;
        if (sent != -EAGAIN && sent != -EINTR)
            return sent;
        uint64_t now = gs_now_ms();
        if (now >= until)
            return -ETIMEDOUT;
        if (sent == -EAGAIN)
            gs_poll_fd(fd, POLLOUT, until - now);
    }
}

void gs_packet_drop(int passed) {
    if (passed >= 0)
        GS_CALL(SYS_close, passed);
}

/* The descriptor that came with a packet, or -1. The daemon sends one. The buffer has room for a second one, which is
 * closed. */
static int descriptor_of(struct msghdr *message) {
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    int first = -1, fd;
    if (header == NULL || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
        return -1;
    for (size_t at = CMSG_LEN(0); at + sizeof fd <= header->cmsg_len; at += sizeof fd) {
        memcpy(&fd, (const char *)header + at, sizeof fd);
        if (first < 0)
            first = fd;
        else
            GS_CALL(SYS_close, fd);
    }
    return first;
}

long gs_packet_receive(int fd, struct gs_frame *frame, int *passed) {
    struct iovec part = {frame, sizeof *frame};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    *passed = -1;
    long got = GS_CALL(SYS_recvmsg, fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got == -EAGAIN || got == -EINTR)
        return 0;
    if (got < 0)
        return got;
    int came = descriptor_of(&message); /* an empty packet may bring one too */
    if (got == sizeof *frame && frame->magic == GS_WIRE_MAGIC && frame->version >= GS_WIRE_OLDEST) {
        *passed = came;
        return 1;
    }
    gs_packet_drop(came);
    return got == 0 ? -ECONNRESET : -EPROTO;
}
