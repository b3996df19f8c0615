"""Which files of tests took longest, by a report of pytest's: python tools/slowest.py .venv/tests.xml"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

SHOWN = 25


def main(report: Path) -> None:
    if not report.exists():
        return
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        seconds[str(case.get("classname"))] += float(case.get("time", 0))
    print(f"\nseconds of {sum(seconds.values()):.0f}, over all processes:")
    for file, took in seconds.most_common(SHOWN):
        print(f"{took:7.1f}  {file}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
