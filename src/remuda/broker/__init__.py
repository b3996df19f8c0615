"""Brokers: one port and its implementations; the embedded broker is a core, a log and one writer."""
