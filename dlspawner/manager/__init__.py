"""The Hub service `jobs`: stores users' SSH keys and uids, and alone decides which job holds GPUs, waits or ends."""
