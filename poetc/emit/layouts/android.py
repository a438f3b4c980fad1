"""A phone: one static program for 64-bit Arm with its data beside it, and scripts that push and run it with adb."""

from __future__ import annotations

from pathlib import Path

from poetc.emit.layouts import makefile
from poetc.emit.layouts._contents import Contents
from poetc.emit.layouts._layout import Layout
from poetc.errors import UsageError

FOLDER = "/data/local/tmp/poetc"

# Runs on this machine.
PUSH = f"""#!/bin/sh
# Push the program and its data to a phone, run it there, and fetch the result. Made by poetc.
#   sh push-and-run.sh [big|little|all]     cores by their highest frequency; ADB and FOLDER may be set
set -eu
cd "$(dirname "$0")"
adb=${{ADB:-adb}}
folder=${{FOLDER:-{FOLDER}}}
make train
$adb shell "mkdir -p $folder"
for file in train run-on-phone.sh data.bin validation.bin store.img; do
    [ ! -e "$file" ] || $adb push "$file" "$folder/$file"
done
$adb shell "cd $folder && sh run-on-phone.sh ${{1:-big}}"
$adb pull "$folder/trained.bin" trained.bin
"""

# Runs on the phone, whose shell is mksh and whose tools are toybox.
RUN = """#!/bin/sh
# Run ./train on the cores of one kind: big (the highest frequency), little (the lowest) or all. Made by poetc.
#   sh run-on-phone.sh [big|little|all] [PROGRAM...]
set -eu
cores=${CORES:-/sys/devices/system/cpu}
kind=${1:-big}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- ./train
best=
for file in "$cores"/cpu[0-9]*/cpufreq/cpuinfo_max_freq; do
    [ -r "$file" ] || continue
    read -r frequency < "$file"
    case $kind in
    big) [ -n "$best" ] && [ "$frequency" -le "$best" ] || best=$frequency ;;
    little) [ -n "$best" ] && [ "$frequency" -ge "$best" ] || best=$frequency ;;
    all) ;;
    *) echo "run-on-phone.sh: $kind: big, little or all" >&2; exit 2 ;;
    esac
done
mask=0
count=0
for file in "$cores"/cpu[0-9]*/cpufreq/cpuinfo_max_freq; do
    [ -r "$file" ] || continue
    read -r frequency < "$file"
    [ "$kind" = all ] || [ "$frequency" = "$best" ] || continue
    core=${file#"$cores"/cpu}
    mask=$((mask | 1 << ${core%%/*}))
    count=$((count + 1))
done
[ -z "${best:-}" ] || echo "cores: $count of $kind, up to $((best / 1000)) MHz"
chmod +x ./train
[ "$kind" != all ] && [ "$mask" -gt 0 ] || exec "$@"
POETC_THREADS=${POETC_THREADS:-$count}
export POETC_THREADS
exec taskset "$(printf %x "$mask")" "$@"
"""


def place(contents: Contents) -> dict[str, bytes | Path]:
    """The Makefile's files, linked statically, and the two scripts. UsageError for another machine's program."""
    target = contents.target
    if target.core is None or target.build != "program" or not target.cross_compile.startswith("aarch64-"):
        raise UsageError(f"--layout android: {target.name} is no 64-bit Arm with Linux; use cortex-a or generic-a76")
    files = dict(makefile.place(contents))
    text = files["Makefile"]
    assert isinstance(text, bytes)
    files["Makefile"] = text.replace(b"CFLAGS ?=", b"LDFLAGS ?= -static\nCFLAGS ?=", 1)
    files["push-and-run.sh"] = PUSH.encode()
    files["run-on-phone.sh"] = RUN.encode()
    page = files["README.md"]
    assert isinstance(page, bytes)
    files["README.md"] = page.replace(b"## Data\n", _how().encode() + b"## Data\n", 1)
    return files


def _how() -> str:
    lines = [
        "## On a phone",
        "",
        "`sh push-and-run.sh big` builds one static program and pushes it with `data.bin`. It runs there, and its",
        "`trained.bin` comes back. `big`, `little` or `all` are the cores, told by their highest frequency. A program",
        "with `THREADS` takes as many threads as cores. Debugging over USB must be on, and `adb` installed.",
        "",
        "",
    ]
    return "\n".join(lines)


LAYOUT = Layout(place, "push it to a phone with push-and-run.sh", programs=True, named=False, target="cortex-a")
