# Sourced by /etc/profile, which has just reset PATH: SSH sessions keep the PATH of the job.
if [ -n "${DLSPAWNER_PATH:-}" ]; then
    PATH=$DLSPAWNER_PATH
    export PATH
fi
