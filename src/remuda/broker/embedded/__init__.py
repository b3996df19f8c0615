"""The broker inside this process: core and log behind a lock, with threads for time, group commit and upkeep."""
