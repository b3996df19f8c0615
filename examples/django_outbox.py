"""Django: publishing inside `atomic()` is part of the transaction; there is no on_commit to forget.

In a project, create the bus in its own module, call `outbox.create_tables()` in a migration or run `remuda db init`,
and run the handlers beside the web server in a management command that calls `bus.run()`.
"""

import tempfile
from pathlib import Path

import django
from django.conf import settings

folder = tempfile.TemporaryDirectory()
database = Path(folder.name, "shop.db")
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(database)}}, USE_TZ=True)
django.setup()

from django.db import connection, models, transaction  # noqa: E402

from remuda import Bus  # noqa: E402
from remuda.outbox import Outbox  # noqa: E402

bus = Bus(Path(folder.name, "messages"))
outbox = Outbox(bus, f"sqlite:///{database}")
outbox.create_tables()


class Order(models.Model):  # type: ignore[misc]
    number = models.IntegerField()

    class Meta:
        app_label = "shop"


@bus.subscribe("order.placed")
def ship(number: int) -> None:
    print(f"order {number} shipped")


def place(number: int) -> None:
    with transaction.atomic():
        Order.objects.create(number=number)
        bus.publish("order.placed", number, transaction=connection)
        if number == 13:
            raise ValueError("nobody wants this one")


if __name__ == "__main__":
    with connection.schema_editor() as schema:
        schema.create_model(Order)
    place(1)
    try:
        place(13)
    except ValueError as error:
        print(error)
    bus.run(until_idle=True)
    print("orders in the table:", Order.objects.count())
    connection.close()
    bus.close()
    folder.cleanup()
