#!/usr/bin/env bash
# Copies without flags over 50 Mbit/s in the lab beside cubic flows that start half a minute earlier. Prints one JSON
# object per run. `part` is the goodput of the copy relative to an equal share. `kept` is the same for all other flows
# together, while the copy runs.
# Usage, as root: bench/neighbours.sh [OUTPUT.jsonl]
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-/dev/stdout}
# shellcheck source=bench/lab_copies.sh
. bench/lab_copies.sh
mbit=50

# FLOWS RTT MEGABYTES COPY-FLAGS
while read -r flows rtt megabytes flags; do
    head -c "${megabytes}MB" /dev/urandom >"$work/file"
    rm -rf "$work/gs/paths" "$work/in"
    "$sterna" lab up --name "$name" --buffers 64MB --cc cubic --rate "${mbit}Mbit" --rtt "$rtt" >/dev/null 2>&1
    "$sterna" lab exec --name "$name" b -- iperf3 --server --one-off >/dev/null 2>&1 &
    agent_at_b
    # shellcheck disable=SC2016 # the shell inside the lab expands the variable
    "$sterna" lab exec --name "$name" a -- sh -c \
        'exec iperf3 --client "$STERNA_LAB_B" --congestion cubic --parallel "$1" --time 1200 --interval 1 --json' sh "$flows" >"$work/flows" &
    neighbours=$!
    began=$(date +%s.%N)
    sleep 30
    start=$(date +%s.%N)
    # shellcheck disable=SC2016,SC2086 # the shell inside the lab expands the variable; split the flags into words
    summary=$("$sterna" lab exec --name "$name" a -- sh -c \
        'binary=$1 state=$2 trust=$3 file=$4; shift 4
        "$binary" copy --json --compress never --state "$state" --trust "$trust" "$@" "$file" "sterna://$STERNA_LAB_B/" | tail -n 1' \
        sh "$sterna" "$work/gs" "$fingerprint" "$work/file" $flags)
    end=$(date +%s.%N)
    cmp "$work/file" "$work/in/file"
    # On SIGTERM iperf3 prints its measurements and returns an error code.
    kill -TERM "$neighbours" || true
    wait "$neighbours" || true
    "$sterna" lab down --name "$name" >/dev/null 2>&1
    python3 - "$work/flows" "$flows" "$rtt" "$flags" "$mbit" "$summary" "$began" "$start" "$end" <<'SCRIPT'
import json, sys
path, flows, rtt, flags, mbit, summary, began, start, end = sys.argv[1:]
flows, mbit, summary = int(flows), float(mbit), json.loads(summary)
measured = json.load(open(path))
first, last = float(start) - float(began), float(end) - float(began)
during = [each["sum"]["bits_per_second"] / 1e6 for each in measured["intervals"] if first <= each["sum"]["start"] and each["sum"]["end"] <= last]
ours, theirs = summary["goodput_bps"] / 1e6, sum(during) / len(during)
print(json.dumps({"flows": flows, "rtt": rtt, "flags": flags, "elapsed_s": round(summary["elapsed_s"], 1),
    "ours_mbit": round(ours, 1), "theirs_mbit": round(theirs, 1),
    "part": round(ours * (flows + 1) / mbit, 2), "kept": round(theirs * (flows + 1) / mbit / flows, 2)}))
SCRIPT
done >>"$output" <<'ROWS'
1 20ms 280
1 100ms 280
1 300ms 280
4 20ms 180
4 100ms 180
4 300ms 180
1 100ms 10 --polite
4 100ms 10 --polite
ROWS
