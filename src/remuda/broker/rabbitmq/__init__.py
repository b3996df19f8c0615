"""The broker on RabbitMQ."""
