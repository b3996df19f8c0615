"""Builds what Remuda has in C, and compiles its hot modules, where there is a compiler. Without one, or if it fails,
Remuda is Python alone. `python hatch_build.py` does so in a checkout."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

SOURCES = Path("src/remuda")
FOLDER = SOURCES / "native"
COMPILED = FOLDER / "compiled"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
HOT = {
    "core": "admission consuming core delivering journey publishing recorder registry routing",
    "core.queues": "delayed leases parked plans queue ranges ready",
    "core.flow": "buckets flow key_state keyed keys limits merging moving regrouping rules singles",
    "broker.embedded": "clock engine queries runtime submission",
    "broker.embedded.delivering": "caches",
    "broker.embedded.storing": "durability group_commit",
    "model": "ids",
}
"""The modules that are compiled, by package. They hold no msgspec structs, and nobody but the simulation inherits from
their classes."""
READ = ("core", "model", "broker/embedded", "log")
"""What mypyc reads of Remuda to compile them; it is told no types of anything else."""
_SECONDS = 600
_TYPES = """[mypy]
mypy_path = {sources}
explicit_package_bases = true
follow_imports = skip
[mypy-{followed},remuda.broker.options,remuda.native.*]
follow_imports = silent
"""


def build(sources: Path, folder: Path) -> list[Path]:
    """Build every source in C, a module each, into the folder. None, with one line that says why, if one of them cannot
    be built; then old builds go too."""
    made = {source: folder / f"_{source.stem}{SUFFIX}" for source in sorted(sources.glob("*.c"))}
    unfinished = {source: folder / f"{target.name}.{os.getpid()}.tmp" for source, target in made.items()}
    try:
        linker = _linker()
        _run_all([*linker, "-O2", str(source), "-o", str(file)] for source, file in unfinished.items())
        for source, file in unfinished.items():
            os.replace(file, made[source])
        return list(made.values())
    except (OSError, subprocess.SubprocessError) as error:
        print(f"warning: remuda is installed without its part in C and works all the same: {error}", file=sys.stderr)
        for target in made.values():
            target.unlink(missing_ok=True)
        return []
    finally:
        for file in unfinished.values():
            file.unlink(missing_ok=True)


def compile_hot(root: Path, *, noted: bool) -> list[Path]:
    """Compile the hot modules of the checkout at `root` into its folder for them. None, with one line that says why, if
    that cannot be done. With `noted`, they are used only as long as the sources stay as they are."""
    folder = root / COMPILED
    rules = _rules(folder)
    for old in (*folder.rglob(f"*{SUFFIX}"), folder / rules.NOTE):
        old.unlink(missing_ok=True)
    try:
        linker = _linker()
        with tempfile.TemporaryDirectory(prefix="remuda-") as scratch:
            before = _sources(root, rules) if noted else {}
            made = _compile(root, Path(scratch), linker)
            if noted and _sources(root, rules) != before:
                raise OSError("the sources changed meanwhile")
            targets = []
            for built in made:
                target = folder / built.relative_to(Path(scratch, "made"))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(built, target)
                targets.append(target)
            note = folder / rules.NOTE
            note.write_text(json.dumps(before))
            return [*targets, note]
    except ImportError as error:
        why = f"mypy is not installed ({error})"
    except (OSError, subprocess.SubprocessError, SystemExit) as error:
        why = str(error)
    print(f"warning: remuda's core is not compiled and works all the same, more slowly: {why}", file=sys.stderr)
    return []


def _compile(root: Path, scratch: Path, linker: Sequence[str]) -> list[Path]:
    from mypyc.build import generate_c_extension_shim, include_dir, mypyc_build
    from mypyc.common import RUNTIME_C_FILES
    from mypyc.options import CompilerOptions

    library = "remuda.native.compiled.hot"
    config, generated, made = scratch / "mypy.ini", scratch / "generated", scratch / "made"
    followed = ",".join(f"remuda.{part.replace('/', '.')}.*" for part in READ)
    config.write_text(_TYPES.format(sources=root / "src", followed=followed))
    modules = [f"{package}.{name}" for package, names in HOT.items() for name in names.split()]
    paths = [str(root / SOURCES / f"{module.replace('.', '/')}.py") for module in modules]
    options = CompilerOptions(
        multi_file=True, target_dir=str(generated), group_name=library, include_runtime_files=False
    )
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            _, parts, _ = mypyc_build([f"--config-file={config}", *paths], options)
    except SystemExit:
        raise OSError((told.getvalue().strip() or "mypyc failed").splitlines()[0]) from None
    sources = [*map(Path, parts[0][0]), *(Path(include_dir(), name) for name in RUNTIME_C_FILES)]
    objects = [scratch / f"{source.stem}.o" for source in sources]
    headers = generated.joinpath(*library.split(".")[:-1])
    flags = ["-O2", "-w", "-I", include_dir(), "-I", str(generated), "-I", str(headers)]
    # The longest first, so that none is left over in the end.
    order = sorted(zip(sources, objects, strict=True), key=lambda pair: -pair[0].stat().st_size)
    _run_all([*_compiler(), "-c", *flags, str(source), "-o", str(target)] for source, target in order)
    targets = [made / f"hot__mypyc{SUFFIX}"]
    made.mkdir()
    commands = [[*linker, *map(str, objects), "-o", str(targets[0])]]
    for module in modules:
        full, name = f"remuda.{module}", module.rpartition(".")[2]
        shim = generate_c_extension_shim(full, name, str(scratch / "shims"), library)
        target = made / module.rpartition(".")[0] / f"{name}{SUFFIX}"
        target.parent.mkdir(parents=True, exist_ok=True)
        commands.append([*linker, "-O1", shim, "-o", str(target)])
        targets.append(target)
    _run_all(commands)
    return targets


def _rules(folder: Path) -> ModuleType:
    """How the sources are noted."""
    spec = importlib.util.spec_from_file_location("remuda_note", folder / "note.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sources(root: Path, rules: Any) -> dict[str, tuple[int, int, str]]:
    """Everything of Remuda whose types, or constants, are in what is compiled."""
    found = {}
    top = root / SOURCES
    for path in sorted(path for part in READ for path in (top / part).rglob("*.py")):
        state, content = path.stat(), path.read_bytes()
        found[path.relative_to(top).as_posix()] = (state.st_size, state.st_mtime_ns, rules.digest_of(content))
    return found


def _linker() -> list[str]:
    if os.environ.get("REMUDA_PURE", "0") != "0":
        raise OSError("REMUDA_PURE asks for Python alone")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise OSError("this Python has no interpreter lock, or is not CPython")
    return [*shlex.split(sysconfig.get_config_var("LDSHARED") or "cc -shared"), *_flags()]


def _compiler() -> list[str]:
    return [*shlex.split(sysconfig.get_config_var("CC") or "cc"), *_flags()]


def _flags() -> list[str]:
    return [*shlex.split(sysconfig.get_config_var("CCSHARED") or "-fPIC"), "-I", sysconfig.get_path("include")]


def _run_all(commands: Iterable[Sequence[str]]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for command, done in [(command, pool.submit(_run, command)) for command in commands]:
            result = done.result()
            if result.returncode:
                raise OSError((result.stderr.strip() or f"{command[0]} failed").splitlines()[0])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    build(here / FOLDER, here / FOLDER)
    compile_hot(here, noted=True)
else:
    with contextlib.suppress(ImportError):  # without it, nothing is built but what a test asks for
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface

        class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
            """What was built lies beside its source, for a checkout that is installed as it is; a wheel has it, too."""

            PLUGIN_NAME = "custom"

            def initialize(self, version: str, build_data: dict[str, Any]) -> None:
                if self.target_name != "wheel":
                    return
                root = Path(self.root)
                for built in (
                    *build(root / FOLDER, root / FOLDER),
                    *compile_hot(root, noted=version == "editable"),
                ):
                    build_data["pure_python"] = False
                    build_data["infer_tag"] = True
                    build_data["force_include"][str(built)] = str(built.relative_to(root / "src"))
