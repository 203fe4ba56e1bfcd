/* common_health.c: errors of the GPUs, as the file `health` in the pool's directory lists them.
 *
 * Lines are appended while programs run. Each counts from the next look at the file on:
 *
 *   gpu0 xid 48          the driver reports an Xid; 79 is also a loss
 *   gpu0 ecc 2           two more uncorrected ECC errors; contexts that are open on the GPU are broken
 *   gpu0 rows pending    a row waits for its remapping;  gpu0 rows failed
 *   gpu0 pages pending   pages wait for their retirement
 *   gpu0 recovery 1      what the driver says must be done (NVML's numbers; 1 is a reset). Before the first such
 *                        line it says nothing, like drivers before R570; a reset makes it 0, nothing
 *   gpu0 memory 15Gi     the GPU has more or less memory than it had
 *   gpu0 lost            it has fallen off the bus: NVML loses it, contexts on it are broken
 *   gpu0 removed         it is no longer in the machine: as lost, and a later nvmlInit does not list it
 *   gpu0 reset           it is there and well; what was broken stays broken
 *
 *   echo gpu0 lost >> $POOL/health
 *
 * A file that is gone or shorter than before is read from its start. A line that makes no sense is named on stderr and
 * skipped.
 */
#define _GNU_SOURCE
#include "common_health.h"
#include "glibc_baseline.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define LOOK_EVERY_NS 5000000ull
#define LINE_BYTES    256

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct health gpus[SIM_MAX_GPUS];
static struct stat read_last;
static long read_bytes; /* of whole lines */

/* Copies for those who ask often, and when they were made. */
static _Atomic uint32_t losses[SIM_MAX_GPUS], eccs[SIM_MAX_GPUS];
static _Atomic bool lost[SIM_MAX_GPUS];
static _Atomic uint64_t memory[SIM_MAX_GPUS], next_look;

static void add_event(struct health *health, enum health_event_kind kind, uint32_t xid) {
    health->event[health->events % HEALTH_EVENTS] = (struct health_event){.kind = kind, .xid = xid};
    health->events++;
}

static void lose(struct health *health) {
    health->losses += !health->lost;
    health->lost = true;
}

static void reset(struct health *health) {
    health->lost = health->removed = health->rows_pending = health->rows_failed = health->pages_pending = false;
    health->recovery = 0; /* and that is what the driver says now */
    health->says_recovery = true;
    health->uncorrected = 0;
}

static bool apply_number(struct health *health, const char *word, unsigned long number) {
    if (strcmp(word, "xid") == 0) {
        add_event(health, HEALTH_XID, (uint32_t)number);
        if (number == 79) {
            lose(health);
        }
    } else if (strcmp(word, "ecc") == 0) {
        health->uncorrected += number;
        health->eccs++;
        add_event(health, HEALTH_DOUBLE_BIT_ERROR, 0);
    } else if (strcmp(word, "recovery") == 0) {
        health->recovery = (uint32_t)number;
        health->says_recovery = true;
    } else {
        return false;
    }
    return true;
}

static bool apply(struct health *health, const char *word, const char *rest) {
    char *end;
    unsigned long number = strtoul(rest, &end, 10);
    if (*rest != '\0' && *end == '\0' && apply_number(health, word, number)) {
        return true;
    }
    bool pending = strcmp(rest, "pending") == 0;
    if (strcmp(word, "rows") == 0 && (pending || strcmp(rest, "failed") == 0)) {
        health->rows_pending |= pending;
        health->rows_failed |= !pending;
    } else if (strcmp(word, "pages") == 0 && pending) {
        health->pages_pending = true;
    } else if (strcmp(word, "memory") == 0 && sim_size(rest, &health->memory)) {
        return true;
    } else if (*rest == '\0' && (strcmp(word, "lost") == 0 || strcmp(word, "removed") == 0)) {
        lose(health);
        health->removed |= *word == 'r';
    } else if (*rest == '\0' && strcmp(word, "reset") == 0) {
        reset(health);
    } else {
        return false;
    }
    return true;
}

static void read_line(const char *line) {
    unsigned gpu;
    char word[16], rest[32] = "";
    if (line[strspn(line, " \t")] == '\0' || *line == '#') {
        return;
    }
    if (sscanf(line, "gpu%u %15s %31s", &gpu, word, rest) < 2 || gpu >= SIM_MAX_GPUS ||
        !apply(&gpus[gpu], word, rest)) {
        fprintf(stderr, "gpushare software driver: health: cannot read '%s'\n", line);
    }
}

/* What has been appended since the last time; the end of a line that is still being written is left for the next. */
static void read_on(const char *path) {
    char line[LINE_BYTES];
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    if (fseek(file, read_bytes, SEEK_SET) == 0) {
        while (fgets(line, sizeof line, file) != NULL && strchr(line, '\n') != NULL) {
            read_bytes += (long)strlen(line);
            line[strcspn(line, "\n")] = '\0';
            read_line(line);
        }
    }
    fclose(file);
}

static void publish(void) {
    for (int gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
        atomic_store(&losses[gpu], gpus[gpu].losses);
        atomic_store(&eccs[gpu], gpus[gpu].eccs);
        atomic_store(&lost[gpu], gpus[gpu].lost);
        atomic_store(&memory[gpu], gpus[gpu].memory);
    }
}

static void look(void) {
    char path[SIM_PATH_BYTES + 16];
    struct stat now = {0};
    const struct sim_settings *settings = sim_settings();
    if (settings == NULL) {
        return;
    }
    snprintf(path, sizeof path, "%s/health", settings->pool);
    bool there = gs_stat(path, &now) == 0;
    if (there && now.st_ino == read_last.st_ino && now.st_size == read_last.st_size) {
        return;
    }
    if (read_last.st_ino != now.st_ino || now.st_size < read_bytes) {
        for (int gpu = 0; gpu < SIM_MAX_GPUS; gpu++) {
            reset(&gpus[gpu]);
            gpus[gpu].says_recovery = false;
            gpus[gpu].memory = 0;
        }
        read_bytes = 0;
    }
    read_last = now;
    if (there) {
        read_on(path);
    }
    publish();
}

void health_of(uint32_t gpu, struct health *health) {
    pthread_mutex_lock(&mutex);
    look();
    *health = gpus[gpu];
    pthread_mutex_unlock(&mutex);
}

/* Looks again when it is time to. Not waited for: a forked child may find the mutex locked and never unlocked. */
static void look_now_and_then(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now); /* a few nanoseconds: it does not enter the kernel */
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
    if (ns >= atomic_load_explicit(&next_look, memory_order_relaxed) && pthread_mutex_trylock(&mutex) == 0) {
        look();
        atomic_store(&next_look, ns + LOOK_EVERY_NS);
        pthread_mutex_unlock(&mutex);
    }
}

uint64_t health_memory(uint32_t gpu, uint64_t otherwise) {
    look_now_and_then();
    uint64_t bytes = atomic_load_explicit(&memory[gpu], memory_order_relaxed);
    return bytes != 0 ? bytes : otherwise;
}

struct health_mark health_mark(uint32_t gpu, bool *is_lost) {
    look_now_and_then();
    *is_lost = atomic_load_explicit(&lost[gpu], memory_order_relaxed);
    return (struct health_mark){.losses = atomic_load_explicit(&losses[gpu], memory_order_relaxed),
                                .eccs = atomic_load_explicit(&eccs[gpu], memory_order_relaxed)};
}
