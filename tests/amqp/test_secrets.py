"""A password in a file: read at every login, and sent to the broker when it is renewed."""

from __future__ import annotations

from pathlib import Path

import pytest

from remuda.amqp.client.connection import Connection
from remuda.amqp.connection_options import parse_url
from remuda.model.errors import InvalidOption
from tests.amqp.forgetful import ForgetfulBroker, eventually


def test_a_renewed_password_is_sent_once_and_used_for_the_next_login(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    with ForgetfulBroker() as broker, Connection(f"{broker.url}?password_file={file}") as connection:
        connection.channel()
        file.write_text("second\n")
        eventually(lambda: broker.count("ConnectionUpdateSecret") == 1)
        broker.cut()
        eventually(lambda: connection.connects == 2)
        assert broker.secrets == ["first", "second", "second"]


def test_a_password_file_is_checked_where_the_url_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="password_file of the broker's URL cannot be read"):
        parse_url(f"amqp://h/?password_file={tmp_path}/none")
    (tmp_path / "token").write_text("p")
    with pytest.raises(InvalidOption, match="leave one out"):
        parse_url(f"amqp://u:p@h/?password_file={tmp_path}/token")
    options = parse_url(f"amqp://u@h/?password_file={tmp_path}/token")
    assert (options.user, options.secret()) == ("u", "p")
