"""The broker on a RabbitMQ cluster: the same port, with RabbitMQ's own queues, confirms and dead letters behind it."""
