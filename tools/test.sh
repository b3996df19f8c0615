#!/usr/bin/env bash
# Runs all tests, two processes beside each other. If a few fail, they are run again one at a time, which tells a test
# that a busy machine broke from one that is broken: those that fail again fail the run, and the others are named. The
# files that took longest are listed.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=.venv/bin/python
CACHE=.venv/tests
AGAIN=8

# Another process takes over from one that crashed, and the test that it was running counts as failed.
$PYTHON -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 3 \
    --cache-clear -o cache_dir=$CACHE --junitxml=$CACHE.xml "$@" | tee $CACHE.txt
code=$?
$PYTHON tools/slowest.py $CACHE.xml
[ $code -eq 1 ] || exit $code

failed=$($PYTHON - $CACHE <<'END'
import json, pathlib, re, sys
last = pathlib.Path(sys.argv[1], "v/cache/lastfailed")
failed = json.loads(last.read_text()) if last.exists() else {}
crashed = re.findall(r"^worker '\w+' crashed while running '(.+)'$", pathlib.Path(f"{sys.argv[1]}.txt").read_text(), re.M)
print(*dict.fromkeys([*failed, *crashed]), sep="\n")
END
) || exit 1
if [ -z "$failed" ] || [ "$(wc -l <<<"$failed")" -gt $AGAIN ]; then
    exit $code
fi
printf '\nThese failed while other tests ran beside them, and are run again alone:\n%s\n\n' "$failed"
mapfile -t failed <<<"$failed"
$PYTHON -m pytest -q -p no:cacheprovider "$@" "${failed[@]}" || exit $?
printf '\nThey passed alone: look for a race, or for a time that is too short, above.\n'
