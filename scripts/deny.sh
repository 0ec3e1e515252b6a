#!/usr/bin/env bash
# Checks licences, sources and bans of all dependencies with cargo-deny, according to deny.toml.
#
# Installs cargo-deny once, into a cache outside the clone, if it is missing. The build is not optimised: cargo-deny
# runs for less than a second here, and the build takes half the time. Advisories need a database from the network. The
# scheduled job checks them: `cargo deny check advisories`.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.20.2
tools=${STERNA_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/sterna/tools}
export PATH="$tools/bin:$PATH"

if ! command -v cargo-deny >/dev/null 2>&1; then
    echo "deny: installing cargo-deny $version into $tools (once)" >&2
    cargo install --quiet --locked --debug --root "$tools" --version "$version" cargo-deny
fi
# cargo-deny reads the manifests of all targets, including those that are not built here.
cargo fetch --quiet --locked
cargo deny --locked --offline --log-level error check bans licenses sources
