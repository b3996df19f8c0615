"""`python -m tests.mutants` plants every bug in turn and says which were found; `--only WORDS` those that it names."""

from __future__ import annotations

import argparse
import time

from tests.mutants.planted import MUTANTS
from tests.mutants.run import Misplanted, is_found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="those whose name holds these words")
    chosen = [mutant for mutant in MUTANTS if parser.parse_args().only in mutant.name]
    missed = 0
    begun = time.monotonic()
    for mutant in chosen:
        try:
            outcome = "found" if is_found(mutant) else "SURVIVED"
        except Misplanted as error:
            outcome = f"MISPLANTED: {error}"
        missed += outcome != "found"
        print(f"{outcome:9} {mutant.name} ({mutant.test})", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} planted bugs were found in {time.monotonic() - begun:.0f} s")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    raise SystemExit(main())
