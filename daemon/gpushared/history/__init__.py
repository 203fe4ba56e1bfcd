"""The usage history: memory of jobs and GPUs over time, sampled once a second, kept in a file at falling resolution."""
