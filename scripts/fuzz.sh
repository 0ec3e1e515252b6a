#!/usr/bin/env bash
# Runs every fuzz target for a number of seconds each. Usage: scripts/fuzz.sh SECONDS [TARGET…]
#
# Runs libFuzzer on the stable toolchain, without cargo-fuzz. The parsers have no unsafe code, so coverage (a stable
# flag) is sufficient and an address sanitiser would find nothing more. The corpus is kept in fuzz/corpus/TARGET. An
# input that breaks a target is written to fuzz/artifacts/TARGET. To replay an input, run fuzz/target/…/release/TARGET
# FILE.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: scripts/fuzz.sh SECONDS [TARGET…]}
shift

if ! command -v c++ >/dev/null 2>&1; then
    echo "fuzz: no C++ compiler for libFuzzer; left out" >&2
    exit 0
fi
host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions --cfg=fuzzing"
RUSTFLAGS=$(echo $coverage) cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target "$host" --bins \
    --target-dir fuzz/target

if [ $# -eq 0 ]; then
    set -- $(sed -n 's|.*fuzz_targets/\(.*\)\.rs.*|\1|p' fuzz/Cargo.toml)
fi

# Fuzzes one target; fails if an input breaks it.
run() {
    local target=$1 log=fuzz/artifacts/$1.log
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    if ! "fuzz/target/$host/release/$target" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=5 \
        -artifact_prefix="fuzz/artifacts/$target/" "fuzz/corpus/$target" $(test -d "fuzz/seeds/$target" && echo "fuzz/seeds/$target") \
        >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        echo "fuzz: $target broke; the input is in fuzz/artifacts/$target" >&2
        return 1
    fi
    echo "fuzz: $target: $(sed -n 's/^Done \(.*\) in .*/\1/p' "$log"), nothing broke"
}

# Runs two targets in parallel; each uses one core.
for target in "$@"; do
    if [ "$(jobs -rp | wc -l)" -ge 2 ]; then
        wait -n
    fi
    run "$target" &
done
while [ -n "$(jobs -rp)" ]; do
    wait -n
done
