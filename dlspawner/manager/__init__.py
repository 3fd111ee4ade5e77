"""The Hub service `jobs`: today it keeps people's SSH keys, later it alone decides which job may hold GPUs.

    app        the process: settings, HTTP server, start and stop
    identity   who is asking, and what that lets them do (the only user of HubOAuth)
    api        REST resources                     pages      what people see
    store      the only module that speaks SQL    schema     its tables    migrations/  how they came to be
    ssh_keys   PURE: what a public key is, and why something else is not

`app` imports all of them; handlers know `identity` and `store`; `store` and `ssh_keys` know no HTTP.
"""
