"""Users of `remuda serve`: passwords, and what is granted per vhost (S4)."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from remuda.model.errors import InvalidOption
from remuda.server.users import EVERYTHING, Users, add_user, check_vhost, list_users, remove_user


def test_a_password_opens_what_was_granted(tmp_path: Path) -> None:
    """S4."""
    file = tmp_path / "users.toml"
    assert add_user(file, "ann", "correct horse", {"/": EVERYTHING, "shop": {"read": "^orders$", "write": ""}})
    assert add_user(file, 'b"ob', "battery staple", {"/": EVERYTHING})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"horse" not in file.read_bytes()
    users = Users.load(file)
    assert users.vhosts == ["/", "shop"]
    ann = users.check("ann", "correct horse")
    assert ann is not None
    assert ann.may("/", "configure", "anything")
    assert ann.may("shop", "read", "orders")
    assert not ann.may("shop", "read", "orders2")
    assert not ann.may("shop", "write", "orders")
    assert not ann.may("shop", "configure", "orders")
    assert not ann.may("nowhere", "read", "orders")
    for name, password in (("ann", "wrong"), ("nobody", "correct horse"), ("", ""), ("ann", "\udcff")):
        assert users.check(name, password) is None
    assert users.check('b"ob', "battery staple") is not None


def test_users_are_changed_and_removed(tmp_path: Path) -> None:
    """S4."""
    file = tmp_path / "users.toml"
    add_user(file, "ann", "first password", {"/": EVERYTHING})
    assert not add_user(file, "ann", "second password", {"/": {"read": "^a"}})
    assert Users.load(file).check("ann", "first password") is None
    assert list_users(file) == {"ann": {"/": {"read": "^a"}}}
    remove_user(file, "ann")
    with pytest.raises(InvalidOption, match="at least one"):
        Users.load(file)
    with pytest.raises(InvalidOption, match="no user 'ann'"):
        remove_user(file, "ann")


@pytest.mark.parametrize(
    "content",
    [
        "", "nonsense", "[users]\nann = 1", "[users.ann]\npassword = 'plain'", "[users.ann]\npassword = 5",
        "[users.ann]\npassword = 'scrypt:16384:8:1:AAAA:AAAA'\nrole = 'x'",
        "[users.ann]\npassword = 'scrypt:16384:8:1:AAAA:AAAA'\n[users.ann.vhosts.'a/b']\nread = '.*'",
        "[users.ann]\npassword = 'scrypt:16384:8:1:AAAA:AAAA'\n[users.ann.vhosts.'/']\nread = '('",
        "[users.ann]\npassword = 'scrypt:16384:8:1:AAAA:AAAA'\n[users.ann.vhosts.'/']\nown = '.*'",
        "[users.ann]\npassword = 'scrypt:99999999:8:1:AAAA:AAAA'",
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where(tmp_path: Path, content: str) -> None:
    """S4."""
    file = tmp_path / "users.toml"
    file.write_text(content)
    with pytest.raises(InvalidOption, match=r"users\.toml|vhost"):
        Users.load(file)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65, "a\nb", None, 5])
def test_impossible_vhosts(name: Any) -> None:
    with pytest.raises(InvalidOption):
        check_vhost(name)


def test_short_passwords_and_strange_names_are_refused(tmp_path: Path) -> None:
    for name, password in (("ann", "short"), ("", "long enough"), ("a\n", "long enough"), ("x" * 70, "long enough")):
        with pytest.raises(InvalidOption):
            add_user(tmp_path / "users.toml", name, password, {"/": EVERYTHING})
    with pytest.raises(InvalidOption, match="cannot be read"):
        Users.load(tmp_path / "missing")
