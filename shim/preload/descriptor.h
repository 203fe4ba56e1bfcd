/* descriptor.h: descriptors of ours in a program that closes what it does not know.
 *
 * Daemonising programs close all descriptors that they do not know, and the kernel gives the numbers out again. So each
 * descriptor of ours is moved to a high number, and before each use the file behind it is compared with the file that
 * we opened. Another file belongs to the program.
 */
#ifndef GPUSHARE_PRELOAD_DESCRIPTOR_H
#define GPUSHARE_PRELOAD_DESCRIPTOR_H

#include <stdbool.h>

#include "system.h"

/* A descriptor, and the file that we put there. */
struct gs_descriptor {
    int fd; /* -1: none */
    dev_t device;
    ino_t inode;
};

/* Out of the way of programs that expect low numbers, or close them. Returns the new number. */
static inline int gs_descriptor_move_high(int fd) {
    for (long lowest = 512; lowest >= 64; lowest /= 2) {
        long high = GS_CALL(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest);
        if (high >= 0) {
            GS_CALL(SYS_close, fd);
            return (int)high;
        }
    }
    return fd;
}

/* Remember which file is behind `fd`. */
static inline struct gs_descriptor gs_descriptor_of(int fd) {
    struct stat status;
    struct gs_descriptor descriptor = {.fd = fd};
    if (GS_CALL(SYS_fstat, fd, &status) == 0) {
        descriptor.device = status.st_dev;
        descriptor.inode = status.st_ino;
    }
    return descriptor;
}

/* Whether the file that we put there is still there. */
static inline bool gs_descriptor_is_ours(struct gs_descriptor descriptor) {
    struct stat status;
    return descriptor.fd >= 0 && GS_CALL(SYS_fstat, descriptor.fd, &status) == 0 &&
           status.st_dev == descriptor.device && status.st_ino == descriptor.inode;
}

static inline bool gs_descriptor_is_same(struct gs_descriptor a, struct gs_descriptor b) {
    return a.fd == b.fd && a.device == b.device && a.inode == b.inode;
}

/* Close it, unless the program has. */
static inline void gs_descriptor_close(struct gs_descriptor *descriptor) {
    if (gs_descriptor_is_ours(*descriptor))
        GS_CALL(SYS_close, descriptor->fd);
    descriptor->fd = -1;
}

#endif
