/* common_pool.c: the physical memory of the GPUs, shared by all processes.
 *
 * A file `pool` in the pool's directory holds, for each process, a slot, and for each GPU and slot one 64-bit word:
 * the bytes that the process has of that GPU. A GPU's used memory is the sum of its words; no total is
 * kept, so none can be wrong. Each process writes only its own words, with one store each, so no kill leaves one
 * half-done.
 *
 * Check and add must be one step among processes. They happen under a robust mutex in the file: if its holder dies,
 * the kernel passes it to the next one who waits, and there is nothing to repair, because what it guards is single
 * words. (A file lock would do as well, except that a forked child keeps its parent's lock alive.)
 *
 * A slot is alive as long as its process holds a POSIX lock on the slot's byte of the file `alive`. The kernel drops
 * it when the process ends by whatever means, before it becomes a zombie, and on exec, because the descriptor is
 * close-on-exec; a forked child does not inherit it; and a recycled pid is not mistaken for the old process.
 * A process that is short of memory or asks what is used tests the locks. It frees the slots of ended processes, after
 * the teardown time if one is set. The lock is tested with F_OFD_GETLK, for which our own process counts as another,
 * so that the CUDA and the NVML library in one process agree. The descriptor stays open for good: closing any
 * descriptor of that file would drop the process's lock.
 */
#define _GNU_SOURCE
#include "common_pool.h"

#include "common_health.h"
#include "common_model.h"
#include "glibc_baseline.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define POOL_MAGIC   0x6d69732d75706770ull /* "pgpu-sim" */
#define POOL_VERSION 2
#define POOL_SLOTS   4096
/* A build with another layout has GPUs of its own in the same directory: its files have another name. */
#define POOL_LAYOUT ((unsigned long long)POOL_VERSION + ((unsigned long long)sizeof(struct pool_file) << 8))
#define POOL_READY  (POOL_MAGIC + POOL_LAYOUT)

/* Changed under the mutex only, except by its owner; free when pid is 0. */
struct slot {
    _Atomic uint32_t pid;
    _Atomic uint32_t leaving; /* its process has come to its exit and was not killed */
    uint64_t dead_since;      /* CLOCK_MONOTONIC ns at which it was first found dead, 0 before */
    _Atomic uint32_t state;   /* enum pool_state; a futex. Changed by the process that holds the slot (pool_hold) */
    _Atomic uint32_t calls;   /* of the program, that are in the driver now */
    _Atomic int32_t marks[POOL_MARKS];
    _Atomic int32_t arena[SIM_MAX_GPUS]; /* its descriptor + 1 */
    _Atomic uint64_t arena_bytes[SIM_MAX_GPUS];
    _Atomic uint64_t work[SIM_MAX_GPUS];  /* ns of work that it has given the GPU so far, */
    _Atomic uint64_t until[SIM_MAX_GPUS]; /* and when that is done: CLOCK_MONOTONIC ns */
};

struct pool_file {
    _Atomic uint64_t ready; /* POOL_READY when the hardware below is complete */
    pthread_mutex_t mutex;
    _Atomic uint32_t high; /* slots from here on were never used */
    struct sim_hardware hardware;
    struct slot slots[POOL_SLOTS];
    _Atomic uint64_t used[SIM_MAX_GPUS][POOL_SLOTS];
    _Atomic uint64_t shared[SIM_MAX_GPUS][POOL_SLOTS]; /* shown for a process, and charged to another */
    _Atomic uint64_t parked[SIM_MAX_GPUS]
                           [POOL_SLOTS];  /* of a checkpointed process: charged again when it is restored */
    _Atomic uint64_t clock[SIM_MAX_GPUS]; /* with kernels=clocked: when all work of the GPU is done */
};

static struct pool_file *pool;
static int alive_fd = -1;
static int my_slot = -1;
static int hold_fd = -1;
static char pool_path[SIM_PATH_BYTES];

static bool complain(const char *what) {
    fprintf(stderr, "gpushare software driver: pool %s: %s: %s\n", pool_path, what, strerror(errno));
    return false;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void pool_lock(void) {
    if (pthread_mutex_lock(&pool->mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(&pool->mutex);
    }
}

static void pool_unlock(void) {
    pthread_mutex_unlock(&pool->mutex);
}

static bool slot_alive(uint32_t slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(alive_fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Of a slot's process, as this process would name it: in another PID namespace it has another number than the one it
 * gave, and the kernel translates that of a lock's holder. */
static pid_t slot_pid(uint32_t slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    bool held = fcntl(alive_fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid > 0;
    return held ? lock.l_pid : (pid_t)atomic_load(&pool->slots[slot].pid);
}

static void free_slot(uint32_t index) {
    for (int gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        atomic_store(&pool->used[gpu][index], 0);
        atomic_store(&pool->shared[gpu][index], 0);
        atomic_store(&pool->parked[gpu][index], 0);
        atomic_store(&pool->slots[index].arena[gpu], 0);
        atomic_store(&pool->slots[index].work[gpu], 0);
        atomic_store(&pool->slots[index].until[gpu], 0);
    }
    for (int mark = 0; mark < POOL_MARKS; mark++) {
        atomic_store(&pool->slots[index].marks[mark], 0);
    }
    atomic_store(&pool->slots[index].calls, 0);
    atomic_store(&pool->slots[index].state, POOL_RUNNING);
    pool->slots[index].dead_since = 0;
    atomic_store(&pool->slots[index].leaving, 0);
    atomic_store(&pool->slots[index].pid, 0);
}

static bool slot_holds_memory(uint32_t index) {
    for (int gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        if (atomic_load(&pool->used[gpu][index]) != 0) {
            return true;
        }
    }
    return false;
}

/* Takes back what the dead left. Called with the mutex held; returns whether anybody is alive. */
static bool reap(void) {
    bool living = false;
    uint32_t high = atomic_load(&pool->high);
    for (uint32_t index = 0; index < high; index++) {
        struct slot *slot = &pool->slots[index];
        if (atomic_load(&slot->pid) == 0) {
            continue;
        }
        if (slot_alive(index)) {
            living = true;
            continue;
        }
        uint64_t now = now_ns();
        if (slot->dead_since == 0) {
            slot->dead_since = now;
        }
        if (now - slot->dead_since >= pool->hardware.teardown_ns || atomic_load(&slot->leaving) != 0 ||
            !slot_holds_memory(index)) {
            free_slot(index);
        }
    }
    return living;
}

/* Fills in the hardware. A kill in the middle leaves `ready` unset, and the next one to come starts over. */
static void write_hardware(const struct sim_hardware *hardware) {
    atomic_store(&pool->ready, 0);
    for (uint32_t index = 0; index < atomic_load(&pool->high); index++) {
        free_slot(index);
    }
    pool->hardware = *hardware;
    atomic_store(&pool->ready, POOL_READY);
}

static void init_mutex(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&pool->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static int open_file(const char *directory, const char *name) {
    char path[SIM_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

/* The directory holds memory contents' accounts of one user: nobody else may have made it. */
static bool make_directory(const char *directory) {
    struct stat status;
    if (mkdir(directory, 0700) != 0 && errno != EEXIST) {
        return complain("cannot make the directory");
    }
    if (gs_stat(directory, &status) != 0) {
        return complain("cannot look at the directory");
    }
    if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
        errno = EPERM;
        return complain("not a directory of our own");
    }
    return true;
}

static int open_file_of_layout(const char *directory, const char *name) {
    char whole[32];
    snprintf(whole, sizeof whole, "%s-%llx", name, POOL_LAYOUT);
    return open_file(directory, whole);
}

static bool map_pool(const char *directory) {
    int fd = open_file_of_layout(directory, "pool");
    if (fd < 0 || ftruncate(fd, sizeof(struct pool_file)) != 0) {
        return complain("cannot open the file 'pool'");
    }
    void *memory = mmap(NULL, sizeof(struct pool_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) {
        return complain("cannot map the file 'pool'");
    }
    pool = memory;
    return true;
}

/* Held while the pool is made and while a process takes its slot. The descriptor is new each time, so that a forked
 * child does not have it and the lock ends with us. */
static int lock_directory(const char *directory) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open_file(directory, "lock");
    if (fd < 0) {
        return -1;
    }
    while (fcntl(fd, F_OFD_SETLKW, &lock) != 0) {
        if (errno != EINTR) {
            close(fd);
            return -1;
        }
    }
    return fd;
}

static void unlock_directory(int fd) {
    struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_OFD_SETLK, &unlock);
    close(fd);
}

static bool open_locked(const struct sim_settings *settings) {
    if (pool == NULL && !map_pool(settings->pool)) {
        return false;
    }
    if (alive_fd < 0) {
        alive_fd = open_file_of_layout(settings->pool, "alive");
    }
    if (hold_fd < 0) {
        hold_fd = open_file_of_layout(settings->pool, "hold");
    }
    if (alive_fd < 0 || hold_fd < 0) {
        return complain("cannot open the files 'alive' and 'hold'");
    }
    if (atomic_load(&pool->ready) != POOL_READY) {
        init_mutex();
        write_hardware(&settings->hardware);
    }
    return true;
}

bool pool_open(const struct sim_settings *settings) {
    snprintf(pool_path, sizeof pool_path, "%s", settings->pool);
    if (!make_directory(settings->pool)) {
        return false;
    }
    int lock = lock_directory(settings->pool);
    if (lock < 0) {
        return complain("cannot lock it");
    }
    bool good = open_locked(settings);
    unlock_directory(lock);
    return good;
}

static bool take_slot(void) {
    for (uint32_t index = 0; index < POOL_SLOTS; index++) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
        if (atomic_load(&pool->slots[index].pid) != 0 || fcntl(alive_fd, F_SETLK, &lock) != 0) {
            continue;
        }
        if (index >= atomic_load(&pool->high)) {
            atomic_store(&pool->high, index + 1);
        }
        atomic_store(&pool->slots[index].pid, (uint32_t)getpid());
        my_slot = (int)index;
        return true;
    }
    errno = EUSERS;
    return complain("no free slot");
}

/* A process that exits by itself has cleaned up when it is gone; the teardown time is for one that was killed. */
static __attribute__((destructor)) void leave(void) {
    if (my_slot >= 0 && atomic_load(&pool->slots[my_slot].pid) == (uint32_t)getpid()) {
        atomic_store(&pool->slots[my_slot].leaving, 1);
    }
}

bool pool_attach(const struct sim_settings *settings) {
    int lock = lock_directory(settings->pool);
    if (lock < 0) {
        return complain("cannot lock it");
    }
    pool_lock();
    if (!reap() && memcmp(&pool->hardware, &settings->hardware, sizeof pool->hardware) != 0) {
        write_hardware(&settings->hardware);
    }
    bool good = take_slot();
    pool_unlock();
    unlock_directory(lock);
    return good;
}

void pool_hardware(struct sim_hardware *hardware) {
    pool_lock();
    *hardware = pool->hardware;
    pool_unlock();
    for (uint32_t gpu = 0; gpu < hardware->gpus; gpu++) {
        hardware->memory[gpu] = health_memory(gpu, hardware->memory[gpu]);
    }
}

/* The same GPU of the same pool has the same UUID in every process and after every restart: it is made from the
 * pool's real path and the GPU's number. (FNV-1a and a finaliser; it need not resist anybody.) */
void pool_uuid(uint32_t gpu, unsigned char uuid[16]) {
    char *real = realpath(pool_path, NULL);
    for (int half = 0; half < 2; half++) {
        uint64_t hash = 0xcbf29ce484222325ull + (uint64_t)half;
        for (const char *c = real == NULL ? pool_path : real; *c != '\0'; c++) {
            hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
        }
        hash = (hash ^ gpu) * 0x100000001b3ull;
        hash = (hash ^ (hash >> 31)) * 0x9e3779b97f4a7c15ull;
        hash ^= hash >> 29;
        memcpy(uuid + 8 * half, &hash, 8);
    }
    free(real);
}

static uint64_t sum_used(uint32_t gpu) {
    uint64_t sum = 0;
    uint32_t high = atomic_load(&pool->high);
    for (uint32_t index = 0; index < high; index++) {
        sum += atomic_load_explicit(&pool->used[gpu][index], memory_order_relaxed);
    }
    return sum;
}

bool pool_charge(uint32_t gpu, uint64_t bytes) {
    uint64_t room = health_memory(gpu, pool->hardware.memory[gpu]) - pool->hardware.reserved_bytes;
    if (bytes > room) {
        return false;
    }
    pool_lock();
    bool fits = sum_used(gpu) + bytes <= room;
    if (!fits) {
        reap();
        fits = sum_used(gpu) + bytes <= room;
    }
    if (fits) {
        atomic_fetch_add(&pool->used[gpu][my_slot], bytes);
    }
    pool_unlock();
    return fits;
}

void pool_uncharge(uint32_t gpu, uint64_t bytes) {
    atomic_fetch_sub(&pool->used[gpu][my_slot], bytes);
}

void pool_share(uint32_t gpu, int64_t bytes) {
    atomic_fetch_add(&pool->shared[gpu][my_slot], (uint64_t)bytes);
}

uint64_t pool_used(uint32_t gpu) {
    pool_lock();
    reap();
    uint64_t sum = sum_used(gpu);
    pool_unlock();
    return sum;
}

/* Of the work, what is done. */
static uint64_t busy(uint32_t gpu, uint32_t index) {
    struct slot *slot = &pool->slots[index];
    uint64_t now = now_ns(), until = atomic_load(&slot->until[gpu]), work = atomic_load(&slot->work[gpu]);
    uint64_t left = until > now ? until - now : 0;
    return work > left ? work - left : 0;
}

static void sleep_until(uint64_t ns) {
    struct timespec time = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {
    }
}

void pool_work_done(uint32_t gpu) {
    if (my_slot < 0 || !SIM_IS(kernels, clocked)) {
        return;
    }
    uint64_t until = atomic_load(&pool->slots[my_slot].until[gpu]);
    if (until > now_ns()) {
        sleep_until(until);
    }
}

/* One kernel of the GPU after the other, in the order of the launches. Work of a process that dies is done all the
 * same. */
static void clocked_work(struct slot *slot, uint32_t gpu, uint64_t ns) {
    uint64_t before = atomic_load(&pool->clock[gpu]), now = now_ns(), begin;
    do {
        begin = before > now ? before : now;
    } while (!atomic_compare_exchange_weak(&pool->clock[gpu], &before, begin + ns));
    atomic_store(&slot->until[gpu], begin + ns);
    atomic_fetch_add(&slot->work[gpu], ns);
}

/* Work comes after what the process has given before, and is not waited for. */
void pool_work(uint32_t gpu, uint64_t ns) {
    if (my_slot < 0) {
        return;
    }
    struct slot *slot = &pool->slots[my_slot];
    if (SIM_IS(kernels, clocked)) {
        clocked_work(slot, gpu, ns);
        return;
    }
    uint64_t now = now_ns(), before = atomic_load(&slot->until[gpu]), begin, after;
    do {
        begin = before > now ? before : now;
        after = begin + ns < now + MODEL_QUEUE_NS ? begin + ns : now + MODEL_QUEUE_NS;
    } while (!atomic_compare_exchange_weak(&slot->until[gpu], &before, after));
    atomic_fetch_add(&slot->work[gpu], after - begin);
}

size_t pool_processes(uint32_t gpu, struct pool_process *processes, size_t room) {
    size_t count = 0;
    pool_lock();
    reap();
    uint32_t high = atomic_load(&pool->high);
    for (uint32_t index = 0; index < high; index++) {
        uint64_t used = atomic_load(&pool->used[gpu][index]) + atomic_load(&pool->shared[gpu][index]);
        if (used == 0) {
            continue;
        }
        if (count < room) {
            processes[count] = (struct pool_process){.pid = slot_pid(index), .used = used, .busy = busy(gpu, index)};
        }
        count++;
    }
    pool_unlock();
    return count;
}

/* ---- checkpoints ---------------------------------------------------------------------------------- */

#define LOOK_MS 20 /* between two looks of a waiting call whether the process that stopped it is alive */

static __thread uint32_t depth; /* a function of the program's that we call may call us */

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    struct timespec most = {.tv_nsec = LOOK_MS * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &most, NULL, 0);
}

static bool is_held(uint32_t slot) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(hold_fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static bool is_away(uint32_t state) {
    return state == POOL_LEAVING || state == POOL_CHECKPOINTED || state == POOL_RETURNING;
}

bool pool_is_away(void) {
    return pool != NULL && my_slot >= 0 && is_away(atomic_load(&pool->slots[my_slot].state));
}

bool pool_refuses(void) {
    return SIM_IS(suspended, ends) && pool_is_away();
}

bool pool_call_begins(bool looks) {
    struct slot *slot = &pool->slots[my_slot];
    if (depth++ > 0) {
        return true;
    }
    for (;;) {
        atomic_fetch_add(&slot->calls, 1);
        uint32_t state = atomic_load(&slot->state);
        if (__builtin_expect(state == POOL_RUNNING, 1) || state == POOL_FAILED) {
            return state == POOL_RUNNING;
        }
        atomic_fetch_sub(&slot->calls, 1);
        if (looks && SIM_IS(suspended, ends) && is_away(state)) {
            raise(SIGSEGV);
        }
        futex_wait(&slot->state, state);
        if (state == POOL_LOCKING && !is_held((uint32_t)my_slot)) { /* who wanted to lock it has died */
            atomic_compare_exchange_strong(&slot->state, &state, POOL_RUNNING);
        }
    }
}

void pool_call_ends(void) {
    if (--depth == 0) {
        atomic_fetch_sub(&pool->slots[my_slot].calls, 1);
    }
}

void pool_mark(enum pool_mark mark, int change) {
    atomic_fetch_add(&pool->slots[my_slot].marks[mark], change);
}

void pool_note_arena(uint32_t gpu, int fd, uint64_t size) {
    atomic_store(&pool->slots[my_slot].arena_bytes[gpu], size);
    atomic_store(&pool->slots[my_slot].arena[gpu], fd + 1);
}

int pool_find(pid_t pid) {
    uint32_t high = atomic_load(&pool->high);
    for (uint32_t index = 0; index < high && pid > 0; index++) {
        bool taken = atomic_load(&pool->slots[index].pid) != 0 && (int)index != my_slot;
        if (taken && slot_alive(index) && slot_pid(index) == pid) {
            return (int)index;
        }
    }
    return -1;
}

int pool_hold(int slot) {
    char path[64];
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    snprintf(path, sizeof path, "/proc/self/fd/%d", hold_fd);
    int fd = open(path, O_RDWR | O_CLOEXEC); /* a description of its own: it ends with us and not with a child */
    while (fd >= 0 && fcntl(fd, F_OFD_SETLKW, &lock) != 0) {
        if (errno != EINTR) {
            close(fd);
            return -1;
        }
    }
    return fd;
}

void pool_let_go(int held) {
    close(held);
}

enum pool_state pool_state_of(int slot) {
    return (enum pool_state)atomic_load(&pool->slots[slot].state);
}

void pool_set_state(int slot, enum pool_state state) {
    atomic_store(&pool->slots[slot].state, state);
    syscall(SYS_futex, &pool->slots[slot].state, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

uint32_t pool_calls(int slot) {
    return atomic_load(&pool->slots[slot].calls);
}

bool pool_is_marked(int slot) {
    bool marked = false;
    for (int mark = 0; mark < POOL_MARKS; mark++) {
        marked = marked || atomic_load(&pool->slots[slot].marks[mark]) > 0;
    }
    return marked;
}

pid_t pool_pid_of(int slot) {
    return slot_pid((uint32_t)slot);
}

int pool_arena(int slot, uint32_t gpu, uint64_t *size) {
    *size = atomic_load(&pool->slots[slot].arena_bytes[gpu]);
    return atomic_load(&pool->slots[slot].arena[gpu]) - 1;
}

uint64_t pool_held(int slot) {
    uint64_t sum = 0;
    for (int gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        sum += atomic_load(&pool->used[gpu][slot]);
    }
    return sum;
}

void pool_park(int slot) {
    pool_lock();
    for (int gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        atomic_fetch_add(&pool->parked[gpu][slot], atomic_exchange(&pool->used[gpu][slot], 0));
    }
    pool_unlock();
}

static bool fits_again(int slot, uint32_t gpu) {
    uint64_t parked = atomic_load(&pool->parked[gpu][slot]);
    uint64_t room = health_memory(gpu, pool->hardware.memory[gpu]) - pool->hardware.reserved_bytes;
    return parked == 0 || sum_used(gpu) + parked <= room;
}

bool pool_unpark(int slot) {
    bool fits = true;
    pool_lock();
    reap();
    for (uint32_t gpu = 0; gpu < pool->hardware.gpus; gpu++) {
        fits = fits && fits_again(slot, gpu);
    }
    for (uint32_t gpu = 0; gpu < pool->hardware.gpus && fits; gpu++) {
        atomic_fetch_add(&pool->used[gpu][slot], atomic_exchange(&pool->parked[gpu][slot], 0));
    }
    pool_unlock();
    return fits;
}
