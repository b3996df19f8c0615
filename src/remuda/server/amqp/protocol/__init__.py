"""AMQP 0-9-1 without I/O: connection, channels, login, requests and refusals."""
