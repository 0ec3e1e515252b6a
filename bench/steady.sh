#!/usr/bin/env bash
# Runs the tests that use the lab or real time repeatedly while other processes keep every core busy. As root.
#
# Usage: bench/steady.sh RUNS DIRECTORY [TARGET...]
#   RUNS       number of consecutive runs of each target
#   DIRECTORY  receives the log of each failed run, and summary.txt: target, runs, tests passed and failed
#   TARGET     name=arguments of cargo test; default: all targets that use the lab or real time
# Load: `stress` or `stress-ng` with one worker per core, or shell loops if neither is installed. Exits with 1 if a run
# failed.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:?how many runs}
directory=$(realpath -m "${2:?where to}")
shift 2
if [ $# -gt 0 ]; then
    targets=("$@")
else
    targets=(
        "limits=-p sterna --test limits"
        "lab=-p sterna-lab --test two_hosts"
        "net=-p sterna-net --lib"
        "e2e=-p sterna --test e2e"
    )
fi
mkdir -p "$directory"

# Prints the directory and the program of the tests of `cargo test $@`, and the test filter. The runs use these
# programs even if cargo rebuilds them later.
program_of() {
    local filter=${*: -1}
    case $filter in *::) set -- "${@:1:$#-1}" ;; *) filter= ;; esac
    cargo test --no-run --message-format=json "$@" 2>/dev/null | python3 -c '
import json, os, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["profile"]["test"]:
        print(os.path.dirname(built["manifest_path"]), built["executable"], sys.argv[1])
' "$filter"
}
declare -A programs
for target in "${targets[@]}"; do
    # shellcheck disable=SC2086 # split the arguments into words
    programs[$target]=$(program_of ${target#*=})
done

cores=$(nproc)
load=()
finish() {
    for process in "${load[@]}"; do
        kill "$process" 2>/dev/null || true
    done
    wait 2>/dev/null || true
}
trap finish EXIT
busy="shell loops"
for tool in stress stress-ng; do
    if command -v "$tool" >/dev/null; then
        busy=$tool
        "$tool" -c "$cores" >/dev/null 2>&1 &
        load=($!)
        break
    fi
done
if [ ${#load[@]} = 0 ]; then
    for _ in $(seq "$cores"); do
        (while :; do :; done) &
        load+=($!)
    done
fi

summary=$directory/summary.txt
{
    echo "# $(date -u +%F) kernel $(uname -r), $cores cores, all busy by $busy; load before: $(cut -d' ' -f1-3 /proc/loadavg)"
    echo "# target runs runs_failed tests_passed tests_failed"
} >>"$summary"
code=0
for target in "${targets[@]}"; do
    name=${target%%=*} failed=0 passed_tests=0 failed_tests=0
    for run in $(seq "$runs"); do
        log=$directory/$name-$run.log
        read -r place program filter <<<"${programs[$target]}"
        # shellcheck disable=SC2086 # an empty filter is no argument
        if (cd "$place" && "$program" $filter) >"$log" 2>&1; then ended=0; else ended=$?; fi
        read -r passed missed < <(awk '/^test result/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
        passed_tests=$((passed_tests + passed)) failed_tests=$((failed_tests + missed))
        if [ $ended = 0 ]; then
            rm "$log"
        else
            failed=$((failed + 1)) code=1
        fi
    done
    echo "$name $runs $failed $passed_tests $failed_tests" | tee -a "$summary"
done
exit $code
