#!/bin/sh
# Install a release on fresh Debian systems and use it there: tools/try_wheels.sh DIST [SUITE...]
#
# DIST is the folder that tools/release.py wrote. The suites are bookworm (Python 3.11) and trixie (Python 3.13) unless
# given. PYTHONS names folders of further Pythons, such as a Python 3.12, that are copied into the first system.
# MOUNTS names folders that pip's settings refer to, such as a local index; they are visible in the systems.
# CHROOTS names a folder for the systems, so that a second call is faster. Needs root and debootstrap.
set -eu

say() { printf 'try_wheels: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 2
}

[ $# -ge 1 ] || fail "needs the folder of a release, for example: tools/try_wheels.sh dist"
dist=$(CDPATH='' cd -- "$1" && pwd -P) || fail "there is no folder $1. Build it: python tools/release.py"
shift
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
[ "$(id -u)" = 0 ] || fail "needs root, for chroot"
command -v debootstrap >/dev/null || fail "needs debootstrap: apt-get install debootstrap"
chroots=${CHROOTS:-$(mktemp -d)}
mkdir -p "$chroots"
[ $# -gt 0 ] || set -- bookworm trixie

# The scenario of one Python. It runs inside the system, without the sources of Splitrelay.
write_scenario() {
    cat >"$1" <<'SCENARIO'
set -eu
python=$1
machine=$(uname -m)
cd /dist
linux=$(ls ./*manylinux*_"$machine".whl)
pure=$(ls ./*-py3-none-any.whl)
source=$(ls ./*.tar.gz)
install() { # a new environment with these packages
    rm -rf /try
    "$python" -m venv --without-pip /try
    "$python" -m pip --python /try/bin/python install --quiet --constraint /constraints.txt "$@"
}
train() { (rm -rf /results && cd / && /try/bin/splitrelay -q run R=2 --out /results/first "$@" >/dev/null); }
engine() { sed -n 's/^engine = "\(.*\)"/\1/p' /results/first/spec.toml; }
draw() { /try/bin/splitrelay page /results --out /page.html >/dev/null && grep -q uPlot /page.html || { echo "FAILED: page --out" >&2; exit 1; }; }
expect() { [ "$2" = "$3" ] || { echo "FAILED: $1: expected $3, got $2" >&2; exit 1; }; }

install "$linux"
/try/bin/splitrelay theory bound ssl strongly-convex L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 R=100 D2=1 eta_tilde=1/12 >/dev/null
/try/bin/splitrelay quadratics K=10 >/dev/null
echo "ok  $("$python" --version)  Linux wheel, without torch: theory, quadratics"
install "$linux[learn]"
train
expect "engine of the Linux wheel" "$(engine)" fast
/try/bin/splitrelay verify /results/first >/dev/null
draw
(rm -rf /demo && mkdir /demo && cd /demo && /try/bin/splitrelay -q demo >/dev/null)
echo "ok  $("$python" --version)  Linux wheel: trains on the fast engine, verifies, page --out, demo"
install "$pure[learn]"
/try/bin/splitrelay doctor | grep -q "no build for" || { echo "FAILED: doctor does not report the missing engine" >&2; exit 1; }
train
expect "engine of the pure wheel" "$(engine)" reference
draw
code=0
train engine=fast 2>/dev/null || code=$?
expect "exit code of engine=fast with the pure wheel" "$code" 2
echo "ok  $("$python" --version)  pure wheel: reports the missing engine, trains on the reference engine, page --out"
install "$source"
/try/bin/splitrelay notation >/dev/null
/try/bin/splitrelay doctor | grep -q "no build for" && { echo "FAILED: the source distribution built no fast engine" >&2; exit 1; }
echo "ok  $("$python" --version)  source distribution: builds and runs"
SCENARIO
}

for suite in "$@"; do
    system=$chroots/$suite
    if ! [ -e "$system/ready" ]; then
        say "making a fresh $suite in $system"
        rm -rf "$system"
        debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates "$suite" "$system" >"$chroots/$suite.log" 2>&1 ||
            fail "debootstrap failed, see $chroots/$suite.log"
        touch "$system/ready"
    fi
    # The settings of this machine for pip, and its certificates.
    cp -L /etc/resolv.conf "$system/etc/" 2>/dev/null || :
    mkdir -p "$system/etc/ssl/certs" "$system/dist"
    cp -L /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/certs/"
    pip config list 2>/dev/null | sed -n "s/^[a-z:]*\.\([a-z-]*\)='\(.*\)'\$/\1 = \2/p" |
        awk '!seen[$1]++' | sed '1i[global]' | sed 's/\\n/ /g' >"$system/etc/pip.conf"
    cp "$dist"/* "$system/dist/"
    cp "$root/constraints.txt" "$system/constraints.txt"
    write_scenario "$system/scenario.sh"
    pythons=python3
    for folder in ${PYTHONS:-}; do
        mkdir -p "$system$folder"
        cp -a "$folder/." "$system$folder/"
        pythons="$pythons $folder/bin/python3"
    done
    PYTHONS=
    for folder in ${MOUNTS:-}; do
        mkdir -p "$system$folder"
        mountpoint -q "$system$folder" || mount --bind "$folder" "$system$folder"
        mounted="${mounted:-} $system$folder"
    done
    mountpoint -q "$system/proc" || mount -t proc proc "$system/proc"
    mounted="${mounted:-} $system/proc"
    trap 'for place in ${mounted:-}; do umount "$place" || :; done' EXIT
    for python in $pythons; do
        say "$suite: $python"
        env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
            chroot "$system" sh /scenario.sh "$python"
    done
done
echo "all installations work"
