/* part_packet.c: frames over real sockets, with a clock that the program sets. */
#define _GNU_SOURCE /* syscall */
#include <time.h>

static volatile unsigned long clock_ms = 1000;
static int clock_gettime_of_test(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){(time_t)(clock_ms / 1000), (long)(clock_ms % 1000) * 1000000};
    return 0;
}
#define clock_gettime clock_gettime_of_test
#include <sys/syscall.h>
#include <unistd.h>

static unsigned sends; /* how often the kernel was asked to send */
#define syscall(number, ...) (sends += (number) == SYS_sendmsg, syscall(number, __VA_ARGS__))
#include "part.h"

#include "packet.c"
#undef clock_gettime

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static char directory[] = "/tmp/part-XXXXXX";
static char path[64];

static uint64_t real_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int listening(int kind, int queue) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    unlink(path);
    REQUIRE(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, queue) == 0);
    return fd;
}

/* What cannot be connected to is told by the kernel's number, and leaves nothing behind. */
static void connecting(void) {
    int before = descriptors();
    unlink(path);
    REQUIRE(gs_packet_connect("") == -ENOENT);
    REQUIRE(gs_packet_connect(path) == -ENOENT);
    int stream = listening(SOCK_STREAM, 1);
    REQUIRE(gs_packet_connect(path) == -EPROTOTYPE);
    close(stream);
    REQUIRE(gs_packet_connect(path) == -ECONNREFUSED);
    REQUIRE(descriptors() == before);

    int listener = listening(SOCK_SEQPACKET, 0);
    close(STDIN_FILENO); /* in a program that has none the next descriptor is 0 */
    int fd = gs_packet_connect(path), type = 0;
    REQUIRE(open("/dev/null", O_RDONLY) == STDIN_FILENO);
    socklen_t length = sizeof type;
    REQUIRE(fd >= 512);
    REQUIRE(getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET);
    REQUIRE(fcntl(fd, F_GETFD) == FD_CLOEXEC && (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    uint64_t began = real_ms();
    REQUIRE(gs_packet_connect(path) == -EAGAIN); /* the queue has one */
    REQUIRE(real_ms() - began >= 200 && real_ms() - began < 3000);
    close(fd);
    close(listener);
    REQUIRE(descriptors() == before);
    struct rlimit most, few = {0, 0};
    getrlimit(RLIMIT_NOFILE, &most);
    few.rlim_max = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &few);
    REQUIRE(gs_packet_connect(path) == -EMFILE);
    setrlimit(RLIMIT_NOFILE, &most);
}

static void header(void) {
    struct gs_frame frame;
    memset(&frame, 0x5a, sizeof frame);
    gs_packet_fill_header(&frame, 77);
    REQUIRE(frame.magic == GS_WIRE_MAGIC && frame.version == GS_WIRE_VERSION && frame.size == 512 && frame.seq == 77);
    REQUIRE(frame.type == 0x5a5a);
}

static bool is_same_file(int a, int b) {
    struct stat one, other;
    return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_ino == other.st_ino && one.st_dev == other.st_dev;
}

static struct gs_frame a_frame(uint32_t seq) {
    struct gs_frame frame;
    for (size_t i = 0; i < sizeof frame; i++)
        ((uint8_t *)&frame)[i] = (uint8_t)any(256);
    gs_packet_fill_header(&frame, seq);
    return frame;
}

/* What is sent arrives whole, with its descriptor or without. */
static void there_and_back(void) {
    int pair[2], passed = 5, null = open("/dev/null", O_RDONLY), files[] = {-1, null, 0};
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    unlink(path);
    REQUIRE(dup2(open(path, O_CREAT | O_EXCL | O_RDWR, 0600), 0) == 0);
    struct gs_frame sent = a_frame(1), got;
    REQUIRE(gs_packet_receive(pair[1], &got, &passed) == 0 && passed == -1);
    int before = descriptors();
    for (int i = 0; i < 3; i++) {
        REQUIRE(gs_packet_send(pair[0], &sent, files[i]) == 0);
        REQUIRE(gs_packet_receive(pair[1], &got, &passed) == 1);
        REQUIRE(memcmp(&sent, &got, sizeof got) == 0 && (files[i] >= 0 ? passed > 0 : passed == -1));
        REQUIRE(files[i] < 0 || (is_same_file(passed, files[i]) && fcntl(passed, F_GETFD) == FD_CLOEXEC));
        gs_packet_drop(passed);
        REQUIRE(descriptors() == before);
    }
    REQUIRE(gs_packet_send(pair[0], &sent, null) == 0); /* a descriptor may come as number 0, too */
    close(0);
    REQUIRE(gs_packet_receive(pair[1], &got, &passed) == 1 && passed == 0 && is_same_file(0, null));
    gs_packet_drop(passed);
    REQUIRE(descriptors() == before - 1);
    int on = 1; /* what else may come beside a frame is no descriptor */
    REQUIRE(setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0);
    REQUIRE(gs_packet_send(pair[0], &sent, -1) == 0 && gs_packet_receive(pair[1], &got, &passed) == 1 && passed == -1);
    REQUIRE(descriptors() == before - 1);
    gs_packet_drop(-1);
    REQUIRE(gs_packet_send(-1, &sent, -1) == -EBADF && gs_packet_receive(-1, &got, &passed) == -EBADF);
    close(pair[1]);
    REQUIRE(gs_packet_send(pair[0], &sent, -1) == -EPIPE); /* and no signal */
    REQUIRE(gs_packet_receive(pair[0], &got, &passed) == -ECONNRESET && passed == -1);
    close(pair[0]);
    close(null);
}

static void put(int fd, const void *bytes, size_t size, const int *passed, size_t count) {
    char control[CMSG_SPACE(2 * sizeof(int))] = {0};
    struct iovec part = {(void *)bytes, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count != 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){CMSG_LEN(count * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(head), passed, count * sizeof(int));
    }
    REQUIRE(sendmsg(fd, &message, 0) == (ssize_t)size);
}

/* What is no frame of ours ends the talk, and what came with it is closed. */
static void what_is_none(void) {
    int pair[2], passed, low = open("/dev/null", O_RDONLY), null = fcntl(low, F_DUPFD, 20), two[2] = {null, null};
    struct gs_frame good = a_frame(2), other, got;
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    int before = descriptors();
    for (int with = 0; with < 2; with++) {
        for (int wrong = 0; wrong < 6; wrong++) {
            other = good;
            got = good; /* what was there before makes no frame of what has come */
            size_t size = wrong == 0 ? sizeof other - 1 : wrong == 1 ? 16 : wrong == 2 ? 0 : sizeof other;
            other.magic ^= wrong == 3;
            other.version = wrong == 4 ? GS_WIRE_OLDEST - 1 : good.version;
            other.version = wrong == 5 ? GS_WIRE_VERSION + 7 : other.version; /* a newer one is understood */
            put(pair[0], &other, size, two, (size_t)with);
            long result = gs_packet_receive(pair[1], &got, &passed);
            REQUIRE(result == (wrong == 5 ? 1 : wrong == 2 ? -ECONNRESET : -EPROTO));
            REQUIRE((wrong == 5 && with ? passed >= 0 : passed == -1));
            gs_packet_drop(passed);
            REQUIRE(descriptors() == before);
        }
    }
    close(low); /* number 0 again */
    before--;
    put(pair[0], &good, sizeof good, two, 2); /* the second is closed */
    REQUIRE(gs_packet_receive(pair[1], &got, &passed) == 1 && passed == 0 && descriptors() == before + 1);
    close(passed);
    close(null);
    close(pair[0]);
    close(pair[1]);
}

static void fill(int fd, const struct gs_frame *frame) {
    while (send(fd, frame, sizeof *frame, MSG_DONTWAIT) == sizeof *frame)
        continue;
}

static void *empty_later(void *fd) {
    struct gs_frame frame;
    usleep(300000);
    while (recv(*(int *)fd, &frame, sizeof frame, MSG_DONTWAIT) == sizeof frame)
        continue;
    return NULL;
}

static volatile uint64_t last_ms;

static void advance(int number) {
    (void)number;
    clock_ms += clock_ms < last_ms ? 2500 : 0;
}

/* A queue that is full is waited for, asleep, and for five seconds. */
static void a_full_queue(void) {
    int pair[2];
    pthread_t reader;
    struct gs_frame frame = a_frame(3);
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
    fill(pair[0], &frame);
    pthread_create(&reader, NULL, empty_later, &pair[1]);
    uint64_t began = real_ms();
    sends = 0;
    REQUIRE(gs_packet_send(pair[0], &frame, -1) == 0);
    REQUIRE(real_ms() - began >= 250 && sends < 20);
    pthread_join(reader, NULL);

    fill(pair[0], &frame);
    struct itimerval every = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    signal(SIGALRM, advance);
    setitimer(ITIMER_REAL, &every, NULL);
    last_ms = clock_ms + 5000;
    REQUIRE(gs_packet_send(pair[0], &frame, -1) == -ETIMEDOUT);
    REQUIRE(clock_ms == last_ms);
    setitimer(ITIMER_REAL, &never, NULL);
    close(pair[0]);
    close(pair[1]);
}

int main(void) {
    REQUIRE(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/s", directory);
    connecting();
    header();
    there_and_back();
    what_is_none();
    a_full_queue();
    unlink(path);
    rmdir(directory);
    return good();
}
