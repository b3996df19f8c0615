"""P3, U3: the report's figures against the broker's own view, and its tables and page with whatever names there are."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from rich.cells import cell_len
from rich.console import Console

from remuda.broker.threads import EmbeddedBroker
from remuda.cli import main
from remuda.model.document import Document, QueueView
from remuda.model.errors import DirectoryNotWritable, InvalidOption, NotFound
from remuda.model.life import LIVE, PARKED
from remuda.model.message import Message
from remuda.model.state import State
from remuda.report import Report, ReportRequest, collecting, make_report, print_report, render, write_page
from remuda.report.figures import Figures, QueueReport, Reason, Step, Times, Window
from remuda.report.formatting import number, seconds, share, visible
from remuda.report.scale import CountScale, TimeScale, clock_ticks
from remuda.report.windows import starts, window_length
from remuda.spark.pipelines.jobs import JOBS
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.source.tables import LIFECYCLE_SCHEMA
from tests.privileges import unwritable_directory
from tests.spark.samples import broker_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOSTILE = [
    "<script>alert('x')</script>",
    "\u202edesrever \u2066",
    "n" * 10_000,
    "\x1b[31mred\x1b[0m\r\nnext",
    "שלום (1)",
    "&amp;\"'>",
]


def play_shop(broker: EmbeddedBroker) -> None:
    """What succeeds at once, at the third attempt or never, what is refused, repeated or moved on, and what waits."""
    for name in ("orders", "mail", "parcels", "post"):
        broker.create_queue(name, type="pull")

    def take(queue: str, count: int) -> Any:
        delivery = broker.pull(queue, count, consumer="worker", timeout=60)
        assert delivery is not None
        assert len(delivery.bodies) == count
        time.sleep(0.002)
        return delivery

    broker.publish([Message("orders", b"%d" % number) for number in range(18)])
    broker.publish([Message("mail", b"letter", topics=("mail", "orders"))])
    delivery = take("orders", 19)
    delivery.ack([*range(6), 17, 18])
    delivery.retry([6, 7, 8], reason="the bank sleeps")
    delivery.dead([9, 10], reason="no stock")
    delivery.dead([11], reason="out of paper")
    delivery.invalid([12, 13], reason='no <order> & none "like" it')
    delivery.not_interested([14])
    delivery.retry([15, 16], reason="tomorrow", after="1d")
    take("orders", 3).retry(reason="the bank still sleeps")
    take("orders", 3).ack()
    broker.publish([Message("parcels", b"heavy") for _ in range(3)])
    take("parcels", 3).dead([0, 1], reason="nobody there", to="post")
    take("post", 2).ack([0])
    broker.publish([Message("orders", b"%d" % number) for number in range(4)])
    for _ in range(2):
        broker.publish([Message("mail.news", b"same", object="news", key="k") for _ in range(4)])
    take("mail", 1).ack()
    broker.runtime.sync()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Document]]:
    """A log, and every message of it as the broker tells it."""
    path = tmp_path_factory.mktemp("shop") / "data"
    with broker_at(path) as broker:
        play_shop(broker)
        count = broker.spectate().log.ends().next_offset
        return str(path), [broker.message(offset) for offset in range(count)]


@pytest.fixture(scope="module")
def report(shop: tuple[str, list[Document]]) -> Report:
    return make_report(ReportRequest(url=shop[0]))


def percentiles(values: list[int]) -> Times:
    """The least of the values within which so many of them lie."""
    ordered = sorted(values)
    return Times(
        *(ordered[math.ceil(share * len(ordered)) - 1] / 1e6 if ordered else None for share in (0.5, 0.95, 0.99))
    )


def is_moved(view: QueueView) -> bool:
    return view.moved_to == "post"


def counted(copies: list[tuple[Document, QueueView]], unchanged: int = 0) -> Figures:
    views = [view for _, view in copies]
    return Figures(
        published=len(views),
        succeeded=sum(view.success for view in views),
        dead=sum(view.state in PARKED and not is_moved(view) for view in views),
        moved=sum(map(is_moved, views)),
        waiting=sum(view.state in LIVE for view in views),
        retried=sum(view.attempts > 1 for view in views),
        unchanged=unchanged,
        wait=percentiles([view.consumed - one.created for one, view in copies if view.consumed]),
        processing=percentiles(
            [view.processed - view.consumed for _, view in copies if view.processed and view.consumed]
        ),
    )


def test_p3_the_figures_are_those_that_the_broker_tells(report: Report, shop: tuple[str, list[Document]]) -> None:
    documents = shop[1]
    copies = [(one, view) for one in documents for view in one.queues]
    held_back = [one for one in documents if not one.queues]
    assert report.messages == len(documents)
    assert report.figures == counted(copies, len(held_back))
    assert report.figures.unchanged == 7
    assert report.in_retry == sum(view.state is State.RETRY for _, view in copies) == 2
    assert (report.first, report.last) == tuple(
        START + timedelta(microseconds=chosen(one.created for one in documents) - round(START.timestamp() * 1e6))
        for chosen in (min, max)
    )
    by_queue: dict[str, list[tuple[Document, QueueView]]] = defaultdict(list)
    for copy in copies:
        by_queue[copy[1].queue].append(copy)
    assert {queue.name for queue in report.queues} == set(by_queue)
    assert report.queue_count == len(by_queue) == 4
    assert [queue.figures.published for queue in report.queues] == sorted(map(len, by_queue.values()), reverse=True)
    for queue in report.queues:
        own = by_queue[queue.name]
        names = {one.message.name for one, _ in own}
        assert queue.figures == counted(own, sum(one.message.name in names for one in held_back))
        assert queue.funnel == funnel([view for _, view in own])
        reasons = Counter(
            (view.state, view.reason or "no reason given")
            for _, view in own
            if view.state in PARKED and not is_moved(view)
        )
        assert {(one.state, one.reason): one.messages for one in queue.reasons} == reasons
    assert report.funnel == funnel([view for _, view in copies])
    assert [one.messages for one in report.reasons] == sorted((one.messages for one in report.reasons), reverse=True)
    assert {(one.state, one.reason) for one in report.reasons} == {
        (State.DEAD, "no stock"), (State.DEAD, "out of paper"), (State.INVALID, "no <order> & none \"like\" it"),
        (State.NOT_INTERESTED, "not interested"),
    }  # fmt: skip


def funnel(views: list[QueueView]) -> tuple[Step, ...]:
    most = max(view.attempts for view in views)
    return tuple(
        Step(
            attempt,
            sum(view.attempts >= attempt for view in views),
            sum(view.attempts == attempt and view.success for view in views),
        )
        for attempt in range(1, most + 1)
    )


def test_p3_windows_add_up_to_the_whole(report: Report) -> None:
    for told, whole in [(report.windows, report.figures), *((one.windows, one.figures) for one in report.queues)]:
        for name in ("published", "succeeded", "dead", "waiting", "retried"):
            assert sum(getattr(window.figures, name) for window in told) == getattr(whole, name)
        gaps = {after.start - before.start for before, after in pairwise(told)}
        assert gaps <= {timedelta(seconds=report.window)}
    assert sum(window.figures.unchanged for window in report.windows) == 7


def as_told(report: Report) -> Report:
    return msgspec.structs.replace(report, written=START, source="")


def test_p3_lives_that_are_read_some_at_a_time_give_the_same_report(
    report: Report, shop: tuple[str, list[Document]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "_AT_ONCE", 7)
    assert as_told(make_report(ReportRequest(url=shop[0]))) == as_told(report)


def test_p3_a_lake_gives_the_same_report(
    spark: SparkSession, report: Report, shop: tuple[str, list[Document]], tmp_path: Path
) -> None:
    lake = str(tmp_path)
    with pytest.raises(NotFound, match=r"no table of lives.*pipeline run lifecycle"):
        make_report(ReportRequest(lake=lake))
    JOBS["lifecycle"](spark, Place(url=shop[0], lake=lake))
    assert as_told(make_report(ReportRequest(lake=lake))) == as_told(report)
    late: dict[str, Any] = {"since": round(START.timestamp() * 1e6), "queues": ("mail",)}
    assert as_told(make_report(ReportRequest(lake=lake, **late))) == as_told(
        make_report(ReportRequest(url=shop[0], **late))
    )
    assert make_report(ReportRequest(lake=lake, until=late["since"])).messages == 0


def test_a_report_of_some_queues_and_times(report: Report, shop: tuple[str, list[Document]]) -> None:
    """Of what was held back, that counts which came under the names of the queue."""
    mail = make_report(ReportRequest(url=shop[0], queues=("mail",), window="1 minute"))
    (queue,) = mail.queues
    assert queue.name == "mail"
    assert (mail.figures.published, mail.figures.unchanged, mail.window) == (2, 7, 60.0)
    assert (queue.figures.published, queue.figures.unchanged) == (2, 7)
    assert mail.selection == "queue mail"
    assert report.last is not None
    late = make_report(ReportRequest(url=shop[0], since=round(report.last.timestamp() * 1e6)))
    assert late.messages == 4
    nothing = make_report(ReportRequest(url=shop[0], queues=("nobody's",)))
    assert (nothing.messages, nothing.first) == (0, None)
    assert "there are no messages" in printed(nothing)


def life(number: int) -> dict[str, Any]:
    created = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    return {
        "offset": number, "queue": f"queue-{number if number < 1000 else number % 20}", "name": "n", "state": "E",
        "success": False, "archived": True, "created": created, "consumed": created + timedelta(microseconds=5),
        "failed": created + timedelta(microseconds=9), "attempts": 150, "reason": f"order {number}",
    }  # fmt: skip


def test_of_many_queues_the_busiest_are_told_in_detail() -> None:
    lives = [pa.RecordBatch.from_pylist(list(map(life, range(3000))), LIFECYCLE_SCHEMA)]
    found = collecting.counted(lives, ReportRequest(url="x", detailed=5), lambda step: None)
    assert (found.queue_count, len(found.queues), len(found.detailed)) == (1000, 1000, 5)
    assert {queue.figures.published for queue in found.queues[:20]} == {101}
    assert {len(queue.reasons) for queue in found.detailed} == {10}
    assert [step.attempt for step in found.funnel] == list(range(1, 101))
    assert found.figures.wait == Times(5e-06, 5e-06, 5e-06)
    assert found.window == 60
    page = Page(render(found))
    assert page.counts["figure"] == 1 + 1 + 1 + 5 * 3
    assert sum(f"queue-{number}" in page.texts for number in range(1000)) == 1000
    assert "Charts are drawn for the 5 busiest." in page.text
    assert "2,950 more died of other reasons." in page.text
    assert "975 queues with fewer messages not shown" in printed(found)
    bare = collecting.counted(lives, ReportRequest(url="x", detailed=0), lambda step: None)
    assert (bare.detailed, bare.windows) == ((), found.windows)


class Page(HTMLParser):
    """A page that is read strictly: every element is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.attributes: dict[str, list[str]] = defaultdict(list)
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.counts[name] += 1
        for key, value in attributes:
            assert not key.startswith("on")
            self.attributes[key].append(value or "")
        if name != "meta":
            self._open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self._open.pop() == name

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1] != "style":
            self.texts.append(data)


def printed(report: Report, width: int = 120, *, short: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_report(report, console, short=short)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_u3_the_page_holds_every_figure_and_needs_nothing_else(report: Report) -> None:
    text = render(report)
    page = Page(text)
    for found in (report.figures, *(queue.figures for queue in report.queues)):
        for value in (found.published, found.succeeded, found.dead, found.waiting, found.retried):
            assert number(value) in page.text
        for times in (found.wait, found.processing):
            for time_taken in (times.p50, times.p95, times.p99):
                assert seconds(time_taken) in page.text
    for queue in report.queues:
        assert share(queue.figures.unchanged, queue.figures.published + queue.figures.unchanged) in page.text
    for reason in report.reasons:
        assert reason.reason in page.texts
    for step in report.funnel:
        assert f"{step.reached} reached it, {step.succeeded} succeeded" in page.texts
    assert page.counts["script"] == page.counts["link"] == page.counts["img"] == 0
    assert page.attributes["http-equiv"] == ["Content-Security-Policy"]
    assert all(link.startswith("#") and link[1:] in page.attributes["id"] for link in page.attributes["href"])
    assert "src" not in page.attributes
    assert "url(" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_every_chart_has_a_title_an_alternative_and_its_numbers(report: Report) -> None:
    for figure in render(report).split("<figure")[1:]:
        chart = figure[: figure.index("</figure>")]
        assert "<h3>" in chart
        assert 'class="summary"' in chart
        assert 'role="img" aria-label="' in chart
        assert chart.index("<details>") < chart.index("<tbody>")


def test_u3_the_tables_hold_the_figures(report: Report) -> None:
    text = printed(report, 140)
    orders = report.queues[0].figures
    assert f"{report.messages} messages, {report.figures.published} copies in 4 queues" in text
    assert " moved " in text
    (line,) = (line for line in text.splitlines() if line.startswith(" orders") and "%" in line)
    assert re.search(r" 23 +11 +6 +0 +6 ", line), line
    assert seconds(orders.wait.p95) in line
    assert "the bank" not in text
    assert "out of paper" in text
    assert "succeeded there" in text
    short = printed(report, 140, short=True)
    assert "succeeded there" not in short
    assert "out of paper" in short


@pytest.fixture
def hostile() -> Report:
    figures = Figures(published=5, succeeded=3, dead=2, wait=Times(0.0, 1e-6, 90.0))
    windows = (Window(START, figures), Window(START + timedelta(seconds=1), Figures()))
    queues = tuple(
        QueueReport(
            name=name, figures=figures, detailed=True, windows=windows, funnel=(Step(1, 5, 3),),
            reasons=(Reason(name, State.DEAD, name, 2, START),),
        )
        for name in HOSTILE
    )  # fmt: skip
    return Report(
        source=HOSTILE[0], selection=ReportRequest(queues=tuple(HOSTILE)).selection(),
        written=START, first=START, last=START,
        messages=30, queue_count=len(HOSTILE), figures=figures, windows=windows, queues=queues,
        reasons=tuple(queue.reasons[0] for queue in queues),
    )  # fmt: skip


def test_hostile_names_are_shown_and_do_nothing(hostile: Report) -> None:
    text = render(hostile)
    page = Page(text)
    assert page.counts["script"] == 0
    assert HOSTILE[0] in page.texts
    assert HOSTILE[5] in page.texts
    assert "\\u202edesrever \\u2066" in page.texts
    assert "\\x1b[31mred\\x1b[0m\\r\\nnext" in page.texts
    assert "n" * 301 not in text
    assert not {"\u202e", "\u2066", "\x1b", "\r"} & set(text)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_do_not_break_the_terminal(hostile: Report, width: int) -> None:
    text = printed(hostile, width)
    assert not {"\u202e", "\u2066", "\x1b", "\r"} & set(text)
    assert max(map(cell_len, text.splitlines())) <= width
    if width > 40:
        assert "alert('x')" in text.replace(" ", "")


def test_an_empty_log_is_told_to_be_empty_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with broker_at(tmp_path / "data"):
        pass
    output = tmp_path / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "data"), "--output", str(output)])
    assert ended.value.code == 0
    assert "there are no messages to report on" in capsys.readouterr().out
    assert "There are no messages to report on." in Page(output.read_text()).text


def test_u3_the_command_prints_writes_and_counts(
    shop: tuple[str, list[Document]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["report", shop[0], "--json", "--output", str(output), "--queue", "orders", "--window", "30s"])
    assert ended.value.code == 0
    told = capsys.readouterr()
    value = json.loads(told.out)
    assert told.err == ""
    assert (value["queueCount"], value["inRetry"], value["window"]) == (1, 2, 30.0)
    assert value["queues"][0]["funnel"][0] == {"attempt": 1, "reached": 19, "succeeded": 8}
    assert value["first"].endswith("Z")
    assert Page(output.read_text()).counts["svg"] > 4
    with pytest.raises(SystemExit):
        main(["report", shop[0], "--output", str(output)])
    assert f"the page is {output}" in capsys.readouterr().out


def test_a_page_is_replaced_whole_or_not_at_all(
    hostile: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "report.html"
    link = tmp_path / "link.html"
    link.symlink_to(page)
    write_page(link, hostile)
    before = page.read_text()
    assert link.is_symlink()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DirectoryNotWritable, match=r"No space left on device; nothing was changed there$"):
            write_page(page, msgspec.structs.replace(hostile, messages=1))
    assert page.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "report.html"]


def test_a_page_that_cannot_be_written_is_refused_in_one_line(hostile: Report, tmp_path: Path) -> None:
    with pytest.raises(DirectoryNotWritable, match=r"^there is no directory .*; create it, or choose another place$"):
        write_page(tmp_path / "nowhere" / "report.html", hostile)
    with pytest.raises(DirectoryNotWritable, match="is not a file"):
        write_page(tmp_path, hostile)
    with unwritable_directory() as folder, pytest.raises(DirectoryNotWritable, match="cannot be written"):
        write_page(folder / "report.html", hostile)


SPANS = [timedelta(microseconds=3**power) for power in range(33)]


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_windows_are_about_sixty_and_labels_few(span: timedelta) -> None:
    first = datetime(1971, 3, 3, 23, 59, 58, 765432, tzinfo=UTC)
    length = window_length("auto", first, first + span)
    begins = starts(length, first, first + span)
    assert begins[0] <= first
    assert begins[-1] <= first + span < begins[-1] + timedelta(microseconds=length)
    assert len(begins) <= 62
    if span > timedelta(seconds=6):
        assert len(begins) >= 20
    ticks = clock_ticks(begins, length / 1e6)
    assert 1 <= len(ticks) <= 7
    assert all(0 <= tick.at <= 1 for tick in ticks)


@pytest.mark.parametrize(("text", "length"), [("1 minute", 60), ("2 hours", 7200), ("30s", 30), ("0.5 seconds", 0.5)])
def test_a_window_is_written_in_words_or_short(text: str, length: float) -> None:
    assert window_length(text, START, START + timedelta(seconds=90)) == length * 1e6


@pytest.mark.parametrize("text", ["", "soon", "0s", "-1 minute", "1 fortnight"])
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"is not a window; write it like '1 minute' or 30s"):
        window_length(text, START, START)


def test_windows_too_short_for_their_time_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"would be 86400 .* choose 2m or more, or auto"):
        window_length("1 second", START, START + timedelta(days=1))


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 5, 7, 9, 10, 11, 99, 101, 12345, 10**12])
def test_a_scale_of_counts_reaches_its_most_in_few_steps(most: int) -> None:
    scale = CountScale(most)
    assert 0.5 <= scale.place(most) <= 1 or most < 2
    assert 2 <= len(scale.ticks) <= 5
    assert (scale.ticks[0].at, scale.ticks[-1].at) == (0, 1)


@pytest.mark.parametrize("values", [[0.0], [0.0, 1e-6], [3e-3, 4e-3], [1.0, 1.0], [1e-6, 1e9], [59.0, 61.0]])
def test_a_scale_of_times_holds_them_all(values: list[float]) -> None:
    scale = TimeScale(values)
    assert all(0 <= scale.place(value) <= 1 for value in values)
    places = [tick.at for tick in scale.ticks]
    assert places == sorted(set(places))
    assert 2 <= len(places) <= 9


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0.0, "0 µs"), (4.2e-5, "42 µs"), (0.0123, "12.3 ms"), (0.9996, "1000 ms"), (1.5, "1.5 s"),
        (59.99, "60 s"), (60, "1 min"), (95, "1 min 35 s"), (3599.9, "1 h"), (9000, "2 h 30 min"), (93600, "1 d 2 h"),
    ],
)  # fmt: skip
def test_lengths_of_time_are_told_in_three_digits_or_two_units(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "-"), (0, 9, "0 %"), (9, 9, "100 %"), (1, 100_000, "0.1 %"), (99_999, 100_000, "99.9 %"), (1, 3, "33.3 %")],
)
def test_a_share_is_nothing_or_all_only_when_it_is(part: int, whole: int, text: str) -> None:
    assert share(part, whole) == text


def test_long_names_keep_both_ends() -> None:
    assert visible("a" * 100 + "1", 30) == "a" * 19 + "…" + "a" * 9 + "1"
