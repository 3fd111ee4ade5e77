# Sourced by /etc/profile, which has just reset PATH: terminals and SSH sessions keep the PATH of the job.
if [ -n "${DLSPAWNER_PATH:-}" ]; then
    PATH=$DLSPAWNER_PATH
    export PATH
fi
