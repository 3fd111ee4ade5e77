"""The SSH gateway: one port through which people reach the sshd of their own jobs, and nothing else.

    app        the process: settings, start, signals, stop       keys      its host key and user CA
    server     what visitors share, and the end of everything    activity  telling the Hub that a job is used
    gate       a new connection, judged by its address           proxied    PURE: whose it is, by a balancer's word
    listening  the sockets                                       penalties  PURE: what failed logins cost
    visitor    one client until something is proven              access    PURE: who may in
    visit      one person afterwards: a shell, or ``ssh -J``     routing   PURE: where a login leads
    pod        the way into a job's sshd                         packets   PURE: what is read in a relayed packet
    proxy      the relay between the two legs                    logs      one line per event
    directory  the Hub and the Manager                           wire      all that is private to asyncssh
    rechecks   everybody inside is checked again             standing  PURE: who may stay
    algorithms what is offered and taken
    ciphers    the gateway's own, for data                    buffers   what all connections share
    authorities whose certificates count                     certificates PURE: what one lets in
    sessions   telling the Manager who is in which job           drain     what is said when it stops
    audit      PURE: what packets say for the log
    revocations certificates that were taken back             watched    files that are read again
    recorder   which terminals of a connection are recorded  asciicast PURE: how a recording is written
    recordings their folder and files                        files     what is read and written beside its keys
    health     what probes are answered                          meters    what a Prometheus reads
    workers    several processes behind one port                 worker    one of them
    channel    between the two                                   together  PURE: what workers count together
    settings   which of them are wrong                       door      what the leg asks of a visitor
    places     where jobs are, of the cluster                starts    starting one for who logs in
    notices    what the Manager has to say to people         hand      a thread for what may hang
    kept       PURE: what waits for the pod                  pulse     PURE: whether a worker lives

`app` makes a `Server`; the server's legs make `Visitor`s; a proof makes a `Visit`, which joins two legs in a `Relay`.
"""
