"""The GPUs: what NVML says of them, their memory and their health, and who uses them past us."""
