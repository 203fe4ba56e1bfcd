/* nvml.c: NVML's name, for a process that runs already. All is in the libraries that this one depends on: a look-up
 * finds our hooks in the first, and everything else in the second, the real NVML. */
extern int gpushare_late_nvml;
int gpushare_late_nvml;
