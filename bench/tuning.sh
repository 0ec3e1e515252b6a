#!/usr/bin/env bash
# Runs the cases of docs/tuning.md in the lab and prints Sterna's report on each. As root.
#
# Usage: bench/tuning.sh [STERNA]      (default: target/release/sterna)
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$(realpath "${1:-target/release/sterna}")
place=$(mktemp -d -p /dev/shm sterna-tuning-XXXXXX)
trap 'rm -rf "$place"' EXIT
cp "$binary" "$place/sterna"
cd "$place"
export PATH="$place:$PATH"
mkdir in
for size in 3 10 30 100 200; do head -c "${size}MB" /dev/urandom >"data$size"; done
cat >push.sh <<'SCRIPT'
sterna lab exec b -- sterna agent --root in --state hub --authorize-any 2>agent.log &
sleep 1
sterna copy --state gs --trust $(sterna id --state hub) --overwrite always "$@" sterna://$STERNA_LAB_B/
SCRIPT

case_of() {
    echo "### $*"
    # A failed case shows in its output, and the other cases still run.
    timeout 120 sterna lab run "$@" 2>&1 | grep -v '^listening' | tail -3 || true
}
rmem() { echo "net.ipv4.tcp_rmem=4096 131072 $1"; }
wmem() { echo "net.ipv4.tcp_wmem=4096 16384 $1"; }
one=(--via tcp --lanes 1)
cubic=("${one[@]}" --congestion cubic)

# GRNET, at 1 Gbit/s on the path to New York
newyork=(--rate 1Gbit --rtt 148ms --cc cubic)
case_of "${newyork[@]}" --sysctl "$(rmem 6291456)" --sysctl "$(wmem 16777216)" -- sh push.sh "${one[@]}" data200
case_of "${newyork[@]}" --sysctl "$(rmem 33554432)" --sysctl "$(wmem 4194304)" -- sh push.sh "${one[@]}" data200
case_of "${newyork[@]}" --sysctl "$(rmem 67108864)" --sysctl "$(wmem 67108864)" -- sh push.sh "${one[@]}" data200
case_of "${newyork[@]}" --sysctl "$(rmem 6291456)" --sysctl "$(wmem 4194304)" -- sh push.sh --via tcp --lanes 8 data200
case_of "${newyork[@]}" --sysctl "$(rmem 67108864)" --sysctl "$(wmem 67108864)" -- sh push.sh "${one[@]}" data30
for seed in 1 2 3 4 5 6; do
    case_of --profile grnet-8ms --seed $seed --cc cubic --sysctl "$(rmem 1048576)" -- sh push.sh "${one[@]}" data200
done

# EDOS
trollsat=(--profile trollsat --cc cubic)
case_of "${trollsat[@]}" --sysctl "$(rmem 1048576)" -- sh push.sh "${one[@]}" data10
case_of "${trollsat[@]}" --loss 0.1% -- sh push.sh "${one[@]}" data10
case_of "${trollsat[@]}" --loss 1% -- sh push.sh "${one[@]}" data3
case_of "${trollsat[@]}" --loss 1% -- sh push.sh --rate 48Mbit data100

# FTS3
small=(--sysctl "net.ipv4.tcp_rmem=4096 87380 4194304" --sysctl "net.ipv4.tcp_wmem=4096 65536 4194304")
case_of --profile cern-australia --cc cubic "${small[@]}" -- sh push.sh "${one[@]}" data100
case_of --profile cern-australia --cc cubic "${small[@]}" -- sh push.sh --via tcp --lanes 4 data200
case_of --profile cern-australia --cc cubic --buffers 75MB -- sh push.sh "${one[@]}" data200

# SMART-1
case_of --profile tigo --cc cubic -- sh push.sh "${one[@]}" data3
case_of --profile tigo --cc cubic -- sh push.sh --rate 90Mbit data30
case_of --profile tigo --cc cubic --strip sack -- sh push.sh "${one[@]}" data3
case_of --profile tigo --cc cubic --loss 0 --reverse-loss 0 --strip wscale -- sh push.sh "${one[@]}" data3
case_of --profile tigo-policer --cc cubic -- sh push.sh "${one[@]}" data30
case_of --profile tigo-policer --cc cubic -- sh push.sh --via quic --rate 28Mbit data30
case_of --profile tigo-policer --policer 30Mbit:16MB --cc cubic -- sh push.sh "${cubic[@]}" data100
for back in 1Mbit 100Mbit 200kbit; do
    case_of --profile tigo-acks --reverse-rate $back --cc cubic --buffers 32MB -- sh push.sh "${cubic[@]}" data100
done
