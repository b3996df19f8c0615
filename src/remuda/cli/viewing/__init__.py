"""Commands that show what is in a directory, and change nothing."""
