"""Shovels: queues and exchanges of other brokers that this server follows, or feeds."""
