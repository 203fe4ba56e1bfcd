"""The GPUs: which there are, what NVML says of their memory and health, and who uses them outside gpushare."""
