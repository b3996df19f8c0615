"""Handlers: registering functions, injecting what they ask for, and calling them."""
