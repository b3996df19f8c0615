"""Servers: HTTP for programs, the dashboard for people, AMQP and the wire for other processes."""
