"""Reading a log: by number, by time, by id; beside its writer or without one."""
