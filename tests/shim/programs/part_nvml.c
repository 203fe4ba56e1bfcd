/* part_nvml.c: what NVML says about memory and processes, over an NVML that the program plays and real processes. */
#include "part.h"

#include <signal.h>
#include <sys/wait.h>

#include "hook_nvml.c"
#include "message.c"

#define GIB (1ull << 30)

struct gs_nvml gs_nvml;
enum gs_mode gs_nvml_mode = GS_ON;
struct gs_gpu gs_gpus[GS_MAX_GPUS];
static struct gs_options options;
static struct gs_page page, *has_page;
static struct gs_line line;

const struct gs_options *gs_options(void) {
    return &options;
}

struct gs_page *gs_client_page(void) {
    return has_page;
}

bool gs_nvml_wake(const void *witness, bool open) {
    (void)witness, (void)open;
    return false;
}

static const char *uuid_says;
static nvmlReturn_t uuid_result;
static uint8_t known[GS_UUID_BYTES];

struct gs_gpu *gs_gpu_with_uuid(const uint8_t uuid[GS_UUID_BYTES]) {
    return memcmp(uuid, known, GS_UUID_BYTES) == 0 ? &gs_gpus[0] : NULL;
}

uint64_t gs_account_total_expected(uint64_t total) {
    REQUIRE(total == 80 * GIB);
    return 6 * GIB;
}

/* ---- memory --------------------------------------------------------------------------------------- */

static nvmlReturn_t says, nothing_says = NVML_ERROR_INVALID_ARGUMENT; /* of an answer without a place */
static int calls;

static nvmlReturn_t uuid_of(nvmlDevice_t device, char *text, unsigned int size) {
    (void)device;
    REQUIRE(size >= strlen(uuid_says) + 1);
    memcpy(text, uuid_says, strlen(uuid_says) + 1);
    return uuid_result;
}

static nvmlReturn_t memory_1(nvmlDevice_t device, nvmlMemory_t *memory) {
    (void)device;
    calls++;
    if (memory == NULL)
        return nothing_says;
    memory->total = 80 * GIB;
    memory->free = 50 * GIB;
    memory->used = 30 * GIB;
    return says;
}

static nvmlReturn_t memory_2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    (void)device;
    calls++;
    if (memory == NULL)
        return nothing_says;
    memory->total = 80 * GIB;
    memory->reserved = GIB;
    memory->free = 50 * GIB;
    memory->used = 29 * GIB;
    return says;
}

#define OURS_UUID  "GPU-00112233-4455-6677-8899-aabbccddeeff"
#define OTHER_UUID "GPU-00112233-4455-6677-8899-aabbccddeefe"

/* Whether both functions say this of a GPU; total 0: NVML's own answer. */
static void shows(const char *uuid, uint64_t total, uint64_t free) {
    nvmlMemory_t one;
    nvmlMemory_v2_t two;
    uuid_says = uuid;
    calls = 0;
    REQUIRE(nvmlDeviceGetMemoryInfo(NULL, &one) == says && nvmlDeviceGetMemoryInfo_v2(NULL, &two) == says);
    REQUIRE(calls == 2);
    if (total == 0) {
        REQUIRE(one.total == 80 * GIB && one.free == 50 * GIB && one.used == 30 * GIB);
        REQUIRE(two.total == 80 * GIB && two.free == 50 * GIB && two.used == 29 * GIB && two.reserved == GIB);
        return;
    }
    REQUIRE(one.total == total && one.free == free && one.used == total - free);
    REQUIRE(two.total == total && two.free == free && two.used == total - free && two.reserved == 0);
}

static void memory(void) {
    for (int i = 0; i < GS_UUID_BYTES; i++)
        known[i] = (uint8_t)(i * 0x11);
    gs_gpus[0] = (struct gs_gpu){.line = &line, .total = 80 * GIB};
    line.limit = (uint32_t)(10 * GIB / GS_UNIT_BYTES);
    gs_grant(&line, (uint32_t)(4 * GIB / GS_UNIT_BYTES));
    REQUIRE(gs_reserve(&line, (uint32_t)(3 * GIB / GS_UNIT_BYTES)));
    shows(OURS_UUID, 10 * GIB, GIB);
    shows("MIG-00112233-4455-6677-8899-AABBCCDDEEFF", 10 * GIB, GIB); /* in either case */
    shows(OURS_UUID "-0123456789abcdef", 10 * GIB, GIB);              /* what follows is not read */
    shows(OTHER_UUID, 6 * GIB, 6 * GIB);                              /* not opened: as it would be there */
    shows("GPU-00112233-4455-6677-8899-aabbccddeef", 0, 0);           /* no UUID: a digit is missing */
    shows("GPU-", 0, 0);
    shows("none", 0, 0);
    uuid_result = NVML_ERROR_UNKNOWN;
    shows(OURS_UUID, 0, 0);
    uuid_result = NVML_SUCCESS;
    says = NVML_ERROR_UNKNOWN;
    shows(OURS_UUID, 0, 0);
    says = NVML_SUCCESS;
    gs_nvml_mode = GS_INERT;
    shows(OURS_UUID, 0, 0);
    gs_nvml_mode = GS_ON;
    REQUIRE(nvmlDeviceGetMemoryInfo(NULL, NULL) == NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(nvmlDeviceGetMemoryInfo_v2(NULL, NULL) == NVML_ERROR_INVALID_ARGUMENT);
    nothing_says = NVML_SUCCESS; /* whatever the driver makes of it, nothing is written */
    REQUIRE(nvmlDeviceGetMemoryInfo(NULL, NULL) == NVML_SUCCESS &&
            nvmlDeviceGetMemoryInfo_v2(NULL, NULL) == NVML_SUCCESS);
}

/* A GPU that the process was not given, though others by their UUIDs, is none of its business. */
static void gpus_that_were_given(void) {
    static const struct {
        const char *devices;
        bool given;
    } one[] = {
        {"", true},          {"0,1", true},
        {OTHER_UUID, true},  {"0," OTHER_UUID, true},
        {OURS_UUID, false},  {"MIG-00112233-4455-6677-8899-aabbccddee11", false},
        {"GPU-0011", false},
    };
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        strcpy(options.visible_devices, one[i].devices);
        shows(OTHER_UUID, one[i].given ? 6 * GIB : 0, 6 * GIB);
        shows(OURS_UUID, 10 * GIB, GIB); /* it is open */
    }
    options.visible_devices[0] = '\0';
}

/* ---- processes ------------------------------------------------------------------------------------ */

#define JOB 0xfeed0000000000aaull

static pid_t children[16];
static int started;

/* A process with this environment. */
static unsigned int child_with(const char *const *environment) {
    int pipes[2];
    char byte;
    REQUIRE(pipe(pipes) == 0);
    fcntl(pipes[1], F_SETFD, FD_CLOEXEC);
    pid_t pid = fork();
    if (pid == 0) {
        close(pipes[0]);
        execve("/bin/sleep", (char *const[]){"sleep", "60", NULL}, (char *const *)environment);
        _exit(1);
    }
    close(pipes[1]);
    REQUIRE(read(pipes[0], &byte, 1) == 0); /* it has its new environment */
    close(pipes[0]);
    children[started++] = pid;
    return (unsigned int)pid;
}

static unsigned int ours, padded, theirs, first, to_the_byte;

static void start_children(void) {
    static char padding[3000], shorter[995];
    memset(shorter, 'x', sizeof shorter - 1);
    memcpy(shorter, "PAD=", 4);
    memset(padding, 'x', sizeof padding - 1);
    memcpy(padding, "PAD=", 4);
    const char *const mine[] = {"A=1", "GPUSHARE_JOB=feed0000000000aa", "B=2", NULL};
    const char *const far[] = {padding, "GPUSHARE_JOB=FEED0000000000AA", NULL};
    const char *const only[] = {"GPUSHARE_JOB=feed0000000000aa", NULL};
    const char *const one_more[] = {shorter, "GPUSHARE_JOB=feed0000000000aa", NULL}; /* 1025 bytes */
    const char *const other[] = {"GPUSHARE_JOB=feed0000000000ab", NULL};
    ours = child_with(mine);
    padded = child_with(far);
    first = child_with(only);
    to_the_byte = child_with(one_more);
    theirs = child_with(other);
}

static void whose(void) {
    options.job_id = JOB;
    int before = descriptors();
    REQUIRE(is_of_the_job((unsigned int)getpid()) && is_of_the_job(ours) && is_of_the_job(padded));
    REQUIRE(is_of_the_job(first) && is_of_the_job(to_the_byte));
    REQUIRE(!is_of_the_job(theirs) && !is_of_the_job(1u << 30));
    close(STDIN_FILENO); /* in a program that has none the next descriptor is 0 */
    REQUIRE(is_of_the_job(ours) && open("/dev/null", O_RDONLY) == STDIN_FILENO);
    const char *const odd[][3] = {
        {"GPUSHARE_JOBS=feed0000000000aa", NULL},
        {"XGPUSHARE_JOB=feed0000000000aa", NULL},
        {"GPUSHARE_JOB=feed0000000000aag", NULL},
        {"GPUSHARE_JOB", NULL},
        {"GPUSHARE_JOB=@feed0000000000aa", NULL},
        {"GPUSHARE_JO=feed0000000000aa", "B=GPUSHARE_JOB=feed0000000000aa", NULL},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        REQUIRE(!is_of_the_job(child_with(odd[i])));
    options.job_id = 0xab; /* a short one */
    const char *const none[] = {"GPUSHARE_JOB=", NULL}, *const twice[] = {"GPUSHARE_JOB=1x", "GPUSHARE_JOB=ab", NULL};
    unsigned int without = child_with(none);
    REQUIRE(is_of_the_job(child_with(twice)));
    const char *const alone[] = {"GPUSHARE_JOB=ab", NULL}, *const second[] = {"A=1", "GPUSHARE_JOB=ab", NULL};
    REQUIRE(is_of_the_job(child_with(alone)) && is_of_the_job(child_with(second)) && !is_of_the_job(ours));
    options.job_id = 0;
    REQUIRE(!is_of_the_job(without));
    REQUIRE(!is_of_the_job(ours) && is_of_the_job((unsigned int)getpid()));
    page.pid = theirs; /* as the daemon sees this process */
    has_page = &page;
    REQUIRE(is_of_the_job(theirs) && !is_of_the_job(ours));
    has_page = NULL;
    REQUIRE(descriptors() == before);
    options.job_id = JOB;
}

static unsigned int there[4], there_count;
static nvmlReturn_t list_says;
static unsigned int asked_for;

#define FILL(type)                                                                                                     \
    do {                                                                                                               \
        calls++;                                                                                                       \
        asked_for = *count;                                                                                            \
        REQUIRE(infos == NULL || *count >= there_count || list_says != NVML_SUCCESS);                                  \
        for (unsigned int i = 0; i < there_count && infos != NULL && i < *count; i++) {                                \
            memset(&infos[i], 0, sizeof(type));                                                                        \
            infos[i].pid = there[i];                                                                                   \
            infos[i].usedGpuMemory = i + 1;                                                                            \
        }                                                                                                              \
        *count = there_count;                                                                                          \
        return list_says;                                                                                              \
    } while (0)

static nvmlReturn_t list_1(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
    (void)device;
    FILL(nvmlProcessInfo_v1_t);
}

static nvmlReturn_t list_2(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {
    (void)device;
    FILL(nvmlProcessInfo_t);
}

static nvmlReturn_t samples(nvmlDevice_t device, nvmlProcessUtilizationSample_t *infos, unsigned int *count,
                            unsigned long long since) {
    (void)device;
    REQUIRE(since == 77);
    calls++;
    asked_for = *count;
    for (unsigned int i = 0; i < there_count && infos != NULL; i++)
        infos[i] = (nvmlProcessUtilizationSample_t){.pid = there[i], .smUtil = i + 1};
    *count = there_count;
    return list_says;
}

static nvmlReturn_t details(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    (void)device;
    calls++;
    asked_for = list->numProcArrayEntries;
    REQUIRE(list->mode == NVML_PROCESS_MODE_GRAPHICS);
    for (unsigned int i = 0; i < there_count && list->procArray != NULL; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){.pid = there[i], .usedGpuMemory = i + 1};
    list->numProcArrayEntries = there_count;
    return list_says;
}

static nvmlReturn_t utilizations(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *list) {
    (void)device;
    calls++;
    asked_for = list->processSamplesCount;
    REQUIRE(list->lastSeenTimeStamp == 77);
    for (unsigned int i = 0; i < there_count && list->procUtilArray != NULL; i++)
        list->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){.pid = there[i], .smUtil = i + 1};
    list->processSamplesCount = there_count;
    return list_says;
}

/* Each way to ask, by its number: what is found, as pids and numbers. */
#define WAYS 12
static unsigned int pids[4];
static unsigned long long numbers[4];
static bool without_a_place, wrong_version;

#define BY_LIST(function, type)                                                                                        \
    do {                                                                                                               \
        type infos[4] = {{0}};                                                                                         \
        nvmlReturn_t result = function(NULL, count, without_a_place ? NULL : infos);                                   \
        for (int i = 0; i < 4; i++) {                                                                                  \
            pids[i] = infos[i].pid;                                                                                    \
            numbers[i] = infos[i].usedGpuMemory;                                                                       \
        }                                                                                                              \
        return result;                                                                                                 \
    } while (0)

static nvmlReturn_t ask(int way, unsigned int *count) {
    calls = 0;
    switch (way) {
    case 0:
        BY_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t);
    case 1:
        BY_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t);
    case 2:
        BY_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t);
    case 3:
        BY_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t);
    case 4:
        BY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t);
    case 5:
        BY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t);
    case 6:
        BY_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t);
    case 7:
        BY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t);
    case 8:
        BY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t);
    case 9: {
        nvmlProcessUtilizationSample_t infos[4] = {{0}};
        nvmlReturn_t result = nvmlDeviceGetProcessUtilization(NULL, without_a_place ? NULL : infos, count, 77);
        for (int i = 0; i < 4; i++) {
            pids[i] = infos[i].pid;
            numbers[i] = infos[i].smUtil;
        }
        return result;
    }
    case 10: {
        nvmlProcessDetail_v1_t infos[4] = {{0}};
        nvmlProcessDetailList_t list = {NVML_VERSION(nvmlProcessDetailList_t, wrong_version ? 2 : 1),
                                        NVML_PROCESS_MODE_GRAPHICS, *count, without_a_place ? NULL : infos};
        nvmlReturn_t result = nvmlDeviceGetRunningProcessDetailList(NULL, &list);
        REQUIRE(list.procArray == (without_a_place ? NULL : infos));
        *count = list.numProcArrayEntries;
        for (int i = 0; i < 4; i++) {
            pids[i] = infos[i].pid;
            numbers[i] = infos[i].usedGpuMemory;
        }
        return result;
    }
    default: {
        nvmlProcessUtilizationInfo_v1_t infos[4] = {{0}};
        nvmlProcessesUtilizationInfo_t list = {NVML_VERSION(nvmlProcessesUtilizationInfo_t, wrong_version ? 2 : 1),
                                               *count, 77, without_a_place ? NULL : infos};
        nvmlReturn_t result = nvmlDeviceGetProcessesUtilizationInfo(NULL, &list);
        REQUIRE(list.procUtilArray == (without_a_place ? NULL : infos) && list.lastSeenTimeStamp == 77);
        *count = list.processSamplesCount;
        for (int i = 0; i < 4; i++) {
            pids[i] = infos[i].pid;
            numbers[i] = infos[i].smUtil;
        }
        return result;
    }
    }
}

static void lists(void) {
    for (int way = 0; way < WAYS; way++) {
        bool is_use = way == 9 || way == 11; /* of which an empty list is "not found" */
        nvmlReturn_t nothing = is_use ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
        unsigned int count = 4;
        there[0] = theirs, there[1] = ours, there[2] = 1, there[3] = padded;
        there_count = 4;
        REQUIRE(ask(way, &count) == NVML_SUCCESS && count == 2 && calls == 1);
        REQUIRE(asked_for == (is_use ? MOST_SAMPLES : MOST_PROCESSES));
        REQUIRE(pids[0] == ours && numbers[0] == 2 && pids[1] == padded && numbers[1] == 4 && pids[2] == 0);
        count = 2; /* just enough */
        REQUIRE(ask(way, &count) == NVML_SUCCESS && count == 2 && pids[1] == padded);
        there[0] = padded, there[3] = theirs; /* the first of them, too */
        REQUIRE(ask(way, &count) == NVML_SUCCESS && count == 2 && pids[0] == padded && pids[1] == ours);
        count = 1;
        REQUIRE(ask(way, &count) == NVML_ERROR_INSUFFICIENT_SIZE && count == 2 && pids[0] == 0);
        there[0] = theirs, there[3] = padded;
        without_a_place = true; /* how many there are, whatever the count says */
        count = 4;
        REQUIRE(ask(way, &count) == NVML_ERROR_INSUFFICIENT_SIZE && count == 2);
        there_count = 2; /* one of ours: also for that there is no place */
        REQUIRE(ask(way, &count) == NVML_ERROR_INSUFFICIENT_SIZE && count == 1);
        there_count = 1; /* none of ours */
        REQUIRE(ask(way, &count) == nothing && count == 0);
        without_a_place = false;
        count = 4;
        REQUIRE(ask(way, &count) == nothing && count == 0 && pids[0] == 0);
        there_count = 4;
        list_says = NVML_ERROR_NO_PERMISSION;
        count = 3;
        REQUIRE(ask(way, &count) == NVML_ERROR_NO_PERMISSION && count == 3 && pids[0] == 0);
        list_says = NVML_ERROR_NOT_FOUND;
        REQUIRE(ask(way, &count) == NVML_ERROR_NOT_FOUND && count == (is_use ? 0 : 3));
        list_says = NVML_SUCCESS;
        gs_nvml_mode = GS_INERT;
        count = 4;
        REQUIRE(ask(way, &count) == NVML_SUCCESS && count == 4 && pids[0] == theirs && asked_for == 4);
        gs_nvml_mode = GS_ON;
        if (way >= 10) { /* what a later version has is not ours to read */
            wrong_version = true;
            count = 4;
            REQUIRE(ask(way, &count) == NVML_SUCCESS && count == 4 && asked_for == 4);
            wrong_version = false;
        }
    }
}

static nvmlReturn_t no_count(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
    (void)device;
    REQUIRE(count == NULL && infos == NULL);
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t no_samples(nvmlDevice_t device, nvmlProcessUtilizationSample_t *infos, unsigned int *count,
                               unsigned long long since) {
    (void)device, (void)since;
    REQUIRE(count == NULL && infos == NULL);
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t no_list(nvmlDevice_t device, nvmlProcessDetailList_t *list) {
    (void)device;
    REQUIRE(list == NULL);
    return NVML_ERROR_INVALID_ARGUMENT;
}

static void without_arguments(void) {
    gs_nvml.nvmlDeviceGetComputeRunningProcesses = no_count;
    gs_nvml.nvmlDeviceGetProcessUtilization = no_samples;
    gs_nvml.nvmlDeviceGetRunningProcessDetailList = no_list;
    REQUIRE(nvmlDeviceGetComputeRunningProcesses(NULL, NULL, NULL) == NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(nvmlDeviceGetProcessUtilization(NULL, NULL, NULL, 0) == NVML_ERROR_INVALID_ARGUMENT);
    REQUIRE(nvmlDeviceGetRunningProcessDetailList(NULL, NULL) == NVML_ERROR_INVALID_ARGUMENT);
}

static void end_children(void) {
    for (int i = 0; i < started; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
}

int main(void) {
    atexit(end_children);
    gs_nvml.nvmlDeviceGetUUID = uuid_of;
    gs_nvml.nvmlDeviceGetMemoryInfo = memory_1;
    gs_nvml.nvmlDeviceGetMemoryInfo_v2 = memory_2;
    gs_nvml.nvmlDeviceGetComputeRunningProcesses = gs_nvml.nvmlDeviceGetGraphicsRunningProcesses = list_1;
    gs_nvml.nvmlDeviceGetMPSComputeRunningProcesses = list_1;
    gs_nvml.nvmlDeviceGetComputeRunningProcesses_v2 = gs_nvml.nvmlDeviceGetComputeRunningProcesses_v3 = list_2;
    gs_nvml.nvmlDeviceGetGraphicsRunningProcesses_v2 = gs_nvml.nvmlDeviceGetGraphicsRunningProcesses_v3 = list_2;
    gs_nvml.nvmlDeviceGetMPSComputeRunningProcesses_v2 = gs_nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3 = list_2;
    gs_nvml.nvmlDeviceGetProcessUtilization = samples;
    gs_nvml.nvmlDeviceGetRunningProcessDetailList = details;
    gs_nvml.nvmlDeviceGetProcessesUtilizationInfo = utilizations;
    memory();
    gpus_that_were_given();
    start_children();
    whose();
    lists();
    without_arguments();
    return good();
}
