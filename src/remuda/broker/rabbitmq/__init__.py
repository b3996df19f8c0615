"""The broker on a RabbitMQ cluster: the same port on top of RabbitMQ's own queues, confirms and dead letters."""
