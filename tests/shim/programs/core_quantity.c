/* core_quantity.c: reads "dialect text-in-hex" lines, answers "kind value": the C parser for the shared vectors. */
#include "quantity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum gs_dialect dialect_of(const char *name) {
    static const char *const names[] = {"native", "runai", "mib", "hami"};
    int i = 0;
    while (i < 3 && strcmp(names[i], name) != 0)
        i++;
    return (enum gs_dialect)i;
}

static void decode(const char *hex, char *text) {
    unsigned byte;
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        *text++ = (char)byte;
    *text = '\0';
}

int main(void) {
    static const char *const kinds[] = {"bytes", "share", "max", "none"};
    char dialect[16], hex[4096];
    while (scanf("%15s %4095s", dialect, hex) == 2) {
        struct gs_quantity quantity;
        uint32_t milliseconds;
        char *text = malloc(strlen(hex) / 2 + 1); /* no longer than the text: a look beside it is seen */
        decode(hex + 1, text);                    /* the first character is there so that an empty text has a field */
        if (strcmp(dialect, "duration") == 0) {
            if (gs_duration_parse(text, &milliseconds))
                printf("ms %u\n", milliseconds);
            else
                puts("error 0");
        } else if (gs_quantity_parse(text, dialect_of(dialect), &quantity)) {
            printf("%s %llu\n", kinds[quantity.kind], (unsigned long long)quantity.value);
        } else {
            puts("error 0");
        }
        free(text);
    }
    return 0;
}
