/* common_identity.c: the names of the GPUs: UUIDs and PCI addresses. */
#define _GNU_SOURCE
#include "common_identity.h"

#include <stdio.h>

void identity_uuid_text(const unsigned char uuid[16], char text[IDENTITY_UUID_TEXT]) {
    snprintf(text, IDENTITY_UUID_TEXT, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             uuid[0], uuid[1], uuid[2], uuid[3], uuid[4], uuid[5], uuid[6], uuid[7], uuid[8], uuid[9], uuid[10],
             uuid[11], uuid[12], uuid[13], uuid[14], uuid[15]);
}

int identity_bus(uint32_t gpu) {
    return 0x19 + (int)gpu * 8;
}

int identity_gpu_at(const char *bus_id, uint32_t gpus) {
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) < 3) {
        domain = function = 0;
        if (sscanf(bus_id, "%x:%x.%x", &bus, &device, &function) < 2) {
            return -1;
        }
    }
    for (uint32_t gpu = 0; gpu < gpus; gpu++) {
        if (domain == 0 && device == 0 && function == 0 && bus == (unsigned)identity_bus(gpu)) {
            return (int)gpu;
        }
    }
    return -1;
}
