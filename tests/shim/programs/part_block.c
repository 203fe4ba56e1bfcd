/* part_block.c: blocks with their handles, mappings and bindings, against a plain list of who holds what. */
#include "part_bank.h"

/* Pages from the heap: a step beyond them is seen, and each is given back whole. */
static size_t pages_alive;

/* A child of a fork forgets pages that it does not give back. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}

static void *pages_of_test(size_t bytes) {
    pages_alive += no_pages ? 0 : bytes;
    return no_pages ? NULL : calloc(1, bytes);
}

static void drop_of_test(void *pages, size_t bytes) {
    pages_alive -= pages != NULL ? bytes : 0;
    free(pages);
}

#undef gs_pages_new
#define gs_pages_new(size)         pages_of_test(size)
#define gs_pages_drop(pages, size) drop_of_test(pages, size)
#include "block.c"
#include "table.c"

#define BLOCKS 40

/* Lines of both GPUs are as the model says: each block is charged as long as anything holds it. */
static struct model {
    uint32_t references; /* of its handle */
    uint32_t number, units, mappings, exports, bindings;
    int gpu;
    bool there;
} model[BLOCKS];

static uint64_t handle_of(int i) {
    return 0x500 + (uint64_t)i;
}

/* Each block has eight places at which it may be mapped, of two units each. */
static uint64_t address_of(int i, int place) {
    return 0x7f0000000000 + ((uint64_t)i * 8 + (uint64_t)place) * 2 * GS_UNIT_BYTES;
}

static bool mapped[BLOCKS][8];

static void same_as_model(void) {
    uint32_t units[2] = {0, 0}, exports[2] = {0, 0};
    for (int i = 0; i < BLOCKS; i++) {
        struct model *one = &model[i];
        uint32_t number = 0;
        REQUIRE(gs_block_find(handle_of(i), &number, false) == (one->references > 0));
        REQUIRE(one->references == 0 || number == one->number);
        if (one->there) {
            units[one->gpu] += one->units;
            exports[one->gpu] += one->exports;
            REQUIRE(gs_block_gpu(one->number) == &gs_gpus[one->gpu]);
            REQUIRE(block_at(one->number)->holds == (one->references > 0) + one->mappings + one->bindings);
        }
    }
    for (int gpu = 0; gpu < 2; gpu++)
        REQUIRE(used_on(gpu) == units[gpu] && lines[gpu].vmm_export == exports[gpu]);
}

static void let_go_if_unheld(struct model *one) {
    one->there = one->references > 0 || one->mappings > 0 || one->bindings > 0;
    one->exports = one->there ? one->exports : 0;
}

static void add(int i, int gpu, uint32_t units) {
    struct model *one = &model[i];
    REQUIRE(gs_reserve(&lines[gpu], units) && gs_block_add(handle_of(i), &gs_gpus[gpu], units));
    *one = (struct model){.references = 1, .units = units, .gpu = gpu, .there = true};
    REQUIRE(gs_block_find(handle_of(i), &one->number, false));
}

static void release(int i, bool fails) {
    struct model *one = &model[i];
    uint32_t number;
    bool last;
    if (!gs_block_release(handle_of(i), &number, &last)) {
        REQUIRE(one->references == 0);
        return;
    }
    REQUIRE(number == one->number && last == (one->references == 1));
    if (fails) {
        gs_block_release_failed(handle_of(i), number, last);
        return;
    }
    one->references--;
    if (last)
        gs_block_let_go(number);
    let_go_if_unheld(one);
}

static void map(int i, int place) {
    uint32_t number;
    if (mapped[i][place] || !gs_block_find(handle_of(i), &number, true))
        return;
    REQUIRE(gs_mapping_add(address_of(i, place), number, 2 * GS_UNIT_BYTES));
    mapped[i][place] = true;
    model[i].mappings++;
}

/* A range of one block's places, which need not all be mapped. */
static void unmap(int i, int first, int last, bool fails) {
    struct gs_mappings taken = {.count = 0};
    size_t wanted = 0;
    for (int place = first; place <= last; place++)
        wanted += mapped[i][place];
    gs_mappings_take(&taken, address_of(i, first), address_of(i, last) + 2 * GS_UNIT_BYTES);
    REQUIRE(taken.count == wanted);
    for (size_t at = 0; at < taken.count; at++) {
        const struct gs_entry *mapping = gs_mappings_at(&taken, at);
        REQUIRE(mapping->detail == model[i].number && mapping->units == 2);
        if (fails)
            gs_mapping_put_back(mapping);
        else
            gs_block_let_go(mapping->detail);
    }
    gs_mappings_drop(&taken);
    if (fails)
        return;
    for (int place = first; place <= last; place++)
        mapped[i][place] = false;
    model[i].mappings -= (uint32_t)wanted;
    let_go_if_unheld(&model[i]);
}

/* An address in the middle of a mapping is of its block, which is held from then on: a handle comes back. */
static void retain(int i, int place) {
    uint32_t number;
    uint64_t address = address_of(i, place) + any(2 * GS_UNIT_BYTES);
    if (!gs_mapping_find(address, &number)) {
        REQUIRE(!mapped[i][place]);
        return;
    }
    REQUIRE(mapped[i][place] && number == model[i].number);
    if (model[i].references > 0) {
        gs_block_let_go(number);
        REQUIRE(gs_block_refer(handle_of(i)));
        model[i].references++;
    } else {
        gs_block_add_handle(handle_of(i), number);
        model[i].references = 1;
    }
}

static void random_lives(void) {
    int ended = 0, failed = 0, came_back = 0;
    for (int round = 0; round < 30000; round++) {
        int i = (int)any(BLOCKS), first = (int)any(8), last = first + (int)any((uint32_t)(8 - first));
        struct model *one = &model[i], before = *one;
        switch (any(13)) {
        case 0:
        case 1:
            if (!one->there)
                add(i, (int)any(2), 1 + any(1000));
            break;
        case 2:
        case 7:
        case 8:
        case 9:
            release(i, any(4) == 0);
            failed += one->references == before.references && before.references > 0;
            break;
        case 3:
            map(i, first);
            break;
        case 4:
        case 10:
        case 11:
            unmap(i, first, last, any(4) == 0);
            break;
        case 5:
            retain(i, first);
            came_back += before.references == 0 && one->references == 1;
            break;
        case 6:
            REQUIRE(gs_block_refer(handle_of(i)) == (one->references > 0));
            one->references += one->references > 0;
            break;
        default:
            if (one->there && any(4) == 0) {
                gs_block_exported(one->number);
                one->exports++;
            }
        }
        ended += before.there && !one->there;
        if (round % 7 == 0)
            same_as_model();
    }
    REQUIRE(ended > 200 && failed > 100 && came_back > 50 && chunk_count == 1);
    for (int i = 0; i < BLOCKS; i++) {
        while (model[i].references > 0)
            release(i, false);
        unmap(i, 0, 7, false);
    }
    same_as_model();
    REQUIRE(used_on(0) == 0 && used_on(1) == 0);
}

/* Copies of all mappings on one GPU, also when they are many. */
static void mappings_on(void) {
    for (int many = 3; many <= 2000; many += 197) {
        struct gs_mappings found = {.count = 0};
        uint32_t numbers[2], number;
        uint64_t sum[2] = {0, 0};
        for (int gpu = 0; gpu < 2; gpu++)
            REQUIRE(gs_reserve(&lines[gpu], 5) && gs_block_add(handle_of(gpu), &gs_gpus[gpu], 5) &&
                    gs_block_find(handle_of(gpu), &numbers[gpu], false));
        for (int i = 0; i < many; i++) {
            uint64_t address = 0x10000 + (uint64_t)i * GS_UNIT_BYTES;
            REQUIRE(gs_block_find(handle_of(i % 2), &number, true) && gs_mapping_add(address, number, 1));
            sum[i % 2] += address;
        }
        size_t before = pages_alive;
        gs_mappings_on(&found, &gs_gpus[0]);
        REQUIRE(found.count == (size_t)(many + 1) / 2);
        for (size_t i = 0; i < found.count; i++) {
            REQUIRE(gs_mappings_at(&found, i)->detail == numbers[0]);
            sum[0] -= gs_mappings_at(&found, i)->key;
        }
        REQUIRE(sum[0] == 0);
        REQUIRE(found.more == NULL || pages_alive == before + found.room * sizeof *found.more);
        gs_mappings_drop(&found);
        REQUIRE(pages_alive == before);
        REQUIRE(!gs_mapping_take(0x10000 - 1, &number));
        for (int i = 0; i < many; i++) {
            number = 9999;
            REQUIRE(gs_mapping_take(0x10000 + (uint64_t)i * GS_UNIT_BYTES, &number) && number == numbers[i % 2]);
            gs_block_let_go(number);
        }
        for (int gpu = 0; gpu < 2; gpu++) {
            bool last;
            REQUIRE(gs_block_release(handle_of(gpu), &number, &last) && last);
            gs_block_let_go(number);
        }
        REQUIRE(used_on(0) == 0 && used_on(1) == 0);
    }
}

/* Where a mapping ends, the next one begins; and who finds one holds one block, also where two have been noted. */
static void within_a_mapping(void) {
    uint32_t number, one, two;
    REQUIRE(gs_reserve(&lines[0], 2) && gs_block_add(1, &gs_gpus[0], 1) && gs_block_add(2, &gs_gpus[0], 1));
    REQUIRE(gs_block_find(1, &one, true) && gs_mapping_add(0x10000, one, 2 * GS_UNIT_BYTES));
    REQUIRE(gs_mapping_find(0x10000 + 2 * GS_UNIT_BYTES - 1, &number) && number == one);
    REQUIRE(!gs_mapping_find(0x10000 + 2 * GS_UNIT_BYTES, &number) && block_at(one)->holds == 3);
    REQUIRE(gs_block_find(2, &two, true) && gs_mapping_add(0x10000 + GS_UNIT_BYTES / 2, two, 2 * GS_UNIT_BYTES));
    REQUIRE(gs_mapping_find(0x10000 + GS_UNIT_BYTES, &number) && block_at(one)->holds + block_at(two)->holds == 6);
    at_fork();
    gs_release(&lines[0], 2);
}

/* A number or an address that is given out again ends what had it before. */
static void given_out_again(void) {
    uint32_t number;
    bool last;
    REQUIRE(gs_reserve(&lines[0], 30) && gs_block_add(77, &gs_gpus[0], 10) && gs_block_add(77, &gs_gpus[0], 20));
    REQUIRE(used_on(0) == 20);
    REQUIRE(gs_block_find(77, &number, true) && gs_mapping_add(0x9000, number, 1));
    REQUIRE(gs_block_find(77, &number, true) && gs_mapping_add(0x9000, number, 1));
    REQUIRE(block_at(number)->holds == 2);
    REQUIRE(gs_block_release(77, &number, &last) && last);
    gs_block_let_go(number);
    REQUIRE(used_on(0) == 20 && gs_mapping_take(0x9000, &number));
    gs_block_let_go(number);
    REQUIRE(used_on(0) == 0);
}

/* A multicast object holds what is bound to it, by range and device, and lets go of it at its end. */
static void bindings_end(void) {
    static const struct {
        int device;
        uint64_t offset, size;
        bool ends[3];
    } of[] = {
        {-1, 0, 100, {true, true, true}},    {-1, 0, UINT64_MAX, {true, true, true}},
        {0, 0, 100, {true, false, true}},    {1, 0, 100, {false, true, false}},
        {-1, 0, 10, {true, false, false}},   {-1, 0, 9, {false, false, false}},
        {-1, 1, 99, {false, true, true}},    {-1, 10, 20, {false, true, false}},
        {-1, 10, 19, {false, false, false}}, {-1, 30, 70, {false, false, true}},
        {-1, 100, 5, {false, false, false}}, {5, 0, 100, {false, false, false}},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        uint32_t object, other, numbers[3];
        bool last;
        REQUIRE(gs_block_add(1, &gs_gpus[0], 0) && gs_block_add(2, &gs_gpus[0], 0));
        lines[0].multicast = 2;
        REQUIRE(gs_block_find(1, &object, false) && gs_block_find(2, &other, false));
        for (int at = 0; at < 3; at++) {
            REQUIRE(gs_reserve(&lines[at % 2], 7) && gs_block_add(10 + (uint64_t)at, &gs_gpus[at % 2], 7));
            REQUIRE(gs_block_find(10 + (uint64_t)at, &numbers[at], true));
            static const uint64_t ranges[3][2] = {{0, 10}, {10, 20}, {30, 70}};
            gs_binding_add(object, numbers[at], ranges[at][0], ranges[at][1]);
            REQUIRE(gs_block_release(10 + (uint64_t)at, &numbers[at], &last) && last);
            gs_block_let_go(numbers[at]);
        }
        REQUIRE(used_on(0) == 14 && used_on(1) == 7);
        gs_bindings_end(other, -1, 0, UINT64_MAX);
        REQUIRE(used_on(0) == 14 && used_on(1) == 7);
        gs_bindings_end(object, of[i].device, of[i].offset, of[i].size);
        REQUIRE(used_on(0) == 7u * (!of[i].ends[0] + !of[i].ends[2]) && used_on(1) == 7u * !of[i].ends[1]);
        REQUIRE(gs_block_release(1, &object, &last) && last);
        gs_block_let_go(object);
        REQUIRE(used_on(0) == 0 && used_on(1) == 0 && lines[0].multicast == 1);
        REQUIRE(gs_block_release(2, &other, &last) && last);
        gs_block_let_go(other);
        REQUIRE(lines[0].multicast == 0);
    }
    REQUIRE(binding_count <= 3); /* places are used again */
    uint32_t number;
    REQUIRE(gs_reserve(&lines[0], 1) && gs_block_add(77, &gs_gpus[0], 1) && gs_block_find(77, &number, true));
    REQUIRE(gs_mapping_add(4096, number, 2 * GS_UNIT_BYTES) && gs_mapping_find(4096, &number));
    gs_binding_add(number, number, 0, 1);
    bindings_lock.held = 1;
    at_fork(); /* all of it is the parent's */
    REQUIRE(!gs_mapping_find(4096, &number) && !gs_block_find(77, &number, false) && bindings_lock.held == 0);
    REQUIRE(bindings[0].used == 0 && gs_mapping_add(4096, 0, 1) && gs_mapping_take(4096, &number));
    gs_release(&lines[0], 1);
    REQUIRE(binding_count == 0 && chunk_count == 0 && chunks[0] == NULL && free_lists[0].left == 0);
}

/* Without memory, and where all numbers are given out, a handle is not noted. */
static void no_room(void) {
    uint32_t number;
    no_pages = true;
    REQUIRE(!gs_block_add(1, &gs_gpus[0], 1) && !gs_block_find(1, &number, false) && chunk_count == 0);
    no_pages = false;
    chunk_count = MAX_CHUNKS - 1;
    REQUIRE(gs_block_add(1, &gs_gpus[0], 1) && gs_block_find(1, &number, false));
    REQUIRE(number == (MAX_CHUNKS - 1) * CHUNK_BLOCKS);
    free_lists[block_at(number)->list].left = 0;
    REQUIRE(!gs_block_add(2, &gs_gpus[0], 1) && !gs_block_find(2, &number, false));
    at_fork();
    REQUIRE(gs_block_add(1, &gs_gpus[0], 1)); /* there are blocks, and then no memory for the table of handles */
    no_pages = true;
    int refused = 0;
    for (uint64_t handle = 2; handle < 500; handle++) {
        bool added = gs_block_add(handle, &gs_gpus[0], 1);
        REQUIRE(added == gs_block_find(handle, &number, false));
        refused += !added;
    }
    REQUIRE(refused > 400);
    no_pages = false;
    at_fork();
}

/* A binding ends once: the number of its block may be another's by the second time. */
static void a_binding_ends_once(void) {
    uint32_t object, number;
    bool last;
    REQUIRE(gs_reserve(&lines[0], 3) && gs_block_add(1, &gs_gpus[0], 0) && gs_block_find(1, &object, false));
    REQUIRE(gs_block_add(2, &gs_gpus[0], 1) && gs_block_find(2, &number, true));
    gs_binding_add(object, number, 60, 2);
    REQUIRE(gs_block_release(2, &number, &last) && last);
    gs_block_let_go(number);
    gs_bindings_end(object, -1, 61, UINT64_MAX); /* it begins before this range, */
    gs_bindings_end(object, -1, 65, UINT64_MAX); /* and before this one */
    gs_bindings_end(object, -1, 50, 11);         /* and ends behind this one */
    REQUIRE(used_on(0) == 3);
    gs_bindings_end(object, -1, 50, 12);
    REQUIRE(used_on(0) == 2 && gs_block_add(3, &gs_gpus[0], 2));
    REQUIRE(gs_block_find(3, &object, true) && object == number && gs_block_find(1, &object, false));
    gs_bindings_end(object, -1, 50, 12);
    REQUIRE(block_at(number)->holds == 2 && used_on(0) == 2);
    gs_release(&lines[0], 2);
    at_fork();
}

/* There is room for so many bindings. A block that is bound beyond them stays held. */
static void many_bindings(void) {
    uint32_t object, number, beyond;
    bool last;
    REQUIRE(gs_reserve(&lines[0], 8) && gs_block_add(1, &gs_gpus[0], 0) && gs_block_find(1, &object, false));
    REQUIRE(gs_block_add(2, &gs_gpus[0], 3) && gs_block_add(3, &gs_gpus[0], 5));
    for (int i = 0; i < MOST_BINDINGS; i++) {
        REQUIRE(gs_block_find(2, &number, true));
        gs_binding_add(object, number, 0, 1);
    }
    REQUIRE(gs_block_find(3, &beyond, true));
    gs_binding_add(object, beyond, 0, 1);
    for (uint64_t handle = 2; handle <= 3; handle++) {
        REQUIRE(gs_block_release(handle, &number, &last) && last);
        gs_block_let_go(number);
    }
    gs_bindings_end(object, -1, 0, 1);
    REQUIRE(used_on(0) == 5);
    gs_block_let_go(beyond);
    REQUIRE(used_on(0) == 0);
    at_fork();
}

/* More blocks than a chunk has, each with a number of its own, which is used again. */
static void many_blocks(void) {
    uint32_t number;
    bool last;
    for (int round = 0; round < 2; round++) {
        static bool seen[4 * CHUNK_BLOCKS];
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < 3 * CHUNK_BLOCKS; i++) {
            REQUIRE(gs_reserve(&lines[0], 1) && gs_block_add(i + 1, &gs_gpus[0], 1) &&
                    gs_block_find(i + 1, &number, false));
            REQUIRE(number < 3 * CHUNK_BLOCKS && !seen[number]);
            seen[number] = true;
        }
        REQUIRE(chunk_count == 3 && used_on(0) == 3 * CHUNK_BLOCKS);
        for (uint64_t i = 0; i < 3 * CHUNK_BLOCKS; i++) {
            REQUIRE(gs_block_release(i + 1, &number, &last) && last);
            gs_block_let_go(number);
        }
        REQUIRE(used_on(0) == 0);
    }
}

int main(void) {
    open_bank();
    set_unused(0, 1u << 30);
    set_unused(1, 1u << 30);
    random_lives();
    mappings_on();
    within_a_mapping();
    given_out_again();
    bindings_end();
    no_room();
    a_binding_ends_once();
    many_bindings();
    many_blocks();
    return good();
}
