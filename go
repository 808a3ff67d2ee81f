#!/bin/sh
# ./go test [pytest arguments]   ruff, mypy and the tests
# ./go ANYTHING                  splitrelay ANYTHING
# Makes .venv on first use (uv where it can be had, pip otherwise), and again when what it was made from has changed.
set -eu
cd_to=$(pwd)
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=$root/.venv
python=$venv/bin/python

say() { printf '%s\n' "go: $*" >&2; }
fail() { say "$*"; exit 2; }

find_python() {
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "needs Python 3.11 or newer; found $(python3 --version 2>/dev/null || echo none). Install python3, or name one: PYTHON=/path/to/python ./go ..."
}

# What the environment is made from: when this changes, it is made anew. The root is in it because scripts carry their path.
wanted() {
    { cat "$root/pyproject.toml" "$root/constraints.txt" "$root/go"; printf '%s' "$root"; } | cksum
}

# pip's settings, in uv's words: uv reads neither pip's configuration nor its environment.
pip_setting() {
    "$base" -m pip config list 2>/dev/null | sed -n "s/^[^=]*\\.$1='\\(.*\\)'\$/\\1/p" | tail -n 1
}
settings_for_uv() {
    links=$(pip_setting find-links)
    index=$(pip_setting index-url)
    extra=$(pip_setting extra-index-url)
    cert=$(pip_setting cert)
    [ -z "$links" ] || export UV_FIND_LINKS="${UV_FIND_LINKS:-$links}"
    [ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
    [ -z "$extra" ] || export UV_INDEX="${UV_INDEX:-$extra}"
    [ -z "$cert" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$cert}"
}

with_pip() {
    "$base" -m pip --python "$python" install --quiet --disable-pip-version-check "$@"
}
with_uv() {
    "$uv" pip install --quiet --python "$python" "$@"
}
find_uv() {
    uv=$(command -v uv || true)
    if [ -z "$uv" ] && [ -z "${GO_NO_UV:-}" ] && with_pip uv >/dev/null 2>&1; then
        uv=$venv/bin/uv
    fi
    [ -z "${GO_NO_UV:-}" ] || uv=
    [ -n "$uv" ]
}

install_packages() {
    set -- --constraint "$root/constraints.txt" --editable "$root[test]"
    if find_uv; then
        settings_for_uv
        with_uv "$@" && return
        say "uv could not do it; trying pip."
    fi
    "$base" -m pip --version >/dev/null 2>&1 ||
        fail "needs pip or uv to install packages, and $base has neither. On Debian: apt install python3-pip"
    with_pip "$@" || fail "the packages could not be installed (pip's words are above). With a proxy or mirror, set it in pip's configuration, then run this again."
}

# One set-up at a time; a lock whose owner is gone is taken over.
lock() {
    while ! mkdir "$root/.venv.lock" 2>/dev/null; do
        owner=$(cat "$root/.venv.lock/pid" 2>/dev/null || true)
        if [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; then
            rm -rf "$root/.venv.lock"
            continue
        fi
        [ -n "${waiting:-}" ] || say "another set-up is at work (process ${owner:-unknown}); waiting. If none is: rm -r .venv.lock"
        waiting=yes
        sleep 1
    done
    echo $$ >"$root/.venv.lock/pid"
    trap 'rm -rf "$root/.venv.lock"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

set_up() {
    base=$(find_python)
    lock
    [ "$(cat "$venv/made-from" 2>/dev/null || true)" = "$(wanted)" ] && return
    say "setting up .venv (about a minute, once)"
    rm -rf "$venv"
    "$base" -m venv --without-pip "$venv"
    install_packages
    wanted >"$venv/made-from.new"
    mv "$venv/made-from.new" "$venv/made-from"
}

# Written last, so an interrupted set-up has no made-from and is redone.
if [ "$(cat "$venv/made-from" 2>/dev/null || true)" != "$(wanted)" ]; then
    (set_up)
fi

if [ "${1:-}" = test ]; then
    shift
    cd "$root"
    "$venv/bin/ruff" check .
    "$venv/bin/ruff" format --check --quiet . || fail "some files are not formatted. Run: .venv/bin/ruff format ."
    "$venv/bin/mypy"
    exec "$python" -m pytest "$@"
fi
cd "$cd_to"
exec "$venv/bin/splitrelay" "$@"
