"""P5: a session starts on any Java that is new enough, and says in one line when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from remuda.spark.session import java, missing_pyspark
from remuda.spark.session.java import JavaMissing, find_java, java_version, write_shim


def make_home(path: Path, version: str | None, *, release: bool = True) -> Path:
    (path / "bin").mkdir(parents=True)
    program = path / "bin" / "java"
    program.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\nfor a; do echo "$a"; done\n')
    program.chmod(0o755)
    if release:
        (path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return path


@pytest.mark.parametrize(("text", "number"), [("1.8.0_292", 8), ("11.0.2", 11), ("17.0.15", 17), ("25", 25)])
@pytest.mark.parametrize("release", [True, False])
def test_versions_are_read_from_the_release_file_or_asked_for(
    tmp_path: Path, text: str, number: int, release: bool
) -> None:
    assert java_version(make_home(tmp_path / "home", text, release=release)) == number


def test_the_java_that_is_named_is_taken(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "21.0.1")
    assert find_java({"JAVA_HOME": str(home), "PATH": "/nowhere"}) == home


def test_an_old_java_gives_one_clear_line(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "11.0.2")
    with pytest.raises(JavaMissing, match=r"^JAVA_HOME is Java 11; Spark needs Java 17 or newer: .*$") as caught:
        find_java({"JAVA_HOME": str(home)})
    assert "\n" not in str(caught.value)


def test_an_empty_home_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="holds no Java"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("version", "text"), [(None, "found none"), ("1.8.0", "this machine has Java 8")], ids=["none", "old"]
)
def test_a_machine_without_a_fitting_java_gives_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, text: str
) -> None:
    homes = [] if version is None else [make_home(tmp_path / "old", version)]
    monkeypatch.setattr(java, "_homes", lambda path: iter(homes))
    with pytest.raises(JavaMissing, match=text):
        find_java({})


def test_java_is_found_on_the_path(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "17.0.1")
    assert find_java({"PATH": str(home / "bin")}) == home


def test_the_shim_passes_everything_on_but_the_noisy_module(tmp_path: Path) -> None:
    home = make_home(tmp_path / "it's a home", "17.0.1")
    shim = write_shim(tmp_path / "shim", home)
    command = [str(shim / "bin" / "java"), "-Da=b c", "--add-modules=jdk.incubator.vector", "", "-cp", "x y"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout.split("\n") == ["-Da=b c", "", "-cp", "x y", ""]


@pytest.mark.parametrize("own", [True, False])
def test_pythons_of_spark_import_the_pyspark_that_is_installed(tmp_path: Path, own: bool) -> None:
    home = make_home(tmp_path / "home", "17.0.1")
    (home / "bin" / "java").write_text('#!/bin/sh\necho "${SPARK_HOME-none}"\n')
    shim = write_shim(tmp_path / "shim", home, own_pyspark=own) / "bin" / "java"

    def seen(main: str) -> str:
        environment = {**os.environ, "SPARK_HOME": "/spark"}
        command = [str(shim), "-cp", "x", main, "org.apache.spark.deploy.SparkSubmit"]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()

    assert seen("org.apache.spark.launcher.Main") == "/spark"
    assert seen("-Dx=y") == ("none" if own else "/spark")


def test_without_pyspark_the_answer_is_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from remuda.spark import session

    monkeypatch.setattr(missing_pyspark, "find_spec", lambda name: None)
    with pytest.raises(missing_pyspark.SparkMissing, match=r"^Spark is an extra: pip install 'remuda\[spark\]'$"):
        session()


def test_importing_remuda_spark_does_not_import_pyspark() -> None:
    code = "import sys, remuda.spark; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
