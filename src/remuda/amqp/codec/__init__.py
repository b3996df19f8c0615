"""AMQP 0-9-1 as bytes and back, without I/O, for both ends of a connection."""
