#!/usr/bin/env bash
# Measures the cost of lanes alone, memory to memory, in CPU seconds per GB of each end. The path is the kernel's: two
# namespaces, veth, MTU 1500 and 9000. Usage, as root: bench/lanes.sh [OUTPUT.jsonl]
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-/dev/stdout}
near=lanes-$$-a far=lanes-$$-b
address=10.78.0.2

cleanup() {
    ip netns del "$near" 2>/dev/null || true
    ip netns del "$far" 2>/dev/null || true
}
trap cleanup EXIT
ip netns add "$near"
ip netns add "$far"
ip link add v0 netns "$near" mtu 1500 type veth peer name v0 netns "$far" mtu 1500
ip -n "$near" address add 10.78.0.1/24 dev v0
ip -n "$far" address add $address/24 dev v0
ip -n "$near" link set v0 up
ip -n "$far" link set v0 up

cargo build --release --locked -p sterna-net --bench lanes
lanes=$(cargo build --release --locked -p sterna-net --bench lanes --message-format json 2>/dev/null |
    sed -n 's/.*"name":"lanes".*"executable":"\([^"]*\)".*/\1/p')
# VIA LANES RATE_MBIT SIZE_MB; a rate of 0 means no rate.
for mtu in 1500 9000; do
    ip -n "$near" link set v0 mtu $mtu
    ip -n "$far" link set v0 mtu $mtu
    for run in "quic 1 1000 1000" "quic 1 10000 4000" "quic 2 10000 4000" "tcp 1 0 8000" "tcp 2 0 8000"; do
        for _ in 1 2 3; do
            # shellcheck disable=SC2086 # four words
            ip netns exec "$near" env LANES_ADDR=$address "$lanes" $run "ip netns exec $far env LANES_ADDR=$address" |
                sed "s/^{/{\"mtu\": $mtu, /"
        done
    done
done >>"$output"
