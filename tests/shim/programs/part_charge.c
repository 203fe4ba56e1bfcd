/* part_charge.c: the rare cases of reservations and entries. */
#include "part_bank.h"

#include "charge.c"
#include "table.c"

static uint32_t failed, failed_again, left, left_units;
static bool again = true;

bool gs_account_driver_failed(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu == &gs_gpus[1] && units == 5);
    failed++;
    return again;
}

void gs_account_driver_failed_again(struct gs_gpu *gpu, uint32_t units) {
    REQUIRE(gpu == &gs_gpus[1] && units == 5);
    failed_again++;
}

struct gs_pool *gs_pool_numbered(uint32_t number) {
    REQUIRE(number == 3);
    return NULL;
}

void gs_pool_leave(struct gs_pool *pool, uint32_t units) {
    (void)pool;
    left++;
    left_units = units;
}

bool gs_place_context(struct gs_place *place, CUcontext context) {
    (void)place, (void)context;
    return false;
}

bool gs_place_attach(struct gs_gpu *gpu) {
    (void)gpu;
    return false;
}

/* A driver without memory is told to the daemon, once before the call is tried again and once after. */
static void out_of_memory(void) {
    struct gs_charge charge = {.place = {&gs_gpus[1], 0}, .units = 5};
    REQUIRE(!gs_charge_again(&charge, CUDA_SUCCESS) && !gs_charge_again(&charge, CUDA_ERROR_UNKNOWN));
    REQUIRE(failed == 0 && !charge.retried);
    REQUIRE(gs_charge_again(&charge, CUDA_ERROR_OUT_OF_MEMORY) && failed == 1 && failed_again == 0);
    REQUIRE(!gs_charge_again(&charge, CUDA_ERROR_OUT_OF_MEMORY) && failed == 1 && failed_again == 1);
    again = false;
    charge.retried = false;
    REQUIRE(!gs_charge_again(&charge, CUDA_ERROR_OUT_OF_MEMORY) && failed == 2 && failed_again == 1);
    charge = (struct gs_charge){.place = {NULL, 0}, .units = 5};
    REQUIRE(!gs_charge_again(&charge, CUDA_ERROR_OUT_OF_MEMORY) && !gs_charge_again(&charge, CUDA_ERROR_OUT_OF_MEMORY));
    REQUIRE(failed == 2 && failed_again == 1);
}

static struct gs_charge taken(int gpu, uint64_t bytes) {
    struct gs_charge charge = {.place = {&gs_gpus[gpu], 21}};
    REQUIRE(gs_charge_here(&charge, bytes));
    return charge;
}

/* What the driver says afterwards is charged: more is asked for, less is given back. */
static void corrected(void) {
    set_unused(0, 100);
    struct gs_charge charge = taken(0, 50 * GS_UNIT_BYTES);
    REQUIRE(charge.units == 50 && used_on(0) == 50);
    uint32_t releases = lines[0].releases;
    REQUIRE(gs_charge_correct(&charge, 50 * GS_UNIT_BYTES) && used_on(0) == 50 && lines[0].releases == releases);
    REQUIRE(gs_charge_correct(&charge, 80 * GS_UNIT_BYTES) && charge.units == 80 && used_on(0) == 80);
    REQUIRE(gs_charge_correct(&charge, 30 * GS_UNIT_BYTES - 1) && charge.units == 30 && used_on(0) == 30);
    bank = (struct bank){0};
    REQUIRE(!gs_charge_correct(&charge, 131 * GS_UNIT_BYTES) && charge.units == 30 && used_on(0) == 30);
    REQUIRE(bank.asks == 1 && bank.units == 101);
    REQUIRE(!gs_charge_taken(&charge, CUDA_ERROR_UNKNOWN) && used_on(0) == 0);
    charge = (struct gs_charge){.place = {NULL, 0}};
    REQUIRE(gs_charge_here(&charge, 1 << 20) && gs_charge_correct(&charge, 1 << 21));
    REQUIRE(!gs_charge_taken(&charge, CUDA_SUCCESS) && !gs_charge_taken(&charge, CUDA_ERROR_UNKNOWN));
    gs_charge_undo(&charge);
    REQUIRE(used_on(0) == 0);
}

static void note(int gpu, uint64_t key, uint32_t units, enum gs_kind_of_memory kind, uint32_t context) {
    struct gs_charge charge = taken(gpu, (uint64_t)units * GS_UNIT_BYTES);
    charge.place.context = context;
    REQUIRE(gs_charge_taken(&charge, CUDA_SUCCESS) && gs_charge_note(&charge, &gs_pointers, key, kind));
}

static CUresult give(uint64_t key, CUresult result) {
    struct gs_entry entry;
    REQUIRE(gs_table_take(&gs_pointers, key, &entry) && entry.key == key);
    return gs_entry_released(&gs_pointers, &entry, result);
}

/* Memory is noted and given back; managed memory is counted; an address that comes again ends what had it. */
static void noted(void) {
    set_unused(0, 1000);
    set_unused(1, 1000);
    note(0, 0x1000, 10, GS_LINEAR, 1);
    note(1, 0x2000, 20, GS_MANAGED, 1);
    note(1, 0x3000, 30, GS_MANAGED, 2);
    REQUIRE(used_on(0) == 10 && used_on(1) == 50 && lines[1].managed == 2 && lines[0].managed == 0);
    note(0, 0x3000, 5, GS_LINEAR, 1);
    REQUIRE(used_on(0) == 15 && used_on(1) == 20 && lines[1].managed == 1);
    note(1, 0x1000, 7, GS_MANAGED, 2);
    REQUIRE(used_on(0) == 5 && used_on(1) == 27 && lines[1].managed == 2);
    REQUIRE(give(0x1000, CUDA_ERROR_UNKNOWN) == CUDA_ERROR_UNKNOWN && used_on(1) == 27 && lines[1].managed == 2);
    REQUIRE(give(0x1000, CUDA_SUCCESS) == CUDA_SUCCESS && used_on(1) == 20 && lines[1].managed == 1);
    note(0, 0, 3, GS_LINEAR, 1); /* no driver gives that out; if one did, it would stay charged */
    REQUIRE(used_on(0) == 8 && !gs_table_take(&gs_pointers, 0, (struct gs_entry[1]){{0}}));
    gs_release(&lines[0], 3);
}

/* A context that ends takes its memory along, and no other's. */
static void contexts(void) {
    note(0, 0x4000, 40, GS_LINEAR, 2);
    note(0, 0x5000, 50, GS_ARRAY, 1);
    gs_charge_context_gone(&gs_pointers, 7);
    REQUIRE(used_on(0) == 95 && used_on(1) == 20);
    gs_charge_context_gone(&gs_pointers, 1);
    REQUIRE(used_on(0) == 40 && used_on(1) == 0 && lines[1].managed == 0);
    gs_charge_context_gone(&gs_pointers, 2);
    REQUIRE(used_on(0) == 0);
}

/* What could not be freed has been freed by another thread, and its address is another's now. */
static void put_back(void) {
    struct gs_entry entry;
    note(0, 0x6000, 60, GS_LINEAR, 1);
    REQUIRE(gs_table_take(&gs_pointers, 0x6000, &entry));
    note(0, 0x6000, 9, GS_LINEAR, 1);
    REQUIRE(gs_entry_released(&gs_pointers, &entry, CUDA_ERROR_INVALID_VALUE) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(used_on(0) == 9 && gs_table_take(&gs_pointers, 0x6000, &entry) && entry.units == 9);
    gs_entry_freed(&entry);
    REQUIRE(used_on(0) == 0);
    struct gs_entry pooled = {.key = 0x7000, .units = 12, .detail = 3, .kind = GS_POOLED};
    gs_entry_freed(&pooled);
    REQUIRE(left == 1 && left_units == 12 && used_on(0) == 0);
    gs_unknown_freed(0);
    REQUIRE(gs_unknown_frees == 0);
    gs_unknown_freed(1);
    gs_unknown_freed(0x6000);
    REQUIRE(gs_unknown_frees == 2);
}

/* More than half a block counts as blocks; of any size. */
static void sizes(void) {
    static const uint64_t of[][2] = {{0, 0},
                                     {1, 1},
                                     {(1 << 20) - 1, (1 << 20) - 1},
                                     {1 << 20, 1 << 20},
                                     {(1 << 20) + 1, 2 << 20},
                                     {2 << 20, 2 << 20},
                                     {(2 << 20) + 1, 4 << 20},
                                     {UINT64_MAX, UINT64_MAX},
                                     {UINT64_MAX - (2 << 20), UINT64_MAX - (2 << 20) + 1},
                                     {UINT64_MAX - (2 << 20) + 1, UINT64_MAX - (2 << 20) + 1}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        REQUIRE(gs_packed(of[i][0]) == of[i][1]);
    REQUIRE(gs_units(UINT64_MAX) == UINT32_MAX && gs_units(0) == 0 && gs_units(1) == 1 && gs_units(512) == 1);
    REQUIRE(gs_units(513) == 2 && gs_units((1ull << 41) - 512) == UINT32_MAX &&
            gs_units((1ull << 41) - 1024) == UINT32_MAX - 1);
}

int main(void) {
    open_bank();
    out_of_memory();
    corrected();
    noted();
    contexts();
    put_back();
    sizes();
    note(0, 0x8000, 1, GS_LINEAR, 1);
    at_fork();
    REQUIRE(gs_unknown_frees == 0 && !gs_table_take(&gs_pointers, 0x8000, (struct gs_entry[1]){{0}}));
    return good();
}
