#!/usr/bin/env bash
# Builds the servers and tools that the tests talk to, once per version, into $SPANTAIL_TEST_CACHE.
#
#   bash tests/servers/build.sh                  all of versions.txt, one after the other
#   bash tests/servers/build.sh promtool ...     only these
#
# Does nothing for a program that is there already. Needs only `go`. With a cold Go cache all of it takes about half
# an hour on two cores, with a warm one a minute; the tests that need a program wait for it. Beside the program
# NAME-VERSION the cache holds
#   NAME-VERSION.log       what the last build said
#   NAME-VERSION.status    "waiting PID", "building PID", "built", or "failed: REASON"; programs.py reads it
#   NAME-VERSION.lock      held while building, so that two runs do not build twice
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${SPANTAIL_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spantail-test}

# `go install` refuses a module with replace directives; a build in a copy of its folder is an ordinary build.
# (A copy, because the module cache is read-only.)
copy_module() { # MODULE@VERSION: leaves the shell in the copy
  local folder
  folder=$(go mod download -json "$1" | sed -n 's/^.*"Dir": "\(.*\)",*$/\1/p')
  [ -n "$folder" ]
  cp -r "$folder" module
  chmod -R u+w module
  cd module
}

go_build() { # PACKAGE TAGS
  # Gently: the rest of the checks runs beside it. -trimpath: Go's cache knows it again from another folder.
  GOWORK=off GOFLAGS="${GOFLAGS:-} -buildvcs=false" nice go build -trimpath -tags "${2:-}" -o "$work/built" "$1"
}

make_program() { # in $work; leaves $work/built
  case $name in
    jaeger) # the module of this version holds Jaeger 2.13
      copy_module "github.com/jaegertracing/jaeger@v$version"
      go_build ./cmd/jaeger
      "$work/built" version
      ;;
    prometheus | promtool) # module 0.315 is Prometheus 3.15
      copy_module "github.com/prometheus/prometheus@v$version"
      # Without the clouds' service discoveries, which are most of the code; Kubernetes' for promtool to know.
      go_build "./cmd/$name" "remove_all_sd$([ $name = prometheus ] || echo ,enable_kubernetes_sd)"
      "$work/built" --version
      ;;
    alertmanager | amtool)
      copy_module "github.com/prometheus/alertmanager@v$version"
      # The module comes without the pages that the program embeds; nobody looks at them here.
      mkdir -p ui/app/dist
      echo '<html></html>' >ui/app/dist/index.html
      go_build "./cmd/$name"
      "$work/built" --version
      ;;
    otelcol)
      GOBIN=$work/bin nice go install "go.opentelemetry.io/collector/cmd/builder@v$version"
      nice "$work/bin/builder" --config "$HERE/otelcol.yaml"
      "$work/otelcol/otelcol" --version
      mv "$work/otelcol/otelcol" "$work/built"
      ;;
    kustomize)
      GOBIN=$work/bin nice go install "sigs.k8s.io/kustomize/kustomize/v5@v$version"
      "$work/bin/kustomize" version
      mv "$work/bin/kustomize" "$work/built"
      ;;
    *)
      echo "there is no recipe for $name"
      return 1
      ;;
  esac
}

say() { # a reader never sees half a status
  printf '%s\n' "$1" >"$status.$BASHPID"
  mv -f "$status.$BASHPID" "$status"
}

fail() {
  say "failed: $1"
  echo "tests/servers/build.sh: $name $version was not built: $1" >&2
  [ ! -s "$log" ] || tail -n 20 "$log" >&2
  exit 1
}

clean() {
  # The module cache is read-only, and so is a copy of it.
  [ -z "$work" ] || { chmod -R u+w "$work" && rm -rf "$work"; }
}

choose() { # NAME
  name=$1
  version=$(sed -n "s/^$name //p" "$HERE/versions.txt")
  [ -n "$version" ] || { echo "tests/servers/build.sh: versions.txt has no $name" >&2; exit 2; }
  program=$CACHE/$name-$version
  log=$program.log
  status=$program.status
}

under_way() { # whether a process that lives has said that it builds this, or will
  local word pid
  read -r word pid 2>/dev/null <"$status" || return 1
  case $word in waiting | building) kill -0 "$pid" 2>/dev/null ;; *) return 1 ;; esac
}

build() ( # NAME, in a shell of its own: one that fails does not stop the others
  set -e
  work=
  choose "$1"
  [ ! -x "$program" ] || exit 0
  exec 9>"$program.lock"
  flock 9
  [ ! -x "$program" ] || exit 0 # the run that held the lock has built it
  say "building $BASHPID"
  : >"$log"
  command -v go >/dev/null || fail "there is no \`go\` on PATH"
  # On the cache's file system, so that the last step is a rename.
  work=$(mktemp -d "$CACHE/build.XXXXXX")
  trap clean EXIT
  trap 'fail "the build was stopped"' INT TERM
  # Not as a condition: inside one `set -e` does not hold, and a failed step would be passed over.
  set +e
  (set -e; cd "$work"; make_program; mv "$work/built" "$work/program") >>"$log" 2>&1 9>&-
  set -e
  [ -x "$work/program" ] || fail "see $log" # only what has run and told its version is a program
  mv -f "$work/program" "$program"
  say built
)

mkdir -p "$CACHE"
[ $# -gt 0 ] || set -- $(sed -n 's/^\([a-z]*\) .*/\1/p' "$HERE/versions.txt")
# Said beforehand for all of them, so that a test waits for its program and does not begin a second build.
for each; do
  choose "$each"
  [ -x "$program" ] || under_way || say "waiting $$"
done
failed=0
for each; do
  set +e # see build
  build "$each"
  [ $? = 0 ] || failed=1
  set -e
done
exit $failed
