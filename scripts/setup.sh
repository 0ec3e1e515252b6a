#!/usr/bin/env bash
# Makes sure that what a make target needs is there. Usage: scripts/setup.sh demo|test|bench
#
# As root it installs missing Debian packages; otherwise it names them. It fails only when the target cannot work
# without; what merely leaves something out is said and skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?usage: scripts/setup.sh demo|test|bench}

say() { echo "setup: $*" >&2; }

# What we lack, as Debian packages, of the pairs COMMAND=PACKAGE given.
missing_packages() {
    local pair
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || echo "${pair#*=}"
    done
}

apt_updated=no
# Installs the packages given; returns 1, having said what to do, when it cannot.
install_packages() {
    [ $# -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        say "missing: $*. Install with: apt-get install $* (as root)"
        return 1
    fi
    say "installing $*"
    if [ "$apt_updated" = no ]; then
        apt-get update -qq >/dev/null 2>&1 || say "apt-get update did not succeed; trying with the lists at hand"
        apt_updated=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Needed to build at all: cargo from the rust toolchain, and a C compiler for the cryptography.
if ! command -v cargo >/dev/null 2>&1; then
    say "no cargo: install a Rust toolchain first (rust-toolchain of at least 1.88, see https://rustup.rs)"
    exit 1
fi
mapfile -t needed < <(missing_packages cc=gcc)
install_packages "${needed[@]}" || exit 1

case $target in
test)
    for component in rustfmt clippy; do
        # cargo-fmt is the command of rustfmt, cargo-clippy that of clippy.
        command -v "cargo-${component/rustfmt/fmt}" >/dev/null 2>&1 || rustup component add "$component"
    done
    # libFuzzer is C++; without a compiler for it scripts/fuzz.sh says so and leaves the smoke run out.
    mapfile -t wanted < <(missing_packages c++=g++)
    install_packages "${wanted[@]}" || say "the fuzz smoke run will be left out"
    # Copies from web servers are tested with real ones; both run on loopback with configurations of the tests' own.
    mapfile -t wanted < <(PATH=$PATH:/usr/sbin missing_packages nginx=nginx-light apache2=apache2-bin)
    install_packages "${wanted[@]}" || say "the tests of copies from web servers will fail"
    ;;
demo)
    # curl and a web server are what Sterna is shown beside.
    mapfile -t wanted < <(missing_packages curl=curl nginx=nginx-light ip=iproute2)
    install_packages "${wanted[@]}" || say "the comparison will be left out where these are missing"
    ;;
bench)
    bench/peers/setup.sh
    ;;
*)
    say "unknown target $target"
    exit 2
    ;;
esac
