"""Many processes on one directory: one hosts, the others are its guests, and when it ends one of them takes over."""
