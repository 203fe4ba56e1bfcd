"""What one user may take: access by the rules, descriptors and jobs, time of the loop, bytes."""
