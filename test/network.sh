#!/bin/sh
# Runs a command in its own network namespace with tcp_migrate_req: when a process closes its
# listening socket, the kernel moves waiting connections to another process at the same port. Needs
# Linux 5.14, and root or user namespaces. Without them, prints SKIPPED and runs the command anyway.
set -eu
prepare='ip link set lo up && echo 1 >/proc/sys/net/ipv4/tcp_migrate_req && exec "$@"'
if unshare --map-root-user --net sh -c "$prepare" sh true; then
  exec unshare --map-root-user --net sh -c "$prepare" sh "$@"
fi
echo 'SKIPPED: a network with tcp_migrate_req: not permitted here.' >&2
exec "$@"
