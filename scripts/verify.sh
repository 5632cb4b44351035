#!/bin/sh
# Rebuilds the checked-out commit in a clean copy, and compares.
# Exit codes: 0 the same, 1 not the same, 2 wrong usage or no rebuild.
#
#   npm run verify -- FILE      a built server.js, or a packed .tgz; compares each file in it
#   npm run verify -- SHA256    the checksum of a server.js, 64 hexadecimal digits
set -eu
given=${1-}
# npm runs scripts in the project's folder. INIT_CWD is the folder of the npm call.
case $given in
  /*) file=$given ;;
  *) file=${INIT_CWD:-$PWD}/$given ;;
esac
cd "$(dirname "$0")/.."

fail() {
  echo "verify: $*" >&2
  exit 2
}

is_checksum() {
  [ "${#1}" -eq 64 ] && ! printf %s "$1" | grep -q '[^0-9a-fA-F]'
}

checksum_of() {
  { sha256sum 2>/dev/null || shasum -a 256; } <"$1" | cut -c 1-64
}

# Unpacks the package $1 into the folder $2.
unpack() {
  mkdir -p "$2"
  tar -xzf "$1" -C "$2" || fail "$1 is not a package"
}

[ $# -eq 1 ] && [ -n "$given" ] || fail 'usage: npm run verify -- FILE|SHA256'
is_checksum "$given" || [ -f "$file" ] || fail "$given is neither a file nor a SHA-256 checksum"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
copy=$folder/copy
mkdir "$copy"
commit=$(git rev-parse --short=12 HEAD) || fail 'this needs the git repository'
git archive HEAD | tar -x -C "$copy"
(cd "$copy" && npm ci --loglevel=error && npm run -s build) >&2 ||
  fail "commit $commit cannot be built"
sum=$(checksum_of "$copy/dist/server.js")

if is_checksum "$given"; then
  given_sum=$(printf %s "$given" | tr A-F a-f)
elif [ "${file%.tgz}" != "$file" ]; then
  (cd "$copy" && npm pack --loglevel=error --pack-destination "$folder") >&2 ||
    fail "commit $commit cannot be packed"
  unpack "$file" "$folder/given"
  unpack "$folder"/*.tgz "$folder/rebuilt"
  # The archives differ between versions of npm, but not the files in them.
  if ! diff -qr "$folder/given" "$folder/rebuilt"; then
    echo "no: $given is not what commit $commit packs"
    exit 1
  fi
  given_sum=$(checksum_of "$folder/given/package/dist/server.js")
else
  given_sum=$(checksum_of "$file")
fi

if [ "$given_sum" != "$sum" ]; then
  echo "no: $given is not what commit $commit builds"
  echo "    given   $given_sum"
  echo "    rebuilt $sum"
  [ -z "$(git status --porcelain)" ] || echo '    this folder has changes that are not committed'
  exit 1
fi
echo "yes: $given is what commit $commit builds, SHA-256 $sum"
