#!/bin/sh
# Makes the data folder at the first start, for POSTGRES_USER with POSTGRES_PASSWORD, then becomes the server: the part of
# the official image's entrypoint that a test needs.
set -eu

if [ ! -s "$PGDATA/PG_VERSION" ]; then
	: "${POSTGRES_PASSWORD:?must be set}"
	secret=/tmp/password
	printf '%s\n' "$POSTGRES_PASSWORD" >"$secret"
	initdb -D "$PGDATA" -U "${POSTGRES_USER:-postgres}" --pwfile="$secret" -A scram-sha-256 -E UTF8 --locale=C.UTF-8 --no-sync
	: >"$secret"
	echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
	printf "listen_addresses = '*'\nunix_socket_directories = '/tmp'\n" >>"$PGDATA/postgresql.conf"
fi
exec "$@"
