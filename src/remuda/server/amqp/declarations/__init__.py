"""Exchanges, queues, bindings and policies as AMQP declares them."""
