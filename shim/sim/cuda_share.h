/* cuda_share.h: files of memory that other processes may be handed, and the label by which they know them. */
#ifndef GPUSHARE_SIM_CUDA_SHARE_H
#define GPUSHARE_SIM_CUDA_SHARE_H

#include <stdbool.h>
#include <stdint.h>

enum share_kind { SHARE_ARENA = 1, SHARE_VMM = 2, SHARE_EVENT = 3, SHARE_HOST = 4 };

struct share_label {
    uint64_t magic;
    uint32_t kind;
    uint32_t gpu;
    uint64_t size; /* of the memory, which the label follows */
    unsigned char uuid[16];
    uint32_t pid; /* of the process that made it */
};

/* A sparse memory file of `size` bytes with its label behind them; -1 with errno. */
int share_create(enum share_kind kind, uint32_t gpu, uint64_t size);
/* Reads the label of a descriptor that came from elsewhere: false if it is none of ours. */
bool share_read(int fd, enum share_kind kind, struct share_label *label);
/* Whether another process has made it. */
bool share_is_foreign(const struct share_label *label);

#endif
