"""The jobs as the daemon holds them beside the core: their records, the state file, the history."""
