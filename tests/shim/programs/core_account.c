/* core_account.c: threads that reserve and release against a daemon that grants, while another takes unused credit
 * back all the time, as the daemon may. No driver. Run under the sanitizers, with the shim's core linked in. */
#include "account.h"
#include "client.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS     6
#define DURATION_MS 1500

static struct gs_gpu gpu = {.total = 64ull << 30, .uuid = {1, 2, 3}};
static uint64_t refused;
static uint64_t until;

static void *take_back(void *unused) {
    (void)unused;
    while (gs_now_ms() < until) {
        gs_revoke(gpu.line, UINT32_MAX);
        gs_sleep_us(500);
    }
    return NULL;
}

static void *run(void *data) {
    uint64_t state = (uint64_t)(uintptr_t)data;
    while (gs_now_ms() < until) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t units = (uint32_t)(state >> 40) % 100000 + 1;
        if (gs_account_reserve(&gpu, units))
            gs_release(gpu.line, units);
        else
            __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
        if (gs_account_memory(&gpu).free > gs_account_memory(&gpu).total) {
            fprintf(stderr, "more is free than there is\n");
            exit(1);
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS], revoker;
    if (!gs_account_attach(&gpu)) {
        fprintf(stderr, "attach refused\n");
        return 1;
    }
    until = gs_now_ms() + DURATION_MS;
    pthread_create(&revoker, NULL, take_back, NULL);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_join(revoker, NULL);
    printf("[%u, %llu]\n", gs_word_used(gs_word_load(gpu.line)), (unsigned long long)refused);
    return 0;
}
