#!/usr/bin/env bash
# Makes the base image of the container tests, once, as $SPANTAIL_TEST_CACHE/base-bookworm.tar: a small Debian with
# Python, from the same archive as the machine's own packages. Needs root and debootstrap; takes about two minutes.
# (What people get is built on the python image that deploy/image/Dockerfile names; the steps are the same.)
set -euo pipefail
CACHE=${SPANTAIL_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/spantail-test}
tar=$CACHE/base-bookworm.tar

mkdir -p "$CACHE"
exec 9>"$tar.lock"
flock 9
[ ! -s "$tar" ] || exit 0
work=$(mktemp -d "$CACHE/base.XXXXXX")
trap 'rm -rf "$work"' EXIT
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$work/root" >"$tar.log" 2>&1
# pip in the image must trust what pip on this machine trusts.
[ ! -s /etc/ssl/certs/ca-certificates.crt ] || cp /etc/ssl/certs/ca-certificates.crt "$work/root/etc/ssl/certs/"
rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* "$work"/root/dev/*
tar -C "$work/root" --numeric-owner -cf "$work/tar" .
mv "$work/tar" "$tar"
