"""The addresses of the parts that are one module each, as patterns below the service's prefix."""

from __future__ import annotations

from dlspawner.manager import api, idle_api, jobs_api, notices_api, notices_page, pages, waiting_api, waiting_page, web

_NUMBER, _NAME = r"(\d{1,9})", r"([^/]*)"

ROUTES: web.Routes = (
    ("health", api.Health),
    ("ready", api.Ready),
    ("oauth_callback", pages.LoginDone),
    ("keys", pages.KeysPage),
    (f"keys/{_NUMBER}/remove", pages.RemoveKey),
    (f"keys/suggestions/{_NUMBER}/import", pages.ImportSuggestion),
    ("keys/start-on-connect", pages.StartOnConnect),
    ("api/keys", api.MyKeys),
    (f"api/keys/{_NUMBER}", api.MyKey),
    ("api/key-suggestions", api.KeySuggestions),
    (f"api/users/{_NAME}/keys", api.UserKeys),
    (f"api/users/{_NAME}/keys/{_NUMBER}/used", api.KeyUsed),
    (f"api/users/{_NAME}/account", api.Account),
    ("notices", notices_page.Notices),
    (r"notices/([0-9a-f]{16})/keep", notices_page.Keep),
    ("api/notices", notices_api.Notices),
    (r"api/notices/([0-9a-f]{16})/seen", notices_api.Seen),
    (r"api/notices/([0-9a-f]{16})/keep", notices_api.Keep),
    (f"api/users/{_NAME}/notices", notices_api.UserNotices),
    (r"api/jobs/(j-[a-z2-7]{12})/released", jobs_api.Released),
    (r"api/jobs/(j-[a-z2-7]{12})/ending", jobs_api.Ending),
    (f"api/users/{_NAME}/waiting", jobs_api.Waiting),
    (f"api/users/{_NAME}/starting", jobs_api.Starting),
    (f"api/users/{_NAME}/interrupted", jobs_api.Interrupted),
    (f"api/wait/{_NAME}/{_NAME}", waiting_api.Wait),
    (f"wait/{_NAME}/{_NAME}", waiting_page.WaitPage),
    (f"wait/{_NAME}/{_NAME}/cancel", waiting_page.Cancel),
    (f"wait/{_NAME}/{_NAME}/go-on", waiting_page.GoOn),
    (r"api/jobs/(j-[a-z2-7]{12})/keep-alive", idle_api.KeepAlive),
    ("api/kernels", idle_api.Kernels),
    ("api/ssh-sessions", idle_api.SshSessions),
    ("api/idle", idle_api.Idle),
)
