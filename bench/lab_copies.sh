#!/usr/bin/env bash
# What scripts that copy over paths of the lab share, to be sourced by them at the top of the repository, as root. Builds sterna, and sets
# `sterna`, `name` (of the lab that is taken down at the end), `work` (a directory in memory that goes at the end) and `fingerprint` (of the
# agents that `agent_at_b` starts).
sterna=$PWD/target/release/sterna
name=$(basename "$0" .sh)-$$
work=$(mktemp -d "/dev/shm/$name.XXXX")
cargo build --release --locked -p sterna

cleanup() {
    "$sterna" lab down --name "$name" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
fingerprint=$("$sterna" id --state "$work/hub")

# Processor time that the host of this machine took for others, and all.
processors() { awk '/^cpu /{print $9, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9}' /proc/stat; }

# An agent that takes files into $work/in, until the lab is down.
agent_at_b() {
    mkdir -p "$work/in"
    "$sterna" lab exec --name "$name" b -- "$sterna" agent --root "$work/in" --authorize-any --state "$work/hub" >/dev/null 2>&1 &
    agent=$!
    sleep 1
}
