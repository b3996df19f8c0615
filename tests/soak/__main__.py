"""`python -m tests.soak --kills 1000` kills brokers under load, again and again, and counts what is lost: nothing.

Each directory is used by a row of processes, each killed at a random moment: in the middle of its load, while it
closes, while it tidies up. After each kill a witness outside compares what was confirmed with what a copy of the
directory holds.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.faults.killing import fork_server, kill_in_a_while
from tests.faults.victim import Job
from tests.faults.witness import Witness

KILLS_EACH = 10
ENDS = ("go on", "go on", "go on", "close", "tidy")


class Soak:
    """Kills, and what was accepted and settled before them."""

    def __init__(self, seed: int) -> None:
        self._processes = fork_server()
        self._random = random.Random(seed)
        self.seed = seed
        self.kills = self.accepted = self.settled = self.waited = 0
        self._witness = Witness()

    def use(self, directory: Path, kills: int) -> None:
        """Kill that many processes, one after the other, on one directory."""
        witness = self._witness = Witness()
        sync = self._random.choice(("always", "os"))
        for turn in range(kills):
            end = self._random.choice(ENDS)
            rest = partial(self._random.uniform, 0, 0.5 if end == "go on" else 0.03)
            job = Job(directory, self._random.randrange(1 << 30), turn, sync, end)
            kill_in_a_while(self._processes, job, witness, rest)
            self.kills += 1
            self.waited += witness.check(directory, directory.with_name("copy"))
        self.accepted += len(witness.names["P"])
        self.settled += len(witness.names["S"])
        self._witness = Witness()

    def describe(self, seconds: float) -> str:
        accepted = self.accepted + len(self._witness.names["P"])
        settled = self.settled + len(self._witness.names["S"])
        return (
            f"{self.kills} kills in {seconds:.0f} s (seed {self.seed}): {accepted} accepted, {settled} settled, "
            f"{self.waited} found waiting after restarts"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=1000, help="how many processes to kill")
    parser.add_argument("--seed", type=int, default=None, help="where the randomness comes from; the clock by default")
    arguments = parser.parse_args()
    logging.getLogger("remuda").addHandler(logging.NullHandler())
    logging.getLogger("remuda").propagate = False
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    soak = Soak(time.time_ns() % 1_000_000 if arguments.seed is None else arguments.seed)
    began = time.monotonic()
    while soak.kills < arguments.kills:
        place = Path(tempfile.mkdtemp(prefix="remuda-soak-"))
        try:
            soak.use(place / "log", min(KILLS_EACH, arguments.kills - soak.kills))
        except AssertionError as error:
            print(f"\n{soak.describe(time.monotonic() - began)}; FAILED: {error}\nlook into {place}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"\r{soak.describe(time.monotonic() - began)}; stopped early, nothing lost until then")
            return 130
        shutil.rmtree(place)
        if sys.stderr.isatty():
            print(f"\r{soak.kills} of {arguments.kills} kills", end="", file=sys.stderr, flush=True)
    print(f"\r{soak.describe(time.monotonic() - began)}; lost: 0, settled and delivered again: 0")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
