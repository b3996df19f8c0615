"""Middleware wraps every publish and every call. It can change messages, provide values, or catch errors."""

from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from remuda import Bus, Context, Handled, Message, Middleware


class Database:
    """Stands in for a connection that handlers need."""

    def find(self, number: int) -> str:
        return f"customer {number}"


class Signed(Middleware):
    """Adds a header to every published message."""

    def before_publish(self, message: Message) -> Message:
        return msgspec.structs.replace(message, headers={**message.headers, "signed-by": "shop"})


class GivesDatabase(Middleware):
    """Provides a `Database` to handlers that ask for one."""

    provides = (Database,)

    def before_handle(self, context: Context) -> None:
        context.values[Database] = Database()


class Forgives(Middleware):
    """Treats a missing customer as handled: a retry would not help."""

    def handle_error(self, context: Context, error: BaseException) -> Handled | None:
        return Handled(None) if isinstance(error, LookupError) else None

    def after_handle(self, context: Context, result: Any) -> Any:
        print(f"{context.handler} gave {result!r}; the message was signed by {context.headers['signed-by']}")
        return result


data = TemporaryDirectory()
bus = Bus(data.name, middleware=[Signed(), GivesDatabase(), Forgives()])


@bus.subscribe("customer.seen")
def greet(number: int, database: Database) -> str:
    if number < 0:
        raise LookupError("no such customer")
    return f"good morning, {database.find(number)}"


with data, bus:
    bus.publish("customer.seen", 7)
    bus.publish("customer.seen", -1)
    bus.run(until_idle=True)
    print("dead messages:", bus.broker.queue("middleware.greet").dead)
