"""The log as lakehouse tables."""
