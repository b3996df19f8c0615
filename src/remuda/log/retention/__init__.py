"""Removing what need not stay: sealed files are rewritten, settled segments dropped."""
