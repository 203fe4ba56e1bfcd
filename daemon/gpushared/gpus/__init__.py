"""The GPUs: their inventory, their memory and health by NVML, and foreign processes."""
