/* part_thread.c: how a thread of ours begins: detached, with its stack, without the program's signals; and what is left
 * as it was where none can begin. */
#define _GNU_SOURCE /* pthread_getattr_np */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>

#include "part.h"

#include "thread.c"

static const char *without; /* a function that this program's C library does not have at first */
static bool opened_has_it, fails_to_begin, fails_to_make;
static uint32_t opened, closed;
static size_t stack_asked;

static int no_attributes(pthread_attr_t *attributes) {
    (void)attributes;
    return ENOMEM;
}

static int no_thread(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
    (void)thread, (void)attributes, (void)function, (void)argument;
    errno = EAGAIN;
    return EAGAIN;
}

static int note_stack(pthread_attr_t *attributes, size_t bytes) {
    stack_asked = bytes;
    return pthread_attr_setstacksize(attributes, bytes);
}

void *gs_real_dlsym(void *library, const char *symbol) {
    if (without != NULL && strcmp(symbol, without) == 0 && (library == RTLD_DEFAULT || !opened_has_it))
        return NULL;
    if (fails_to_begin && strcmp(symbol, "pthread_attr_init") == 0)
        return (void *)no_attributes;
    if (fails_to_make && strcmp(symbol, "pthread_create") == 0)
        return (void *)no_thread;
    if (strcmp(symbol, "pthread_attr_setstacksize") == 0)
        return (void *)note_stack;
    return dlsym(RTLD_DEFAULT, symbol);
}

void *gs_real_dlopen(const char *file, int flags) {
    REQUIRE(strcmp(file, "libpthread.so.0") == 0 && (flags & RTLD_NOLOAD) != 0);
    opened++;
    return opened_has_it || without == NULL ? (void *)&opened : NULL;
}

int gs_real_dlclose(void *library) {
    REQUIRE(library == (void *)&opened);
    closed++;
    return 0;
}

static sem_t ran;
static sigset_t blocked;
static int detached;
static size_t stack;

static void *body(void *argument) {
    pthread_attr_t attributes;
    REQUIRE(argument == NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getdetachstate(&attributes, &detached);
    pthread_attr_getstacksize(&attributes, &stack);
    pthread_attr_destroy(&attributes);
    sem_post(&ran);
    return NULL;
}

/* The mask of the thread that asks, and errno, are as they were. */
static bool start(size_t bytes) {
    sigset_t before, after;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    stack_asked = 0;
    opened = closed = 0;
    errno = ENOTTY;
    bool started = gs_thread_start(body, bytes);
    REQUIRE(errno == ENOTTY);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < 32; number++)
        REQUIRE(sigismember(&after, number) == (number == SIGUSR2));
    if (started)
        sem_wait(&ran);
    return started;
}

static void begins(void) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    REQUIRE(start(256 << 10) && stack_asked == 256 << 10 && stack >= 256 << 10 && stack < 1 << 20);
    REQUIRE(detached == PTHREAD_CREATE_DETACHED && opened == 0);
    for (int number = 1; number <= SIGRTMAX; number++) {
        bool fault = number == SIGKILL || number == SIGSTOP || (number >= 32 && number < SIGRTMIN);
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
            fault = fault || number == faults[i];
        if (number < 32 || number >= SIGRTMIN)
            REQUIRE(sigismember(&blocked, number) == !fault);
    }
    REQUIRE(start(0) && stack_asked == 0); /* the usual one */
}

/* An older C library has them in a library of their own, or not at all. */
static void finds(void) {
    static const char *const names[] = {"pthread_attr_init", "pthread_attr_setdetachstate", "pthread_attr_setstacksize",
                                        "pthread_attr_destroy", "pthread_create"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        without = names[i];
        opened_has_it = false;
        REQUIRE(!start(0) && opened == 1 && closed == 0);
        opened_has_it = true;
        REQUIRE(start(0) && opened == 1 && closed == 1);
    }
    without = NULL;
}

static void fails(void) {
    fails_to_begin = true;
    REQUIRE(!start(0));
    fails_to_begin = false;
    fails_to_make = true;
    REQUIRE(!start(4096));
    fails_to_make = false;
    REQUIRE(start(0));
}

int main(void) {
    sem_init(&ran, 0, 0);
    begins();
    finds();
    fails();
    return good();
}
