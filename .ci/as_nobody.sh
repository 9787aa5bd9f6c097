#!/bin/sh
# Runs a program as an ordinary user: as_nobody.sh PROGRAM ARGUMENT… It is for go test -exec, whose own folder only root may
# read, so the program is copied to where the user may.
folder=$(mktemp -d) && chown 65534:65534 "$folder" && cp "$1" "$folder/program" || exit 1
shift
HOME=$folder TMPDIR=/tmp setpriv --reuid=65534 --regid=65534 --clear-groups "$folder/program" "$@"
status=$?
rm -rf "$folder"
exit $status
