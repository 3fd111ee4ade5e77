#!/bin/sh
# Runs first in a job's containers: sh /etc/dlspawner/start [--main | --login-proxy] COMMAND [ARGUMENT…]
#
# It starts the job's own sshd in the background, keeps it running, and runs the command as an init would: signals are
# passed on, the dead are collected, the exit status is the command's. (As process 1 itself, a command without a handler
# for TERM would sit out the whole grace period.) Nothing here can fail the job but a command that is not there: without
# sshd, awk or python3 in the image the job runs on, and the log says what is missing. POSIX sh only, because any image
# may come here. Where the image `ssh` brought its bundle to /dl, that has what is missing.
#
# A person's own image runs with --main, beside a login proxy that has no sshd and ends when main ends: main holds a lock
# as long as this very process lives, and the proxy waits for it.
set -u

files=${DLSPAWNER_FILES:-/etc/dlspawner}
alive=${DLSPAWNER_ALIVE:-/run/dlspawner}
bundle=/dl
image_path=${PATH:-/usr/local/bin:/usr/bin:/bin}
if [ -x $bundle/bin/busybox ]; then
    # For this script and for SSH sessions, after everything that the image has; the command does not see it.
    PATH=$image_path:$bundle/bin:$bundle/applets
    export PATH
else
    bundle=
fi

say() {
    echo "dlspawner: $*" >&2
}

find_sshd() {
    if [ -n "$bundle" ]; then echo "$bundle/bin/sshd"; return 0; fi
    # sshd starts itself again for every connection and therefore wants its absolute path.
    for directory in $(echo "${PATH:-/usr/bin:/bin}:/usr/sbin:/usr/local/sbin:/sbin" | tr ':' ' '); do
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
            if (toupper(name) ~ /TOKEN|SECRET|PASSW|CREDENTIAL|KEY|^JUPYTER|^JPY_|^MEM_|^CPU_|^SSH_|^DLSPAWNER_(FILES|ALIVE)$/) continue
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
    # The bundle's OpenSSL has no business with the settings of the image's.
    if [ -n "$bundle" ]; then export OPENSSL_CONF=/dev/null; fi
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
    for directory in "${HOME:-}" "${DLSPAWNER_LOG_DIR:-}" "${DLSPAWNER_JOB_DIR:-}"; do
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
    if [ -n "$bundle" ]; then
        reset=bundle
    elif env --default-signal=INT,QUIT true 2>/dev/null; then
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
        bundle) exec $bundle/libexec/env --default-signal=INT,QUIT "PATH=$image_path" "$@" ;;
        env) exec env --default-signal=INT,QUIT "$@" ;;
        perl) exec perl -e '$SIG{INT} = $SIG{QUIT} = "DEFAULT"; exec { $ARGV[0] } @ARGV or exit 127' -- "$@" ;;
        python3) exec python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])' "$@" ;;
        *) exec "$@" ;;
    esac
}

# Whether the command is there, before anything else is said: these are then the job's last words.
check_command() {
    if (PATH=$image_path && command -v "$1") >/dev/null 2>&1; then return; fi
    case $1 in
        jupyterhub-singleuser | jupyter | jupyter-lab)
            say "this image has no $1. A notebook needs JupyterLab and JupyterHub in it: pip install jupyterlab jupyterhub" ;;
        *) say "this image has no $1, which the job's command begins with" ;;
    esac
    exit 127
}

hold_lock() {
    # Under its own name only when it is locked: who finds it needs to ask no more than that.
    (umask 022 && : >"$alive/.main") 2>/dev/null && exec 9<"$alive/.main" && flock -n 9 && mv "$alive/.main" "$alive/main" ||
        say "cannot lock a file in $alive: the login proxy will not see this container end"
}

end_with_main() { # the login proxy's command; in the background
    until [ -e "$alive/main" ]; do sleep 0.5; done
    if ! { exec 8<"$alive/main" && flock -s 8; }; then
        say "flock is missing: this container stays when main has ended"
        return
    fi
    say "main has ended, and so does its login proxy"
    kill -s ALRM $$
    sleep 10
    kill -s KILL "$1"
}

role=work
case ${1:-} in
    --main | --login-proxy) role=${1#--}; shift ;;
esac
if [ $# -eq 0 ]; then
    say "no command was given"
    exit 64
fi
if [ "$1" = /bin/sh ] && [ ! -e /bin/sh ] && [ -n "$bundle" ]; then
    shift
    set -- $bundle/applets/sh "$@"
fi
check_command "$1"
find_reset
if [ $role = main ]; then hold_lock; fi
if [ $role != login-proxy ]; then
    make_directories
    if [ -r "$files/sshd_config" ]; then
        serve_ssh </dev/null 9>&- &
        suggest_keys 9>&- &
    fi
fi
if [ -z "$reset" ]; then exec "$@"; fi

become "$@" <&0 9>&- &
command=$!
main_ended=no
for signal in TERM INT HUP QUIT USR1 USR2; do
    # shellcheck disable=SC2064 # the names of now
    trap "kill -s $signal $command 2>/dev/null" $signal
done
if [ $role = login-proxy ] && [ -d "$alive" ]; then
    trap 'main_ended=yes; kill -s TERM $command 2>/dev/null' ALRM
    end_with_main "$command" </dev/null >&2 &
fi
while :; do
    wait "$command"
    status=$?
    # A signal ends the waiting as well: only a command that is gone has a status.
    kill -0 "$command" 2>/dev/null && continue
    # How the job ended is what main says.
    if [ $main_ended = yes ]; then status=0; fi
    exit "$status"
done
