"""The SSH gateway: one port through which users reach the sshd of their own jobs, and nothing else.

    core/       PURE: packets, routing, proofs, certificates, addresses, log lines
    transport/  asyncssh's connections and everything that relies on its private names
    backends/   the Hub, the Manager and the cluster: users, jobs, activity
    auth/       rate limits, trusted CAs and revocations, revalidation of open sessions
    session/    login, session, relay, terminals, autostart, shutdown
    accept      a new TCP connection      server   what connections share      app   settings, start, stop

A connection passes accept -> login -> session -> upstream (the job's sshd) -> relay.
"""
