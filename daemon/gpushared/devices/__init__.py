"""The GPUs: what NVML says of their memory and their health, and who uses them past us."""
