#!/usr/bin/env bash
# Checks and installs the requirements of a make target. Usage: scripts/setup.sh demo|test|bench
#
# Installs missing Debian packages as root, and lists them otherwise. Fails only if the target cannot work without them.
# If only a part of the target needs them, prints a note and skips this part.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?usage: scripts/setup.sh demo|test|bench}

say() { echo "setup: $*" >&2; }

# Prints the missing packages of the given pairs COMMAND=PACKAGE.
missing_packages() {
    local pair
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || echo "${pair#*=}"
    done
}

apt_updated=no
# Installs the given packages. If this is not possible, prints what to do and returns 1.
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

# Installs the requirements of the client of FTS3, of which a library is compiled.
fts3_packages() {
    local headers wanted
    mapfile -t wanted < <(missing_packages python3=python3 cc=gcc)
    headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null || true)
    [ -e "$headers/Python.h" ] || wanted+=(python3-dev)
    python3 -c 'import ensurepip, venv' 2>/dev/null || wanted+=(python3-venv)
    [ -e /usr/include/openssl/ssl.h ] || wanted+=(libssl-dev)
    install_packages "${wanted[@]}" || say "the client of FTS3 will be missing"
}

# Requirements of every build: cargo from the Rust toolchain, and a C compiler for the cryptography.
if ! command -v cargo >/dev/null 2>&1; then
    say "no cargo: install a Rust toolchain first (rust-toolchain of at least 1.88, see https://rustup.rs)"
    exit 1
fi
mapfile -t needed < <(missing_packages cc=gcc)
install_packages "${needed[@]}" || exit 1

case $target in
test)
    # bench/page.py checks the tables of docs/benchmarks.md.
    mapfile -t needed < <(missing_packages python3=python3)
    install_packages "${needed[@]}" || exit 1
    for component in rustfmt clippy; do
        # cargo-fmt is the command of rustfmt, cargo-clippy the command of clippy.
        command -v "cargo-${component/rustfmt/fmt}" >/dev/null 2>&1 || rustup component add "$component"
    done
    # libFuzzer is C++. Without a C++ compiler, scripts/fuzz.sh prints a note and skips the smoke test.
    mapfile -t wanted < <(missing_packages c++=g++)
    install_packages "${wanted[@]}" || say "the fuzz smoke run will be left out"
    # The tests of copies from web servers use real servers, on loopback and with separate configurations.
    mapfile -t wanted < <(PATH=$PATH:/usr/sbin missing_packages nginx=nginx-light apache2=apache2-bin)
    install_packages "${wanted[@]}" || say "the tests of copies from web servers will fail"
    # The agent answers iperf3, and the doctor measures with it. Tests that need the real one are skipped without it.
    mapfile -t wanted < <(missing_packages iperf3=iperf3)
    install_packages "${wanted[@]}" || say "the tests with iperf3 will be left out"
    # The tests of the service use curl, and openssl as a judge of certificates.
    mapfile -t wanted < <(missing_packages curl=curl openssl=openssl)
    install_packages "${wanted[@]}" || say "the tests of the service will fail"
    fts3_packages
    # Storages for its transfers: XRootD with its HTTP plug-ins, and nginx from above.
    mapfile -t wanted < <(missing_packages xrootd=xrootd-server)
    plugins=$(ldconfig -p 2>/dev/null | grep -c libXrdHttpTPC || true)
    [ "$plugins" != 0 ] || wanted+=(xrootd-server-plugins)
    install_packages "${wanted[@]}" || say "the tests of transfers between storages will fail"
    scripts/fts3-client.sh || say "the tests of the service with the FTS3 client will fail"
    scripts/ndt7-client.sh || say "the tests with the NDT7 client will be left out"
    scripts/schemathesis.sh || say "the tests of the descriptions of the service will fail"
    ;;
demo)
    # The demo compares Sterna with curl and a web server.
    mapfile -t wanted < <(missing_packages curl=curl nginx=nginx-light ip=iproute2)
    install_packages "${wanted[@]}" || say "the comparison will be left out where these are missing"
    # It submits a job with the client of FTS3.
    fts3_packages
    scripts/fts3-client.sh || say "the demo will submit its job without the client of FTS3"
    ;;
bench)
    bench/peers/setup.sh
    ;;
*)
    say "unknown target $target"
    exit 2
    ;;
esac
