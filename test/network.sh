#!/bin/sh
# Runs a command in a network of its own, whose kernel hands on what has arrived at a process's socket when that closes and
# another process listens at the same port. Needs Linux 5.14, and root or user namespaces; without them it says so and just runs it.
set -eu
prepare='ip link set lo up && echo 1 >/proc/sys/net/ipv4/tcp_migrate_req && exec "$@"'
if unshare --map-root-user --net sh -c "$prepare" sh true; then
  exec unshare --map-root-user --net sh -c "$prepare" sh "$@"
fi
echo 'SKIPPED: a network with tcp_migrate_req: not permitted here.' >&2
exec "$@"
