#!/bin/sh
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
