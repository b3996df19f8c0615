"""Commands that do something once and end."""
