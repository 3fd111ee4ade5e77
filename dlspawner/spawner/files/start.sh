#!/bin/sh
# Runs first in a job's containers: sh /etc/dlspawner/start [--main | --login-proxy] COMMAND [ARGUMENT…]
#
# It starts the job's own sshd in the background, keeps it running, and runs the command as an init would: signals are
# passed on, the dead are collected, the exit status is the command's. (As process 1 itself, a command without a handler
# for TERM would sit out the whole grace period.) Nothing here can fail the job but a command that is not there: without
# sshd, sed or python3 in the image the job runs on, and the log says what is missing. POSIX sh only, because any image
# may come here. Where the image `ssh` brought its bundle to /dl, that has what is missing.
#
# A person's own image runs with --main, beside a login proxy that has no sshd and ends when main ends: main holds a lock
# as long as this very process lives, and the proxy waits for it.
#
# When the job is stopped, or its command has ended, what people run by SSH reads so and gets a HUP, as from a machine
# that shuts down, and a TERM if it does not hear that. It has the grace period to end in; nobody waits longer than that.
set -u

files=${DLSPAWNER_FILES:-/etc/dlspawner}
alive=${DLSPAWNER_ALIVE:-/run/dlspawner}
bundle=/dl
# Last comes where pip puts programs: the command is the image's, whatever people have installed.
image_path=${PATH:-/usr/local/bin:/usr/bin:/bin}:${HOME:-}/.local/bin
# Terminals and SSH sessions find people's Python first, where that is not the server's.
python_path=${DLSPAWNER_PYTHON:+$DLSPAWNER_PYTHON/bin:}
# /etc/profile of a login shell resets PATH; profile.d/dlspawner.sh restores it from this copy.
DLSPAWNER_PATH=$python_path$image_path
if [ -x $bundle/bin/busybox ]; then
    # For this script and for SSH sessions, after everything that the image has; the command does not see it.
    PATH=$image_path:$bundle/bin:$bundle/applets
else
    bundle=
    PATH=$image_path
fi
export PATH DLSPAWNER_PATH

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

# What SSH sessions read (the file `shell`): the job's environment without what the Hub adds and what a login sets itself.
write_environment() { # directory
    (
        for name in $(export -p | sed -n 's/^export \(JUPYTERHUB_[A-Za-z0-9_]*\).*/\1/p') JPY_API_TOKEN; do unset "$name"; done
        unset HOME USER LOGNAME MAIL TERM PWD OLDPWD SHLVL _ DLSPAWNER_FILES DLSPAWNER_ALIVE
        unset SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_AUTH_SOCK SSH_ORIGINAL_COMMAND
        PATH=$python_path$PATH
        DLSPAWNER_PATH=$PATH
        umask 077
        export -p >"$1/environment"
    )
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
    echo "SetEnv \"DLSPAWNER_ENVIRONMENT=$1/environment\""
    # Of a job of several pods: where its own key is taken. Last, because what follows a Match belongs to it.
    if [ -r "$files/job_sshd_config" ]; then cat "$files/job_sshd_config"; fi
}

serve_ssh() {
    if ! sshd=$(find_sshd); then
        say "sshd was not found in this image: the job runs without SSH (install openssh-server to have it)"
        return
    fi
    if [ -z "$directory" ] || ! write_environment "$directory" || ! write_configuration "$directory" >"$directory/sshd_config"; then
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
    # On the host's network its port is this pod's own.
    if [ -n "${DLSPAWNER_PORT_SSH:-}" ]; then set -- "$@" -p "$DLSPAWNER_PORT_SSH"; fi
    if [ "$(id -u)" = 0 ]; then mkdir -p /run/sshd; fi # where root's sshd keeps who is not logged in yet
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
            "" | *://*) ;;
            *) mkdir -p -- "$directory" 2>/dev/null || say "cannot make the directory $directory" ;;
        esac
    done
}

# A kernel sees what pip puts into ~/.local only if the directory was there when it started.
make_user_site() {
    if [ -n "${DLSPAWNER_PYTHON:-}" ]; then mkdir -p -- "$("$DLSPAWNER_PYTHON/bin/python3" -I -m site --user-site)" 2>/dev/null; fi
}

# A login shell reads ~/.profile, which in the skeleton reads ~/.bashrc: a home without one gets the image's skeleton.
copy_skeleton() {
    for file in .profile .bash_profile .bash_login; do
        if [ -e "${HOME:-}/$file" ]; then return; fi
    done
    for file in /etc/skel/.[!.]* /etc/skel/*; do
        if [ -e "$file" ] && [ ! -e "$HOME/${file##*/}" ]; then cp -R "$file" "$HOME/" 2>/dev/null; fi
    done
}

# The person's shell, for terminals of JupyterLab and sessions of SSH: the one that template or image name, or bash.
find_shell() {
    for SHELL in "${SHELL:-}" /bin/bash /usr/bin/bash /usr/local/bin/bash /bin/sh $bundle/applets/sh; do
        if [ -x "$SHELL" ]; then break; fi
    done
    export SHELL
}

report_ssh_keys() {
    if [ -n "${DLSPAWNER_MANAGER_URL:-}" ] && [ -n "${JUPYTERHUB_API_TOKEN:-}" ] && command -v python3 >/dev/null; then
        python3 -I "$files/report_ssh_keys.py" </dev/null >/dev/null 2>&1
    fi
}

# Whether kernels are busy. Only where the container is the notebook server itself: nothing else has any.
report_kernels() {
    if [ -n "${DLSPAWNER_MANAGER_URL:-}" ] && [ -n "${JUPYTERHUB_API_TOKEN:-}" ] && [ -r "$files/report_kernels.py" ] &&
        command -v python3 >/dev/null; then
        exec python3 -I "$files/report_kernels.py" </dev/null >/dev/null 2>&1
    fi
}

# On the host's network: who listens on a port that is not the job's.
watch_ports() {
    if command -v python3 >/dev/null; then exec python3 -I "$files/watch_ports.py" $$ </dev/null; fi
    say "this image has no python3: nothing looks after the ports that the job uses"
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
        python3) exec python3 -I -c 'import os, signal, sys
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

# The processes below us that are not the command's own, one per line: those of "sshd" itself, or the "programs" that it
# has started and whatever has lost its parent.
others() { # sshd | programs
    { read -r self _ </proc/self/stat; } 2>/dev/null || return
    family=" $$ $ssh " before=
    until [ "$family" = "$before" ]; do # a child may have a lower number than its parent
        before=$family
        for stat in /proc/[0-9]*/stat; do
            { read -r line <"$stat"; } 2>/dev/null || continue
            process=${line%% *} rest=${line##*) }
            parent=${rest#? } parent=${parent%% *}
            case $family in *" $process "*) continue ;; *" $parent "*) ;; *) continue ;; esac
            case " $command $self $helper $kernels $watcher " in *" $process "*) continue ;; esac
            family="$family$process "
            case $rest in Z*) continue ;; esac
            case $line in *"(sshd"*) kind=sshd ;; *) kind=programs ;; esac
            if [ $kind = "$1" ]; then echo "$process"; fi
        done
    done
}

end_others() { # sentence, at most how many fifths of a second, or nothing: as long as it takes
    { read -r helper _ </proc/self/stat; } 2>/dev/null || return
    told=" "
    for process in $(others programs); do
        terminal=$(readlink "/proc/$process/fd/0" 2>/dev/null)
        case $told in
            *" $terminal "*) ;;
            *) case $terminal in
                /dev/pts/*) told="$told$terminal "; printf '\r\n%s\r\n' "$1" 2>/dev/null >"$terminal" ;;
            esac ;;
        esac
        kill -s HUP "$process" 2>/dev/null
    done
    passes=0
    while [ -n "$(others programs)" ] && [ $passes -ne "${2:--1}" ]; do
        passes=$((passes + 1))
        if [ $passes -eq 10 ]; then kill -s TERM $(others programs) 2>/dev/null; fi
        sleep 0.2
    done
    # Their last words and exit status are on their way to the client: only the listening sshd need not go.
    passes=0
    while set -- $(others sshd) && [ $# -gt 1 ] && [ $passes -lt 5 ]; do
        passes=$((passes + 1))
        sleep 0.2
    done
}

# Whether sshd runs, and there is the /proc that tells who is below us. Before that nobody is in by SSH, and what prepares
# sshd must not hear of the end: it would complain, and those were the job's last words.
has_others() {
    [ -n "$ssh" ] && { read -r self _ </proc/self/stat; } 2>/dev/null && [ "$self" = $$ ] && [ -n "$(others sshd)" ]
}

# To the command, or for it as soon as it is there: process 1 does not hear what it has no trap for.
pass_on() { # signal
    if [ -n "$command" ]; then kill -s "$1" "$command" 2>/dev/null; else early="$early $1"; fi
}

stop() {
    pass_on TERM
    if [ -z "$helper" ] && [ -n "$command" ] && has_others; then
        end_others "This job is being stopped." 9>&- &
        helper=$!
    fi
}

role=work ssh= helper= directory= command= early= kernels= watcher=
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
    copy_skeleton
    find_shell
    if [ -r "$files/sshd_config" ]; then
        directory=$(private_directory)
        serve_ssh </dev/null 9>&- &
        ssh=$!
        report_ssh_keys 9>&- &
    fi
    case ${1##*/} in
        jupyterhub-singleuser | jupyter | jupyter-lab)
            make_user_site 9>&- &
            report_kernels 9>&- & kernels=$! ;;
    esac
    if [ -n "${DLSPAWNER_PORTS:-}" ] && [ -r "$files/watch_ports.py" ]; then watch_ports 9>&- & watcher=$!; fi
fi
if [ -z "$reset" ]; then exec "$@"; fi

trap stop TERM
for signal in INT HUP QUIT USR1 USR2; do
    # shellcheck disable=SC2064 # the name of now
    trap "pass_on $signal" $signal
done
become "$@" <&0 9>&- &
command=$!
for signal in $early; do pass_on "$signal"; done
main_ended=no
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
    if [ -n "$helper" ]; then wait "$helper"; fi
    if has_others; then
        end_others "This job has ended." 25
        exec 2>/dev/null # a sshd that has just begun would miss its files, and say so
        kill -s KILL "$ssh" $(others sshd)
        rm -rf -- "$directory"
    fi
    exit "$status"
done
