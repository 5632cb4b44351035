#!/bin/sh
# Checks .github/workflows with actionlint and zizmor (npm run test:workflows). Installs both into a
# folder outside the project. If a tool cannot be installed, prints SKIPPED and leaves it out.
set -eu
cd "$(dirname "$0")/.."
actionlint_version=v1.7.12
zizmor_version=1.32.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/inference-gateway
log=$(mktemp)
trap 'rm -f "$log"' EXIT

install_actionlint() {
  GOBIN=$1 timeout 120 go install "github.com/rhysd/actionlint/cmd/actionlint@$actionlint_version"
}

install_zizmor() {
  python3 -m venv "$1" && timeout 120 "$1/bin/pip" install --quiet --disable-pip-version-check \
    "zizmor==$zizmor_version"
}

# Tests for the program $2. If it is missing, install_$1 installs it into the folder $3.
is_installed() {
  [ -x "$2" ] || "install_$1" "$3" >"$log" 2>&1 && [ -x "$2" ] && return
  echo "SKIPPED: $1 cannot be installed: $(tail -n 1 "$log")" >&2
  return 1
}

status=0
folder=$cache/actionlint-$actionlint_version
if is_installed actionlint "$folder/actionlint" "$folder"; then
  "$folder/actionlint" -color && echo "actionlint $actionlint_version: no findings" || status=1
fi
folder=$cache/zizmor-$zizmor_version
if is_installed zizmor "$folder/bin/zizmor" "$folder"; then
  "$folder/bin/zizmor" --offline --pedantic --quiet .github/workflows &&
    echo "zizmor $zizmor_version: no findings" || status=1
fi
exit $status
