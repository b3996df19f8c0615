"""Remuda beside its peers and beside a bare loop, in one run on one disk."""
