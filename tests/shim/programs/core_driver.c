/* core_driver.c: the table of the driver's functions, empty: what is tested here calls none of them. */
#include "driver.h"

struct gs_driver gs_driver;
enum gs_mode gs_mode;
