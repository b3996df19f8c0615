"""The search index in SQLite: states and columns in tables, body text in full-text tables by range of offsets."""
