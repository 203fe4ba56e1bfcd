/* no_threads.c: preloaded, it starts no thread, as where a limit of threads is reached. */
#include <errno.h>
#include <pthread.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
    (void)thread, (void)attributes, (void)function, (void)argument;
    return EAGAIN;
}
