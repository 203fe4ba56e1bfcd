/* cuda_dot.c: a graph as a drawing in the language of Graphviz, for people who look into one. */
#define _GNU_SOURCE
#include "cuda_api.h"
#include "cuda_graph.h"
#include "cuda_handle.h"
#include "cuda_module.h"

#include <stdio.h>

static const char *const names[] = {
    [CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",
    [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
    [CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",
    [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
    [CU_GRAPH_NODE_TYPE_GRAPH] = "CHILD_GRAPH",
    [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
    [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "EVENT_WAIT",
    [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT_RECORD",
    [CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL] = "EXT_SEMAS_SIGNAL",
    [CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT] = "EXT_SEMAS_WAIT",
    [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM_ALLOC",
    [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM_FREE",
    [CU_GRAPH_NODE_TYPE_CONDITIONAL] = "CONDITIONAL",
};

struct drawing {
    FILE *file;
    unsigned int flags;
    int graphs; /* drawn so far: their numbers */
};

static void draw_graph(struct drawing *drawing, CUgraph graph);

static void draw_node(struct drawing *drawing, int number, CUgraphNode node) {
    const struct operation *operation = &node->operation;
    fprintf(drawing->file, "    \"graph_%d_node_%zu\" [shape=\"record\" label=\"{%s | %zu", number, node->place,
            names[operation->type], node->place);
    CUfunction function;
    if (operation->type == CU_GRAPH_NODE_TYPE_KERNEL && operation->kernel.func != NULL &&
        function_of(operation->kernel.func, &function) == CUDA_SUCCESS) {
        fprintf(drawing->file, " | %s", function->name);
    } else if (operation->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        fprintf(drawing->file, " | %zu bytes", operation->memory->params.bytesize);
    }
    if ((drawing->flags & (CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES)) != 0) {
        fprintf(drawing->file, " | %p", (void *)node);
    }
    fputs("}\"];\n", drawing->file);
    for (size_t index = 0; index < node->dependencies.count; index++) {
        fprintf(drawing->file, "    \"graph_%d_node_%zu\" -> \"graph_%d_node_%zu\";\n", number,
                node->dependencies.nodes[index]->place, number, node->place);
    }
    if (operation->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        draw_graph(drawing, operation->child);
    }
    for (unsigned int index = 0;
         operation->type == CU_GRAPH_NODE_TYPE_CONDITIONAL && index < operation->conditional->params.size; index++) {
        draw_graph(drawing, operation->conditional->params.phGraph_out[index]);
    }
}

static void draw_graph(struct drawing *drawing, CUgraph graph) {
    int number = drawing->graphs++;
    fprintf(drawing->file, "  subgraph cluster_%d {\n    label=\"graph_%d\";\n", number, number);
    for (size_t index = 0; index < graph->nodes.count; index++) {
        draw_node(drawing, number, graph->nodes.nodes[index]);
    }
    fputs("  }\n", drawing->file);
}

static CUresult draw(CUgraph graph, const char *path, unsigned int flags) {
    if (!handle_is(graph, HANDLE_GRAPH) || path == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct drawing drawing = {.file = fopen(path, "we"), .flags = flags};
    if (drawing.file == NULL) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    fputs("digraph dot {\n", drawing.file);
    draw_graph(&drawing, graph);
    fputs("}\n", drawing.file);
    bool good = !ferror(drawing.file);
    return fclose(drawing.file) == 0 && good ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

API(cuGraphDebugDotPrint, (CUgraph graph, const char *path, unsigned int flags), LOCKED(draw(graph, path, flags)))
