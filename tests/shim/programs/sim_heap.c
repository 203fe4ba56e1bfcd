/* sim_heap.c: the software driver's heap against a plain list: pieces never overlap, nothing is lost, and what is all
 * given back is one piece again. Run under the sanitizers. */
#include "sim/cuda_heap.h"

#include <stdio.h>
#include <stdlib.h>

#define GRANULE 512ull
#define RANGES  3
#define BYTES   (1ull << 22)
#define LIVE    256
#define ROUNDS  20000

static struct heap heap;
static struct heap_range *ranges[RANGES];
static struct heap_piece *live[LIVE];

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static uint64_t base_of(int range) {
    return (uint64_t)(range + 1) << 32;
}

static void check_alone(const struct heap_piece *piece) {
    require(piece->base >= piece->range->base && piece->base + piece->size <= piece->range->base + BYTES, "range");
    for (int i = 0; i < LIVE; i++) {
        const struct heap_piece *other = live[i];
        if (other != NULL && other != piece)
            require(other->base + other->size <= piece->base || piece->base + piece->size <= other->base, "overlap");
    }
}

static void check_sums(void) {
    uint64_t sum = 0, sums = 0;
    for (int i = 0; i < LIVE; i++)
        sum += live[i] != NULL ? live[i]->size : 0;
    for (int i = 0; i < RANGES; i++)
        sums += ranges[i]->taken;
    require(sum == heap.taken && sum == sums, "the sums differ");
}

static void change(int i, uint64_t size) {
    if (live[i] != NULL) {
        heap_give(live[i]);
        live[i] = NULL;
        return;
    }
    live[i] = heap_take(&heap, size);
    if (live[i] != NULL) {
        require(live[i]->size >= size && live[i]->size < size + GRANULE && live[i]->base % GRANULE == 0, "size");
        check_alone(live[i]);
    }
}

int main(void) {
    uint64_t state = 7;
    heap_init(&heap, GRANULE);
    for (int i = 0; i < RANGES; i++)
        ranges[i] = heap_add(&heap, base_of(i), BYTES, NULL);
    require(heap_take(&heap, 0) == NULL && heap_take(&heap, BYTES + 1) == NULL, "what does not fit is refused");
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t largest = 1ull << (next_random(&state) % 20);
        change((int)(next_random(&state) % LIVE), next_random(&state) % largest + 1);
        if (round % 64 == 0)
            check_sums();
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i] != NULL)
            change(i, 0);
    require(heap.taken == 0, "all is back");
    for (int i = 0; i < RANGES; i++) {
        struct heap_piece *whole = heap_take(&heap, BYTES);
        require(whole != NULL && whole->size == BYTES, "the pieces of a range are one again");
        live[i] = whole;
    }
    for (int i = 0; i < RANGES; i++)
        heap_give(live[i]);
    heap_remove(ranges[1]); /* from the middle, the end and the start of the list */
    heap_remove(ranges[0]);
    heap_remove(ranges[2]);
    require(heap_take(&heap, 1) == NULL, "nothing is left");
    puts("good");
    return 0;
}
