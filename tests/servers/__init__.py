"""Servers that tests start by themselves, on loopback ports of their own."""
