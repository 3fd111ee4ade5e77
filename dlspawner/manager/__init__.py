"""The Hub service `jobs`: it keeps people's SSH keys and uids, and alone decides which job holds GPUs, waits or ends.

    app        the process: settings, HTTP server, start and stop
    identity   who is asking, and what that lets them do (the only user of HubOAuth)
    api        REST resources                     pages      what people see
    store      the only module that speaks SQL    schema     its tables    migrations/  how they came to be
    ssh_keys   PURE: what a public key is, and why something else is not

About jobs, from the question to the cluster; what is decided is `dlspawner.core`'s:

    jobs_api   the Hub's questions                    desk       their answers
    book       the world and its one writer           ledger     its SQL: jobs, events, the lease
    reconcile  the book and the cluster in agreement  acting     who of several Managers acts
    files      cluster.yaml and teams.yaml, read anew when they change
    queue      whose turn it is, over and over        starts     has the Hub start whose turn has come
    cancelling the end of a request, at every stage    on_servers PURE: which jobs a server has
    looks      why a job waits, and what would do     waiting_page, waiting_api    people and programs read it
    preempting who has to leave, with notice          stopping   stops that were decided, carried out
    notices    what people are told before it happens noticerows, notices_api, notices_page, notices_shown
    activity   how jobs are used, as far as known     gathering, gpu_metrics, prometheus, activityrows    from where
    culling    warns of jobs that are not used, and stops them    culling_words, idle_api
    strays     pods that must not be                  owners     pods whose server the Hub does not have
    records    PURE: a job with its pod               sight      PURE: what is seen of a pod

Parts, a package each, which know what is here and not each other (an import contract): rest, portal, logs, history,
approval, metrics. What they share about jobs:

    resource   of REST: the job of an address         portal_page    the same of pages
    query      PURE: filters, limits and cursors      job_words      PURE: sizes of jobs, and how they ended
    kept       PURE: what people are told of a job    approvals      PURE: requests for an approval

`app` imports all of them; handlers know `identity`, `store` and `desk`; the others know no HTTP.
"""
