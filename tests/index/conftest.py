from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from remuda.index import SearchIndex, open_index

NewIndex = Callable[[], SearchIndex]


@pytest.fixture(params=["sqlite", "opensearch"])
def new_index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewIndex]:
    """Makes indexes of one kind, each with nothing in it."""
    made: list[SearchIndex] = []

    def make() -> SearchIndex:
        if request.param == "sqlite":
            place = str(tmp_path / f"index-{len(made)}")
        else:
            server = request.getfixturevalue("opensearch")
            place = f"{server.replace('http', 'opensearch')}/t-{uuid4().hex[:12]}"
        made.append(open_index(place))
        return made[-1]

    yield make
    for index in made:
        index.drop()
        index.close()


@pytest.fixture
def index(new_index: NewIndex) -> SearchIndex:
    return new_index()
