#!/bin/sh
# Checks that `npm run verify` accepts this commit's build and package, and refuses both after a
# change of one byte (npm run test:verify). Needs a folder without uncommitted changes.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Runs verify with the arguments from $3 on. Expects exit code $1, and text $2 in the output.
expect() {
  expected=$1
  text=$2
  shift 2
  status=0
  answer=$(npm run -s verify -- "$@" 2>&1) || status=$?
  if [ "$status" -ne "$expected" ] || ! echo "$answer" | grep -q "$text"; then
    echo "verify $*: exit code $status instead of $expected, or no '$text' in: $answer" >&2
    exit 1
  fi
  echo "verify $*: $text"
}

if [ -n "$(git status --porcelain)" ]; then
  echo 'test:verify: uncommitted changes:' >&2
  git status --short >&2
  exit 1
fi
npm run -s package -- --silent --pack-destination "$folder"
grep -q "$(sha256sum dist/server.js | cut -c 1-64)" inference-gateway.cdx.json || {
  echo 'inference-gateway.cdx.json has another checksum for dist/server.js' >&2
  exit 1
}
mkdir "$folder/changed"
tar -xzf "$folder"/*.tgz -C "$folder/changed"
cp dist/server.js "$folder/server.js"
# One byte each, which changes nothing in the program's behaviour.
printf '\n' >>"$folder/changed/package/README.md"
tar -czf "$folder/changed.tgz" -C "$folder/changed" package
printf ' ' | dd of="$folder/server.js" bs=1 seek=20 conv=notrunc 2>/dev/null

expect 0 '^yes: ' dist/server.js
expect 0 '^yes: ' "$(sha256sum dist/server.js | cut -c 1-64)"
expect 0 '^yes: ' "$folder"/inference-gateway-*.tgz
expect 1 '^no: ' "$folder/server.js"
expect 1 'README.md differ' "$folder/changed.tgz"
expect 2 'neither a file nor' "$folder/nothing"
expect 2 'neither a file nor' 0123
expect 2 'usage: '
