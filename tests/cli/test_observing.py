"""Logs, metrics and traces."""

from __future__ import annotations

import io
import json
import logging
import pickle
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest, start_http_server

import remuda
from remuda import Bus, Headers, Middleware, NotNow, Reject, Retry
from remuda.bus.observing.logs import JsonFormatter, configure
from remuda.bus.observing.metrics import Metrics
from remuda.bus.observing.tracing import Tracing
from remuda.model.errors import RemudaError


def test_logs_as_json_hold_the_messages_particulars(logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure(as_json=True, stream=stream)
    bus = Bus()

    @bus.subscribe("order.placed", queue="ship", retry="never")
    def ship(number: int, log: logging.Logger) -> None:
        log.info("shipping %d", number)
        raise ValueError("no stock")

    with bus.testing() as test:
        test.publish("order.placed", 7, id="seven")
        test.run()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    wanted = {"level": "info", "message": "shipping 7", "queue": "ship", "message_id": "seven", "attempt": 1}
    assert any(wanted.items() <= line.items() for line in lines)
    assert any(line["level"] == "error" and "no stock" in line["message"] for line in lines)


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("oops")
    except ValueError:
        record = logging.LogRecord("remuda", logging.ERROR, "", 1, "it %s", ("broke",), sys.exc_info())
    entry = json.loads(JsonFormatter().format(record))
    assert entry["message"] == "it broke"
    assert "ValueError: oops" in entry["exception"]


def test_an_application_that_set_up_logging_is_left_alone(logger: logging.Logger) -> None:
    before = list(logger.handlers)
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        configure()
        assert logger.handlers == before
    finally:
        logging.getLogger().removeHandler(handler)


def test_metrics_count_outcomes_and_depths() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    bus = Bus(middleware=[metrics])

    @bus.subscribe("order.placed", queue="ship", retry=["1m"])
    def ship(number: int) -> None:
        if number == 2:
            raise ValueError("no stock")
        if number == 3:
            raise Reject
        if number == 4:
            raise Retry(after="1h")
        if number == 5:
            raise NotNow(after="1h")

    def read(name: str, **labels: str) -> float:
        return registry.get_sample_value(name, labels) or 0.0

    with bus.testing() as test:
        metrics.watch(test.bus)
        for number in range(1, 6):
            test.publish("order.placed", number)
        test.publish("order.placed", "not a number")
        assert read("remuda_queue_messages", queue="ship", state="waiting") == 6
        test.run()
        test.advance("1m")
        outcomes = ("success", "failure", "invalid", "retry", "not-now")
        counts = [read("remuda_handled_total", queue="ship", outcome=outcome) for outcome in outcomes]
        assert counts == [1, 2, 2, 1, 1]
        assert read("remuda_published_total", topic="order.placed") == 6
        assert read("remuda_failures_total", queue="ship", error="ValueError") == 2
        assert read("remuda_retries_total", queue="ship") == 1
        assert read("remuda_handlers_running", queue="ship") == 0
        assert read("remuda_handler_seconds_count", queue="ship") == 7
        assert read("remuda_queue_messages", queue="ship", state="dead") == 1
        assert read("remuda_queue_messages", queue="ship", state="delayed") == 2
        assert read("remuda_queue_entered_total", queue="ship", state="invalid") == 2


def test_metrics_of_a_closed_bus_do_not_open_its_directory_again(tmp_path: Path) -> None:
    """B16"""
    registry = CollectorRegistry()
    with Bus(tmp_path / "data") as bus:
        Metrics(registry).watch(bus)
        bus.publish("x", 1)
        assert "remuda_queue_messages{" in generate_latest(registry).decode()
    assert "remuda_queue_messages{" not in generate_latest(registry).decode()
    assert bus.closed


def test_metrics_are_served_on_this_machine() -> None:
    registry = CollectorRegistry()
    Metrics(registry).published.labels("order.placed").inc()
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            assert b'remuda_published_total{topic="order.placed"} 1.0' in answer.read()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_metrics_do_nothing_in_another_process() -> None:
    assert type(pickle.loads(pickle.dumps(Metrics(CollectorRegistry())))) is Middleware


@pytest.fixture
def spans() -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def test_one_trace_runs_through_all_that_a_message_causes(
    spans: tuple[TracerProvider, InMemorySpanExporter],
) -> None:
    provider, exporter = spans
    bus = Bus(middleware=[Tracing(provider)])
    seen: list[str] = []

    @bus.subscribe("order.placed")
    def place(number: int) -> str:
        bus.publish("order.shipped", number)
        return "placed"

    @bus.subscribe("order.shipped")
    async def ship(number: int, headers: Headers) -> None:
        seen.append(headers["traceparent"])

    @bus.subscribe("answer")
    def answer(text: str, headers: Headers) -> None:
        seen.append(headers["traceparent"])

    with bus.testing() as test:
        test.publish("order.placed", 1, callback="answer")
        test.run()
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert set(found) == {
        "publish order.placed", "handle order.placed", "publish order.shipped", "handle order.shipped",
        "publish answer", "handle answer",
    }  # fmt: skip
    assert len({span.context.trace_id for span in found.values() if span.context}) == 1
    assert _parent(found["handle order.placed"]) == _own(found["publish order.placed"])
    assert _parent(found["publish order.shipped"]) == _own(found["handle order.placed"])
    assert _parent(found["publish answer"]) == _own(found["publish order.placed"])
    assert len(seen) == 2


def test_a_failed_call_is_a_failed_span(spans: tuple[TracerProvider, InMemorySpanExporter]) -> None:
    provider, exporter = spans
    bus = Bus(middleware=[Tracing(provider)])

    @bus.subscribe("order.placed", retry="never")
    def place(number: int) -> None:
        raise ValueError("no stock") if number == 1 else Reject("odd")

    with bus.testing() as test:
        test.publish("order.placed", 1)
        test.publish("order.placed", 2)
        test.run()
    failed, rejected = (span for span in exporter.get_finished_spans() if span.name == "handle order.placed")
    assert failed.status.description == "ValueError: no stock"
    assert failed.events[0].name == "exception"
    assert rejected.status.is_unset
    assert rejected.attributes is not None
    assert rejected.attributes["remuda.answer"] == "Reject"


def test_a_refused_publish_is_a_failed_span(spans: tuple[TracerProvider, InMemorySpanExporter]) -> None:
    provider, exporter = spans
    with Bus(middleware=[Tracing(provider)]) as bus:
        bus.subscribe("order.placed", queue="ship")(lambda body: None)
        bus.broker.set_status("ship", "paused")
        with pytest.raises(RemudaError):
            bus.publish("order.placed", 1)
        (span,) = exporter.get_finished_spans()
        assert not span.status.is_ok
    assert isinstance(pickle.loads(pickle.dumps(Tracing(provider))), Tracing)


@pytest.mark.parametrize(
    ("module", "library", "line"),
    [
        ("metrics", "prometheus_client", 'pip install "remuda[metrics]"'),
        ("tracing", "opentelemetry", 'pip install "remuda[tracing]"'),
    ],
)
def test_a_missing_extra_answers_with_the_line_that_installs_it(module: str, library: str, line: str) -> None:
    hide = f"import sys; sys.modules[{library!r}] = None"
    program = f"{hide}\ntry:\n import remuda.bus.observing.{module}\nexcept ImportError as error:\n print(error)"
    source = str(Path(remuda.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith(line)


def _own(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def _parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id
