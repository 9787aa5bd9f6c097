# shellcheck shell=bash
# What needs Docker. Where there is no engine and none can be started, these checks are skipped, and say so.

check_compose() {
	if docker compose version >/dev/null 2>&1; then
		docker compose config -q
	elif command -v docker-compose >/dev/null; then
		docker-compose config -q
	else
		note "no docker compose: docker-compose.yml was not checked"
		return
	fi
	echo "accepted"
}

# check_container runs the tests of internal/pgtemp that start a container, on an image made here: no registry is needed.
check_container() {
	if ! docker info >/dev/null 2>&1 && ! start_engine; then
		note "no Docker engine: containers were not tested"
		return
	fi
	testdata/pgimage/build.sh fencedlock-ci-postgres "$(server_binaries)"
	at_end=(remove_image "${at_end[@]}")
	PGLOCK_TEST_REQUIRE=docker PGLOCK_TEST_IMAGE=fencedlock-ci-postgres \
		TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_HOST_OVERRIDE=127.0.0.1 \
		go test -v -run Container ./internal/pgtemp
}

server_binaries() {
	if command -v postgres >/dev/null; then
		dirname "$(realpath "$(command -v postgres)")"
	else
		compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -1
	fi
}

remove_image() { docker image rm -f fencedlock-ci-postgres >/dev/null 2>&1; }

# start_engine starts a Docker engine that touches nothing of this machine's: folders, socket and network are its own.
start_engine() {
	[ "$(id -u)" = 0 ] && command -v dockerd >/dev/null || return 1
	engine_dir=$(mktemp -d /tmp/ci-dockerd.XXXXXX)
	export DOCKER_HOST="unix://$engine_dir/socket"
	dockerd --host "$DOCKER_HOST" --data-root "$engine_dir/data" --exec-root "$engine_dir/exec" --pidfile "$engine_dir/pid" \
		--bip 172.30.77.1/24 --iptables=false --ip6tables=false --ip-masq=false >"$engine_dir/log" 2>&1 &
	engine=$!
	at_end+=(stop_engine)
	for _ in {1..60}; do
		! docker info >/dev/null 2>&1 || return 0
		kill -0 "$engine" 2>/dev/null || break
		sleep 0.5
	done
	tail -3 "$engine_dir/log"
	return 1
}

stop_engine() {
	kill "$engine" 2>/dev/null
	wait "$engine" 2>/dev/null
	rm -rf "$engine_dir"
}
