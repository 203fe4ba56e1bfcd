"""Opens a context without gpushare and waits, so that NVML can tell what a context takes."""

import signal
import sys

from audit.driver import Driver

if __name__ == "__main__":
    driver = Driver()
    driver.start()
    driver.must(driver.open(0), "cuDevicePrimaryCtxRetain")
    sys.stdout.write("open\n")
    sys.stdout.flush()
    signal.pause()
