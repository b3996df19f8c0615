"""Handlers: how a function becomes one, what it may ask for, raise and answer, and one call of it."""
