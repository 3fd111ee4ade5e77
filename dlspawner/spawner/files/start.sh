#!/bin/sh
# Runs first in a job's containers: sh /etc/dlspawner/start [--no-ssh] COMMAND [ARGUMENT…]
#
# It starts the job's own sshd in the background, keeps it running, and runs the command as an init would: signals are
# passed on, the dead are collected, the exit status is the command's. (As process 1 itself, a command without a handler
# for TERM would sit out the whole grace period.) Nothing here can fail the job: without sshd, awk or python3 in the
# image the job runs on, and the log says what is missing. POSIX sh only, because any image may come here.
set -u

files=${DLSPAWNER_FILES:-/etc/dlspawner}

say() {
    echo "dlspawner: $*" >&2
}

find_sshd() {
    # sshd starts itself again for every connection and therefore wants its absolute path.
    for directory in $(echo "${PATH:-/usr/bin:/bin}:/usr/sbin:/usr/local/sbin:/sbin:/dl/bin" | tr ':' ' '); do
        case $directory in
            /*) if [ -x "$directory/sshd" ]; then echo "$directory/sshd"; return 0; fi ;;
        esac
    done
    return 1
}

private_directory() {
    for parent in "${TMPDIR:-/tmp}" /dev/shm /run; do
        if made=$(umask 077 && mktemp -d "$parent/dlspawner.XXXXXX" 2>/dev/null); then
            echo "$made"
            return 0
        fi
    done
    return 1
}

# One SetEnv line with the job's environment, quoted for sshd. Credentials, the Hub's own variables and what a login
# sets by itself stay out; so do values with line breaks, which sshd cannot hold.
environment_line() {
    # Letter by letter: what a backslash means in the replacement of gsub differs between awks.
    awk 'function quoted(text,    i, letter, made) {
        for (i = 1; i <= length(text); i++) {
            letter = substr(text, i, 1)
            made = made (letter == "\\" || letter == "\"" ? "\\" : "") letter
        }
        return made
    }
    BEGIN {
        line = ""
        for (name in ENVIRON) {
            value = ENVIRON[name]
            if (name !~ /^[A-Za-z_][A-Za-z0-9_]*$/ || value ~ /[\n\r]/ || length(value) > 8192) continue
            if (toupper(name) ~ /TOKEN|SECRET|PASSW|CREDENTIAL|KEY|^JUPYTER|^JPY_|^MEM_|^CPU_|^SSH_|^DLSPAWNER_FILES$/) continue
            if (name ~ /^(HOME|USER|LOGNAME|SHELL|MAIL|TERM|PWD|OLDPWD|SHLVL|HOSTNAME|_)$/) continue
            line = line " \"" name "=" quoted(value) "\""
        }
        # /etc/profile of a login shell resets PATH; profile.d/dlspawner.sh restores it from this copy.
        path = ENVIRON["PATH"]
        if (path != "" && path !~ /[\n\r]/) line = line " \"DLSPAWNER_PATH=" quoted(path) "\""
        if (line != "") print "SetEnv" line
    }'
}

write_configuration() { # directory
    cat "$files/sshd_config" || return 1
    echo "ListenAddress ${POD_IP:-0.0.0.0}"
    echo "TrustedUserCAKeys $files/user_ca.pub"
    echo "AuthorizedPrincipalsFile $files/principals"
    key=$files/ssh_host_ed25519_key
    # sshd refuses a key that is its own and readable by a group, as fsGroup makes it where the node owns no file.
    if [ -O "$key" ] && [ -n "$(find -L "$key" -perm /077 2>/dev/null)" ]; then
        (umask 077 && cat "$key" >"$1/host_key") && key=$1/host_key
    fi
    echo "HostKey $key"
    environment_line || say "awk is missing: SSH sessions do not see the job's environment"
}

serve_ssh() {
    if ! sshd=$(find_sshd); then
        say "sshd was not found in this image: the job runs without SSH (install openssh-server to have it)"
        return
    fi
    if ! directory=$(private_directory) || ! write_configuration "$directory" >"$directory/sshd_config"; then
        say "no directory to write to: the job runs without SSH"
        return
    fi
    # From OpenSSH 9.8 on, everybody who comes through the gateway would share the penalties of its address.
    if "$sshd" -t -f "$directory/sshd_config" -o PerSourcePenalties=no 2>/dev/null; then
        set -- -o PerSourcePenalties=no
    else
        set --
    fi
    wait_seconds=1
    while :; do
        started=$(date +%s)
        (become "$sshd" -D -e -f "$directory/sshd_config" "$@")
        status=$?
        if [ $(($(date +%s) - started)) -gt 60 ]; then wait_seconds=1; fi
        say "sshd ended with status $status and starts again in $wait_seconds s"
        sleep "$wait_seconds"
        if [ "$wait_seconds" -lt 30 ]; then wait_seconds=$((wait_seconds * 2)); fi
    done
}

make_directories() {
    for directory in "${HOME:-}" "${DLSPAWNER_LOG_DIR:-}"; do
        case $directory in
            "") ;;
            *) mkdir -p -- "$directory" 2>/dev/null || say "cannot make the directory $directory" ;;
        esac
    done
}

suggest_keys() {
    if [ -n "${DLSPAWNER_MANAGER_URL:-}" ] && [ -n "${JUPYTERHUB_API_TOKEN:-}" ] && command -v python3 >/dev/null; then
        python3 "$files/suggest_keys.py" </dev/null >/dev/null 2>&1
    fi
}

# POSIX shells let background processes ignore INT and QUIT, and what is ignored stays ignored in everything that they
# start: Ctrl-C in every SSH session, the interrupt of every kernel. Whatever can undo that becomes the program.
find_reset() {
    if env --default-signal=INT,QUIT true 2>/dev/null; then
        reset=env
    elif command -v perl >/dev/null; then
        reset=perl
    elif command -v python3 >/dev/null; then
        reset=python3
    else
        reset=
    fi
}

become() {
    case $reset in
        env) exec env --default-signal=INT,QUIT "$@" ;;
        perl) exec perl -e '$SIG{INT} = $SIG{QUIT} = "DEFAULT"; exec { $ARGV[0] } @ARGV or exit 127' -- "$@" ;;
        python3) exec python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])' "$@" ;;
        *) exec "$@" ;;
    esac
}

with_ssh=yes
if [ "${1:-}" = "--no-ssh" ]; then
    with_ssh=no
    shift
fi
if [ $# -eq 0 ]; then
    say "no command was given"
    exit 64
fi
find_reset
make_directories
if [ $with_ssh = yes ] && [ -r "$files/sshd_config" ]; then
    serve_ssh </dev/null &
    suggest_keys &
fi
if [ -z "$reset" ]; then exec "$@"; fi

become "$@" <&0 &
command=$!
for signal in TERM INT HUP QUIT USR1 USR2; do
    # shellcheck disable=SC2064 # the names of now
    trap "kill -s $signal $command 2>/dev/null" $signal
done
while :; do
    wait "$command"
    status=$?
    # A signal ends the waiting as well: only a command that is gone has a status.
    kill -0 "$command" 2>/dev/null || exit "$status"
done
