"""The SSH gateway: one port through which people reach the sshd of their own jobs, and nothing else."""
