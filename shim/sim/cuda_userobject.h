/* cuda_userobject.h: objects of the program that graphs keep alive. See cuda_userobject.c. */
#ifndef GPUSHARE_SIM_CUDA_USEROBJECT_H
#define GPUSHARE_SIM_CUDA_USEROBJECT_H

#include "cuda_abi.h"

#include <stdbool.h>

/* How many references to which objects a graph or an executable graph has. */
struct user_references {
    struct user_reference {
        CUuserObject object;
        uint64_t count;
    } *list;
    size_t count, room;
};

/* All of these are called under the lock. */

/* As many more references as `from` has: for a clone, and for an executable graph. */
bool user_references_copy(struct user_references *references, const struct user_references *from);
void user_references_end(struct user_references *references);

#endif
