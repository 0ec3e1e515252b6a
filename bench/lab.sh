#!/usr/bin/env bash
# Measures the cost of the lab's router: TCP at the rate of the path for ten seconds, and the router's CPU seconds in
# this time. One core is sufficient for the path while the result is below ten. Usage, as root: bench/lab.sh
# [OUTPUT.jsonl]
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-/dev/stdout}
sterna=target/release/sterna
name=capacity-$$
cargo build --release --locked -p sterna

cleanup() { "$sterna" lab down --name "$name" >/dev/null 2>&1 || true; }
trap cleanup EXIT

# Prints the CPU seconds of a process so far.
cpu_seconds() { awk -v ticks="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) / ticks }' "/proc/$1/stat"; }

# RATE MTU
for run in "1Gbit 1500" "2.5Gbit 9000"; do
    read -r rate mtu <<<"$run"
    for _ in 1 2 3; do
        "$sterna" lab up --name "$name" --rate "$rate" --rtt 20ms --mtu "$mtu" --cc cubic --buffers 64MB >/dev/null 2>&1
        router=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' /run/sterna-lab/"$name".json)
        "$sterna" lab exec --name "$name" b -- iperf3 --server --one-off >/dev/null &
        sleep 0.5
        before=$(cpu_seconds "$router")
        # shellcheck disable=SC2016 # the shell inside the lab expands the variable
        received=$("$sterna" lab exec --name "$name" a -- sh -c 'iperf3 --client $STERNA_LAB_B --time 10 --omit 2 --parallel 4 --json' |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e6)')
        after=$(cpu_seconds "$router")
        cleanup
        wait
        python3 -c 'import json, sys; rate, mtu, got, before, after = sys.argv[1:]; print(json.dumps({"rate": rate, "mtu": int(mtu),
            "received_mbit_s": round(float(got)), "router_cpu_s": round(float(after) - float(before), 2), "seconds": 12}))' \
            "$rate" "$mtu" "$received" "$before" "$after"
    done
done >>"$output"
