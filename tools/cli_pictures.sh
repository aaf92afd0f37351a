#!/usr/bin/env bash
# Draws the pictures of docs/cli.md: runs `driftq` in tmux against a broker of its own, and draws the screens.
# Needs tmux, Python 3, and both programs in target/debug, or in the folder that is given.
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$(realpath "${1:-target/debug}")
pictures=docs/cli
folder=$(mktemp -d)
export PATH="$programs:$PATH" DRIFTQ_CONTEXTS="$folder/contexts.json" TMUX_TMPDIR="$folder" LC_ALL=C.UTF-8
unset TMUX NO_COLOR DRIFTQ_KEY
export DRIFTQ_URL=http://127.0.0.1:18080

stop() {
    tmux kill-server 2>/dev/null || true
    # Twice: consumers wait for their acks.
    for _ in 1 2; do kill $(jobs -p) 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$folder"
}
trap stop EXIT

driftqd serve --addr 127.0.0.1:18080 --data-dir "$folder/data" 2>"$folder/log" &
for _ in $(seq 20); do driftq topics list --names >/dev/null 2>&1 && break; done

# Runs commands in a terminal of a size, waits until the screen contains a text, and draws it.
draw() { # name columns lines text commands
    tmux -f /dev/null new-session -d -x "$2" -y "$3" -s picture "bash --noprofile --norc -c '$5; read -r line'"
    for _ in $(seq 200); do
        tmux capture-pane -p -t picture | grep -qF "$4" && break
        sleep 0.1
    done
    # What follows the text, and rates, which need two looks.
    sleep 2.5
    tmux capture-pane -e -p -t picture | python3 tools/terminal_svg.py --title "${6:-driftq}" >"$pictures/$1.svg"
    tmux kill-session -t picture
    echo "$pictures/$1.svg: $(stat -c %s "$pictures/$1.svg") bytes"
}

# Shows a command line, then runs it.
cat >"$folder/try" <<'EOF'
for line in "$@"; do printf '\033[1m$ %s\033[0m\n' "$line"; eval "$line"; done
EOF
try="bash $folder/try"

mkdir -p "$pictures"
driftq topics create orders --partitions 3 >/dev/null
driftq topics create receipts >/dev/null
driftq topics create invoices >/dev/null
driftq groups create receipts archive >/dev/null
driftq produce invoices 'no address' --key customer-9 --max-attempts 1 >/dev/null
driftq consume invoices --group billing --max 1 --json | driftq nack --lines --reason 'unknown customer' >/dev/null
driftq produce receipts 'for order 1' >/dev/null

draw messages 108 26 'produced 3 messages' "$try \
    \"driftq produce orders \\\"one pizza\\\" --key customer-7\" \
    \"seq 3 | driftq produce orders --lines\" \
    \"driftq peek orders\" \"driftq topics list\" \"driftq dlq show invoices\"" 'driftq produce, peek, topics, dlq'
draw doctor 108 18 'wrong' "$try \"driftq doctor --stuck-after 1s\"" 'driftq doctor'
draw bench 100 8 'consume and ack' "$try \"driftq bench --messages 20000\"" 'driftq bench'

# Traffic for the live view: a fast group, a slow one, and one without workers.
driftq groups create orders audit >/dev/null
driftq consume orders --group kitchen --ack --follow >/dev/null 2>&1 &
driftq consume receipts --group archive --ack --follow >/dev/null 2>&1 &
(while true; do seq 40 | driftq produce orders --lines --key k >/dev/null 2>&1 || exit 0; sleep 0.05; done) &
(while true; do seq 5 | driftq produce receipts --lines >/dev/null 2>&1 || exit 0; sleep 0.05; done) &
sleep 3
draw top 80 14 'audit ' "driftq top" 'driftq top'
