/* fuzz_client.c: the client of the daemon's socket, and a daemon that may say anything.
 *
 * The kernel is the input: what connect answers, which frames come, how long they are, and which descriptors come
 * with them. So a run is one thread, exact and repeatable. In the end nothing may be left open.
 */
#define _GNU_SOURCE
#include "lock.h"
#include "system.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "credit.h"
#include "wire.h"

static const uint8_t *input;
static size_t left;
static uint32_t last_seq;

static uint8_t next_byte(void) {
    return left > 0 ? (left--, *input++) : 0;
}

static void next_bytes(void *target, size_t size) {
    size_t have = size < left ? size : left;
    memcpy(target, input, have);
    input += have;
    left -= have;
}

static long new_file(void) {
    return syscall(SYS_memfd_create, "fuzz", 1u);
}

/* A page as the daemon makes them, or a file that is none. */
static int new_page(uint8_t how) {
    int fd = (int)new_file();
    uint64_t magic = GS_PAGE_MAGIC;
    uint32_t header[2] = {GS_PAGE_VERSION, GS_PAGE_BYTES};
    if ((how & 1) != 0 && ftruncate(fd, GS_PAGE_BYTES) == 0) {
        header[0] += (how & 2) != 0;
        if (pwrite(fd, &magic, sizeof magic, 0) < 0 || pwrite(fd, header, sizeof header, sizeof magic) < 0)
            abort();
    }
    return fd;
}

enum { RAW_HEADER = 1, SHORT = 2, OTHER_SEQ = 4, FILES = 8, TWO_FILES = 16, RAW_TYPE = 32, PAGE = 64, OLD_PAGE = 128 };

static void pass_files(struct msghdr *message, uint8_t how) {
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    int files[2], count = (how & TWO_FILES) != 0 ? 2 : 1;
    if ((how & FILES) == 0 || header == NULL || message->msg_controllen < CMSG_LEN(count * sizeof(int))) {
        message->msg_controllen = 0;
        return;
    }
    for (int i = 0; i < count; i++)
        files[i] = new_page(how >> 6);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), files, count * sizeof(int));
    message->msg_controllen = header->cmsg_len;
}

static long receive(struct msghdr *message) {
    struct gs_frame frame = {.magic = GS_WIRE_MAGIC, .version = GS_WIRE_VERSION, .size = GS_FRAME_BYTES};
    static uint16_t type;
    if (left == 0)
        return 0; /* the daemon has gone */
    uint8_t how = next_byte();
    if (how == 0xff)
        return -EAGAIN;
    type = last_seq == 0 ? GS_WELCOME : GS_ANSWER;
    frame.type = (how & RAW_TYPE) != 0 ? next_byte() : type;
    frame.seq = (how & OTHER_SEQ) != 0 ? next_byte() : last_seq;
    if ((how & RAW_HEADER) != 0)
        next_bytes(&frame, 16);
    next_bytes(frame.u.bytes, next_byte() * 2u < sizeof frame.u.bytes ? 32 : sizeof frame.u.bytes);
    pass_files(message, how);
    size_t size = (how & SHORT) != 0 ? next_byte() : sizeof frame;
    memcpy(message->msg_iov->iov_base, &frame, size);
    return (long)size;
}

static long send_one(const struct msghdr *message) {
    const struct gs_frame *frame = message->msg_iov->iov_base;
    last_seq = frame->type == GS_HELLO ? 0 : frame->seq;
    return sizeof *frame;
}

static long kernel(long number, ...) {
    va_list list;
    long a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    switch (number) {
    case SYS_socket:
        return new_file();
    case SYS_setsockopt:
        return 0;
    case SYS_connect:
        return left == 0 ? -ECONNREFUSED : 0;
    case SYS_sendmsg:
        return send_one((const struct msghdr *)a[1]);
    case SYS_recvmsg:
        return receive((struct msghdr *)a[1]);
    default:
        a[0] = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
        return a[0] < 0 ? -(long)errno : a[0];
    }
}

#undef GS_CALL
#define WIDE(argument)                             ((long)(argument))
#define GS_CALL_1(n)                               kernel(n, 0L, 0L, 0L, 0L, 0L, 0L)
#define GS_CALL_2(n, a)                            kernel(n, WIDE(a), 0L, 0L, 0L, 0L, 0L)
#define GS_CALL_3(n, a, b)                         kernel(n, WIDE(a), WIDE(b), 0L, 0L, 0L, 0L)
#define GS_CALL_4(n, a, b, c)                      kernel(n, WIDE(a), WIDE(b), WIDE(c), 0L, 0L, 0L)
#define GS_CALL_6(n, a, b, c, d, e)                kernel(n, WIDE(a), WIDE(b), WIDE(c), WIDE(d), WIDE(e), 0L)
#define GS_PICK(_1, _2, _3, _4, _5, _6, name, ...) name
#define GS_CALL(...) GS_PICK(__VA_ARGS__, GS_CALL_6, , GS_CALL_4, GS_CALL_3, GS_CALL_2, GS_CALL_1, )(__VA_ARGS__)
/* The daemon of a run does not come back later: a pause only moves the clock. */
static uint64_t skipped_us;
#define gs_sleep_us(time) ((void)(skipped_us += (time)))
#define gs_now_ms()       (gs_now_ms() + skipped_us / 1000)

#include "packet.c"

#include "client.c"

/* New ones come at the lowest free number, and the client moves its own to 512. */
static int open_files(void) {
    int count = 0;
    for (int fd = 0; fd < 32; fd++)
        count += (fcntl(fd, F_GETFD) >= 0) + (fcntl(512 + fd, F_GETFD) >= 0);
    return count;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    setenv("GPUSHARE_LIMIT", "4Gi", 1);
    setenv("GPUSHARE_LOG", "error", 1);
    setenv("GPUSHARE_SOCKET", "/nowhere/api.sock", 1);
    gs_options();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct gs_answer answer;
    int before = open_files();
    input = data;
    left = size;
    last_seq = 0;
    for (int i = 0; i < 3; i++) {
        struct gs_frame frame = {.type = i == 0 ? GS_ATTACH : GS_ASK};
        if (gs_client_request(&frame, &answer, NULL, false) == GS_ANSWERED &&
            memchr(answer.text, 0, sizeof answer.text) == NULL)
            abort();
    }
    gs_client_forget();
    if (open_files() != before)
        abort();
    return 0;
}
