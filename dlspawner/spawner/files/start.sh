#!/bin/sh
# Runs first in every container that offers SSH: sh /etc/dlspawner/start COMMAND [ARGUMENT…]
#
# It starts the job's own sshd in the background, keeps it running, and becomes the command, so that the command is
# process 1 and gets the signals of a stopping pod. Nothing here can fail the job: without sshd, awk or python3 in the
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
    awk 'BEGIN {
        line = ""
        for (name in ENVIRON) {
            value = ENVIRON[name]
            if (name !~ /^[A-Za-z_][A-Za-z0-9_]*$/ || value ~ /[\n\r]/ || length(value) > 8192) continue
            if (toupper(name) ~ /TOKEN|SECRET|PASSW|CREDENTIAL|KEY|^JUPYTER|^JPY_|^MEM_|^CPU_|^SSH_|^DLSPAWNER_FILES$/) continue
            if (name ~ /^(HOME|USER|LOGNAME|SHELL|MAIL|TERM|PWD|OLDPWD|SHLVL|HOSTNAME|_)$/) continue
            gsub(/\\/, "\\\\", value)
            gsub(/"/, "\\\"", value)
            line = line " \"" name "=" value "\""
        }
        # /etc/profile of a login shell resets PATH; profile.d/dlspawner.sh restores it from this copy.
        path = ENVIRON["PATH"]
        if (path != "" && path !~ /[\n\r]/) line = line " \"DLSPAWNER_PATH=" path "\""
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
        "$sshd" -D -e -f "$directory/sshd_config" "$@"
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

make_directories
if [ -r "$files/sshd_config" ]; then
    serve_ssh </dev/null &
    suggest_keys &
fi
if [ $# -eq 0 ]; then
    say "no command was given"
    exit 64
fi
exec "$@"
