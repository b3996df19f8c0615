"""Brokers: one port, and behind it the embedded broker, which is a core, a log and one writer."""
