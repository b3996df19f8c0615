"""Many processes on one directory: one is the host, the others are guests, and one of them takes over when it ends."""
