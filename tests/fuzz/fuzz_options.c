/* fuzz_options.c: the environment: any variables with any values. Each line of the input is one; a line that begins
 * with a digit is a value for one of the variables that are known. */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLES 16

static const char *const names[] = {"GPUSHARE_REQUEST",
                                    "GPUSHARE_LIMIT",
                                    "GPUSHARE_JOB",
                                    "GPUSHARE_PRIORITY",
                                    "GPUSHARE_GRACE",
                                    "GPUSHARE_SOCKET",
                                    "GPUSHARE_NAME",
                                    "RUNAI_GPU_MEMORY_LIMIT",
                                    "NVIDIA_GPU_MEMORY_LIMIT",
                                    "CUDA_DEVICE_MEMORY_LIMIT_1"};

/* A copy of its own size, so that reading on is seen. */
static char *entry_of(const char *line, size_t length) {
    const char *name = "";
    if (length > 0 && line[0] >= '0' && line[0] <= '9') {
        name = names[line[0] - '0'];
        line++, length--;
    }
    size_t start = strlen(name), equals = *name != '\0';
    char *entry = malloc(start + equals + length + 1);
    memcpy(entry, name, start);
    memcpy(entry + start, "=", equals);
    memcpy(entry + start + equals, line, length);
    entry[start + equals + length] = '\0';
    return entry;
}

static int is_ended(const char *text, size_t size) {
    return memchr(text, '\0', size) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *environment[VARIABLES + 1] = {NULL};
    const char *text = (const char *)data, *end = text + size;
    struct gs_options *options = malloc(sizeof *options);
    int count = 0;
    while (text < end && count < VARIABLES) {
        const char *line = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((line != NULL ? line : end) - text);
        environment[count++] = entry_of(text, strnlen(text, length));
        text += length + 1;
    }
    gs_options_read(options, environment, (size & 1) != 0);
    if (!is_ended(options->name, sizeof options->name) || !is_ended(options->sockets[0], sizeof options->sockets[0]) ||
        !is_ended(options->sockets[1], sizeof options->sockets[1]) ||
        !is_ended(options->limit_source, sizeof options->limit_source) ||
        !is_ended(options->visible_devices, sizeof options->visible_devices))
        abort();
    if (options->request.kind == options->limit.kind && options->request.value > options->limit.value)
        abort();
    gs_amount_resolve(options->limit, 1ull << 40);
    while (count > 0)
        free(environment[--count]);
    free(options);
    return 0;
}
