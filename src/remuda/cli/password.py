"""The option for a new user's password, which is asked for twice if it is not given."""

from __future__ import annotations

from typing import Annotated

import typer

Password = Annotated[
    str,
    typer.Option(
        prompt="Password",
        confirmation_prompt=True,
        hide_input=True,
        show_default=False,
        envvar="REMUDA_PASSWORD",
        help="The password; asked for if not given.",
    ),
]
