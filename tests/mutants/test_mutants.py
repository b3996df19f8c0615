"""L2, L3, L7: the tests can fail. A handful of planted bugs in every run; `make mutants` plants them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.planted import IN_EVERY_TEST_RUN, MUTANTS, Mutant
from tests.mutants.run import ROOT, SOURCES, Misplanted, is_found, plant

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def test_there_are_twenty_and_each_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 20
    assert set(IN_EVERY_TEST_RUN) <= set(BY_NAME)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_can_be_planted(mutant: Mutant) -> None:
    text = (SOURCES / "remuda" / mutant.file).read_text("utf-8")
    assert text.count(mutant.old) == 1
    if mutant.file.endswith(".py"):
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    path, _, test = mutant.test.partition("::")
    assert f"def {test}" in (ROOT / path).read_text("utf-8")


@pytest.mark.parametrize("name", IN_EVERY_TEST_RUN)
def test_it_is_found(name: str) -> None:
    assert is_found(BY_NAME[name])


def test_one_that_has_lost_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "remuda").mkdir()
    (tmp_path / "remuda" / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(Misplanted, match="2 times"):
        plant(Mutant("twice", "a.py", "x = 1\n", "", ""), tmp_path)
