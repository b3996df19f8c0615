"""Remuda's own errors. Each text says what happened, what was kept, and what to do."""

from __future__ import annotations


class RemudaError(Exception):
    """The base class of all errors raised by Remuda."""


class InvalidOption(RemudaError, ValueError):
    """An option has an unknown name or an impossible value."""


class InvalidMessage(RemudaError, ValueError):
    """A message cannot be published as it is. Nothing was stored."""


class Unsupported(RemudaError):
    """This broker does not support the operation. Nothing was changed. `feature` names what is missing."""

    def __init__(self, text: str, feature: str = "") -> None:
        super().__init__(text)
        self.feature = feature


class IllegalMove(RemudaError):
    """A message cannot change from its current state to the requested one."""


class NotFound(RemudaError, LookupError):
    """No queue, channel, router or message has this name."""


class Conflict(RemudaError):
    """The request contradicts what exists."""


class Refused(RemudaError):
    """A queue refused a message. The message was not stored, and nothing was evicted for it."""

    queue: str | None = None
    """The queue that refused it, if one did."""


class PartlyRefused(Refused):
    """Some messages of a batch were refused; the others are stored. `receipt` says which."""

    def __init__(self, text: str, receipt: object) -> None:
        super().__init__(text)
        self.receipt = receipt


class QueueFull(Refused):
    """The queue holds as many messages as its `message_limit` allows."""


class MessageTooLarge(Refused):
    """The body is larger than the queue's `message_size_limit`."""


class Duplicate(Refused):
    """A message with this id is still queued or in flight, and the queue has `unique_ids`."""


class NotHeld(RemudaError):
    """The message is no longer with this consumer, or no longer in its queue. Nothing was stored."""


class LookAgain(Conflict):
    """More was published since the log was looked through than is compared now. Nothing was stored."""


class QueueNotAccepting(Refused):
    """The queue's status does not allow publishing."""


class ConsumersFull(Refused):
    """The queue has as many consumers as its `client_limit` allows."""


class DeliveryFailed(RemudaError):
    """The message was stored but ended without success; the reason is in the text and in `reason`."""

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class CommitTimeout(RemudaError, TimeoutError):
    """The wait for the commit timed out. The message is kept and will still be delivered."""


class BrokerClosed(RemudaError):
    """The broker is closed; open it again to continue. Everything accepted before is kept."""


class NotAllowed(RemudaError):
    """The server does not know this user, or does not allow this. Nothing was changed."""


class HostNotResponding(RemudaError, TimeoutError):
    """The process that hosts the directory, or the server, does not answer. The request may or may not be done."""


class StorageError(RemudaError):
    """The log could not be read or written."""

    passing = False
    """Whether it may go away by itself, so that the same call can succeed later."""


class BrokerStopped(StorageError):
    """The broker stopped by itself, because nothing can be stored any more. Everything confirmed is kept."""


class DiskFull(StorageError):
    """The disk has no room. Nothing was stored; everything accepted before is kept."""

    passing = True


class TooManyFiles(StorageError):
    """The process or the machine has no file handles left. Nothing was stored; everything accepted before is kept."""

    passing = True


class DirectoryInUse(StorageError):
    """Another process has this directory open."""


class ForeignDirectory(StorageError):
    """The directory holds files that are not Remuda's."""


class DirectoryNotWritable(StorageError):
    """The directory cannot be created or written."""


class DataLost(StorageError):
    """Rows that a query should have read are not there."""


class UnsupportedFormat(StorageError):
    """The directory was written by a version of Remuda whose format this one does not read."""
