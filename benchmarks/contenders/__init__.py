"""Everyone who can do the work of a row."""
