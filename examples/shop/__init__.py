"""A small shop on a bus: `python -m examples.shop`."""
