"""An AMQP 0-9-1 server on any broker: clients of RabbitMQ and buses in Python share its queues (S1-S4)."""
