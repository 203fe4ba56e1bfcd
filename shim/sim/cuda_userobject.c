/* cuda_userobject.c: objects of the program that graphs keep alive: counted references, and the program's own
 * destructor.
 *
 * The last reference may go while the lock is held, in the middle of any call that ends a graph. So the destructor is
 * given to the thread that runs the program's functions. No call waits for it: CUDA promises no more, and requires
 * CU_USER_OBJECT_NO_DESTRUCTOR_SYNC for that reason.
 */
#define _GNU_SOURCE
#include "cuda_userobject.h"

#include "cuda_api.h"
#include "cuda_graph.h"
#include "cuda_handle.h"
#include "cuda_stream.h"

#include <limits.h>
#include <stdlib.h>

struct CUuserObject_st {
    void *data;
    CUhostFn destroy;
    uint64_t references;
};

static void drop(CUuserObject object, uint64_t count) {
    object->references -= count;
    if (object->references == 0) {
        stream_call_apart(object->destroy, object->data);
        handle_end(object);
    }
}

static struct user_reference *find(const struct user_references *references, CUuserObject object) {
    for (size_t index = 0; index < references->count; index++) {
        if (references->list[index].object == object) {
            return &references->list[index];
        }
    }
    return NULL;
}

/* The references themselves are counted by the caller. */
static bool note(struct user_references *references, CUuserObject object, uint64_t count) {
    struct user_reference *known = find(references, object);
    if (known != NULL) {
        known->count += count;
        return true;
    }
    if (references->count == references->room) {
        size_t room = references->room == 0 ? 4 : references->room * 2;
        struct user_reference *more = realloc(references->list, room * sizeof *more);
        if (more == NULL) {
            return false;
        }
        references->list = more;
        references->room = room;
    }
    references->list[references->count++] = (struct user_reference){object, count};
    return true;
}

bool user_references_copy(struct user_references *references, const struct user_references *from) {
    for (size_t index = 0; index < from->count; index++) {
        if (!note(references, from->list[index].object, from->list[index].count)) {
            return false;
        }
        from->list[index].object->references += from->list[index].count;
    }
    return true;
}

void user_references_end(struct user_references *references) {
    for (size_t index = 0; index < references->count; index++) {
        drop(references->list[index].object, references->list[index].count);
    }
    free(references->list);
    *references = (struct user_references){0};
}

static CUresult create(CUuserObject *object, void *data, CUhostFn destroy, unsigned int references,
                       unsigned int flags) {
    if (object == NULL || destroy == NULL || references == 0 || references > INT_MAX ||
        flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUuserObject fresh = handle_new(HANDLE_USER_OBJECT, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *fresh = (struct CUuserObject_st){data, destroy, references};
    *object = fresh;
    return CUDA_SUCCESS;
}

static CUresult check(CUuserObject object, unsigned int count) {
    return count == 0 || count > INT_MAX || !handle_is(object, HANDLE_USER_OBJECT) ? CUDA_ERROR_INVALID_VALUE
                                                                                   : CUDA_SUCCESS;
}

static CUresult retain(CUuserObject object, unsigned int count) {
    CUresult result = check(object, count);
    if (result == CUDA_SUCCESS) {
        object->references += count;
    }
    return result;
}

/* A program that releases more than there are has made a mistake that a real driver does not notice; here it is told.
 */
static CUresult release(CUuserObject object, unsigned int count) {
    CUresult result = check(object, count);
    if (result == CUDA_SUCCESS && count > object->references) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS) {
        drop(object, count);
    }
    return result;
}

static CUresult graph_retain(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags) {
    bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
    CUresult result = check(object, count);
    if (result != CUDA_SUCCESS || !handle_is(graph, HANDLE_GRAPH) || (flags != 0 && !move) ||
        (move && count > object->references)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!note(&graph->references, object, count)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    object->references += move ? 0 : count;
    return CUDA_SUCCESS;
}

static CUresult graph_release(CUgraph graph, CUuserObject object, unsigned int count) {
    struct user_reference *known = NULL;
    if (check(object, count) == CUDA_SUCCESS && handle_is(graph, HANDLE_GRAPH)) {
        known = find(&graph->references, object);
    }
    if (known == NULL || known->count < count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    known->count -= count;
    if (known->count == 0) {
        *known = graph->references.list[--graph->references.count];
    }
    drop(object, count);
    return CUDA_SUCCESS;
}

API(cuUserObjectCreate,
    (CUuserObject * object, void *data, CUhostFn destroy, unsigned int references, unsigned int flags),
    LOCKED(create(object, data, destroy, references, flags)))
API(cuUserObjectRetain, (CUuserObject object, unsigned int count), LOCKED(retain(object, count)))
API(cuUserObjectRelease, (CUuserObject object, unsigned int count), LOCKED(release(object, count)))
API(cuGraphRetainUserObject, (CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags),
    LOCKED(graph_retain(graph, object, count, flags)))
API(cuGraphReleaseUserObject, (CUgraph graph, CUuserObject object, unsigned int count),
    LOCKED(graph_release(graph, object, count)))
