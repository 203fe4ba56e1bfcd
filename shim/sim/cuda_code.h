/* cuda_code.h: an image of GPU code: what functions and variables it has. See cuda_code.c. */
#ifndef GPUSHARE_SIM_CUDA_CODE_H
#define GPUSHARE_SIM_CUDA_CODE_H

#include "cuda_abi.h"

#include <stdbool.h>

enum code_kind { CODE_FUNCTION, CODE_VARIABLE };

struct code_name {
    char *name;
    enum code_kind kind;
    uint64_t size; /* of a variable */
    struct code_name *next;
};

struct code {
    int users;
    bool opaque; /* binary: what is in it is not known, so every name is in it */
    struct code_name *names;
};

/* Reads an image; it may be freed afterwards. */
CUresult code_load(const void *image, struct code **code);
CUresult code_load_file(const char *path, struct code **code);
void code_use(struct code *code);
void code_drop(struct code *code);
/* NULL when there is no such function or variable. An opaque image learns the name. */
const struct code_name *code_find(struct code *code, const char *name, enum code_kind kind);
/* How many functions there are; not to be known of an opaque image. */
CUresult code_count(const struct code *code, unsigned int *count);

#endif
