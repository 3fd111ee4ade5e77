"""The Hub service `jobs`: stores users' SSH keys and uids, and alone decides which job holds GPUs, waits or ends.

Layers, each of which imports only those above it:

    model        PURE values: a job's record, event reasons, notices, approval requests, access rights
    db           the only folder that speaks SQL: tables, migrations, statements
    state        job_store (the cluster state and its single writer), lifecycle (every transition of a job), notices,
                 event_bus, metrics, config_reload
    admission    service (admission requests), scheduler, dispatcher, preemption, approvals, explain, estimator
    cluster      reconciler (nodes and pods), pod_view, termination (stops and cancels), orphans
    culling      evidence of use, and the stop of idle jobs
    logs         logs and events of pods
    history      GPU-hours
    controllers  leader: the lease, and the tasks of a term
    http         handlers and authentication; api (REST), portal (pages)
    server, app  routes, traits, the process

What is decided is `dlspawner.core.scheduling`'s.
"""
