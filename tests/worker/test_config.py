"""W1: the config, and what keeps a worker from starting."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from remuda.amqp.errors import ConnectFailed, LoginRefused
from remuda.model.errors import Conflict, InvalidOption
from remuda.worker import QueueType, Task, Worker, WorkerConfig
from remuda.worker.factory import Work
from tests.servers.ports import free_port
from tests.worker.kit import Stage


def nothing(task: Task) -> None:
    pass


def test_defaults() -> None:
    """W1: what is not set."""
    config = WorkerConfig(input_queue="in")
    assert (config.retry_queue, config.retry_limit, config.queue_type, config.prefetch_buffer) == (
        "in",
        10,
        "quorum",
        0,
    )
    assert config.rejected_queue == "in.rejected"  # what is rejected must go somewhere
    assert WorkerConfig(input_queue="in", output_queue="out").rejected_queue == ""


@pytest.mark.parametrize(("threads", "buffer", "prefetch"), [(1, 0, 1), (4, 10, 14), (10_000, 100_000, 65535)])
def test_prefetch(threads: int, buffer: int, prefetch: int) -> None:
    """W1: prefetch = max(1, threads + buffer), as far as AMQP can say it."""
    assert WorkerConfig(input_queue="in", threads=threads, prefetch_buffer=buffer).prefetch == prefetch


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"input_queue": ""}, "input_queue must be set"),
        ({"input_queue": 5}, "input_queue must be a string, not 5"),
        ({"input_queue": "x" * 256}, "input_queue must have at most 255 bytes"),
        ({"prefetch_buffer": -1}, "prefetch_buffer must be at least 0, not -1"),
        ({"prefetch_buffer": 100_001}, "prefetch_buffer must be at most 100000"),
        ({"prefetch_buffer": 1.5}, "prefetch_buffer must be a whole number, not 1.5"),
        ({"prefetch_buffer": True}, "prefetch_buffer must be a whole number, not True"),
        ({"prefetch_buffer": None}, "prefetch_buffer must be a whole number, not None"),
        ({"retry_limit": 0}, "retry_limit must be at least 1, not 0"),
        ({"retry_limit": "many"}, "retry_limit must be a whole number, not 'many'"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"queue_type": "stream"}, "queue_type must be quorum or classic, not 'stream'"),
        ({"url": "http://localhost"}, "is not the URL of a RabbitMQ broker"),
        ({"url": None}, "url must be a string"),
        ({"grace": "soon"}, "'soon' is not a duration"),
        ({"health_port": 70000}, "health_port must be at most 65535, not 70000"),
        ({"output_queue": "in"}, "results would come in again as tasks"),
        ({"max_priority": 5}, "quorum queues have no priorities"),
        ({"retrylimit": 3}, "did you mean 'retry_limit'?"),
    ],
)
def test_invalid_config_is_one_clear_line(values: dict[str, Any], said: str) -> None:
    """W1: invalid config."""
    with pytest.raises(InvalidOption) as caught:
        WorkerConfig.load(environment={}, **{"input_queue": "in", **values})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_input_queue_is_required() -> None:
    with pytest.raises(InvalidOption, match="input_queue must be set"):
        WorkerConfig.load(environment={})


def test_file_code_and_environment(tmp_path: Path) -> None:
    """W1: the later wins."""
    file = tmp_path / "w.toml"
    file.write_text('input_queue = "from-file"\nretry_limit = 3\nthreads = 2\ngrace = "5m"\nqueue_type = "classic"\n')
    config = WorkerConfig.load(file, {"REMUDA_WORKER_THREADS": "7", "REMUDA_OTHER": "x"}, retry_limit=4)
    assert (config.input_queue, config.retry_limit, config.threads, config.grace) == ("from-file", 4, 7, 300.0)
    assert config.queue_type is QueueType.CLASSIC
    with pytest.raises(InvalidOption, match="REMUDA_WORKER_TREADS: unknown setting 'treads'"):
        WorkerConfig.load(file, {"REMUDA_WORKER_TREADS": "7"})
    with pytest.raises(InvalidOption, match=r"missing\.toml cannot be read"):
        WorkerConfig.load(tmp_path / "missing.toml", {})
    file.write_text("input_queue = ")
    with pytest.raises(InvalidOption, match="is not valid TOML"):
        WorkerConfig.load(file, {})


def test_no_connection_within_the_attempts() -> None:
    """W1: the worker does not start, with the cause in one line."""
    url = f"amqp://127.0.0.1:{free_port()}/"
    worker = Worker(WorkerConfig(input_queue="in", url=url, attempts=2), nothing)
    with pytest.raises(ConnectFailed, match=r"within 2 attempts: .*Connection refused") as caught:
        worker.start()
    assert "\n" not in str(caught.value)
    worker.stop()  # as many do in the end, whatever happened
    with pytest.raises(ConnectFailed):
        worker.run()


def test_a_port_that_never_answers() -> None:
    """W1: half-open from the beginning."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"amqp://127.0.0.1:{silent.getsockname()[1]}/?connect_timeout=300ms"
        with pytest.raises(ConnectFailed, match="did not answer in time"):
            Worker(WorkerConfig(input_queue="in", url=url, attempts=1), nothing).start()


def test_wrong_password(broker_url: str) -> None:
    """W1: trying again would not help, so it is said at once."""
    url = broker_url.replace("guest:guest", "guest:wrong")
    with pytest.raises(LoginRefused, match="403 ACCESS_REFUSED"):
        Worker(WorkerConfig(input_queue="in", url=url), nothing).start()
    with pytest.raises(LoginRefused, match="vhost nowhere not found"):
        Worker(WorkerConfig(input_queue="in", url=f"{broker_url}nowhere"), nothing).start()


@pytest.mark.parametrize("which", ["input", "output"])
def test_queue_of_another_type(stage: Stage, which: str) -> None:
    """W1: a queue of another type is there already."""
    other = QueueType.CLASSIC if stage.kind is QueueType.QUORUM else QueueType.QUORUM
    name = stage.input if which == "input" else stage.output
    stage.channel.declare_queue(name, arguments={"x-queue-type": str(other)})
    with pytest.raises(
        Conflict, match=f"queue {name!r} cannot be used as a {stage.kind} queue: .*x-queue-type"
    ) as caught:
        Worker(stage.config(), nothing).start()
    assert "\n" not in str(caught.value)


def test_health_port_in_use(quorum: Stage) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidOption, match="health cannot be served on"):
            Worker(quorum.config(health_port=taken.getsockname()[1]), nothing).start()


@pytest.mark.parametrize("factory", [None, 5, "handle"])
def test_a_worker_needs_a_function(factory: Any) -> None:
    with pytest.raises(InvalidOption, match="a worker needs a function or a WorkerFactory"):
        Worker(WorkerConfig(input_queue="in"), factory)


class Machine:
    def accept(self, task: Task) -> Work:
        return lambda: None

    def health_check(self) -> None: ...


async def later(task: Task) -> None: ...


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (Machine, r"needs an instance of it, such as Machine\(\)"),
        (later, "later is a coroutine function; a worker runs in threads"),
    ],
)
def test_a_worker_is_given_what_it_can_call(factory: Any, said: str) -> None:
    """W1: else every task would fail, later."""
    with pytest.raises(InvalidOption, match=said):
        Worker(WorkerConfig(input_queue="in"), factory)


@pytest.mark.parametrize("name", [None, 5, "", "x" * 300])
def test_the_name_of_a_worker_is_a_text(name: Any) -> None:
    with pytest.raises(InvalidOption, match="name must be a string of 1 to 200 bytes"):
        Worker(WorkerConfig(input_queue="in"), nothing, name=name)


@pytest.mark.parametrize("grace", [-1, "soon", True, []])
def test_the_grace_of_a_stop_is_a_duration(grace: Any) -> None:
    with pytest.raises(InvalidOption, match="grace: "):
        Worker(WorkerConfig(input_queue="in"), nothing).stop(grace)


def test_a_worker_starts_once(quorum: Stage) -> None:
    with quorum.worker(nothing) as worker, pytest.raises(Conflict, match="started before"):
        worker.start()
