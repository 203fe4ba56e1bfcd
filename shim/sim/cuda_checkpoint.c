/* cuda_checkpoint.c: stops the calls of another process, takes its memory from the GPUs, and puts it back.
 *
 *   RUNNING --lock--> LOCKED --checkpoint--> CHECKPOINTED --restore--> LOCKED --unlock--> RUNNING
 *
 * A locked process's calls wait before they begin (pool_call_begins), and a lock waits for those that have begun. A
 * checkpoint moves the bytes of each arena behind its end, in the same file. There they are host memory of the process,
 * its addresses no longer point to them, and they end with the process. Then nothing is charged to the process, and
 * other processes may have the memory.
 *
 * The caller does the work here, where NVIDIA's driver has the process do it. A caller may be killed in the middle, so
 * slot first notes what is under way (POOL_LEAVING, POOL_RETURNING). The next process that uses the slot finishes it:
 * to move bytes that have been moved does nothing. As with NVIDIA's driver, a question for the state waits for that.
 */
#define _GNU_SOURCE
#include "common_model.h"
#include "common_pool.h"
#include "cuda_api.h"
#include "cuda_device.h"
#include "cuda_share.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES (1u << 20)
#define LOOK_NS     200000 /* between two looks of a lock whether the last call has ended */

static uint64_t moves; /* by this process */

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static bool is_zero(const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    while (size > 0 && *at == 0) {
        at++, size--;
    }
    return size == 0;
}

/* ---- bytes ---------------------------------------------------------------------------------------- */

/* One arena: where its bytes are, and where they go. */
struct move {
    int fd;
    uint64_t from, to, size;
    bool breaks; /* asked for: it stops at the first half */
};

static bool move_piece(const struct move *move, char *buffer, uint64_t offset, uint64_t size) {
    return pread(move->fd, buffer, size, (off_t)(move->from + offset)) == (ssize_t)size &&
           pwrite(move->fd, buffer, size, (off_t)(move->to + offset)) == (ssize_t)size &&
           fallocate(move->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(move->from + offset), (off_t)size) ==
               0;
}

static bool move_bytes(const struct move *move) {
    static char buffer[CHUNK_BYTES];
    uint64_t end = move->from + move->size;
    for (uint64_t at = move->from; at < end;) {
        off_t data = lseek(move->fd, (off_t)at, SEEK_DATA);
        off_t hole = data < 0 ? -1 : lseek(move->fd, data, SEEK_HOLE);
        if (hole < 0 || (uint64_t)data >= end) {
            return true;
        }
        uint64_t stop = (uint64_t)hole < end ? (uint64_t)hole : end;
        for (at = (uint64_t)data; at < stop;) {
            uint64_t size = stop - at < CHUNK_BYTES ? stop - at : CHUNK_BYTES;
            if (!move_piece(move, buffer, at - move->from, size)) {
                return false;
            }
            at += size;
            if (move->breaks && at - move->from > move->size / 2) {
                return false;
            }
        }
        if (move->breaks) {
            return false;
        }
    }
    return true;
}

/* Out of the arena, or back into it. The label stands at the end of the file while the arena is in use (cuda_share.h).
 */
static bool move_arena(int slot, uint32_t gpu, bool out, bool breaks) {
    char path[64];
    uint64_t size;
    int theirs = pool_arena(slot, gpu, &size);
    if (theirs < 0) {
        return true;
    }
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pool_pid_of(slot), theirs);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    uint64_t label = size + sizeof(struct share_label), behind = model_round_up(label, MODEL_BLOCK_BYTES);
    struct move move = {.fd = fd, .from = out ? 0 : behind, .to = out ? behind : 0, .size = size, .breaks = breaks};
    bool good = (!out || ftruncate(fd, (off_t)(behind + size)) == 0) && move_bytes(&move) &&
                (out || ftruncate(fd, (off_t)label) == 0);
    close(fd);
    return good;
}

static bool move_all(int slot, bool out, bool breaks) {
    bool good = true;
    for (uint32_t gpu = 0; gpu < device_hardware.gpus; gpu++) {
        good = move_arena(slot, gpu, out, breaks) && good;
    }
    return good;
}

static void spend(uint64_t bytes) {
    uint64_t rate = sim_settings()->checkpoint_rate;
    if (rate != 0) {
        double seconds = (double)bytes / (double)rate;
        struct timespec rest = {.tv_sec = (time_t)seconds,
                                .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
        while (nanosleep(&rest, &rest) != 0) {
        }
    }
}

/* ---- states --------------------------------------------------------------------------------------- */

static bool take_out(int slot, bool breaks) {
    pool_set_state(slot, POOL_LEAVING);
    bool good = move_all(slot, true, breaks);
    if (good) {
        spend(pool_held(slot));
        pool_park(slot);
    }
    pool_set_state(slot, good ? POOL_CHECKPOINTED : POOL_FAILED);
    return good;
}

/* The accounts have the memory already. */
static bool put_back(int slot, bool breaks) {
    pool_set_state(slot, POOL_RETURNING);
    bool good = move_all(slot, false, breaks);
    spend(good ? pool_held(slot) : 0);
    pool_set_state(slot, good ? POOL_LOCKED : POOL_FAILED);
    return good;
}

/* What a caller that was killed has left under way. */
static void complete(int slot) {
    switch (pool_state_of(slot)) {
    case POOL_LOCKING:
        pool_set_state(slot, POOL_RUNNING);
        break;
    case POOL_LEAVING:
        take_out(slot, false);
        break;
    case POOL_RETURNING:
        put_back(slot, false);
        break;
    default:
        break;
    }
}

static bool breaks_now(void) {
    return ++moves == sim_settings()->checkpoint_break;
}

static CUresult lock(int slot, uint64_t timeout_ms) {
    uint64_t until = now_ms() + timeout_ms;
    pool_set_state(slot, POOL_LOCKING);
    while (pool_calls(slot) != 0) {
        if (timeout_ms != 0 && now_ms() >= until) {
            pool_set_state(slot, POOL_RUNNING);
            return CUDA_ERROR_NOT_READY;
        }
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    pool_set_state(slot, POOL_LOCKED);
    return CUDA_SUCCESS;
}

static CUresult checkpoint(int slot) {
    if (pool_is_marked(slot)) {
        return CUDA_ERROR_NOT_SUPPORTED; /* and it stays locked, and can be unlocked */
    }
    return take_out(slot, breaks_now()) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

static CUresult restore(int slot) {
    if (!pool_unpark(slot)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return put_back(slot, breaks_now()) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

enum step { STEP_LOCK, STEP_CHECKPOINT, STEP_RESTORE, STEP_UNLOCK, STEPS };

static const enum pool_state from[STEPS] = {POOL_RUNNING, POOL_LOCKED, POOL_CHECKPOINTED, POOL_LOCKED};

static CUresult take_step(int slot, enum step step, uint64_t timeout_ms) {
    complete(slot);
    if (pool_state_of(slot) != from[step]) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    switch (step) {
    case STEP_LOCK:
        return lock(slot, timeout_ms);
    case STEP_CHECKPOINT:
        return checkpoint(slot);
    case STEP_RESTORE:
        return restore(slot);
    default:
        pool_set_state(slot, POOL_RUNNING);
        return CUDA_SUCCESS;
    }
}

static CUresult act(int pid, enum step step, uint64_t timeout_ms, const void *reserved, size_t size) {
    int slot = pool_find(pid);
    if (slot < 0 || (reserved != NULL && !is_zero(reserved, size))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int held = pool_hold(slot);
    if (held < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    CUresult result = take_step(slot, step, timeout_ms);
    if (pool_find(pid) != slot) { /* it has ended meanwhile, and another process may have its slot */
        pool_set_state(slot, POOL_RUNNING);
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pool_let_go(held);
    return result;
}

static CUresult state_of(int pid, CUprocessState *state) {
    int slot = pool_find(pid);
    if (state == NULL || (slot < 0 && pid != getpid())) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *state = CU_PROCESS_STATE_RUNNING;
    if (slot >= 0) {
        int held = pool_hold(slot);
        complete(slot);
        *state = (CUprocessState)pool_state_of(slot);
        pool_let_go(held);
    }
    return CUDA_SUCCESS;
}

/* Memory goes back where it was. */
static CUresult restore_with(int pid, const CUcheckpointRestoreArgs *args) {
    for (unsigned int index = 0; args != NULL && index < args->gpuPairsCount; index++) {
        const CUcheckpointGpuPair *pair = &args->gpuPairs[index];
        if (memcmp(&pair->oldUuid, &pair->newUuid, sizeof pair->oldUuid) != 0) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return act(pid, STEP_RESTORE, 0, args == NULL ? NULL : args->reserved,
               sizeof args->reserved + sizeof args->reserved1);
}

/* A process is told its own state also while its other calls wait. */
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    if (pid == getpid() && state != NULL && pool_is_away()) {
        *state = CU_PROCESS_STATE_CHECKPOINTED;
        return CUDA_SUCCESS;
    }
    ENTER(cuCheckpointProcessGetState);
    return state_of(pid, state);
}

API(cuCheckpointProcessLock, (int pid, CUcheckpointLockArgs *args),
    act(pid, STEP_LOCK, args == NULL ? 0 : args->timeoutMs, args == NULL ? NULL : &args->reserved0,
        sizeof *args - sizeof args->timeoutMs))
API(cuCheckpointProcessCheckpoint, (int pid, CUcheckpointCheckpointArgs *args),
    act(pid, STEP_CHECKPOINT, 0, args, sizeof *args))
API(cuCheckpointProcessRestore, (int pid, CUcheckpointRestoreArgs *args), restore_with(pid, args))
API(cuCheckpointProcessUnlock, (int pid, CUcheckpointUnlockArgs *args), act(pid, STEP_UNLOCK, 0, args, sizeof *args))
