#!/usr/bin/env bash
# Gets the engines of the container tests where that is possible: Docker, docker-compose and debootstrap by apt (as
# root, on Debian and its kin), then the base image. Where it is not, the tests say why they are skipped.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

missing=
for each in dockerd:docker.io docker:docker.io docker-compose:docker-compose debootstrap:debootstrap; do
  command -v "${each%%:*}" >/dev/null || missing="$missing ${each##*:}"
done
if [ -n "$missing" ]; then
  [ "$(id -u)" = 0 ] || { echo "tests/servers/engines.sh: not root, so without$missing" >&2; exit 0; }
  command -v apt-get >/dev/null || { echo "tests/servers/engines.sh: no apt-get, so without$missing" >&2; exit 0; }
  export DEBIAN_FRONTEND=noninteractive
  # The tests start a daemon of their own; the package need not.
  # shellcheck disable=SC2086
  { apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends $missing; } >/dev/null
fi
[ "$(id -u)" != 0 ] || bash "$HERE/base.sh"
