#!/bin/sh
# Push the program and its data to a phone, run it there, and fetch the result. Made by poetc.
#   sh push-and-run.sh [big|little|all]     cores by their highest frequency; ADB and FOLDER may be set
set -eu
cd "$(dirname "$0")"
adb=${ADB:-adb}
folder=${FOLDER:-/data/local/tmp/poetc}
make train
$adb shell "mkdir -p $folder"
for file in train run-on-phone.sh data.bin validation.bin store.img; do
    [ ! -e "$file" ] || $adb push "$file" "$folder/$file"
done
$adb shell "cd $folder && sh run-on-phone.sh ${1:-big}"
$adb pull "$folder/trained.bin" trained.bin
