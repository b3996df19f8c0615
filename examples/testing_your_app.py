"""Testing your handlers: `bus.testing()` is the same bus in memory, with a clock that the test moves."""

from remuda import Bus

bus = Bus("data")  # opens nothing until it is used
outbox: list[str] = []


@bus.subscribe("mail.send", retry=["1m", "1h"])
def send(address: str) -> None:
    outbox.append(address)
    if len(outbox) < 3:
        raise ConnectionError("the mail server does not answer")


def test_mail_is_sent_at_the_third_attempt() -> None:
    with bus.testing() as test:
        message = test.publish("mail.send", "ada@example.org")
        test.run()
        assert len(outbox) == 1

        test.advance("59s")
        assert len(outbox) == 1
        test.advance("1s")
        assert len(outbox) == 2
        test.advance("1h")
        assert test.message(message).queues[0].success


test_mail_is_sent_at_the_third_attempt()
print("an hour passed at once, and the test holds")
