"""Searching messages: the newest in memory, older ones in the index."""
