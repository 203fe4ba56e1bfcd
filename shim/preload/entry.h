/* entry.h: how programs find the driver's functions, and how we do. */
#ifndef GPUSHARE_PRELOAD_ENTRY_H
#define GPUSHARE_PRELOAD_ENTRY_H

/* dlsym of the next library that has one: the C library's, as a rule. */
void *gs_real_dlsym(void *library, const char *symbol);

#endif
