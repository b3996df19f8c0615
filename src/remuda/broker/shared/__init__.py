"""Many processes on one directory: one hosts, the others are guests, and when the host ends a guest takes over."""
