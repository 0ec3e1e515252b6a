#!/usr/bin/env bash
# Copies without a given rate over two paths in the lab, 50 Mbit/s at 100 ms and 30 Mbit/s at 60 ms. The first row uses
# both paths throughout. In the others one path has an outage of 10 s during the copy. Prints one JSON object per run.
# `share` is relative to the capacity of both paths in this time, without the capacity lost to the outage.
# Usage, as root: bench/paths.sh [OUTPUT.jsonl]
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-/dev/stdout}
# shellcheck source=bench/lab_copies.sh
. bench/lab_copies.sh
head -c 200MB /dev/urandom >"$work/file"

# NAME MBIT-LOST-TO-THE-OUTAGE FIRST-OUTAGE SECOND-OUTAGE
while read -r row lost first second; do
    first=${first#none} second=${second#none}
    for run in 1 2 3; do
        rm -f "$work/gs/paths"
        began=$(processors)
        # shellcheck disable=SC2086 # split the flags into words
        "$sterna" lab up --name "$name" --buffers 64MB --seed "$run" --rate 50Mbit --rtt 100ms $first \
            --second "--rate 30Mbit --rtt 60ms $second" >/dev/null
        agent_at_b
        # shellcheck disable=SC2016 # the shell inside the lab expands the variables
        summary=$("$sterna" lab exec --name "$name" a -- sh -c \
            '"$1" copy --json --compress never --state "$2" --trust "$3" --path "remote=$STERNA_LAB_B" \
                --path "remote=$STERNA_LAB_B2" "$4" "sterna://$STERNA_LAB_B/" | tail -n 1' \
            sh "$sterna" "$work/gs" "$fingerprint" "$work/file")
        cmp "$work/file" "$work/in/file"
        "$sterna" lab down --name "$name" >/dev/null 2>&1
        wait "$agent" || true
        rm -rf "$work/in"
        python3 -c 'import json, sys
row, run, lost, summary, began, ended = sys.argv[1:]
stolen, all_time = (end - begin for begin, end in zip(map(int, began.split()), map(int, ended.split())))
summary = json.loads(summary)
possible = 80.0 * summary["elapsed_s"] - float(lost)
print(json.dumps({"row": row, "run": int(run), "elapsed_s": round(summary["elapsed_s"], 2),
    "share": round(summary["goodput_bps"] * summary["elapsed_s"] / possible / 1e6, 3),
    "stolen": round(stolen / all_time, 3)}))' "$row" "$run" "$lost" "$summary" "$began" "$(processors)"
    done
done >>"$output" <<'ROWS'
together 0 none none
second-cut 300 none --outage=9s+10s
first-cut 500 --outage=9s+10s none
ROWS
