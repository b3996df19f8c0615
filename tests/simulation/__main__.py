"""`python -m tests.simulation --seeds 1000` plays many seeds, `--seed 7` one of them."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from remuda import native
from tests.simulation.meetings import Meeting, report
from tests.simulation.runner import Failure, Simulation, Tally

LANGUAGE = "in Python alone" if native.tail is None else "with the parts in C"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="play this seed alone")
    parser.add_argument(
        "--rules", action="store_true", help="queues have rules of flow: order, limits, rates, fairness"
    )
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    arguments = parser.parse_args()
    # The broker's own warnings tell of damage that the simulation did on purpose.
    logging.getLogger("remuda").addHandler(logging.NullHandler())
    logging.getLogger("remuda").propagate = False
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    else:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
    return _play(seeds, arguments.keep_going, arguments.rules)


def _play(seeds: range, keep_going: bool, rules: bool) -> int:
    total, failures, played, begin, shown = Tally(), 0, 0, time.monotonic(), 0.0
    met = Counter[Meeting]()
    try:
        for seed in seeds:
            try:
                one = Simulation(seed, rules=rules)
                total.add(one.play())
                met.update(one.meetings.met)
            except Failure as failure:
                failures += 1
                print(f"\r{failure}\n", file=sys.stderr)
                if not keep_going:
                    return 1
            played += 1
            if sys.stderr.isatty() and time.monotonic() - shown > 0.2:
                shown = time.monotonic()
                print(f"\r{played} of {len(seeds)} seeds", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"\rstopped before seed {seeds[played]}", file=sys.stderr)
    seconds = time.monotonic() - begin
    print(
        f"\r{played} seeds in {seconds:.1f} s, {LANGUAGE}: {total.steps} steps, {total.operations} disk operations, "
        f"{total.crashes} crashes, {total.recoveries} recoveries, {total.messages} messages, "
        f"{total.deliveries} deliveries, {total.settled} answered, {total.stalls} waits for room, "
        f"{total.faults} failed writes; {failures} seeds failed"
    )
    if len(seeds) > 1:
        print(report(met))
    return 1 if failures or played < len(seeds) else 0


if __name__ == "__main__":
    raise SystemExit(main())
