"""Who hosts a directory: its lock, its guests, and the change from one role to the other."""
