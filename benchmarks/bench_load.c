/* bench_load.c: many clients of the daemon's shim socket, worked by one process, and the echo to compare them with.
 *
 *     bench_load echo PATH                        answer every packet with itself, as a bare server would
 *     bench_load MODE PATH JOBS GPU CLIENTS SECONDS RATE
 *
 * MODE is one of
 *     busy     each client asks again as soon as it is answered: what the server can do
 *     paced    RATE asks a second over all clients, at random moments, whoever is free: what a client waits then
 *     burst    all clients ask in the same moment, RATE times a second: what the last of them waits
 *
 * JOBS is a file of job ids, one a line, taken in turn, or - to speak to the echo. Prints an empty line when all are
 * connected and goes on when it has read one; then one line: asks, asks a second, and the microseconds from sending to
 * having the answer at p50, p99 and most. Stays until there is nothing more to read.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

#define ASK_BYTES   512
#define MAX_ANSWERS 4000000
#define PATIENCE_NS 100000000u

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void check(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "bench_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    check(strlen(path) < sizeof address.sun_path, "the path is too long");
    strcpy(address.sun_path, path);
    return address;
}

/* ---- the echo --------------------------------------------------------------------------------------- */

_Noreturn static void echo(const char *path) {
    struct sockaddr_un address = address_of(path);
    struct epoll_event event = {.events = EPOLLIN}, events[128];
    char packet[GS_FRAME_BYTES];
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0), poll = epoll_create1(0);
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 512) == 0, "listen");
    event.data.fd = listener;
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int count = epoll_wait(poll, events, 128, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                event.data.fd = accept(listener, NULL, NULL);
                epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event);
                continue;
            }
            ssize_t size = recv(fd, packet, sizeof packet, MSG_DONTWAIT);
            if (size > 0)
                send(fd, packet, (size_t)size, MSG_NOSIGNAL);
            else if (size == 0)
                close(fd);
        }
    }
}

/* ---- the clients ------------------------------------------------------------------------------------ */

struct client {
    int fd;
    uint64_t asked_at; /* 0: it has no ask out */
};

static struct client *clients;
static long count;
static uint32_t *answers; /* nanoseconds each */
static long answered;

static void fill(struct gs_frame *frame, uint16_t type) {
    memset(frame, 0, sizeof *frame);
    frame->magic = GS_WIRE_MAGIC;
    frame->version = GS_WIRE_VERSION;
    frame->type = type;
    frame->size = GS_FRAME_BYTES;
    frame->seq = 1;
}

static void exchange(int fd, struct gs_frame *frame, const char *what) {
    check(send(fd, frame, sizeof *frame, MSG_NOSIGNAL) == sizeof *frame, what);
    check(recv(fd, frame, sizeof *frame, 0) == sizeof *frame, what); /* a page that comes along is dropped */
}

/* Each as a process of its own, which does no more than this: the daemon counts the pages of a process. */
static int connect_as_another(const char *path) {
    struct sockaddr_un address = address_of(path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0), connected[2];
    char byte = 0;
    check(pipe(connected) == 0, "pipe");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "connect");
        check(write(connected[1], &byte, 1) == 1, "write");
        close(fd);
        for (;;)
            pause();
    }
    close(connected[1]);
    check(read(connected[0], &byte, 1) == 1, "connecting");
    close(connected[0]);
    return fd;
}

static void connect_client(struct client *client, const char *path, uint64_t job, const char *gpu) {
    struct gs_frame frame;
    client->fd = connect_as_another(path);
    if (job == 0)
        return;
    fill(&frame, GS_HELLO);
    frame.u.hello.job_id = job;
    frame.u.hello.pid = (uint32_t)getpid();
    exchange(client->fd, &frame, "hello");
    check(frame.u.welcome.status == GS_OK, frame.u.welcome.text);
    fill(&frame, GS_ATTACH);
    for (int i = 0; i < 16; i++)
        sscanf(gpu + 2 * i, "%2hhx", &frame.u.attach.uuid[i]);
    exchange(client->fd, &frame, "attach");
    check(frame.u.answer.status == GS_OK, frame.u.answer.text);
}

static void ask(struct client *client) {
    struct gs_frame frame;
    fill(&frame, GS_ASK);
    frame.u.ask.bytes = ASK_BYTES;
    client->asked_at = now_ns();
    check(send(client->fd, &frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame, "ask");
}

/* The answers that are there within the time; those who got one are free to ask again. */
static long take(int poll, uint64_t nanoseconds, bool again) {
    struct epoll_event events[128];
    struct gs_frame frame;
    struct pollfd wait = {.fd = poll, .events = POLLIN};
    struct timespec patience = {.tv_nsec = (long)nanoseconds};
    long got = 0;
    int ready = epoll_wait(poll, events, 128, 0);
    if (ready == 0 && nanoseconds > 0 && ppoll(&wait, 1, &patience, NULL) > 0)
        ready = epoll_wait(poll, events, 128, 0);
    for (int i = 0; i < ready; i++) {
        struct client *client = events[i].data.ptr;
        check(recv(client->fd, &frame, sizeof frame, MSG_DONTWAIT) == sizeof frame, "answer");
        uint64_t took = now_ns() - client->asked_at;
        if (frame.type == GS_ANSWER)
            check(frame.u.answer.status == GS_OK, frame.u.answer.text);
        if (answered < MAX_ANSWERS)
            answers[answered++] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
        client->asked_at = 0;
        got++;
        if (again)
            ask(client);
    }
    return got;
}

static void ask_busy(int poll, uint64_t until) {
    for (long i = 0; i < count; i++)
        ask(&clients[i]);
    while (now_ns() < until)
        take(poll, PATIENCE_NS, true);
}

/* Random gaps: without them the clients would fall into step with the server. */
static void ask_paced(int poll, uint64_t until, double rate) {
    uint64_t next = now_ns();
    long turn = 0;
    while (now_ns() < until) {
        while (now_ns() >= next) {
            for (long tries = 0; tries < count && clients[turn].asked_at != 0; tries++)
                turn = (turn + 1) % count;
            if (clients[turn].asked_at == 0)
                ask(&clients[turn]);
            turn = (turn + 1) % count;
            next += (uint64_t)(2e9 / rate * drand48());
        }
        uint64_t now = now_ns();
        take(poll, next > now ? next - now : 0, false);
    }
}

static void ask_in_bursts(int poll, uint64_t until, double rate) {
    while (now_ns() < until) {
        uint64_t next = now_ns() + (uint64_t)(1e9 / rate);
        for (long i = 0; i < count; i++)
            ask(&clients[i]);
        for (long got = 0; got < count;)
            got += take(poll, PATIENCE_NS, false);
        while (now_ns() < next)
            usleep(500);
    }
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

int main(int words, char **word) {
    if (words == 3 && strcmp(word[1], "echo") == 0)
        echo(word[2]);
    if (words != 8)
        return 2;
    const char *mode = word[1], *path = word[2], *gpu = word[4];
    FILE *jobs = strcmp(word[3], "-") != 0 ? fopen(word[3], "r") : NULL;
    double seconds = atof(word[6]), rate = atof(word[7]);
    count = atol(word[5]);
    clients = calloc((size_t)count, sizeof *clients);
    answers = malloc(MAX_ANSWERS * sizeof *answers);
    int poll = epoll_create1(0);
    for (long i = 0; i < count; i++) {
        unsigned long long job = 0;
        while (jobs != NULL && fscanf(jobs, "%llx", &job) != 1)
            rewind(jobs);
        connect_client(&clients[i], path, job, gpu);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &clients[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, clients[i].fd, &event);
    }
    puts("");
    fflush(stdout);
    getchar();
    uint64_t started = now_ns(), until = started + (uint64_t)(seconds * 1e9);
    if (strcmp(mode, "busy") == 0)
        ask_busy(poll, until);
    else if (strcmp(mode, "paced") == 0)
        ask_paced(poll, until, rate);
    else
        ask_in_bursts(poll, until, rate);
    double took = (double)(now_ns() - started) / 1e9;
    if (answered == 0)
        return 1;
    qsort(answers, (size_t)answered, sizeof *answers, by_size);
    printf("%ld %.0f %.1f %.1f %.1f\n", answered, (double)answered / took, answers[answered / 2] / 1e3,
           answers[answered * 99 / 100] / 1e3, answers[answered - 1] / 1e3);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
