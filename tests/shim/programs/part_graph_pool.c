/* part_graph_pool.c: the account of the graph pools beside a driver that takes more or less than was foreseen, or does
 * not say how much. */
#include "part_bank.h"

#include "graph_pool.c"

static struct {
    uint64_t reserved, used; /* bytes */
    CUresult says;
    uint32_t trims;
} real[2];

static bool attaches = true;
static int trim_leaves = -1; /* units; -1: what is used */

bool gs_place_device(struct gs_place *place, CUdevice device) {
    *place = (struct gs_place){&gs_gpus[device], 0};
    return attaches;
}

static CUresult attribute(CUdevice device, CUgraphMem_attribute which, void *value) {
    REQUIRE(pools[device].mutex.state != 0); /* answers are followed in their order */
    if (real[device].says == CUDA_SUCCESS)
        *(uint64_t *)value =
            which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? real[device].reserved : real[device].used;
    return real[device].says;
}

static CUresult mem_trim(CUdevice device) {
    REQUIRE(pools[device].mutex.state != 0);
    real[device].trims++;
    real[device].reserved = trim_leaves < 0 ? real[device].used : (uint64_t)trim_leaves * GS_UNIT_BYTES;
    return CUDA_SUCCESS;
}

/* A launch of an executable graph that has not run yet. */
struct one {
    struct gs_graph_launch launch;
    uint32_t holds;
};

static bool enter(struct one *one, struct gs_gpu *gpu, uint32_t need, bool frees_first) {
    *one = (struct one){.launch = {.gpu = gpu, .need = need, .frees_first = frees_first, .holds = &one->holds}};
    return gs_graph_pool_enter(&one->launch);
}

static void truth(int gpu, uint32_t reserved, uint32_t used) {
    real[gpu].reserved = (uint64_t)reserved * GS_UNIT_BYTES;
    real[gpu].used = (uint64_t)used * GS_UNIT_BYTES;
}

static void all_zero(int gpu) {
    REQUIRE(pools[gpu].running == 0 && pools[gpu].charged == 0 && pools[gpu].pending == 0 && pools[gpu].needed == 0 &&
            used_on(gpu) == 0);
}

static void end(int gpu) {
    truth(gpu, 0, 0);
    REQUIRE(gs_graph_pool_correct(&gs_gpus[gpu]) == 0);
    all_zero(gpu);
}

/* What a launch reserves: what it needs beyond what lies unused. */
static void launches(void) {
    static const struct {
        uint32_t reserved, used, need;
        bool frees_first;
        uint32_t have;
    } of[] = {
        {0, 0, 100, false, 100},  {60, 0, 100, false, 40},     {60, 20, 100, false, 60}, {100, 0, 100, false, 0},
        {300, 0, 100, false, 0},  {300, 300, 100, false, 100}, {300, 300, 100, true, 0}, {300, 40, 100, true, 0},
        {100, 100, 100, true, 0}, {50, 50, 100, true, 50},     {0, 0, 100, true, 100},   {90, 80, 100, true, 10},
        {0, 0, 0, false, 0},
    };
    struct gs_gpu *gpu = &gs_gpus[0];
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct one have;
        truth(0, of[i].reserved, of[i].used);
        set_unused(0, 1000);
        REQUIRE(gs_graph_pool_correct(gpu) == 0 && used_on(0) == of[i].reserved);
        bank.asks = 0;
        REQUIRE(enter(&have, gpu, of[i].need, of[i].frees_first) && have.launch.have == of[i].have);
        REQUIRE(used_on(0) == of[i].reserved + have.launch.have && bank.asks == 0);
        REQUIRE(pools[0].pending == have.launch.have && pools[0].needed == of[i].need);
        truth(0, of[i].reserved + have.launch.have, 0); /* as foreseen */
        uint32_t releases = lines[0].releases;
        gs_graph_pool_leave(&have.launch, true);
        REQUIRE(pools[0].charged == of[i].reserved + have.launch.have && used_on(0) == pools[0].charged);
        REQUIRE(pools[0].pending == 0 && pools[0].needed == 0 && lines[0].releases == releases);
        end(0);
    }
    REQUIRE(used_on(1) == 0);
}

/* Launches at the same time count on each other's reservations, and on unused memory only once. */
static void at_once(void) {
    struct gs_gpu *gpu = &gs_gpus[1];
    struct one one, two, three;
    truth(1, 50, 0);
    set_unused(1, 1000);
    REQUIRE(gs_graph_pool_correct(gpu) == 0);
    REQUIRE(enter(&one, gpu, 80, false) && one.launch.have == 30);
    REQUIRE(enter(&two, gpu, 40, false) && two.launch.have == 40);
    truth(1, 120, 120); /* the driver has taken it, and nobody has told yet */
    REQUIRE(gs_graph_pool_correct(gpu) == 0 && pools[1].charged == 50 && used_on(1) == 120);
    REQUIRE(enter(&three, gpu, 10, false) && three.launch.have == 10);
    truth(1, 130, 130);
    gs_graph_pool_leave(&one.launch, true);
    gs_graph_pool_leave(&two.launch, true);
    gs_graph_pool_leave(&three.launch, true);
    REQUIRE(pools[1].charged == 130 && used_on(1) == 130);
    end(1);
}

/* What the pool has beyond what was foreseen is charged: out of the credit, or asked for; if that is refused, unused
 * memory goes back to the driver. */
static void more_than_foreseen(void) {
    struct gs_gpu *gpu = &gs_gpus[0];
    struct one have;
    for (int how = 0; how < 3; how++) {
        truth(0, 0, 0);
        set_unused(0, how == 0 ? 500 : 100);
        REQUIRE(enter(&have, gpu, 100, false) && have.launch.have == 100);
        truth(0, 170, 60);
        bank = (struct bank){.grants = how == 1 ? -1 : 0};
        real[0].trims = 0;
        REQUIRE(gs_graph_pool_correct(gpu) == (how == 0 ? 0 : 70));
        gs_graph_pool_leave(&have.launch, true);
        REQUIRE(bank.asks == (how == 0 ? 0u : 1u) && (how == 0 || bank.units == 70));
        REQUIRE(real[0].trims == (how == 2));
        REQUIRE(pools[0].charged == (how == 2 ? 60 : 170) && used_on(0) == pools[0].charged);
        end(0);
    }
    bank = (struct bank){.grants = 0};
    truth(0, 40, 40); /* nor does it help to trim: then the rest is past the account */
    set_unused(0, 10);
    REQUIRE(enter(&have, gpu, 0, false));
    gs_graph_pool_leave(&have.launch, true);
    REQUIRE(pools[0].charged == 0 && used_on(0) == 0 && bank.asks == 1);
    end(0);
}

static void grows(void) {
    truth(0, (uint32_t)(real[0].reserved / GS_UNIT_BYTES) + 10, 0);
}

/* A pool that grows at each look is looked at a few times, and no more. */
static void a_race(void) {
    struct one have;
    bank = (struct bank){.grants = -1, .meanwhile = grows};
    truth(0, 100, 0);
    set_unused(0, 0);
    real[0].trims = 0;
    REQUIRE(enter(&have, &gs_gpus[0], 0, false));
    gs_graph_pool_leave(&have.launch, true);
    REQUIRE(bank.asks == 4 && real[0].trims == 1);
    bank = (struct bank){0};
    end(0);
}

static void refused(void) {
    struct gs_gpu *gpu = &gs_gpus[0];
    struct one have, first;
    bank = (struct bank){.grants = 0};
    set_unused(0, 100);
    REQUIRE(enter(&first, gpu, 60, false) && first.launch.have == 60);
    REQUIRE(!enter(&have, gpu, 50, false) && used_on(0) == 60);
    REQUIRE(pools[0].needed == 60 && pools[0].pending == 60);
    attaches = false;
    REQUIRE(!enter(&have, gpu, 10, false) && have.launch.have == 0 && pools[0].needed == 60);
    attaches = true;
    truth(0, 60, 0);
    gs_graph_pool_leave(&first.launch, true);
    end(0);
}

static void another_takes_it(void) {
    bank.meanwhile = NULL;
    truth(0, 50, 50); /* the unused 50 on which the first one counted */
}

/* It has said what it needs, and not yet reserved it. */
static void another_announces_itself(void) {
    bank.meanwhile = NULL;
    pools[0].needed += 500;
}

/* What a launch counted on may be gone when its credit has come: it reserves the rest, and no more than it needs. */
static void looks_again(void) {
    struct gs_gpu *gpu = &gs_gpus[0];
    struct one have;
    truth(0, 50, 0);
    set_unused(0, 50);
    REQUIRE(gs_graph_pool_correct(gpu) == 0);
    bank = (struct bank){.grants = -1, .meanwhile = another_takes_it};
    REQUIRE(enter(&have, gpu, 80, false) && have.launch.have == 80 && bank.asks == 2 && bank.units == 50);
    REQUIRE(pools[0].pending == 80 && used_on(0) == 130);
    truth(0, 130, 0);
    gs_graph_pool_leave(&have.launch, true);
    bank = (struct bank){.grants = 1, .meanwhile = another_takes_it}; /* once; the rest is refused */
    truth(0, 50, 0);
    REQUIRE(gs_graph_pool_correct(gpu) == 0);
    set_unused(0, 0);
    REQUIRE(!enter(&have, gpu, 90, false) && bank.asks == 2 && used_on(0) == 50);
    REQUIRE(pools[0].pending == 0 && pools[0].needed == 0 && pools[0].charged == 50);
    bank = (struct bank){.grants = -1, .meanwhile = another_announces_itself};
    truth(0, 50, 0);
    set_unused(0, 0);
    REQUIRE(enter(&have, gpu, 80, false) && have.launch.have == 80 && used_on(0) == 130);
    pools[0].needed -= 500;
    truth(0, 130, 0);
    gs_graph_pool_leave(&have.launch, true);
    bank = (struct bank){0};
    end(0);
}

/* A squeeze charges what is there; only a hard one trims, and not while a launch is under way. */
static void squeezes(void) {
    struct gs_gpu *gpu = &gs_gpus[0];
    void (*squeeze_it)(struct gs_gpu *, bool) = gs_account_squeeze[GS_SQUEEZE_GRAPHS];
    struct one have;
    REQUIRE(squeeze_it != NULL && gs_account_squeeze[GS_SQUEEZE_POOLS] == NULL);
    set_unused(0, 500);
    truth(0, 200, 50);
    REQUIRE(gs_graph_pool_correct(gpu) == 0 && used_on(0) == 200);
    truth(0, 180, 50);
    real[0].trims = 0;
    squeeze_it(gpu, false);
    REQUIRE(used_on(0) == 180 && real[0].trims == 0);
    REQUIRE(enter(&have, gpu, 10, false) && have.launch.have == 0);
    squeeze_it(gpu, true);
    REQUIRE(used_on(0) == 180 && real[0].trims == 0);
    gs_graph_pool_leave(&have.launch, true);
    squeeze_it(gpu, true);
    REQUIRE(used_on(0) == 50 && real[0].trims == 1);
    end(0);
}

/* A driver that does not say how much there is changes nothing; of what is used it need not know. */
static void a_driver_that_does_not_say(void) {
    struct gs_gpu *gpu = &gs_gpus[0];
    struct one have;
    truth(0, 70, 0);
    set_unused(0, 500);
    REQUIRE(gs_graph_pool_correct(gpu) == 0);
    real[0].says = CUDA_ERROR_NOT_SUPPORTED;
    REQUIRE(gs_graph_pool_correct(gpu) == 0 && used_on(0) == 70);
    REQUIRE(enter(&have, gpu, 30, false) && have.launch.have == 30);
    gs_graph_pool_leave(&have.launch, true);
    REQUIRE(used_on(0) == 100);
    real[0].says = CUDA_SUCCESS;
    end(0);
}

/* A graph that runs again finds its memory, also if the driver counts it as used; unless some was trimmed, or all that
 * have run need more than there is. */
static void runs_again(void) {
    struct gs_gpu *gpu = &gs_gpus[0];
    struct one first, second, third;
    set_unused(0, 1000);
    REQUIRE(enter(&first, gpu, 100, false) && first.launch.have == 100);
    truth(0, 100, 100);
    gs_graph_pool_leave(&first.launch, true);
    REQUIRE(gs_graph_pool_enter(&first.launch) && first.launch.have == 0 && pools[0].needed == 0);
    gs_graph_pool_leave(&first.launch, false);
    REQUIRE(enter(&second, gpu, 60, false) && second.launch.have == 60);
    truth(0, 160, 160);
    gs_graph_pool_leave(&second.launch, true);
    REQUIRE(pools[0].held == 160 && gs_graph_pool_enter(&first.launch) && first.launch.have == 0);
    gs_graph_pool_leave(&first.launch, true);
    REQUIRE(pools[0].held == 160 && enter(&third, gpu, 50, false) && third.launch.have == 50);
    gs_graph_pool_leave(&third.launch, true); /* in what another has: they share it */
    REQUIRE(gs_graph_pool_enter(&first.launch) && first.launch.have == 100);
    gs_graph_pool_leave(&first.launch, true);
    gs_graph_pool_gone(gpu, 50, &third.holds);
    REQUIRE(third.holds == 0 && pools[0].held == 160 && gs_graph_pool_enter(&first.launch));
    REQUIRE(first.launch.have == 0);
    gs_graph_pool_leave(&first.launch, true);
    truth(0, 100, 100); /* a trim */
    REQUIRE(gs_graph_pool_enter(&first.launch) && first.launch.have == 100 && pools[0].held == 0);
    gs_graph_pool_leave(&first.launch, false); /* the driver has not done it */
    REQUIRE(gs_graph_pool_enter(&first.launch) && first.launch.have == 100);
    gs_graph_pool_leave(&first.launch, true);
    gs_graph_pool_gone(gpu, 100, &first.holds);
    truth(0, 20, 20);
    gs_graph_pool_gone(gpu, 60, &second.holds); /* that had run before the trim */
    REQUIRE(pools[0].held == 0 && used_on(0) == 20);
    end(0);
}

/* Credit is reserved in the steps in which the driver grows the pool, which it shows. */
static void in_steps(void) {
    struct gs_gpu *gpu = &gs_gpus[0];
    struct one have, other;
    pools[0].step = 0;
    set_unused(0, 4 * STEP);
    REQUIRE(enter(&have, gpu, 100, false) && have.launch.have == STEP);
    REQUIRE(enter(&other, gpu, STEP + 1, false) && other.launch.have == STEP);
    truth(0, 2 * STEP, 2 * STEP);
    gs_graph_pool_leave(&have.launch, true);
    gs_graph_pool_leave(&other.launch, true);
    REQUIRE(used_on(0) == 2 * STEP && !pools[0].step);
    bank = (struct bank){0};
    REQUIRE(!enter(&other, gpu, 2 * STEP + 1, false) && bank.units == 3 * STEP);
    REQUIRE(enter(&other, gpu, UINT32_MAX, false) == false && bank.units == UINT32_MAX);
    truth(0, STEP / 8, 0);
    REQUIRE(gs_graph_pool_correct(gpu) == 0 && pools[0].step == STEP / 8);
    REQUIRE(enter(&have, gpu, STEP / 8 + 1, false) && have.launch.have == STEP / 8);
    truth(0, STEP / 4, 0);
    gs_graph_pool_leave(&have.launch, true);
    pools[0].step = 1;
    end(0);
}

int main(void) {
    open_bank();
    pools[0].step = pools[1].step = 1;
    gs_driver.cuDeviceGetGraphMemAttribute = (__typeof__(&cuDeviceGetGraphMemAttribute))attribute;
    gs_driver.cuDeviceGraphMemTrim = mem_trim;
    launches();
    at_once();
    more_than_foreseen();
    a_race();
    refused();
    looks_again();
    squeezes();
    runs_again();
    in_steps();
    a_driver_that_does_not_say();
    REQUIRE(relaxed != 0 && relaxed % 2 == 0);
    pools[0].charged = 1;
    at_fork();
    REQUIRE(pools[0].charged == 0);
    return good();
}
