/* cuda_share.c: files of memory that other processes may be handed, and the label by which they know them.
 *
 * A program exports memory as a file descriptor and sends it wherever it likes. The label travels with the bytes, at
 * the end of the file, so the importer needs nothing else and does not believe a descriptor that is something else.
 */
#define _GNU_SOURCE
#include "cuda_share.h"

#include "common_pool.h"
#include "glibc_baseline.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARE_MAGIC 0x6572616873757067ull

int share_create(enum share_kind kind, uint32_t gpu, uint64_t size) {
    struct share_label label = {
        .magic = SHARE_MAGIC, .kind = kind, .gpu = gpu, .size = size, .pid = (uint32_t)getpid()};
    int fd = memfd_create("gpushare-sim", MFD_CLOEXEC);
    pool_uuid(gpu, label.uuid);
    if (fd >= 0 && pwrite(fd, &label, sizeof label, (off_t)size) != (ssize_t)sizeof label) {
        close(fd);
        return -1;
    }
    return fd;
}

bool share_is_foreign(const struct share_label *label) {
    return label->pid != (uint32_t)getpid();
}

bool share_read(int fd, enum share_kind kind, struct share_label *label) {
    struct stat status;
    off_t place;
    if (gs_fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        return false;
    }
    place = status.st_size - (off_t)sizeof *label;
    return place >= 0 && pread(fd, label, sizeof *label, place) == (ssize_t)sizeof *label &&
           label->magic == SHARE_MAGIC && label->kind == kind && label->size == (uint64_t)place;
}
