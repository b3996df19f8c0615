"""One RabbitMQ for all tests of a process."""

from tests.servers.fixtures import broker_url, rabbit

__all__ = ["broker_url", "rabbit"]
