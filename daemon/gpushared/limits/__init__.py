"""What one user may ask for and fill: access, descriptors and jobs, time of the loop, bytes."""
