/* late_threads.c: preloaded, it makes each new thread run a second late, as on a machine that is busy. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

struct start {
    void *(*function)(void *);
    void *argument;
};

static void *begin_late(void *from) {
    struct start start = *(struct start *)from;
    free(from);
    sleep(1);
    return start.function(start.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
    __typeof__(&pthread_create) next = (__typeof__(&pthread_create))dlsym(RTLD_NEXT, "pthread_create");
    struct start *start = malloc(sizeof *start);
    *start = (struct start){function, argument};
    return next(thread, attributes, begin_late, start);
}
