"""The engine `slurm`: users submit with sbatch, srun and salloc; the allocator says when and where a job starts."""
