"""Retries: a handler that fails is retried on its schedule. Attempts are counted on disk when they start."""

from tempfile import TemporaryDirectory

from remuda import Attempt, Bus

data = TemporaryDirectory()
bus = Bus(data.name)


@bus.subscribe("mail.send", retry=["100ms", "300ms", "1s"])
def send(address: str, attempt: Attempt) -> None:
    print(f"attempt {attempt}: mail to {address}")
    if attempt < 3:
        raise ConnectionError("the mail server does not answer")
    print("sent")
    bus.stop()


# Other ways to write a schedule: retry=5 (the default waits, five times), "cap", "exponential", "never",
# or a RetryPolicy of your own.
with data, bus:
    bus.publish("mail.send", "ada@example.org")
    bus.run()
