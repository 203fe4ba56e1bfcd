"""What the daemon needs of the operating system: processes, descriptors, epoll, systemd, directories, logs."""
