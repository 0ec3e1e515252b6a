#!/usr/bin/env bash
# Copies over long paths in the lab without flags: first without a path record, then again with the record of the first
# copy. Prints one JSON object per run. Usage, as root: bench/found.sh [OUTPUT.jsonl]
set -euo pipefail
cd "$(dirname "$0")/.."
output=${1:-/dev/stdout}
# shellcheck source=bench/lab_copies.sh
. bench/lab_copies.sh

# NAME MEGABYTES MBIT LAB-FLAGS
while read -r row megabytes mbit flags; do
    head -c "${megabytes}MB" /dev/urandom >"$work/file"
    rm -f "$work/gs/paths"
    for run in first again; do
        began=$(processors)
        # shellcheck disable=SC2086 # split the flags into words
        "$sterna" lab up --name "$name" --buffers 64MB $flags >/dev/null 2>&1
        agent_at_b
        # shellcheck disable=SC2016 # the shell inside the lab expands the variable
        summary=$("$sterna" lab exec --name "$name" a -- sh -c \
            '"$1" copy --json --compress never --state "$2" --trust "$3" "$4" "sterna://$STERNA_LAB_B/" | tail -n 1' \
            sh "$sterna" "$work/gs" "$fingerprint" "$work/file")
        cmp "$work/file" "$work/in/file"
        "$sterna" lab down --name "$name" >/dev/null 2>&1
        wait "$agent" || true
        rm -rf "$work/in"
        python3 -c 'import json, sys
row, run, mbit, summary, began, ended = sys.argv[1:]
stolen, all_time = (end - begin for begin, end in zip(map(int, began.split()), map(int, ended.split())))
summary = json.loads(summary)
print(json.dumps({"row": row, "run": run, "elapsed_s": round(summary["elapsed_s"], 2),
    "share": round(summary["goodput_bps"] / float(mbit) / 1e6, 3), "limited_by": summary["limits"]["first"],
    "stolen": round(stolen / all_time, 3)}))' \
            "$row" "$run" "$mbit" "$summary" "$began" "$(processors)"
    done
done >>"$output" <<'ROWS'
geo 200 50 --rate 50Mbit --rtt 660ms
geo-loss 200 50 --rate 50Mbit --rtt 660ms --loss 1%
far 200 100 --rate 100Mbit --rtt 320ms --loss 0.5%
policer 200 30 --rate 1Gbit --rtt 320ms --policer 30Mbit:64KiB
gigabit 1000 1000 --rate 1Gbit --rtt 260ms --loss 0.01%
ROWS
