/* part_limit.c: what the limits of contexts take, against a plain list of what was asked for and granted. */
#include "part_bank.h"

#include "hook_limit.c"

#define MIB      (1ull << 20)
#define CONTEXTS 80

static uint32_t current;    /* the number of the context; 0: none that is known */
static struct gs_gpu *here; /* its GPU; NULL: no context */
static CUresult set_says, get_says;
static size_t values[CONTEXTS + 1][3]; /* as the driver has them, by context and kind */
static size_t most = SIZE_MAX, least;  /* what it makes of it */
static bool attaches = true;
static void (*before_it_answers)(void);

static int kind_of(CUlimit limit) {
    return limit == CU_LIMIT_PRINTF_FIFO_SIZE ? 0 : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? 1 : 2;
}

static CUresult set_limit(CUlimit limit, size_t value) {
    if (before_it_answers != NULL)
        before_it_answers();
    if (set_says == CUDA_SUCCESS)
        values[current][kind_of(limit)] = value > most ? most : value < least ? least : value;
    return set_says;
}

static CUresult get_limit(size_t *value, CUlimit limit) {
    REQUIRE(relaxed % 2 == 1);
    *value = get_says == CUDA_SUCCESS ? values[current][kind_of(limit)] : 1;
    return get_says;
}

static CUresult current_context(CUcontext *context) {
    *context = here != NULL ? (CUcontext)(uintptr_t)16 : NULL;
    return CUDA_SUCCESS;
}

bool gs_place_context(struct gs_place *place, CUcontext context) {
    (void)context;
    *place = (struct gs_place){here, current};
    return attaches;
}

bool gs_place_attach(struct gs_gpu *gpu) {
    (void)gpu;
    return attaches;
}

static void enter(uint32_t context) {
    current = context;
    here = &gs_gpus[context % 2];
}

static uint32_t blocks(uint64_t number) {
    return (uint32_t)(number * (2 * MIB) / GS_UNIT_BYTES);
}

/* What is set beyond what a context began with is charged, in whole blocks, as soon as it is set. */
static void one_limit(void) {
    static const struct {
        uint64_t value;
        uint32_t charged; /* blocks */
    } of[] = {{8 * MIB, 0},  {8 * MIB + 1, 1}, {10 * MIB, 1}, {10 * MIB + 1, 2}, {64 * MIB, 28},
              {20 * MIB, 6}, {4 * MIB, 0},     {0, 0},        {8 * MIB, 0},      {9 * MIB, 1}};
    for (uint32_t context = 1; context <= 2; context++) {
        for (int kind = 0; kind < 2; kind++) {
            CUlimit limit = kind == 0 ? CU_LIMIT_PRINTF_FIFO_SIZE : CU_LIMIT_MALLOC_HEAP_SIZE;
            uint32_t others = used_on((int)context % 2);
            enter(context);
            values[context][kind] = 8 * MIB;
            for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
                REQUIRE(cuCtxSetLimit(limit, of[i].value) == CUDA_SUCCESS && values[context][kind] == of[i].value);
                REQUIRE(used_on((int)context % 2) == others + blocks(of[i].charged));
            }
        }
    }
    REQUIRE(used_on(0) == blocks(2) && used_on(1) == blocks(2));
    gs_limit_context_gone(7);
    REQUIRE(used_on(0) == blocks(2) && used_on(1) == blocks(2));
    gs_limit_context_gone(1);
    REQUIRE(used_on(0) == blocks(2) && used_on(1) == 0);
    gs_limit_context_gone(2);
    uint32_t releases = lines[0].releases;
    gs_limit_context_gone(2);
    REQUIRE(used_on(0) == 0 && lines[0].releases == releases);
    for (int i = 0; i < MOST_HEAPS; i++)
        REQUIRE(heaps[i].context == 0);
}

/* Other limits, and places of which nothing is known, are the driver's alone. */
static void what_is_not_ours(void) {
    enter(1);
    REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 500 * MIB) == CUDA_SUCCESS && values[1][2] == 500 * MIB);
    REQUIRE(relaxed % 2 == 0 && heaps[0].context == 0);
    current = 0;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB) == CUDA_SUCCESS);
    here = NULL;
    set_says = CUDA_ERROR_INVALID_CONTEXT;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB) == CUDA_ERROR_INVALID_CONTEXT);
    set_says = CUDA_SUCCESS;
    enter(1);
    gs_mode = GS_INERT;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB) == CUDA_SUCCESS);
    gs_mode = GS_ON;
    attaches = false;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB) == CUDA_SUCCESS);
    attaches = true;
    get_says = CUDA_ERROR_UNSUPPORTED_LIMIT; /* of which the driver does not say what it was */
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 500 * MIB) == CUDA_SUCCESS);
    get_says = CUDA_SUCCESS;
    REQUIRE(used_on(0) == 0 && used_on(1) == 0 && heaps[0].context == 0);
    memset(values, 0, sizeof values);
}

static void failures(void) {
    enter(1);
    set_unused(1, blocks(10));
    memset(values, 0, sizeof values);
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(4));
    set_says = CUDA_ERROR_UNKNOWN; /* the driver has failed: as it was */
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MIB) == CUDA_ERROR_UNKNOWN && used_on(1) == blocks(4));
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 2 * MIB) == CUDA_ERROR_UNKNOWN && used_on(1) == blocks(4));
    set_says = CUDA_SUCCESS;
    set_unused(1, 0); /* less costs nothing */
    bank.asks = 0;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 6 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(3));
    REQUIRE(bank.asks == 0);
    set_unused(1, blocks(10));
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(4));
    set_unused(1, blocks(6));
    bank.asks = 0; /* refused: the driver is not asked */
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 30 * MIB) == CUDA_ERROR_OUT_OF_MEMORY && bank.asks == 1);
    REQUIRE(bank.units == blocks(11) && used_on(1) == blocks(4) && values[1][1] == 8 * MIB);
    most = 12 * MIB; /* the driver has made less of it */
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 20 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(6));
    most = SIZE_MAX;
    least = 10 * MIB; /* or more: then that is what it takes */
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 4 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(5));
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 12 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(6));
    least = 0;
    values[1][1] = 0;
    get_says = CUDA_ERROR_UNKNOWN; /* or does not say what it has made of it */
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 20 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(10));
    get_says = CUDA_SUCCESS;
    gs_limit_context_gone(1);
    REQUIRE(used_on(1) == 0);
    memset(values, 0, sizeof values);
}

static void another_thread(void) {
    before_it_answers = NULL;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 12 * MIB) == CUDA_SUCCESS);
}

static void another_context_ends(void) {
    before_it_answers = NULL;
    gs_limit_context_gone(1);
}

/* Another thread changes the same limit, or the context ends: what was reserved is given back once. */
static void at_once(void) {
    enter(1);
    set_unused(1, blocks(100));
    before_it_answers = another_thread;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 4 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(2));
    before_it_answers = another_thread;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 20 * MIB) == CUDA_SUCCESS && used_on(1) == blocks(10));
    before_it_answers = another_context_ends;
    REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 40 * MIB) == CUDA_SUCCESS && used_on(1) <= blocks(20));
    gs_limit_context_gone(1);
    REQUIRE(used_on(1) == 0);
    memset(values, 0, sizeof values);
}

/* There is room for so many; of more, nothing is charged and nothing stays reserved. */
static void too_many(void) {
    set_unused(0, blocks(200));
    set_unused(1, blocks(200));
    for (uint32_t context = 1; context <= MOST_HEAPS / 2 + 2; context++) {
        enter(context);
        REQUIRE(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 2 * MIB) == CUDA_SUCCESS);
        REQUIRE(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 4 * MIB) == CUDA_SUCCESS);
    }
    REQUIRE(used_on(0) + used_on(1) == blocks(3 * MOST_HEAPS / 2));
    at_fork();
    REQUIRE(heaps[0].context == 0 && heaps_lock.held == 0);
}

int main(void) {
    static struct gs_known_context none;
    open_bank();
    gs_last_context = &none;
    gs_driver.cuCtxSetLimit = set_limit;
    gs_driver.cuCtxGetLimit = get_limit;
    gs_driver.cuCtxGetCurrent = current_context;
    what_is_not_ours();
    set_unused(0, blocks(100));
    set_unused(1, blocks(100));
    one_limit();
    failures();
    at_once();
    too_many();
    return good();
}
