"""As `remuda.broker.delivery.PlainHanded`, which says what everything means."""

from typing import Any

class Handed:
    def __new__(cls, dispatch: Any, messages: Any, settle: Any, track: Any = ...) -> Handed: ...

def set_dispatch(dispatch: type) -> None: ...
