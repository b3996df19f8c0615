#!/usr/bin/env bash
# Runs all tests, two processes beside each other. If a few fail, they are run again one at a time, which tells a test
# that a busy machine broke from one that is broken: those that fail again fail the run, and the others are named. The
# files that took longest are listed. A test process that crashes ends the run, since no other can take its place
# without a chance that both wait for ever; its test is named, and all tests are run once more.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=.venv/bin/python
CACHE=.venv/tests
AGAIN=8

all() {
    $PYTHON -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
        --cache-clear -o cache_dir=$CACHE --junitxml=$CACHE.xml "$@" | tee $CACHE.txt
}

all "$@"
code=$?
if crash=$(grep -E "^worker '.+' crashed while running" $CACHE.txt); then
    printf '\n%s\nAll tests are run once more.\n\n' "$crash"
    all "$@"
    code=$?
fi
$PYTHON tools/slowest.py $CACHE.xml
[ $code -eq 1 ] && ! grep -qE "^worker '.+' crashed while running" $CACHE.txt || exit $code

failed=$($PYTHON - $CACHE <<'END'
import json, pathlib, sys
last = pathlib.Path(sys.argv[1], "v/cache/lastfailed")
print(*(json.loads(last.read_text()) if last.exists() else ()), sep="\n")
END
) || exit 1
if [ -z "$failed" ] || [ "$(wc -l <<<"$failed")" -gt $AGAIN ]; then
    exit $code
fi
printf '\nThese failed while other tests ran beside them, and are run again alone:\n%s\n\n' "$failed"
mapfile -t failed <<<"$failed"
$PYTHON -m pytest -q -p no:cacheprovider "$@" "${failed[@]}" || exit $?
printf '\nThey passed alone: look for a race, or for a time that is too short, above.\n'
