#!/usr/bin/env bash
# Runs all tests, two processes beside each other. If a few fail, they are run again one at a time, which tells a test
# that a busy machine broke from one that is broken: those that fail again fail the run, and the others are named.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=.venv/bin/python
CACHE=.venv/tests
AGAIN=8

$PYTHON -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 \
    --cache-clear -o cache_dir=$CACHE "$@" | tee $CACHE.txt
code=$?
# A process that crashed leaves tests behind that nobody ran.
if [ $code -ne 1 ] || grep -q "crashed while running" $CACHE.txt; then
    exit $code
fi

failed=$($PYTHON -c "import json; print(*json.load(open('$CACHE/v/cache/lastfailed')), sep='\n')") || exit $code
if [ "$(wc -l <<<"$failed")" -gt $AGAIN ]; then
    exit $code
fi
printf '\nThese failed while other tests ran beside them, and are run again alone:\n%s\n\n' "$failed"
$PYTHON -m pytest -q --last-failed --last-failed-no-failures none -o cache_dir=$CACHE "$@" || exit $?
printf '\nThey passed alone: look for a race, or for a time that is too short, above.\n'
