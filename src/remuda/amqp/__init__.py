"""AMQP 0-9-1: a codec without I/O for both ends of a connection, and a batching client on top of it."""
