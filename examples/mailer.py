"""A mailer for 200 tenants: a provider takes 20 mails a second, and one tenant sends far too many, all at once.

Tenants take turns, so the noisy one delays nobody by more than one mail; the provider's rate is kept over all of them;
and when the provider turns a tenant away, just this tenant waits. The clock is the test's, so minutes take no time.
"""

from collections import Counter, defaultdict

from remuda import Bus, Retry

TENANTS, NOISY = 200, 2000
bus = Bus("memory://")
sent: dict[str, list[int]] = defaultdict(list)
turned_away: Counter[str] = Counter()


@bus.subscribe(
    "mail.send", queue="mail", flow_key="body:tenant", fair=True, on_retry="hold", limits={"provider": "20/s burst 1"},
    retry=20,
)  # fmt: skip
def send(mail: dict[str, str]) -> None:
    tenant = mail["tenant"]
    if mail["to"].endswith(".invalid") and turned_away[tenant] < 10:
        turned_away[tenant] += 1
        raise Retry(after="10s")
    sent[tenant].append(bus.now())


with bus.testing() as test:
    start = bus.now()
    bus.publish_many("mail.send", [{"tenant": "noisy", "to": f"{row}@example.invalid"} for row in range(NOISY)])
    for number in range(TENANTS - 1):
        bus.publish("mail.send", {"tenant": f"tenant-{number}", "to": "ann@example.org"})
    test.advance("11s")
    others = [tenant for tenant in sent if tenant != "noisy"]
    last = max(sent[tenant][0] for tenant in others)
    print(f"{len(others)} tenants got their mail out within {(last - start) / 1e6:.0f} s")
    print(f"the noisy one was turned away {turned_away['noisy']} times, and {len(sent['noisy'])} of its mails are out")
    flow = bus.broker.flow("mail")
    print(f"{flow.top[0].key}: {flow.top[0].waiting} wait, held by its {flow.top[0].held_by.value}")
    test.advance("5m")
    starts = sorted(moment for times in sent.values() for moment in times)
    most = max(sum(begin <= one < begin + 1_000_000 for one in starts[at : at + 40]) for at, begin in enumerate(starts))
    print(f"all {len(starts)} mails are out, never more than {most} in a second")
