# shellcheck shell=bash
# Headings with times, and one place where everything that was started ends.

current="" # the step that runs
began=0    # when it began, in seconds since the script did
report=()
at_end=()  # commands that take away what was started

step() {
	close_step
	current=$1 began=$SECONDS
	printf '\n=== %s\n' "$current"
}

close_step() {
	[ -z "$current" ] || report+=("$(printf '%4d s  %s' $((SECONDS - began)) "$current")")
}

note() {
	echo "$1"
	report+=("        note: $1")
}

finish() {
	close_step
	current=""
	printf '\n=== all is well after %d s\n' "$SECONDS"
	printf '%s\n' "${report[@]}"
}

ended() {
	local status=$?
	set +e
	for command in "${at_end[@]}"; do $command; done
	if [ "$status" -ne 0 ]; then
		printf '\n=== FAILED after %d s, in step: %s\n' "$SECONDS" "$current"
		printf '%s\n' "${report[@]}"
	fi
	exit "$status"
}
trap ended EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
