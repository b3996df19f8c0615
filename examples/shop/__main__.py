"""Plays a day in the shop, scene by scene: what happened to every message, the report, the data pipeline.

    python -m examples.shop [--keep] [DIR]

With a directory, the messages stay there for `remuda queues DIR` and other commands. With `--keep`, the dashboard
stays up until Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from examples.shop import figures, live, pipeline, report
from examples.shop.model import Order
from examples.shop.orders import Orders
from examples.shop.services import Bank, Counter, Courier, Customer, Warehouse
from remuda import Bus


class Shop:
    """The bus with all services, and the stage they play on."""

    def __init__(self, directory: str, console: Console) -> None:
        self.console = console
        self.bus = Bus(directory, user="shop")
        self.orders = Orders(self.bus, f"{directory}.orders.db")
        self.warehouse = Warehouse(self.bus)
        self.courier = Courier(self.bus)
        self.customer = Customer()
        for service in (self.warehouse, Bank(), Counter(self.bus), self.courier, self.customer):
            self.bus.subscribe_class(service)

    def scene(self, title: str, text: str) -> None:
        self.console.print(f"\n[bold]{title}[/bold]\n{text}")

    def tell(self, text: str) -> None:
        self.console.print(f"  {text}")

    def settle(self, pause: float = 0.6) -> None:
        """Wait until nothing is left to do, then give the reader a moment."""
        while not self.orders.are_sent() or any(info.size for info in self.bus.broker.queues()):
            time.sleep(0.02)
        while self.customer.letters:
            self.tell(f"[green]letter to the customer:[/green] {self.customer.letters.pop(0)}")
        time.sleep(pause)


class Lines(logging.Handler):
    """Shows what the bus logs about failures."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(f"  [dim]{record.getMessage()}[/dim]")


def play(shop: Shop) -> None:
    bus = shop.bus
    shop.scene("Publishing", "An order is placed in a transaction of the shop's database. Five services do their part.")
    shop.orders.place(Order(1, "teapot", 30))
    shop.settle()

    shop.scene("Retries", "The bank does not answer at first. The message is retried on its schedule.")
    shop.orders.place(Order(2, "teapot", 30))
    shop.settle()

    shop.scene("A timeout", "The packing robot hangs. After half a second the handler is interrupted, then retried.")
    shop.orders.place(Order(3, "lamp", 80))
    shop.settle()

    shop.scene("A failover", "The drone cannot fly. After the last attempt the parcel moves to the van's queue.")
    shop.orders.place(Order(4, "teapot", 30, express=True))
    shop.settle()

    shop.scene("A compensation", "The bank refuses. Its answer arrives by callback, and the reservation is undone.")
    shop.orders.place(Order(5, "piano", 9000))
    shop.settle(0)
    shop.tell(f"pianos in stock: {shop.warehouse.stock['piano']}")
    time.sleep(0.6)

    shop.scene("Dead letters", "A label cannot be printed. The message is kept with its reason.")
    shop.orders.place(Order(6, "lamp", 80, address="Ελαιώνας 5"))
    shop.settle()
    shop.courier.printer_works = True
    count = bus.reprocess("Courier.label", reason="label printer", who="ada")
    shop.tell(f"ada has fixed the printer and reprocesses what it killed: {count} message")
    shop.settle()

    shop.scene("Nothing is lost", "A body that is not an order, and a topic without subscribers: both are kept.")
    bus.publish("order.placed", {"number": 7, "oops": "this is not an order"})
    bus.publish("order.plaecd", Order(8, "teapot", 30))
    shop.settle()

    shop.scene("Later", "A delayed message waits on disk until it is due.")
    bus.publish("review.wanted", Order(1, "teapot", 30), delay="1500ms")
    shop.settle()


def main(directory: str, page: Path, *, keep: bool) -> None:
    console = report.console()
    logging.getLogger("remuda.bus").addHandler(Lines(console))
    logging.getLogger("remuda.bus").propagate = False
    lake = Path(f"{directory}.lake")
    shop = Shop(directory, console)
    with shop.bus, live.dashboard(shop.bus, lake) as address:
        console.print(f"The dashboard is at {address} while this runs.")
        shop.bus.start()
        play(shop)
        tell(shop, lake, page)
        if keep:
            console.print(f"\nThe dashboard stays up at {address} until Ctrl-C.")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    shop.orders.close()


def tell(shop: Shop, lake: Path, page: Path) -> None:
    """What the log says of the day: message by message, in figures, and as tables."""
    console, directory = shop.console, str(shop.bus.url)
    found = list(report.lines(shop.bus.broker))
    console.print()
    console.print(report.table(found))
    ends = [line.end for line in found]
    done, moved = ends.count("done"), ends.count("moved on")
    kept = len(ends) - done - moved
    console.print(f"{done} succeeded, {moved} moved on; {kept} are kept, with their reason, for someone to look at.")
    shop.scene("The same in figures", "This is `remuda report`; for a large log, Spark counts.\n")
    figures.show(directory, page, console)
    shop.scene("The data pipeline", "Spark reads the log, beside the running broker, and builds tables in a lake.")
    pipeline.show(directory, lake, console)


def page_to_keep() -> Path:
    """A file that stays even though the messages do not."""
    handle, name = tempfile.mkstemp(prefix="remuda-shop-", suffix=".html")
    os.close(handle)
    return Path(name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description="Play a day in the shop.")
    parser.add_argument("directory", nargs="?", metavar="DIR", help="keep the messages here")
    parser.add_argument("--keep", action="store_true", help="leave the dashboard up until Ctrl-C")
    asked = parser.parse_args()
    if asked.directory:
        main(asked.directory, Path(asked.directory, "report.html"), keep=asked.keep)
        print(f"Look around: remuda queues {asked.directory}")
    else:
        with tempfile.TemporaryDirectory() as data:
            main(str(Path(data, "messages")), page_to_keep(), keep=asked.keep)
        print("To keep the messages and look around: make run DIR=data, then .venv/bin/remuda queues data")
