/* cuda_memory.c: every range of addresses that the driver has given out, of whatever kind.
 *
 * One search tree by address for all of them, because a program may hand any address to any function and every
 * function must find what it is: cuMemFree frees five kinds, a copy may run over several mappings, an attribute is
 * asked of an address inside. The tree is a treap: random priorities keep it flat without any rebalancing rules.
 */
#define _GNU_SOURCE
#include "cuda_memory.h"

#include "common_pool.h"
#include "cuda_managed.h"

#include <stdlib.h>

static struct memory *root;
static uint64_t last_id;

static uint32_t next_random(void) {
    static uint32_t state = 2463534242u;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

/* Splits a tree into the ranges below an address and the others. */
static void split(struct memory *tree, CUdeviceptr address, struct memory **low, struct memory **high) {
    while (tree != NULL) {
        if (tree->address < address) {
            *low = tree;
            low = &tree->right;
            tree = tree->right;
        } else {
            *high = tree;
            high = &tree->left;
            tree = tree->left;
        }
    }
    *low = *high = NULL;
}

static void insert(struct memory *memory) {
    struct memory **place = &root;
    while (*place != NULL && (*place)->priority >= memory->priority) {
        place = memory->address < (*place)->address ? &(*place)->left : &(*place)->right;
    }
    split(*place, memory->address, &memory->left, &memory->right);
    *place = memory;
}

static void delete(struct memory *memory) {
    struct memory **place = &root;
    while (*place != memory) {
        place = memory->address < (*place)->address ? &(*place)->left : &(*place)->right;
    }
    struct memory *low = memory->left, *high = memory->right;
    while (low != NULL && high != NULL) {
        struct memory **next = low->priority >= high->priority ? &low : &high;
        *place = *next;
        if (next == &low) {
            place = &low->right;
            low = low->right;
        } else {
            place = &high->left;
            high = high->left;
        }
    }
    *place = low != NULL ? low : high;
}

/* What a checkpoint refuses. */
static void note(const struct memory *memory, int change) {
    if (memory->kind == MEMORY_MANAGED || memory->kind == MEMORY_IPC) {
        pool_mark(memory->kind == MEMORY_MANAGED ? POOL_MANAGED : POOL_IMPORTED, change);
    }
}

struct memory *memory_new(enum memory_kind kind, CUdeviceptr address, uint64_t size) {
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory != NULL) {
        memory->kind = kind;
        memory->address = address;
        memory->size = size;
        memory->id = ++last_id;
        memory->accessible = true;
        memory->priority = next_random();
        insert(memory);
        note(memory, 1);
    }
    return memory;
}

void memory_end(struct memory *memory) {
    delete(memory);
    note(memory, -1);
    advice_end(memory->advice);
    free(memory);
}

struct memory *memory_at(CUdeviceptr address) {
    struct memory *best = NULL;
    for (struct memory *memory = root; memory != NULL;) {
        if (memory->address <= address) {
            best = memory;
            memory = memory->right;
        } else {
            memory = memory->left;
        }
    }
    return best != NULL && address - best->address < best->size ? best : NULL;
}

struct memory *memory_next(CUdeviceptr address) {
    struct memory *best = NULL;
    for (struct memory *memory = root; memory != NULL;) {
        if (memory->address >= address) {
            best = memory;
            memory = memory->left;
        } else {
            memory = memory->right;
        }
    }
    return best;
}

bool memory_covers(CUdeviceptr address, uint64_t size) {
    while (size > 0) {
        struct memory *memory = memory_at(address);
        if (memory == NULL || !memory->accessible || memory->kind == MEMORY_ARRAY) {
            return false;
        }
        uint64_t here = memory->address + memory->size - address;
        if (here >= size) {
            return true;
        }
        address += here;
        size -= here;
    }
    return true;
}
