#!/usr/bin/env bash
# Builds the executable of an older commit, that of tests/data/older-commit, for the test in which both share a mesh.
# Usage: tests/older.sh FOLDER      leaves it in FOLDER/older-COMMIT/dunlin, and does nothing when it is there.
# Dependencies that are built already are taken from $CARGO_TARGET_DIR. A clone that lacks the commit (a shallow one) is
# told so, loudly, and that is no failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

commit=$(cat tests/data/older-commit)
mkdir -p "${1:?usage: tests/older.sh FOLDER}"
folder=$(cd "$1" && pwd)/older-$commit
[ ! -x "$folder/dunlin" ] || exit 0
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
  printf '\n*** SKIPPED older build: this clone lacks commit %s (git fetch --unshallow) ***\n\n' "$commit"
  exit 0
fi

source=$folder/source build=$folder/target target=${CARGO_TARGET_DIR:-target}
trap 'rm -rf "$source" "$build"' EXIT
rm -rf "$source" "$build"
mkdir -p "$source" "$build/debug"
git archive "$commit" | tar -x -C "$source"
if [ -d "$target/debug/.fingerprint" ]; then
  # Links where nothing is written to (copies from another file system), copies of what cargo writes to in its place.
  for part in deps build; do
    cp -al "$target/debug/$part" "$build/debug/$part" 2>/dev/null || {
      rm -rf "$build/debug/$part"
      cp -a "$target/debug/$part" "$build/debug/$part"
    }
  done
  cp -a "$target/debug/.fingerprint" "$build/debug/.fingerprint"
fi
# As the tests are built, so that no dependency gets other features; the smallest test that wants the executable.
(cd "$source" && CARGO_TARGET_DIR=$build cargo test --quiet --locked --workspace --no-run --test routelab)
mv "$build/debug/dunlin" "$folder/dunlin"
