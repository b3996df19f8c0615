"""Clients of RabbitMQ side by side, on one node that is started for them."""
