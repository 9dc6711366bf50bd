#!/usr/bin/env bash
# Builds the servers that tests/test_jaeger.py talks to, once per version, into $SPANTAIL_TEST_CACHE.
#
#   bash tests/servers/build.sh          does nothing when the program is there already
#
# Needs only `go`. Takes about ten minutes with a cold Go cache, seconds with a warm one; the tests that
# need a server wait for it. Beside the program jaeger-VERSION the cache holds
#   jaeger-VERSION.log       what the last build said
#   jaeger-VERSION.status    "building PID", "built", or "failed: REASON"; jaeger.py reads it
#   jaeger-VERSION.lock      held while building, so that two runs do not build twice
set -euo pipefail

JAEGER=1.76.0 # the Go module's version; the program in it is Jaeger 2.13
CACHE=${SPANTAIL_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spantail-test}
program=$CACHE/jaeger-$JAEGER
log=$program.log
status=$program.status
work=

say() { # a reader never sees half a status
  printf '%s\n' "$1" >"$status.$$"
  mv -f "$status.$$" "$status"
}

fail() {
  say "failed: $1"
  echo "tests/servers/build.sh: Jaeger $JAEGER was not built: $1" >&2
  [ ! -s "$log" ] || tail -n 20 "$log" >&2
  exit 1
}

clean() {
  # The module cache is read-only, and so is a copy of it.
  [ -z "$work" ] || { chmod -R u+w "$work" && rm -rf "$work"; }
}

# `go install` refuses a module with replace directives; a build in a copy of its folder is an ordinary build.
# (A copy, because the module cache is read-only.)
build() {
  local folder
  cd "$work"
  folder=$(go mod download -json "github.com/jaegertracing/jaeger@v$JAEGER" | sed -n 's/^.*"Dir": "\(.*\)",*$/\1/p')
  [ -n "$folder" ]
  cp -r "$folder" jaeger
  chmod -R u+w jaeger
  cd jaeger
  # Gently: the rest of the checks runs beside it.
  GOWORK=off GOFLAGS="${GOFLAGS:-} -buildvcs=false" nice go build -o "$work/built" ./cmd/jaeger
  "$work/built" version
  mv "$work/built" "$work/program" # only what runs is a program
}

mkdir -p "$CACHE"
[ ! -x "$program" ] || exit 0
exec 9>"$program.lock"
flock 9
[ ! -x "$program" ] || exit 0 # the run that held the lock has built it

say "building $$"
: >"$log"
command -v go >/dev/null || fail "there is no \`go\` on PATH"
# On the cache's file system, so that the last step is a rename.
work=$(mktemp -d "$CACHE/build.XXXXXX")
trap clean EXIT
trap 'fail "the build was stopped"' INT TERM
# Not as a condition: inside one `set -e` does not hold, and a failed step would be passed over.
set +e
(set -e; build) >>"$log" 2>&1
set -e
[ -x "$work/program" ] || fail "see $log"
mv -f "$work/program" "$program"
say built
