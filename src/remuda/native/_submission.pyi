"""As `remuda.broker.embedded.submission.PlainSubmission`, which says what everything means."""

from typing import Any

class Submission:
    lock: Any
    clock: Any
    fence: Any
    def submit(self, command: Any, inbox: Any = ..., *, wait: bool = ...) -> Any: ...
    def wait(self, ticket: int) -> None: ...
    def _keep(self, record: Any, durable: bool) -> int: ...
