/* cuda_code.c: an image of GPU code: what functions and variables it has.
 *
 * Kernels are accepted and not executed, so all that matters of an image is its names. PTX is text and says them;
 * a cubin or a fat binary is taken as it is, and every name that a program asks for is in it.
 */
#define _GNU_SOURCE
#include "cuda_code.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The size of a variable of which nothing is known. */
#define OPAQUE_VARIABLE_BYTES 256

static bool add_name(struct code *code, const char *name, size_t length, enum code_kind kind, uint64_t size) {
    struct code_name *entry = malloc(sizeof *entry);
    char *copy = strndup(name, length);
    if (entry == NULL || copy == NULL) {
        free(entry);
        free(copy);
        return false;
    }
    *entry = (struct code_name){.name = copy, .kind = kind, .size = size, .next = code->names};
    code->names = entry;
    return true;
}

static bool is_name(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '$';
}

static const char *skip_space(const char *text) {
    while (isspace((unsigned char)*text)) {
        text++;
    }
    return text;
}

/* The bytes of one element of a PTX type such as ".b8" or ".f64", and ".v4" before it. */
static uint64_t type_bytes(const char *type, size_t length) {
    size_t digits = length;
    while (digits > 1 && isdigit((unsigned char)type[digits - 1])) {
        digits--;
    }
    return digits == length ? 0 : (uint64_t)strtoul(type + digits, NULL, 10) / 8;
}

/* A declaration after ".global" or ".const": attributes, then the name, then perhaps its dimensions. */
static bool read_variable(struct code *code, const char *text) {
    uint64_t element = 4, count = 1;
    for (text = skip_space(text); *text == '.'; text = skip_space(text)) {
        size_t length = 1 + strspn(text + 1, "abcdefghijklmnopqrstuvwxyz0123456789");
        if (text[1] == 'v' && length == 3) {
            count *= (uint64_t)(text[2] - '0');
        } else if (type_bytes(text, length) != 0) {
            element = type_bytes(text, length);
        }
        bool align = strncmp(text, ".align", 6) == 0;
        text = skip_space(text + length);
        if (align) {
            text += strspn(text, "0123456789");
        }
    }
    const char *name = text;
    while (is_name(*text)) {
        text++;
    }
    size_t length = (size_t)(text - name);
    for (text = skip_space(text); *text == '['; text = skip_space(text)) {
        char *end;
        count *= strtoull(text + 1, &end, 10);
        text = *end == ']' ? end + 1 : end;
    }
    return length == 0 || count * element == 0 || add_name(code, name, length, CODE_VARIABLE, count * element);
}

static bool read_function(struct code *code, const char *text) {
    text = skip_space(text);
    size_t length = 0;
    while (is_name(text[length])) {
        length++;
    }
    return length == 0 || add_name(code, text, length, CODE_FUNCTION, 0);
}

static bool read_ptx(struct code *code, const char *text) {
    bool good = true;
    for (; *text != '\0' && good; text++) {
        if (*text != '.' || (!isspace((unsigned char)text[-1]) && text[-1] != ';')) {
            continue;
        }
        if (strncmp(text, ".entry", 6) == 0) {
            good = read_function(code, text + 6);
        } else if (strncmp(text, ".global ", 8) == 0 || strncmp(text, ".const ", 7) == 0) {
            good = read_variable(code, text + 7);
        }
    }
    return good;
}

static bool is_ptx(const char *image) {
    const char *start = skip_space(image);
    return start[0] == '/' || strncmp(start, ".version", 8) == 0;
}

CUresult code_load(const void *image, struct code **code) {
    if (image == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (*(const char *)image == '\0') {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    struct code *fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fresh->users = 1;
    fresh->opaque = !is_ptx(image);
    /* From the second character: a directive at the very start is none that names anything. */
    if (!fresh->opaque && !read_ptx(fresh, (const char *)image + 1)) {
        code_drop(fresh);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *code = fresh;
    return CUDA_SUCCESS;
}

CUresult code_load_file(const char *path, struct code **code) {
    FILE *file = path == NULL ? NULL : fopen(path, "re");
    if (file == NULL) {
        return path == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    }
    char *text = NULL;
    size_t room = 0;
    ssize_t length = getdelim(&text, &room, '\0', file); /* all of a text; enough of a binary */
    fclose(file);
    CUresult result = length <= 0 ? CUDA_ERROR_INVALID_IMAGE : code_load(text, code);
    free(text);
    return result;
}

void code_use(struct code *code) {
    code->users++;
}

void code_drop(struct code *code) {
    if (--code->users > 0) {
        return;
    }
    while (code->names != NULL) {
        struct code_name *name = code->names;
        code->names = name->next;
        free(name->name);
        free(name);
    }
    free(code);
}

const struct code_name *code_find(struct code *code, const char *name, enum code_kind kind) {
    for (const struct code_name *entry = code->names; entry != NULL; entry = entry->next) {
        if (entry->kind == kind && strcmp(entry->name, name) == 0) {
            return entry;
        }
    }
    uint64_t size = kind == CODE_VARIABLE ? OPAQUE_VARIABLE_BYTES : 0;
    if (!code->opaque || *name == '\0' || !add_name(code, name, strlen(name), kind, size)) {
        return NULL;
    }
    return code->names;
}

CUresult code_count(const struct code *code, unsigned int *count) {
    if (code->opaque) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    *count = 0;
    for (const struct code_name *entry = code->names; entry != NULL; entry = entry->next) {
        *count += entry->kind == CODE_FUNCTION;
    }
    return CUDA_SUCCESS;
}
