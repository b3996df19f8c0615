"""A lake: tables of Delta, on a disk or in an object store, written and read by one module."""
