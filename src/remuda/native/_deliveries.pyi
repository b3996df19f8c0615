"""As `remuda.broker.delivery.PlainHanded`, which says what everything means."""

from typing import Any

class Handed:
    def __init__(self, dispatch: Any, messages: Any, settle: Any, track: Any = ...) -> None: ...

def set_dispatch(dispatch: type) -> None: ...
