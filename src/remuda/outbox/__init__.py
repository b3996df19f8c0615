"""Outbox, inbox and journal: publishing as part of the application's own database transaction."""

from remuda.outbox.database.table_names import Names
from remuda.outbox.inbox import Inbox
from remuda.outbox.outbox import Outbox
from remuda.outbox.records import Status, Stored

__all__ = ["Inbox", "Names", "Outbox", "Status", "Stored"]
