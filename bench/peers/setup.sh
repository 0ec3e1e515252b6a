#!/usr/bin/env bash
# Installs the peers that Sterna is measured beside, from Debian packages, and builds udt_copy.
#
# As root it installs what is missing; otherwise it names it. A peer that is missing is left out of the benchmark and
# named in its table, so that this never fails for a peer.
set -euo pipefail
cd "$(dirname "$0")/../.."

# COMMAND=PACKAGE; libudt-dev is known by its header.
peers="iperf3=iperf3 curl=curl nginx=nginx-light aria2c=aria2 rclone=rclone xrdcp=xrootd-client xrootd=xrootd-server
    globus-url-copy=globus-gass-copy-progs globus-gridftp-server=globus-gridftp-server-progs g++=g++ python3=python3
    ip=iproute2"
# Servers live in /usr/sbin, which a user's PATH may lack.
PATH=$PATH:/usr/sbin

missing=()
for pair in $peers; do
    command -v "${pair%%=*}" >/dev/null 2>&1 || missing+=("${pair#*=}")
done
[ -e /usr/include/udt/udt ] || missing+=(libudt-dev)

if [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "peers: installing ${missing[*]}" >&2
    apt-get update -qq || true
    # Packages that start a service of their own would hold ports and CPU: nothing is started.
    [ -e /usr/sbin/policy-rc.d ] || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d; made_policy=1; }
    for package in "${missing[@]}"; do
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
            echo "peers: $package could not be installed; its rows will be left out" >&2
    done
    [ -z "${made_policy:-}" ] || rm -f /usr/sbin/policy-rc.d
elif [ ${#missing[@]} -gt 0 ]; then
    echo "peers: missing ${missing[*]}; their rows will be left out (as root: apt-get install ${missing[*]})" >&2
fi

if [ -e /usr/include/udt/udt ] && command -v g++ >/dev/null 2>&1; then
    mkdir -p target/peers
    if [ bench/peers/udt_copy.cpp -nt target/peers/udt_copy ]; then
        g++ -O2 -std=c++17 -Wall -Wextra -o target/peers/udt_copy bench/peers/udt_copy.cpp -ludt -lpthread
    fi
fi

if command -v cargo >/dev/null 2>&1; then
    mkdir -p target/peers
    floor=$(cargo build --release --locked -p sterna-net --bench floor --message-format json 2>/dev/null |
        sed -n 's/.*"name":"floor".*"executable":"\([^"]*\)".*/\1/p')
    [ -z "$floor" ] || install "$floor" target/peers/floor
fi

# The digest that equal work has at both ends.
if command -v cargo >/dev/null 2>&1 && [ ! -x target/peers/bin/b3sum ]; then
    cargo install --quiet --locked --root target/peers b3sum ||
        echo "peers: b3sum could not be built; rows of equal work will be left out" >&2
fi
