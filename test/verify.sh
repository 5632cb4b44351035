#!/bin/sh
# `npm run verify` says yes to what this commit builds and packs, and no to one changed byte (npm run test:verify).
# Needs a folder without uncommitted changes.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Exit code $1, and text $2 in the answer, for the arguments after them.
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
  echo 'test:verify: commit these first' >&2
  git status --short >&2
  exit 1
fi
npm run -s package -- --silent --pack-destination "$folder"
grep -q "$(sha256sum dist/server.js | cut -c 1-64)" inference-gateway.cdx.json || {
  echo 'the bill of materials is not of dist/server.js' >&2
  exit 1
}
mkdir "$folder/changed"
tar -xzf "$folder"/*.tgz -C "$folder/changed"
cp dist/server.js "$folder/server.js"
# One byte, which changes nothing in what the program does.
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
