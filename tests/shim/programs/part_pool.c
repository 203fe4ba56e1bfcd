/* part_pool.c: the account of the pools beside a driver whose pools keep, grow and shrink as they like. */
#include "part_bank.h"

/* What another thread does right before the next exchange of a word, once. */
static void (*before_exchange)(void);

static void meet_another(void) {
    void (*other)(void) = before_exchange;
    before_exchange = NULL;
    if (other != NULL)
        other();
}

#define __atomic_compare_exchange_n(...) (meet_another(), __atomic_compare_exchange_n(__VA_ARGS__))
#include "pool.c"

#define POOLS 6

/* What the driver knows of a pool; its handle is its address. */
static struct real {
    uint64_t reserved;           /* bytes */
    uint64_t at_second_question; /* what it is from then on; 0: the same */
    CUresult says;
    uint32_t questions, trims;
    int64_t trim_leaves;     /* bytes; -1: it keeps everything */
    bool fails_when_trimmed; /* from then on it cannot be asked */
    bool ended;              /* no question about it is allowed */
    void (*meanwhile)(void); /* what another thread does while it is asked the next time */
} real[POOLS];

static CUmemoryPool handle_of(int i) {
    return (CUmemoryPool)&real[i];
}

static CUresult attribute(CUmemoryPool handle, CUmemPool_attribute which, void *value) {
    struct real *one = (struct real *)handle;
    REQUIRE(which == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT && !one->ended && relaxed % 2 == 1);
    if (one->questions++ == 1 && one->at_second_question != 0)
        one->reserved = one->at_second_question;
    if (one->says == CUDA_SUCCESS)
        *(uint64_t *)value = one->reserved;
    void (*meanwhile)(void) = one->meanwhile;
    one->meanwhile = NULL;
    if (meanwhile != NULL)
        meanwhile();
    return one->says;
}

static CUresult trim_to(CUmemoryPool handle, size_t keep) {
    struct real *one = (struct real *)handle;
    REQUIRE(keep == 0 && !one->ended && relaxed % 2 == 1);
    one->trims++;
    if (one->fails_when_trimmed)
        one->says = CUDA_ERROR_UNKNOWN;
    if (one->trim_leaves >= 0)
        one->reserved = (uint64_t)one->trim_leaves;
    return CUDA_SUCCESS;
}

static int devices = 2;
static CUresult count_says;
static CUmemoryPool defaults[2], currents[2];
static uint32_t current_questions;
static bool chosen_meanwhile;

static CUresult device_count(int *count) {
    *count = devices;
    return count_says;
}

static CUresult default_pool(CUmemoryPool *pool, CUdevice device) {
    *pool = defaults[device];
    return defaults[device] != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult current_pool(CUmemoryPool *pool, CUdevice device) {
    current_questions++;
    *pool = currents[device] != NULL ? currents[device] : handle_of(5); /* of no use, with an error */
    if (chosen_meanwhile)
        gs_pool_chosen();
    return currents[device] != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

struct gs_gpu *gs_gpu_of(CUdevice device) {
    return device >= 0 && device < 2 ? &gs_gpus[device] : NULL;
}

static struct gs_gpu *here;
static bool attaches = true;
static CUcontext current_handle;
static CUresult current_context(CUcontext *context) {
    *context = current_handle;
    return CUDA_SUCCESS;
}

bool gs_place_context(struct gs_place *place, CUcontext context) {
    (void)context;
    *place = (struct gs_place){here, 0};
    return attaches;
}

bool gs_place_attach(struct gs_gpu *gpu) {
    (void)gpu;
    return attaches;
}

static void truth(int i, uint32_t units) {
    real[i].reserved = (uint64_t)units * GS_UNIT_BYTES;
}

static uint32_t live_of(const struct gs_pool *pool) {
    return live_in(word_of(pool));
}

static uint32_t charged_of(const struct gs_pool *pool) {
    return charged_in(word_of(pool));
}

/* All pools end, and nothing is left of them. */
static void end(void) {
    for (int i = 0; i < POOLS; i++) {
        struct gs_pool *pool = gs_pool_find(handle_of(i));
        if (pool == NULL)
            continue;
        gs_pool_begin_to_destroy(pool);
        real[i].ended = true;
        gs_pool_end_destroying(pool, true);
        gs_pool_leave(pool, live_of(pool));
        REQUIRE(pool->state == GS_POOL_UNUSED && pool->handle == NULL && live_of(pool) == 0 && charged_of(pool) == 0);
    }
    memset(real, 0, sizeof real);
    bank = (struct bank){0};
    REQUIRE(used_on(0) == 0 && used_on(1) == 0);
    set_unused(0, 0);
    set_unused(1, 0);
}

/* ---- the list ------------------------------------------------------------------------------------- */

static void the_list(void) {
    REQUIRE(gs_account_squeeze[GS_SQUEEZE_POOLS] == NULL && gs_pool_find(handle_of(0)) == NULL);
    struct gs_pool *one = gs_pool_add(handle_of(0), &gs_gpus[0]), *two = gs_pool_add(handle_of(1), &gs_gpus[1]);
    REQUIRE(gs_account_squeeze[GS_SQUEEZE_POOLS] == squeeze && count() == 2);
    REQUIRE(one != two && one->gpu == &gs_gpus[0] && two->gpu == &gs_gpus[1] && one->state == GS_POOL_ALIVE);
    REQUIRE(gs_pool_add(handle_of(0), &gs_gpus[1]) == one && one->gpu == &gs_gpus[0] && count() == 2);
    REQUIRE(gs_pool_find(handle_of(0)) == one && gs_pool_find(handle_of(1)) == two);
    REQUIRE(gs_pool_numbered(gs_pool_number(two)) == two && gs_pool_number(one) == 0 && gs_pool_number(two) == 1);
    gs_pool_begin_to_destroy(one);
    REQUIRE(gs_pool_find(handle_of(0)) == NULL);
    gs_pool_end_destroying(one, false); /* the driver did not */
    REQUIRE(gs_pool_find(handle_of(0)) == one);
    gs_pool_begin_to_destroy(one);
    gs_pool_end_destroying(one, true);
    REQUIRE(gs_pool_find(handle_of(0)) == NULL && gs_pool_add(handle_of(2), NULL) == one && one->gpu == NULL);
    REQUIRE(count() == 2);
    end();
    for (int i = 0; i < MAX_POOLS; i++)
        REQUIRE(gs_pool_add((CUmemoryPool)(uintptr_t)(i + 1), NULL) == &pools[i]);
    REQUIRE(gs_pool_add((CUmemoryPool)(uintptr_t)5000, NULL) == NULL && count() == MAX_POOLS);
    gs_pool_correct_all(); /* with a full list nothing beyond it is looked at */
    squeeze(&gs_gpus[0], true);
    gs_pool_was_reset(&gs_gpus[0]);
    REQUIRE(gs_pool_find((CUmemoryPool)(uintptr_t)5000) == NULL);
    at_fork();
    REQUIRE(count() == 0 && gs_pool_find((CUmemoryPool)(uintptr_t)1) == NULL);
}

/* Which GPU a pool is of. */
static void whose(void) {
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}, host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    REQUIRE(gs_pool_place(&device, CU_MEM_ALLOCATION_TYPE_PINNED) == &gs_gpus[1]);
    device.id = 0; /* also GPU 0 */
    REQUIRE(gs_pool_place(&device, CU_MEM_ALLOCATION_TYPE_PINNED) == &gs_gpus[0]);
    REQUIRE(gs_pool_place(&host, CU_MEM_ALLOCATION_TYPE_PINNED) == NULL);
    current_handle = (CUcontext)(uintptr_t)16; /* managed memory: the GPU of the thread, or else the first */
    here = &gs_gpus[1];
    REQUIRE(gs_pool_place(&host, CU_MEM_ALLOCATION_TYPE_MANAGED) == &gs_gpus[1]);
    attaches = false;
    REQUIRE(gs_pool_place(&host, CU_MEM_ALLOCATION_TYPE_MANAGED) == &gs_gpus[0]);
    attaches = true;
    here = NULL;
    REQUIRE(gs_pool_place(&host, CU_MEM_ALLOCATION_TYPE_MANAGED) == &gs_gpus[0]);
    current_handle = NULL;
    REQUIRE(gs_pool_place(&host, CU_MEM_ALLOCATION_TYPE_MANAGED) == &gs_gpus[0]);

    defaults[0] = handle_of(0);
    defaults[1] = handle_of(1); /* a default pool is found by its device, another one is nobody's */
    REQUIRE(gs_pool_of(handle_of(1))->gpu == &gs_gpus[1] && gs_pool_of(handle_of(0))->gpu == &gs_gpus[0]);
    REQUIRE(gs_pool_of(handle_of(2))->gpu == NULL);
    end();
    defaults[0] = NULL; /* a device without one */
    REQUIRE(gs_pool_of(handle_of(1))->gpu == &gs_gpus[1]);
    end();
    count_says = CUDA_ERROR_UNKNOWN;
    REQUIRE(gs_pool_of(handle_of(1))->gpu == NULL);
    count_says = CUDA_SUCCESS;
    end();
    devices = 1;
    REQUIRE(gs_pool_of(handle_of(1))->gpu == NULL);
    devices = 2;
    end();
}

/* A device's current pool is asked for once, until another may have been chosen, also in that moment. */
static void current_ones(void) {
    REQUIRE(gs_pool_current(0) == NULL && gs_pool_current(0) == NULL && current_questions == 2);
    currents[0] = handle_of(0);
    currents[1] = handle_of(1);
    for (int i = 0; i < 3; i++)
        REQUIRE(gs_pool_current(0) == handle_of(0) && gs_pool_current(1) == handle_of(1) && current_questions == 4);
    currents[0] = currents[1] = handle_of(2);
    gs_pool_chosen();
    REQUIRE(gs_pool_current(0) == handle_of(2) && gs_pool_current(1) == handle_of(2) && current_questions == 6);
    gs_pool_chosen();
    chosen_meanwhile = true;
    REQUIRE(gs_pool_current(1) == handle_of(2) && gs_pool_current(1) == handle_of(2) && current_questions == 8);
    chosen_meanwhile = false;
    REQUIRE(gs_pool_current(1) == handle_of(2) && gs_pool_current(1) == handle_of(2) && current_questions == 9);
    at_fork();
    REQUIRE(gs_pool_current(1) == handle_of(2) && current_questions == 10);
    gs_pool_chosen();
}

/* ---- the account ---------------------------------------------------------------------------------- */

/* An allocation costs what does not fit into what is charged; its end costs nothing until the pool is corrected. */
static void allocations(void) {
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
    set_unused(0, 100);
    REQUIRE(gs_pool_enter(pool, 60) && live_of(pool) == 60 && charged_of(pool) == 60 && used_on(0) == 60);
    truth(0, 90);
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 90 && used_on(0) == 90);
    uint32_t releases = lines[0].releases;
    REQUIRE(gs_pool_enter(pool, 30) && live_of(pool) == 90 && used_on(0) == 90);
    real[0].questions = 0;
    REQUIRE(gs_pool_correct_asking(pool) && lines[0].releases == releases && real[0].trims == 0);
    REQUIRE(real[0].questions == 1);
    pool->over = true; /* one that was marked is looked at in any case */
    REQUIRE(gs_pool_correct_asking(pool) && !pool->over);
    REQUIRE(!gs_pool_enter(pool, 11) && bank.asks == 1 && bank.units == 11 && used_on(0) == 90);
    REQUIRE(gs_pool_enter(pool, 10) && live_of(pool) == 100 && charged_of(pool) == 100 && bank.asks == 1);
    truth(0, 60); /* never less than what is live */
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 100);
    gs_pool_leave(pool, 70);
    REQUIRE(live_of(pool) == 30 && charged_of(pool) == 100 && used_on(0) == 100);
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 60 && used_on(0) == 60);
    gs_pool_leave(pool, 999); /* more than there is: nothing is left, and no number below it */
    REQUIRE(live_of(pool) == 0 && charged_of(pool) == 60);
    REQUIRE(gs_pool_correct_asking(pool) && charged_of(pool) == 60);
    REQUIRE(!gs_pool_enter(pool, UINT32_MAX) && live_of(pool) == 0 && used_on(0) == 60);
    bank.grants = -1;
    uint64_t word = pool->word;
    pool->word = (uint64_t)UINT32_MAX << 32 | UINT32_MAX; /* what fits into no word is not asked for */
    uint32_t asks = bank.asks;
    REQUIRE(!gs_pool_enter(pool, 1) && bank.asks == asks);
    pool->word = word;
    end();
}

static void grown_meanwhile(void) {
    struct gs_pool *pool = gs_pool_find(handle_of(0));
    bank.meanwhile = NULL;
    pool->word += 25; /* another thread has corrected the pool, which had grown */
    REQUIRE(gs_reserve(&lines[0], 0));
    gs_grant(&lines[0], 25);
    REQUIRE(gs_reserve(&lines[0], 25));
}

static void taken_meanwhile(void) {
    struct gs_pool *pool = gs_pool_find(handle_of(0));
    bank.meanwhile = NULL;
    pool->word += 15ull << 32; /* and here it has allocated what was charged */
}

/* While credit is asked for, the pool changes: no more is kept than is needed, and what is missing is asked for. */
static void meanwhile(void) {
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
    bank = (struct bank){.grants = -1, .meanwhile = grown_meanwhile};
    REQUIRE(gs_pool_enter(pool, 40) && bank.asks == 1 && live_of(pool) == 40 && charged_of(pool) == 40);
    REQUIRE(used_on(0) == 40);
    gs_pool_leave(pool, 20);
    set_unused(0, 0);
    bank = (struct bank){.grants = -1, .meanwhile = taken_meanwhile};
    REQUIRE(gs_pool_enter(pool, 30) && bank.asks == 2 && bank.units == 15);
    REQUIRE(live_of(pool) == 65 && charged_of(pool) == 65 && used_on(0) == 65);
    gs_pool_leave(pool, 30);
    set_unused(0, 0);
    bank = (struct bank){.grants = 1, .meanwhile = taken_meanwhile}; /* the second time it is refused */
    REQUIRE(!gs_pool_enter(pool, 40) && bank.asks == 2 && used_on(0) == 65 && live_of(pool) == 50);
    set_unused(0, 0);
    bank = (struct bank){.grants = 1, .meanwhile = taken_meanwhile}; /* the same with one unit that was lacking */
    REQUIRE(!gs_pool_enter(pool, 16) && bank.asks == 2 && used_on(0) == 65 && live_of(pool) == 65);
    end();
}

static void another_enters(void) {
    REQUIRE(gs_pool_enter(gs_pool_find(handle_of(0)), 7));
}

/* Two threads at the same moment: what both take, give back and correct is counted. */
static void two_at_once(void) {
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
    set_unused(0, 100);
    before_exchange = another_enters;
    REQUIRE(gs_pool_enter(pool, 30) && live_of(pool) == 37 && charged_of(pool) == 37 && used_on(0) == 37);
    before_exchange = another_enters;
    gs_pool_leave(pool, 30);
    REQUIRE(live_of(pool) == 14 && charged_of(pool) == 44);
    truth(0, 5);
    before_exchange = another_enters;
    REQUIRE(gs_pool_correct(pool) == 0 && live_of(pool) == 21 && charged_of(pool) == 21 && used_on(0) == 21);
    truth(0, 21);
    before_exchange = another_enters;
    gs_pool_was_reset(&gs_gpus[0]); /* it has freed nothing */
    REQUIRE(live_of(pool) == 21 && before_exchange == another_enters);
    truth(0, 6);
    gs_pool_was_reset(&gs_gpus[0]);
    REQUIRE(live_of(pool) == 6 && charged_of(pool) == 6 && used_on(0) == 6);
    end();
}

/* While it is told that there is less, the pool grows again: that stays charged. */
static void grows_again(void) {
    static const struct {
        uint32_t first, second, charged;
    } of[] = {{40, 0, 40}, {40, 70, 70}, {40, 100, 100}, {40, 140, 140}, {40, 20, 40}, {40, 40, 40}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
        set_unused(0, 200);
        truth(0, 100);
        REQUIRE(gs_pool_correct(pool) == 0 && used_on(0) == 100);
        truth(0, of[i].first);
        real[0].questions = 0;
        real[0].at_second_question = (uint64_t)of[i].second * GS_UNIT_BYTES;
        REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == (of[i].charged < 100 ? of[i].charged : 100));
        REQUIRE(used_on(0) == charged_of(pool));
        REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == (of[i].second == 20 ? 20 : of[i].charged));
        REQUIRE(used_on(0) == charged_of(pool));
        end();
    }
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
    set_unused(0, 200); /* once only: what it has taken beyond that is there at the next look */
    truth(0, 100);
    gs_pool_correct(pool);
    truth(0, 40);
    real[0].questions = 0;
    real[0].at_second_question = 140ull * GS_UNIT_BYTES;
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 100 && used_on(0) == 100);
    end();
}

static void another_takes_some(void) {
    REQUIRE(gs_pool_enter(gs_pool_find(handle_of(0)), 80));
}

/* It grows for another allocation between question and answer: what that one has paid for is not charged again. */
static void grows_while_it_is_asked(void) {
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
    set_unused(0, 500);
    truth(0, 120);
    real[0].meanwhile = another_takes_some;
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 120 && used_on(0) == 120);
    end();
}

/* What the pool has beyond the credit is asked for. Refused, it is marked, trimmed, and never charged unseen. */
static void beyond_the_credit(void) {
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
    set_unused(0, 50);
    REQUIRE(gs_pool_enter(pool, 50));
    truth(0, 120);
    real[0].trim_leaves = -1;
    REQUIRE(gs_pool_correct(pool) == 70 && charged_of(pool) == 50 && real[0].trims == 0);
    bank = (struct bank){.grants = 1};
    REQUIRE(gs_pool_correct_asking(pool) && bank.asks == 1 && bank.units == 70 && charged_of(pool) == 120);
    REQUIRE(used_on(0) == 120 && real[0].trims == 0);
    truth(0, 150);
    bank = (struct bank){0};
    REQUIRE(!gs_pool_correct_asking(pool) && bank.asks == 1 && charged_of(pool) == 120 && used_on(0) == 120);
    real[0].trim_leaves = 120 * GS_UNIT_BYTES;
    REQUIRE(gs_pool_undo_growth(pool) && real[0].trims == 1 && charged_of(pool) == 120 && pool->over == 0);
    REQUIRE(!gs_pool_undo_growth(pool) && pool->over == 0); /* there is nothing to undo any more */
    truth(0, 170);
    real[0].trim_leaves = -1;
    REQUIRE(!gs_pool_undo_growth(pool) && pool->over == 1 && charged_of(pool) == 120);
    REQUIRE(!is_correct(pool));
    real[0].trim_leaves = 90 * GS_UNIT_BYTES; /* marked, it is trimmed at the next look */
    gs_pool_leave(pool, 50);
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 90 && used_on(0) == 90 && pool->over == 0);
    real[0].says = CUDA_ERROR_UNKNOWN; /* a pool that cannot be asked stays as it is */
    truth(0, 10);
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 90 && !gs_pool_undo_growth(pool));
    real[0].says = CUDA_SUCCESS;
    truth(0, 95); /* marked, it is trimmed, and what that has left nobody knows: it stays charged */
    real[0].fails_when_trimmed = true;
    real[0].trims = 0;
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 90 && real[0].trims == 1);
    truth(0, 90); /* one that has not grown keeps what it has */
    real[0].fails_when_trimmed = false;
    real[0].says = CUDA_SUCCESS;
    pool->over = true;
    REQUIRE(gs_pool_correct(pool) == 0 && charged_of(pool) == 90 && real[0].trims == 1 && !pool->over);
    real[0].says = CUDA_SUCCESS;
    end();
}

static void grows_more(void) {
    real[0].reserved += 10 * GS_UNIT_BYTES;
}

static void frees(void) {
    truth(0, 20);
}

/* A pool that grows at each look is followed a few times. One that shrinks while it is refused is good. */
static void races(void) {
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
    real[0].trim_leaves = -1;
    truth(0, 30);
    bank = (struct bank){.grants = -1, .meanwhile = grows_more};
    REQUIRE(!gs_pool_correct_asking(pool) && bank.asks == 4);
    bank = (struct bank){.grants = -1};
    REQUIRE(gs_pool_correct_asking(pool) && charged_of(pool) == used_on(0) && used_on(0) == 70);
    set_unused(0, 0);
    truth(0, 100);
    bank = (struct bank){.grants = 0, .meanwhile = frees};
    REQUIRE(gs_pool_correct_asking(pool) && charged_of(pool) == 20 && bank.asks == 1);
    end();
}

/* Without a daemon only the other pools can give credit back. */
static void alone(void) {
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]), *other = gs_pool_add(handle_of(1), &gs_gpus[0]);
    set_unused(0, 100);
    truth(1, 60);
    real[0].trim_leaves = -1;
    REQUIRE(gs_pool_correct(other) == 0 && used_on(0) == 60);
    truth(0, 90);
    gs_gpus[0].own = true;
    REQUIRE(gs_pool_correct_asking(pool) && bank.asks == 0 && real[1].trims == 1 && charged_of(other) == 0);
    REQUIRE(charged_of(pool) == 90 && used_on(0) == 90);
    truth(0, 91); /* what fits costs the others nothing */
    real[1].trims = 0;
    REQUIRE(gs_pool_correct_asking(pool) && real[1].trims == 0 && used_on(0) == 91);
    truth(0, 101);
    REQUIRE(!gs_pool_correct_asking(pool) && bank.asks == 1 && real[1].trims == 1 && used_on(0) == 91);
    end();
    pool = gs_pool_add(handle_of(0), &gs_gpus[0]); /* what is trimmed of the pool itself need not be found elsewhere */
    set_unused(0, 90);
    truth(0, 90);
    REQUIRE(gs_pool_correct(pool) == 0);
    truth(0, 150);
    real[0].trim_leaves = 90 * GS_UNIT_BYTES;
    REQUIRE(gs_pool_correct_asking(pool) && bank.asks == 0 && charged_of(pool) == 90);
    gs_gpus[0].own = false;
    end();
}

/* A squeeze is of one GPU; only a hard one trims; pools that have ended are left alone. */
static void squeezes(void) {
    void (*squeeze_it)(struct gs_gpu *, bool) = gs_account_squeeze[GS_SQUEEZE_POOLS];
    struct gs_pool *of[3];
    for (int i = 0; i < 3; i++) {
        of[i] = gs_pool_add(handle_of(i), &gs_gpus[i / 2]);
        set_unused(i / 2, 50);
        truth(i, 50);
        REQUIRE(gs_pool_correct(of[i]) == 0);
        truth(i, 40);
    }
    squeeze_it(&gs_gpus[0], false);
    REQUIRE(charged_of(of[0]) == 40 && charged_of(of[1]) == 40 && charged_of(of[2]) == 50);
    REQUIRE(real[0].trims + real[1].trims + real[2].trims == 0);
    squeeze_it(&gs_gpus[1], true);
    REQUIRE(charged_of(of[2]) == 0 && real[2].trims == 1 && real[0].trims + real[1].trims == 0);
    gs_pool_begin_to_destroy(of[0]);
    real[0].ended = true; /* no question may be asked */
    squeeze_it(&gs_gpus[0], true);
    REQUIRE(charged_of(of[0]) == 40 && charged_of(of[1]) == 0 && used_on(0) == 40);
    real[0].ended = false;
    gs_pool_end_destroying(of[0], false);
    end();
}

/* After a synchronisation those are looked at that are charged more than the program holds, or marked. */
static void after_a_synchronisation(void) {
    struct gs_pool *of[3];
    set_unused(0, 200);
    for (int i = 0; i < 3; i++) {
        of[i] = gs_pool_add(handle_of(i), &gs_gpus[0]);
        REQUIRE(gs_pool_enter(of[i], 20));
        truth(i, 40);
        REQUIRE(gs_pool_correct(of[i]) == 0);
        real[i].questions = 0;
    }
    truth(0, 30);
    REQUIRE(gs_pool_enter(of[1], 20)); /* all of it is held */
    REQUIRE(gs_pool_enter(of[2], 20));
    of[2]->over = 1;
    truth(2, 50);
    real[2].trim_leaves = -1;
    gs_pool_correct_all();
    REQUIRE(charged_of(of[0]) == 30 && real[1].questions == 0 && charged_of(of[2]) == 50 && of[2]->over == 0);
    end();
}

/* A pool that was destroyed stays charged with what the program still holds, and ends with the last of it. */
static void destroyed(void) {
    struct gs_pool *pool = gs_pool_add(handle_of(0), &gs_gpus[0]);
    set_unused(0, 100);
    REQUIRE(gs_pool_enter(pool, 30));
    truth(0, 80);
    REQUIRE(gs_pool_correct(pool) == 0 && used_on(0) == 80);
    gs_pool_begin_to_destroy(pool);
    real[0].ended = true;
    gs_pool_end_destroying(pool, true);
    REQUIRE(pool->state == GS_POOL_DESTROYED && used_on(0) == 80 && gs_pool_find(handle_of(0)) == NULL);
    gs_pool_correct_all();
    squeeze(&gs_gpus[0], true);
    gs_pool_was_reset(&gs_gpus[0]);
    REQUIRE(!gs_pool_undo_growth(pool) && used_on(0) == 80);
    gs_pool_leave(pool, 10);
    REQUIRE(pool->state == GS_POOL_DESTROYED && used_on(0) == 80);
    gs_pool_leave(pool, 20);
    REQUIRE(pool->state == GS_POOL_UNUSED && used_on(0) == 0);
    end();
}

/* A reset that has freed a pool's memory ends what the program held of it; one that has not changes nothing. */
static void reset(void) {
    struct gs_pool *of[3];
    for (int i = 0; i < 3; i++) {
        of[i] = gs_pool_add(handle_of(i), &gs_gpus[i / 2]);
        set_unused(i / 2, 60);
        REQUIRE(gs_pool_enter(of[i], 50));
        truth(i, 60);
        REQUIRE(gs_pool_correct(of[i]) == 0);
    }
    truth(0, 10);
    truth(2, 10);
    gs_pool_was_reset(&gs_gpus[0]);
    REQUIRE(live_of(of[0]) == 10 && charged_of(of[0]) == 10);
    REQUIRE(live_of(of[1]) == 50 && charged_of(of[1]) == 60 && live_of(of[2]) == 50 && charged_of(of[2]) == 60);
    real[0].says = CUDA_ERROR_UNKNOWN;
    truth(0, 0);
    gs_pool_was_reset(&gs_gpus[0]);
    REQUIRE(live_of(of[0]) == 10);
    real[0].says = CUDA_SUCCESS;
    end();
}

int main(void) {
    static struct gs_known_context none;
    open_bank();
    gs_last_context = &none;
    gs_driver.cuMemPoolGetAttribute = attribute;
    gs_driver.cuMemPoolTrimTo = trim_to;
    gs_driver.cuDeviceGetCount = device_count;
    gs_driver.cuDeviceGetDefaultMemPool = default_pool;
    gs_driver.cuDeviceGetMemPool = current_pool;
    gs_driver.cuCtxGetCurrent = current_context;
    the_list();
    whose();
    current_ones();
    allocations();
    meanwhile();
    two_at_once();
    grows_again();
    grows_while_it_is_asked();
    beyond_the_credit();
    races();
    alone();
    squeezes();
    after_a_synchronisation();
    destroyed();
    reset();
    REQUIRE(relaxed % 2 == 0);
    return good();
}
