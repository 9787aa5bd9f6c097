#!/bin/bash
# Builds a container image of PostgreSQL out of a server that is installed here, for machines that have a Docker engine but
# reach no image registry. It stands in for the official image in the tests of internal/pgtemp, and in nothing else.
#
#   testdata/pgimage/build.sh NAME[:TAG] [BINDIR]
#
# BINDIR is the folder of initdb and postgres; default: what pg_config says.
set -euo pipefail

name=${1:?usage: build.sh NAME[:TAG] [BINDIR]}
bin=$(realpath "${2:-$(pg_config --bindir)}")
here=$(dirname "$(realpath "$0")")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# put copies files and folders to the same place in the image.
put() { for path in "$@"; do mkdir -p "$root$(dirname "$path")" && cp -aL "$path" "$root$path"; done; }

# libraries lists what the programs and libraries in the image are linked with, the loader included. ldd fails on scripts.
libraries() {
	{ find "$root" -type f \( -perm -100 -o -name '*.so*' \) -exec ldd {} + 2>/dev/null || true; } |
		grep -o '=> /[^ ]*\|^[[:space:]]*/[^ ]* (' | grep -o '/[^ ]*' | grep -v "^$root" | sort -u
}

# The server, with its libraries and its data.
if [ -x "$bin/pg_config" ]; then
	put "$bin/initdb" "$bin/postgres" "$("$bin/pg_config" --pkglibdir)" "$("$bin/pg_config" --sharedir)"
	rm -rf "$root$("$bin/pg_config" --pkglibdir)"/{bitcode,llvmjit*} # big, and no test compiles its queries
else # a relocatable build keeps them side by side
	put "$(dirname "$bin")"
fi
[ ! -d /usr/share/zoneinfo ] || put /usr/share/zoneinfo # Debian's build uses the system's
[ ! -d /usr/lib/locale/C.utf8 ] || put /usr/lib/locale/C.utf8

put /bin/sh # initdb and the entrypoint call it
libraries | while read -r library; do [ -e "$root$library" ] || put "$library"; done

mkdir -p "$root"/{etc,proc,sys,dev,tmp,var/lib/postgresql} && chmod 1777 "$root/tmp"
echo 'postgres:x:70:70::/var/lib/postgresql:/bin/sh' >"$root/etc/passwd"
echo 'postgres:x:70:' >"$root/etc/group"
cp "$here/entrypoint.sh" "$root/entrypoint.sh" && chmod 755 "$root/entrypoint.sh"

# Everything belongs to the user that the server runs as, so nothing here needs root.
tar -C "$root" --owner=70 --group=70 --numeric-owner -c . | docker import \
	--change 'USER 70:70' \
	--change "ENV PATH=$bin:/usr/bin:/bin" \
	--change 'ENV PGDATA=/var/lib/postgresql/data' \
	--change 'ENTRYPOINT ["/entrypoint.sh"]' \
	--change 'CMD ["postgres"]' \
	--change 'EXPOSE 5432' \
	- "$name"
