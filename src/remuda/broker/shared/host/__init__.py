"""The process that has the directory open serves all others."""
