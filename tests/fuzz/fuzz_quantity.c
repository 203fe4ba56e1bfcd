/* fuzz_quantity.c: the parsers of amounts and durations, on any text in any dialect. */
#include "quantity.h"

#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (1ull << 50)
#define PARTS     1000000000ull

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    char *text = malloc(size); /* of just this size: a parser that reads on is seen */
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    struct gs_quantity quantity;
    uint32_t milliseconds;
    if (gs_quantity_parse(text, (enum gs_dialect)(data[0] % 4), &quantity)) {
        if (quantity.kind == GS_KIND_BYTES && quantity.value > MAX_BYTES)
            abort();
        if (quantity.kind == GS_KIND_SHARE && (quantity.value == 0 || quantity.value > PARTS))
            abort();
    }
    gs_duration_parse(text, &milliseconds);
    free(text);
    return 0;
}
