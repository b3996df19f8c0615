"""A process that works on the directory of another one."""
