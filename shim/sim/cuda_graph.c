/* cuda_graph.c: graphs: nodes, and which must come before which.
 *
 * A graph is a description: nothing here runs anything. What a node does is kept as the data that the program gave,
 * less what only a GPU could use (a kernel's arguments). Nodes are kept in the order in which they were added, which
 * nearly always is one in which they may run.
 */
#define _GNU_SOURCE
#include "cuda_graph.h"

#include "cuda_api.h"
#include "cuda_conditional.h"
#include "cuda_exec.h"
#include "cuda_handle.h"

#include <stdlib.h>
#include <string.h>

/* ---- sets of nodes -------------------------------------------------------------------------------- */

bool node_set_has(const struct node_set *set, CUgraphNode node) {
    for (size_t index = 0; index < set->count; index++) {
        if (set->nodes[index] == node) {
            return true;
        }
    }
    return false;
}

static bool append(struct node_set *set, CUgraphNode node) {
    if (set->count == set->room) {
        size_t room = set->room == 0 ? 4 : set->room * 2;
        CUgraphNode *more = realloc(set->nodes, room * sizeof *more);
        if (more == NULL) {
            return false;
        }
        set->nodes = more;
        set->room = room;
    }
    set->nodes[set->count++] = node;
    return true;
}

bool node_set_add(struct node_set *set, CUgraphNode node) {
    return node_set_has(set, node) || append(set, node);
}

void node_set_clear(struct node_set *set) {
    free(set->nodes);
    *set = (struct node_set){0};
}

bool node_set_copy(struct node_set *set, const struct node_set *from) {
    node_set_clear(set);
    for (size_t index = 0; index < from->count; index++) {
        if (!append(set, from->nodes[index])) {
            return false;
        }
    }
    return true;
}

static void take_out(struct node_set *set, CUgraphNode node) {
    size_t kept = 0;
    for (size_t index = 0; index < set->count; index++) {
        if (set->nodes[index] != node) {
            set->nodes[kept++] = set->nodes[index];
        }
    }
    set->count = kept;
}

/* ---- graphs --------------------------------------------------------------------------------------- */

CUgraph graph_new(void) {
    return handle_new(HANDLE_GRAPH, sizeof(struct CUgraph_st));
}

void operation_use(const struct operation *operation) {
    if (operation->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        graph_memory_use(operation->memory);
    } else if (operation->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL ||
               operation->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT) {
        semaphore_batch_use(operation->semaphores);
    }
}

void operation_drop(const struct operation *operation) {
    if (operation->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        graph_memory_drop(operation->memory);
    } else if (operation->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL ||
               operation->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT) {
        semaphore_batch_drop(operation->semaphores);
    }
}

static void end_node(CUgraphNode node) {
    operation_drop(&node->operation);
    if (node->operation.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        graph_end(node->operation.child);
    } else if (node->operation.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
        conditional_end(node->operation.conditional);
    }
    node_set_clear(&node->dependencies);
    handle_end(node);
}

void graph_end(CUgraph graph) {
    for (size_t index = 0; index < graph->nodes.count; index++) {
        end_node(graph->nodes.nodes[index]);
    }
    exec_orphan(graph);
    conditional_handles_end(graph);
    user_references_end(&graph->references);
    node_set_clear(&graph->nodes);
    handle_end(graph);
}

static CUresult check_nodes(CUgraph graph, const CUgraphNode *nodes, size_t count) {
    if (nodes == NULL && count > 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < count; index++) {
        if (!handle_is(nodes[index], HANDLE_NODE) || nodes[index]->graph != graph) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

/* What restricts a graph restricts those that it is part of. */
static void note_kind(CUgraph graph, const struct operation *operation) {
    CUgraph child = operation->type == CU_GRAPH_NODE_TYPE_GRAPH ? operation->child : NULL;
    bool memory = operation->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || operation->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
                  (child != NULL && child->memory);
    bool conditional = operation->type == CU_GRAPH_NODE_TYPE_CONDITIONAL || (child != NULL && child->conditional);
    for (; (memory || conditional) && graph != NULL; graph = graph->parent) {
        graph->memory |= memory;
        graph->conditional |= conditional;
    }
}

CUresult graph_add(CUgraph graph, const struct operation *operation, const CUgraphNode *dependencies, size_t count,
                   CUgraphNode *node) {
    CUresult result = node == NULL ? CUDA_ERROR_INVALID_VALUE : check_nodes(graph, dependencies, count);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraphNode fresh = handle_new(HANDLE_NODE, sizeof *fresh);
    bool good = fresh != NULL;
    for (size_t index = 0; index < count && good; index++) {
        good = node_set_add(&fresh->dependencies, dependencies[index]);
    }
    if (!good || !append(&graph->nodes, fresh)) {
        if (fresh != NULL) {
            node_set_clear(&fresh->dependencies);
            handle_end(fresh);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->graph = graph;
    fresh->place = graph->nodes.count - 1;
    fresh->operation = *operation;
    note_kind(graph, operation);
    *node = fresh;
    return CUDA_SUCCESS;
}

enum { UNSEEN, OPEN, DONE };

static CUresult walk_from(CUgraphNode node, CUresult (*visit)(CUgraphNode, void *), void *data) {
    CUresult result = node->mark == OPEN ? CUDA_ERROR_INVALID_VALUE /* a cycle */ : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS || node->mark == DONE) {
        return result;
    }
    node->mark = OPEN;
    for (size_t index = 0; index < node->dependencies.count && result == CUDA_SUCCESS; index++) {
        result = walk_from(node->dependencies.nodes[index], visit, data);
    }
    node->mark = DONE;
    return result != CUDA_SUCCESS ? result : visit(node, data);
}

CUresult graph_walk(CUgraph graph, CUresult (*visit)(CUgraphNode, void *), void *data) {
    CUresult result = CUDA_SUCCESS;
    for (size_t index = 0; index < graph->nodes.count; index++) {
        graph->nodes.nodes[index]->mark = UNSEEN;
    }
    for (size_t index = 0; index < graph->nodes.count && result == CUDA_SUCCESS; index++) {
        result = walk_from(graph->nodes.nodes[index], visit, data);
    }
    return result;
}

/* The same nodes at the same places. */
static CUresult clone_node(CUgraph clone, CUgraphNode node) {
    struct operation operation = node->operation;
    CUgraphNode copy;
    CUresult result =
        operation.type == CU_GRAPH_NODE_TYPE_GRAPH ? graph_clone(operation.child, &operation.child) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        result = graph_add(clone, &operation, NULL, 0, &copy);
    }
    if (result == CUDA_SUCCESS) {
        operation_use(&operation);
        copy->original = node;
        if (operation.type == CU_GRAPH_NODE_TYPE_GRAPH) {
            operation.child->parent = clone;
        }
    }
    return result;
}

CUresult graph_clone(CUgraph graph, CUgraph *result) {
    CUgraph clone = graph_new();
    CUresult made = clone == NULL || !user_references_copy(&clone->references, &graph->references)
                        ? CUDA_ERROR_OUT_OF_MEMORY
                        : CUDA_SUCCESS;
    for (size_t index = 0; index < graph->nodes.count && made == CUDA_SUCCESS; index++) {
        made = clone_node(clone, graph->nodes.nodes[index]);
    }
    for (size_t index = 0; index < graph->nodes.count && made == CUDA_SUCCESS; index++) {
        const struct node_set *before = &graph->nodes.nodes[index]->dependencies;
        for (size_t at = 0; at < before->count; at++) {
            append(&clone->nodes.nodes[index]->dependencies, clone->nodes.nodes[before->nodes[at]->place]);
        }
    }
    if (made != CUDA_SUCCESS) {
        if (clone != NULL) {
            graph_end(clone);
        }
        return made;
    }
    clone->original = graph;
    *result = clone;
    return CUDA_SUCCESS;
}

static CUresult create(CUgraph *graph, unsigned int flags) {
    CUgraph fresh = graph == NULL || flags != 0 ? NULL : graph_new();
    if (fresh == NULL) {
        return graph == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *graph = fresh;
    return CUDA_SUCCESS;
}

/* The graph of a child node is the node's own. */
static CUresult destroy(CUgraph graph) {
    if (!handle_is(graph, HANDLE_GRAPH) || graph->parent != NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph_end(graph);
    return CUDA_SUCCESS;
}

static CUresult clone_plain(CUgraph *clone, CUgraph graph) {
    if (clone == NULL || !handle_is(graph, HANDLE_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return graph->memory || graph->conditional ? CUDA_ERROR_NOT_SUPPORTED : graph_clone(graph, clone);
}

static CUresult find_in_clone(CUgraphNode *node, CUgraphNode original, CUgraph clone) {
    if (node == NULL || !handle_is(clone, HANDLE_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t index = 0; index < clone->nodes.count; index++) {
        if (clone->nodes.nodes[index]->original == original) {
            *node = clone->nodes.nodes[index];
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

API(cuGraphCreate, (CUgraph * graph, unsigned int flags), LOCKED(create(graph, flags)))
API(cuGraphDestroy, (CUgraph graph), LOCKED(destroy(graph)))
API(cuGraphClone, (CUgraph * clone, CUgraph graph), LOCKED(clone_plain(clone, graph)))
API(cuGraphNodeFindInClone, (CUgraphNode * node, CUgraphNode original, CUgraph clone),
    LOCKED(find_in_clone(node, original, clone)))

/* ---- edges ---------------------------------------------------------------------------------------- */

static CUresult change_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count, bool add) {
    CUresult result = handle_is(graph, HANDLE_GRAPH) ? check_nodes(graph, from, count) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        result = check_nodes(graph, to, count);
    }
    if (result == CUDA_SUCCESS && !add && graph->memory) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    for (size_t index = 0; index < count && result == CUDA_SUCCESS; index++) {
        struct node_set *before = &to[index]->dependencies;
        if (node_set_has(before, from[index]) == add || from[index] == to[index]) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else if (!add) {
            take_out(before, from[index]);
        } else if (!append(before, from[index])) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

static CUresult destroy_node(CUgraphNode node) {
    if (!handle_is(node, HANDLE_NODE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraph graph = node->graph;
    if (graph->memory) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    take_out(&graph->nodes, node);
    for (size_t index = 0; index < graph->nodes.count; index++) {
        graph->nodes.nodes[index]->place = index;
        take_out(&graph->nodes.nodes[index]->dependencies, node);
    }
    end_node(node);
    return CUDA_SUCCESS;
}

#define CHANGE(add) LOCKED(change_edges(graph, from, to, count, add))
API(cuGraphAddDependencies, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count), CHANGE(true))
API(cuGraphAddDependencies_v2,
    (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count),
    ((void)edges, CHANGE(true)))
API(cuGraphRemoveDependencies, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count),
    CHANGE(false))
API(cuGraphRemoveDependencies_v2,
    (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count),
    ((void)edges, CHANGE(false)))
API(cuGraphDestroyNode, (CUgraphNode node), LOCKED(destroy_node(node)))

/* ---- lists ---------------------------------------------------------------------------------------- */

/* A list is asked twice: without an array how long it is, then with one. What is left of a longer array is zeroed. */
struct listing {
    CUgraphNode *nodes, *to;
    size_t room, count;
};

static void list(struct listing *listing, CUgraphNode node, CUgraphNode to) {
    if (listing->count < listing->room) {
        listing->nodes[listing->count] = node;
        if (listing->to != NULL) {
            listing->to[listing->count] = to;
        }
    }
    listing->count++;
}

static CUresult end_list(struct listing *listing, CUgraphEdgeData *edges, size_t *count) {
    if (listing->nodes == NULL) {
        *count = listing->count;
        return CUDA_SUCCESS;
    }
    for (size_t index = listing->count; index < listing->room; index++) {
        listing->nodes[index] = NULL;
    }
    *count = listing->count < listing->room ? listing->count : listing->room;
    if (edges != NULL) {
        memset(edges, 0, *count * sizeof *edges);
    }
    return CUDA_SUCCESS;
}

static CUresult get_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots) {
    if (!handle_is(graph, HANDLE_GRAPH) || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct listing listing = {.nodes = nodes, .room = nodes == NULL ? 0 : *count};
    for (size_t index = 0; index < graph->nodes.count; index++) {
        if (!roots || graph->nodes.nodes[index]->dependencies.count == 0) {
            list(&listing, graph->nodes.nodes[index], NULL);
        }
    }
    return end_list(&listing, NULL, count);
}

static CUresult get_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count) {
    if (!handle_is(graph, HANDLE_GRAPH) || count == NULL || (from == NULL) != (to == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct listing listing = {.nodes = from, .to = to, .room = from == NULL ? 0 : *count};
    for (size_t index = 0; index < graph->nodes.count; index++) {
        const struct node_set *before = &graph->nodes.nodes[index]->dependencies;
        for (size_t at = 0; at < before->count; at++) {
            list(&listing, before->nodes[at], graph->nodes.nodes[index]);
        }
    }
    return end_list(&listing, edges, count);
}

static CUresult get_neighbours(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count,
                               bool before) {
    if (!handle_is(node, HANDLE_NODE) || count == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct listing listing = {.nodes = nodes, .room = nodes == NULL ? 0 : *count};
    const struct node_set *all = before ? &node->dependencies : &node->graph->nodes;
    for (size_t index = 0; index < all->count; index++) {
        if (before || node_set_has(&all->nodes[index]->dependencies, node)) {
            list(&listing, all->nodes[index], NULL);
        }
    }
    return end_list(&listing, edges, count);
}

static CUresult get_type(CUgraphNode node, CUgraphNodeType *type) {
    if (!handle_is(node, HANDLE_NODE) || type == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *type = node->operation.type;
    return CUDA_SUCCESS;
}

API(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), LOCKED(get_nodes(graph, nodes, count, false)))
API(cuGraphGetRootNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count),
    LOCKED(get_nodes(graph, nodes, count, true)))
API(cuGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count),
    LOCKED(get_edges(graph, from, to, NULL, count)))
API(cuGraphGetEdges_v2, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count),
    LOCKED(get_edges(graph, from, to, edges, count)))
API(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *nodes, size_t *count),
    LOCKED(get_neighbours(node, nodes, NULL, count, true)))
API(cuGraphNodeGetDependencies_v2, (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count),
    LOCKED(get_neighbours(node, nodes, edges, count, true)))
API(cuGraphNodeGetDependentNodes, (CUgraphNode node, CUgraphNode *nodes, size_t *count),
    LOCKED(get_neighbours(node, nodes, NULL, count, false)))
API(cuGraphNodeGetDependentNodes_v2, (CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count),
    LOCKED(get_neighbours(node, nodes, edges, count, false)))
API(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type), LOCKED(get_type(node, type)))
