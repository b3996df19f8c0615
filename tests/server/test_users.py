"""Users of `remuda serve`: passwords, and what is granted per vhost (S4)."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from remuda.model.errors import InvalidOption
from remuda.server.users import EVERYTHING, Users, add_user, check_vhost, hashed, list_users, remove_user

_ANN = f"[users.ann]\npassword = '{hashed('correct horse')}'\n"
_SALT, _DIGEST = "A" * 22 + "==", "A" * 43 + "="


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
        f"{_ANN}role = 'x'",
        f"{_ANN}[users.ann.vhosts.'{'v' * 65}']\nread = '.*'",
        f"{_ANN}tags = ['king']",
        f"{_ANN}[users.ann.vhosts.'/']\nread = '('",
        f"{_ANN}[users.ann.vhosts.'/']\nread = 5",
        f"{_ANN}[users.ann.vhosts.'/']\nown = '.*'",
        f"{_ANN}vhosts = 5",
        f"[users.ann]\npassword = 'scrypt:99999999:8:1:{_SALT}:{_DIGEST}'",
        f"[users.ann]\npassword = 'scrypt:16383:8:1:{_SALT}:{_DIGEST}'",
        f"[users.ann]\npassword = 'scrypt:131072:16:1:{_SALT}:{_DIGEST}'",
        f"[users.ann]\npassword = 'scrypt:16384:8:1::{_DIGEST}'",
        f"[users.ann]\npassword = 'scrypt:16384:8:1:{_SALT}:AAAA'",
        f"[users.ann]\npassword = 'scrypt:16384:8:1:{_SALT}!:{_DIGEST}'",
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_says_where(tmp_path: Path, content: str) -> None:
    """S4."""
    file = tmp_path / "users.toml"
    file.write_text(content)
    with pytest.raises(InvalidOption, match=r"users\.toml|vhost"):
        Users.load(file)


@pytest.mark.parametrize("name", ["", "x" * 65, "\udcff", None, 5])
def test_impossible_vhosts(name: Any) -> None:
    with pytest.raises(InvalidOption):
        check_vhost(name)


def test_short_passwords_and_strange_names_are_refused(tmp_path: Path) -> None:
    for name, password in (("ann", "short"), ("", "long enough"), ("a\n", "long enough"), ("x" * 70, "long enough")):
        with pytest.raises(InvalidOption):
            add_user(tmp_path / "users.toml", name, password, {"/": EVERYTHING})
    with pytest.raises(InvalidOption, match="cannot be read"):
        Users.load(tmp_path / "missing")


def test_a_password_that_was_right_is_known_again_and_a_wrong_one_never(tmp_path: Path) -> None:
    """S4: a thousand clients of one user do not wait for a thousand checks."""
    file = tmp_path / "users.toml"
    add_user(file, "ann", "correct horse", {"/": EVERYTHING})
    add_user(file, "bob", "battery staple", {"/": EVERYTHING})
    users = Users.load(file)
    assert users.check("ann", "correct horse") is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hashlib.scrypt", lambda *_, **__: b"")
        assert users.check("ann", "correct horse") is not None
        assert users.check("ann", "battery staple") is None
        assert users.check("bob", "correct horse") is None


def test_a_file_stays_readable_for_whom_it_was(tmp_path: Path) -> None:
    """As when a server in a container reads it, as another user."""
    file = tmp_path / "users.toml"
    add_user(file, "ann", "correct horse", {"/": {"read": "\x7f"}})
    file.chmod(0o644)
    add_user(file, "bob", "battery staple", {"/": EVERYTHING})
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert list_users(file)["ann"] == {"/": {"read": "\x7f"}}
