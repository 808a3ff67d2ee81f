#!/bin/sh
# ./go test [pytest arguments]   ruff, mypy and the tests
# ./go docs                      the documentation site, in build/site
# ./go ANYTHING                  splitrelay ANYTHING
# Makes .venv on first use (with uv where it can be had, else pip), and anew when what it was made from has changed.
# PYTHON=/path/to/python names the Python to make it with; GO_NO_UV=1 leaves uv aside.
set -eu
trap 'exit 130' INT # without it, some shells take Ctrl-C for a failure of uv and go on with pip
root=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
venv=$root/.venv
python=$venv/bin/python

say() { printf 'go: %s\n' "$*" >&2; }
fail() { # 2: something for the user to change; 1: work that failed
    code=$1
    shift
    say "$*"
    exit "$code"
}

# What the environment is made from, compiled kernels included. The root is part of it because scripts carry their path.
wanted() {
    kernels=$root/src/splitrelay/kernels
    {
        cat "$root/go" "$root/pyproject.toml" "$root/constraints.txt" "$root/hatch_build.py" "$kernels/build.py" "$kernels/native/"*
        printf '%s' "$root"
    } | cksum
}

# made-from (the checksum, then the PYTHON asked for) is written behind the packages: an interrupted set-up has none.
is_fresh() {
    [ -x "$python" ] && [ -f "$venv/made-from" ] || return 1 # a Python taken away leaves a dangling link
    { read -r from && read -r by; } <"$venv/made-from" || return 1
    [ "$from" = "$(wanted)" ] && [ "${PYTHON:-$by}" = "$by" ]
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
version_of() { "$1" --version 2>/dev/null || echo missing; }
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        base=$PYTHON
        is_new_enough "$base" && return
        fail 2 "needs Python 3.11 or newer; PYTHON=$base is $(version_of "$base"). Name another, or unset PYTHON."
    fi
    for base in python3 python3.13 python3.12 python3.11; do
        is_new_enough "$base" && return
    done
    fail 2 "needs Python 3.11 or newer; python3 is $(version_of python3). Install one, or name it: PYTHON=/path/to/python ./go ..."
}

# The lock hangs on descriptor 9, which pip and uv inherit: it holds while any of them lives, and no longer.
lock() {
    "$base" -c '
import fcntl, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("go: another set-up is at work; waiting for it", file=sys.stderr, flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)
except OSError as error:
    print(f"go: this folder cannot be locked ({error.strerror}); run one set-up at a time", file=sys.stderr)'
}

with_pip() {
    if [ -x "$venv/bin/pip3" ]; then
        set -- "$python" -m pip "$@"
    else
        set -- "$base" -m pip --python "$python" "$@"
    fi
    PIP_USER=0 "$@"
}
find_pip() { # Debian has pip without ensurepip, other systems ensurepip without pip
    with_pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 ||
        fail 2 "needs pip (22.3 or newer) or uv, and $base has neither. On Debian or Ubuntu: apt install python3-pip"
}
find_uv() {
    [ -z "${GO_NO_UV:-}" ] && uv=$(command -v uv)
}
fetch_uv() {
    uv=$venv/bin/uv
    [ -z "${GO_NO_UV:-}" ] && with_pip install --quiet --retries 0 uv >/dev/null 2>&1
}

# uv reads neither pip's configuration nor its environment, so pip's settings are handed over in uv's words.
hand_over() { # pip's name, uv's variable, uv's separator
    if env | grep -q "^$2="; then return; fi
    for place in :env: install global; do
        value=$(printf '%s\n' "$settings" | sed -n "s/^$place\\.$1=.\\(.*\\).\$/\\1/p" | sed 's/\\n/ /g; s/^ *//; s/  */'"$3"'/g')
        if [ -n "$value" ]; then
            export "$2=$value"
            return
        fi
    done
}
with_uv() (
    settings=$(with_pip config list 2>/dev/null)
    hand_over index-url UV_DEFAULT_INDEX ' '
    hand_over extra-index-url UV_INDEX ' '
    hand_over find-links UV_FIND_LINKS ,
    hand_over trusted-host UV_INSECURE_HOST ' '
    hand_over cert SSL_CERT_FILE ' '
    hand_over proxy ALL_PROXY ' '
    export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}" # as pip has it
    if [ -z "${UV_FIND_LINKS:-}" ]; then
        export UV_TORCH_BACKEND="${UV_TORCH_BACKEND:-auto}" # no gigabytes of CUDA for a machine without a GPU
    fi
    "$uv" pip install --quiet --python "$python" "$@"
)

install_packages() {
    set -- --constraint "$root/constraints.txt" --editable "${root}[test]"
    if find_uv || fetch_uv; then
        with_uv "$@" && return
        say "uv could not do it; trying pip"
    fi
    find_pip
    with_pip install --quiet --disable-pip-version-check "$@" ||
        fail 1 "the packages could not be installed; pip's words are above. Is there a network? Behind a proxy or mirror, tell pip: pip config set global.proxy (or index-url) ..."
}

set_up() {
    lock
    if is_fresh; then return; fi # another set-up has just made it
    from=$(wanted)
    rm -f "$venv/made-from" # first, lest half an environment be taken for a whole one
    rm -rf "$venv"
    # The resolved path ends in the version, so that the link dangles, and is noticed, when the system changes its python3.
    "$("$base" -c 'import os, sys; print(os.path.realpath(sys.executable))')" -m venv --without-pip "$venv" ||
        fail 2 "$base cannot make an environment. On Debian or Ubuntu: apt install python3-venv"
    find_uv || find_pip
    say "setting up .venv with $(version_of "$base") (about a minute, once)"
    install_packages
    printf '%s\n' "$from" "${PYTHON:-}" >"$venv/made-from.new"
    mv "$venv/made-from.new" "$venv/made-from"
}

[ -f "$root/pyproject.toml" ] || fail 2 "$root is no checkout of Splitrelay. Call go by its own path, not through a link."
if ! is_fresh; then
    [ -w "$root" ] || fail 2 "cannot write to $root, where .venv belongs. Clone into a folder of your own."
    if [ -e "$venv" ] && ! [ -e "$venv/made-from" ] && ! [ -e "$root/.venv.lock" ]; then
        say ".venv was not made by this script; kept as .venv.$$"
        mv "$venv" "$venv.$$"
    fi
    find_python
    set_up 9>"$root/.venv.lock"
fi

# Without caches, every process would compile all of torch again. They go into .venv if none may lie next to sources.
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX="${PYTHONPYCACHEPREFIX:-$venv/caches}"
fi

if [ "${1:-}" = test ]; then
    shift
    cd "$root"
    "$venv/bin/ruff" check .
    "$venv/bin/ruff" format --check --quiet . || fail 1 "some files are not formatted. Run: .venv/bin/ruff format ."
    "$venv/bin/mypy" >"$venv/mypy.txt" 2>&1 & # beside the tests: it uses one core only
    mypy=$!
    trap 'kill "$mypy" 2>/dev/null || :' EXIT
    # Compile all modules once after a set-up, while mypy runs, and not once in each worker.
    [ -f "$venv/compiled" ] || "$python" -m pytest --collect-only -q >/dev/null 2>&1 || :
    : >"$venv/compiled"
    workers=$("$python" -c 'import os; print(os.cpu_count() + 1)') # one more than cores: tests of deployments often wait
    failed=0
    "$python" -m pytest --numprocesses "$workers" --dist worksteal "$@" || failed=$?
    wait "$mypy" || {
        cat "$venv/mypy.txt"
        fail 1 "mypy found errors; they are above."
    }
    exit "$failed"
fi
if [ "${1:-}" = docs ]; then
    [ $# -eq 1 ] || fail 2 "docs takes no arguments; got $2. The site is written to build/site."
    cd "$root"
    "$python" -m sphinx --builder html --conf-dir docs --doctree-dir build/doctrees --fail-on-warning --keep-going --quiet . build/site
    say "wrote build/site. Open build/site/docs/index.html"
    exit
fi
exec "$venv/bin/splitrelay" "$@"
