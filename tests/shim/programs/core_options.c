/* core_options.c: prints what the environment says, as JSON. With an argument: after the program has cleared it. */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    (void)arguments;
    if (count > 1)
        clearenv();
    const uint64_t total = (16ull << 30) + 700; /* no whole units */
    const struct gs_options *o = gs_options();
    setenv("GPUSHARE_LIMIT", "7Gi", 1); /* it is read once */
    gs_options();
    printf("{\"active\": %d, \"request\": [%u, %llu], \"limit\": [%u, %llu], \"job\": %llu, \"priority\": %d, "
           "\"grace\": %u, \"visible_request\": %d, \"level\": %d, \"sockets\": [\"%s\", \"%s\"], \"name\": \"%s\", "
           "\"steps\": %u, \"min_run\": %u, \"source\": \"%s\", \"devices\": \"%s\", \"software\": %d, "
           "\"on_a_gpu\": [%llu, %llu]}\n",
           o->active, o->request.kind, (unsigned long long)o->request.value, o->limit.kind,
           (unsigned long long)o->limit.value, (unsigned long long)o->job_id, o->priority, o->grace_ms,
           o->visible_request, o->level, o->sockets[0], o->sockets[1], o->name, o->steps, o->min_run_ms,
           o->limit_source, o->visible_devices, o->software_driver,
           (unsigned long long)gs_amount_resolve(o->request, total),
           (unsigned long long)gs_amount_resolve(o->limit, total));
    return 0;
}
