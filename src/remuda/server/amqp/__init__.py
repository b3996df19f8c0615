"""An AMQP 0-9-1 server on any broker: RabbitMQ clients and Python buses share its queues (S1-S4)."""
