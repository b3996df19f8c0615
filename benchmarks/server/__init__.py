"""The AMQP server beside RabbitMQ: the same clients, the same disk."""
