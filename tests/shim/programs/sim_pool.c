/* sim_pool.c: the software driver's shared memory: threads that charge, each with an arena that nobody else touches,
 * while another process does the same and a third is killed. Run under the sanitizers; GPUSHARE_SIM names the pool. */
#include "sim/common_pool.h"
#include "sim/cuda_arena.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS  300
#define LIVE    4

static const struct sim_settings *settings;
static struct arena arenas[THREADS];

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "%d: %s\n", getpid(), what);
        _exit(1);
    }
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static void *run(void *data) {
    struct arena *arena = data;
    struct heap_piece *live[LIVE] = {NULL};
    uint64_t state = (uint64_t)(arena - arenas) + 1, refused = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int i = (int)(next_random(&state) % LIVE);
        if (live[i] != NULL)
            arena_give(arena, live[i]);
        if (arena_take(arena, (next_random(&state) % 64 + 1) << 20, &live[i]) != CUDA_SUCCESS) {
            live[i] = NULL;
            refused++;
            continue;
        }
        char *bytes = (char *)live[i]->base;
        require(bytes[0] == 0 && bytes[live[i]->size - 1] == 0, "given back bytes are gone");
        bytes[0] = bytes[live[i]->size - 1] = 1;
        require(pool_used(0) <= settings->hardware.memory[0], "more is used than there is");
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i] != NULL)
            arena_give(arena, live[i]);
    return (void *)(uintptr_t)refused;
}

static uint64_t work(void) {
    pthread_t threads[THREADS];
    uint64_t refused = 0;
    require(pool_open(settings) && pool_attach(settings), "attach");
    for (int i = 0; i < THREADS; i++) {
        require(arena_open(&arenas[i], 0, settings->hardware.memory[0]) == CUDA_SUCCESS, "arena");
        pthread_create(&threads[i], NULL, run, &arenas[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        refused += (uint64_t)(uintptr_t)result;
    }
    return refused;
}

/* Charges, says so, and waits to be killed. */
static pid_t start_victim(void) {
    int ready[2];
    char byte;
    require(pipe(ready) == 0, "pipe");
    pid_t victim = fork();
    if (victim == 0) {
        require(pool_open(settings) && pool_attach(settings) && pool_charge(0, 64 << 20), "victim");
        require(write(ready[1], "x", 1) == 1, "write");
        for (;;)
            pause();
    }
    require(read(ready[0], &byte, 1) == 1, "the victim is ready");
    close(ready[0]);
    close(ready[1]);
    return victim;
}

int main(void) {
    int status;
    settings = sim_settings();
    require(settings != NULL, "settings");
    pid_t victim = start_victim(), other = fork(); /* before there are threads */
    if (other == 0) {
        work();
        _exit(0);
    }
    uint64_t refused = work();
    require(waitpid(other, &status, 0) == other && status == 0, "the other process");
    require(pool_used(0) == 64 << 20, "only the victim's memory is left");
    kill(victim, SIGKILL);
    waitpid(victim, &status, 0);
    require(pool_used(0) == 0, "a killed process leaves nothing");
    require(refused > 0, "the pool was never full");
    puts("good");
    return 0;
}
