"""The names of the rows on RabbitMQ, which nothing has to be installed for."""

from __future__ import annotations

from typing import Final

PUBLISH: Final = "rabbitmq/publish"
CONSUME: Final = "rabbitmq/consume"
END_TO_END: Final = "rabbitmq/end-to-end"
CLIENT_PUBLISH: Final = "rabbitmq/client-publish"
CLIENT_CONSUME: Final = "rabbitmq/client-consume"
