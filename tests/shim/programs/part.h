/* part.h: what the programs share that judge one part of the library alone (part_*.c).
 *
 * Such a program includes the part's source, so it sees what the part keeps, and stands in for what the part calls. */
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Each lock that is taken is given back, and none that is not held: what takes none where it should is seen so. */
#include "lock.h"

static int locks_held;

__attribute__((unused)) static void counted_lock(struct gs_lock *lock) {
    gs_lock(lock);
    locks_held++;
}

__attribute__((unused)) static void counted_unlock(struct gs_lock *lock) {
    REQUIRE(lock->held);
    locks_held--;
    gs_unlock(lock);
}

__attribute__((unused)) static void counted_mutex_lock(struct gs_mutex *mutex) {
    gs_mutex_lock(mutex);
    locks_held++;
}

__attribute__((unused)) static void counted_mutex_unlock(struct gs_mutex *mutex) {
    REQUIRE(mutex->state != 0);
    locks_held--;
    gs_mutex_unlock(mutex);
}

#define gs_lock(lock)          counted_lock(lock)
#define gs_unlock(lock)        counted_unlock(lock)
#define gs_mutex_lock(mutex)   counted_mutex_lock(mutex)
#define gs_mutex_unlock(mutex) counted_mutex_unlock(mutex)

/* At the end of each program. */
__attribute__((unused)) static int good(void) {
    REQUIRE(locks_held == 0);
    puts("good");
    return 0;
}

static uint64_t random_state = 20261125;

/* A number below `below`; the same ones in each run. */
__attribute__((unused)) static uint32_t any(uint32_t below) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(random_state >> 33) % below;
}

/* How many descriptors the program has. */
__attribute__((unused)) static int descriptors(void) {
    DIR *open = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(open) != NULL)
        count++;
    closedir(open);
    return count;
}
