"""The search index: how fast it takes the log in, and how fast it finds words."""
