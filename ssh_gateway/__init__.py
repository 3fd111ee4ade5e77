"""The SSH gateway: one port through which users reach the sshd of their own jobs, and nothing else.

A connection passes accept -> login -> session -> upstream (the job's sshd) -> relay.
"""
