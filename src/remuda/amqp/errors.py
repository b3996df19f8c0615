"""What can go wrong on an AMQP connection. Each text says what happened, what was kept, and what to do."""

from __future__ import annotations

from typing import Final

from remuda.model.errors import RemudaError

FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
UNEXPECTED_FRAME: Final = 505
NOT_IMPLEMENTED: Final = 540
CONTENT_TOO_LARGE: Final = 311
ACCESS_REFUSED: Final = 403
NOT_ALLOWED: Final = 530


class AmqpError(RemudaError):
    """Something went wrong between this program and an AMQP peer."""


class ProtocolError(AmqpError):
    """The peer violated AMQP 0-9-1. `code` is the reply code to close the connection with."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class Closed(AmqpError):
    """The peer closed a connection or channel and said why, in `code` and `text`."""

    def __init__(self, code: int, text: str, what: str) -> None:
        super().__init__(f"the broker closed the {what}: {code} {text}")
        self.code = code
        self.text = text


class ConnectionClosed(Closed):
    """The broker closed the connection. It is opened again by itself."""


class ChannelClosed(Closed):
    """The broker closed the channel, mostly because of a request it refused. The channel is opened again by itself."""


class ConnectionLost(AmqpError, ConnectionError):
    """The connection broke. A publish that was not confirmed may or may not have reached its queues: publish again."""


class ConnectFailed(AmqpError, ConnectionError):
    """No host could be reached within the attempts allowed."""


class LoginRefused(ConnectFailed):
    """The broker refused the login or the virtual host; trying again would not help."""


class ConnectionEnded(AmqpError):
    """The connection or channel was closed by this program; open another one."""


class ReplyTimeout(AmqpError, TimeoutError):
    """The broker did not answer in time."""


class PublishFailed(AmqpError):
    """A published message was not accepted."""


class Nacked(PublishFailed):
    """The broker refused a message, mostly because a queue is full or unavailable. It is in none of its queues."""


class Unroutable(PublishFailed):
    """No queue is bound for a message that was published as mandatory. It is stored nowhere."""


class ConsumerCancelled(AmqpError):
    """The broker ended a consumer, mostly because its queue was deleted."""
