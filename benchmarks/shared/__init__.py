"""Several processes on one directory, beside huey's on one SQLite file."""
