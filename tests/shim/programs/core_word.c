/* core_word.c: the credit word between threads that allocate and a daemon that grants and takes back, without anything
 * around it. At each instant used <= credit; at the end every unit is accounted for. */
#include "credit.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 4
#define ROUNDS  100000

static struct gs_line line;
static uint32_t running = THREADS;
static pthread_barrier_t start;

static void require(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static void look(void) {
    uint64_t word = gs_word_load(&line);
    require(gs_word_used(word) <= gs_word_credit(word), "more is used than was granted");
}

static void *program(void *data) {
    uint64_t state = (uint64_t)(uintptr_t)data, taken = 0;
    pthread_barrier_wait(&start);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t units = next_random(&state) % 64 + 1;
        if (gs_reserve(&line, units)) {
            look();
            gs_release(&line, units);
            taken++;
        }
    }
    __atomic_fetch_sub(&running, 1, __ATOMIC_ACQ_REL);
    return (void *)(uintptr_t)taken;
}

int main(void) {
    pthread_t threads[THREADS];
    uint64_t state = 42, granted = 4096, revoked = 0, taken = 0;
    gs_grant(&line, (uint32_t)granted);
    pthread_barrier_init(&start, NULL, THREADS + 1);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, program, (void *)(i + 1));
    pthread_barrier_wait(&start);
    while (__atomic_load_n(&running, __ATOMIC_ACQUIRE) != 0) {
        uint32_t units = next_random(&state) % 512;
        if (granted - revoked < 4096) {
            gs_grant(&line, units);
            granted += units;
        }
        revoked += gs_revoke(&line, next_random(&state) % 512);
        look();
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        taken += (uint64_t)(uintptr_t)result;
    }
    uint64_t word = gs_word_load(&line);
    require(gs_word_used(word) == 0, "something is still in use");
    require(gs_word_credit(word) == granted - revoked, "credit was lost");
    require(taken > 0, "nothing was ever taken");
    gs_grant(&line, 3); /* nothing may be left of what was granted */
    granted += 3;
    word = gs_word_load(&line);
    require(gs_reserve(&line, 3), "there is room");
    gs_release(&line, 5);
    require(gs_word_load(&line) == word, "too much was given back");
    uint32_t releases = line.releases;
    require(gs_reserve(&line, 2), "there is room again");
    require(line.releases == releases, "only what lowers `used` changes it");
    gs_release(&line, 2);
    require(line.releases != releases, "taken and given back in between is seen");
    require(gs_revoke(&line, UINT32_MAX) == granted - revoked && gs_word_load(&line) == 0, "the rest comes back");
    puts("good");
    return 0;
}
