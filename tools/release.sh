#!/usr/bin/env bash
# Builds a release into a folder, ./dist by default: the programs in one archive, for each a CycloneDX list of what is
# compiled into it, and checksums of all files. Needs stable Rust; installs cargo-cyclonedx into a temporary folder if it
# is missing. What is not committed is refused, because nobody else could build it.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    echo "usage: tools/release.sh [--allow-dirty] [FOLDER]"
}

allow_dirty=""
folder=dist
while [ $# -gt 0 ]; do
    case $1 in
        --allow-dirty) allow_dirty=yes ;;
        -h | --help) usage && exit 0 ;;
        -*) usage >&2 && exit 2 ;;
        *) folder=$1 ;;
    esac
    shift
done
if [ -z "$allow_dirty" ] && [ -n "$(git status --porcelain)" ]; then
    echo "there are changes that are not committed; --allow-dirty builds them all the same" >&2
    exit 1
fi
mkdir -p "$folder"
if [ -n "$(ls -A "$folder")" ]; then
    echo "$folder is not empty" >&2
    exit 1
fi
folder=$(realpath "$folder")

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
if ! cargo cyclonedx --version >/dev/null 2>&1; then
    cargo install --quiet --locked --debug --root "$temporary/tools" cargo-cyclonedx@0.5.9
    export PATH="$PATH:$temporary/tools/bin"
fi

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)
target=$(rustc -vV | sed -n 's/^host: //p')
name=driftq-$version-$target
# Seconds of the commit, so that who builds it again gets the same archive.
date=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH=$date

packages=(driftq-server driftq-cli driftq-sim driftq-history)
programs=(driftqd driftq driftq-sim driftq-history)
cargo build --locked --release "${packages[@]/#/--package=}"

mkdir "$temporary/$name"
for program in "${programs[@]}"; do
    install -m 755 "${CARGO_TARGET_DIR:-target}/release/$program" "$temporary/$name/"
done
cp README.md LICENSE CHANGELOG.md SECURITY.md "$temporary/$name/"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$date" -C "$temporary" -cf - "$name" |
    gzip -n >"$folder/$name.tar.gz"

# It writes beside each Cargo.toml: in a copy of what is committed, so that nothing is left here.
git worktree add --quiet --detach "$temporary/source" HEAD
trap 'git worktree remove --force "$temporary/source"; rm -rf "$temporary"' EXIT
for program in "${programs[@]}"; do
    manifest=$(grep -lE "^name = \"$program\"" "$temporary"/source/{server,cli,sim,history}/Cargo.toml | head -1)
    cargo cyclonedx --quiet --manifest-path "$manifest" --format json --spec-version 1.5 --describe binaries \
        --target "$target"
    cp "$(dirname "$manifest")/${program}_bin.cdx.json" "$folder/$program.cdx.json"
done

(cd "$folder" && sha256sum -- * >SHA256SUMS)
ls -l "$folder"
