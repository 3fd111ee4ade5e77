"""The addresses of the parts that are one module each, as patterns below the service's prefix."""

from __future__ import annotations

from dlspawner.manager import api, idle_api, jobs_api, notices_api, notices_page, pages, waiting_api, waiting_page, web

_NUMBER, _NAME = r"(\d{1,9})", r"([^/]*)"

BASE_ROUTES: web.Routes = (
    ("health", api.HealthHandler),
    ("ready", api.ReadyHandler),
    ("oauth_callback", pages.OAuthCallbackPage),
    ("keys", pages.KeysPage),
    (f"keys/{_NUMBER}/remove", pages.RemoveKeyButton),
    (f"keys/suggestions/{_NUMBER}/import", pages.ImportSuggestionButton),
    ("keys/start-on-connect", pages.StartOnConnectButton),
    ("api/keys", api.OwnKeysHandler),
    (f"api/keys/{_NUMBER}", api.OwnKeyHandler),
    ("api/key-suggestions", api.KeySuggestionsHandler),
    (f"api/users/{_NAME}/keys", api.UserKeysHandler),
    (f"api/users/{_NAME}/keys/{_NUMBER}/used", api.KeyUsedHandler),
    (f"api/users/{_NAME}/account", api.UnixAccountHandler),
    ("notices", notices_page.NoticesPage),
    (r"notices/([0-9a-f]{16})/keep", notices_page.KeepAliveButton),
    ("api/notices", notices_api.NoticesHandler),
    (r"api/notices/([0-9a-f]{16})/seen", notices_api.NoticeReadHandler),
    (r"api/notices/([0-9a-f]{16})/keep", notices_api.NoticeKeepAliveHandler),
    (f"api/users/{_NAME}/notices", notices_api.UserNoticesHandler),
    (r"api/jobs/(j-[a-z2-7]{12})/released", jobs_api.ReservationReleasedHandler),
    (r"api/jobs/(j-[a-z2-7]{12})/ending", jobs_api.StopReasonHandler),
    (f"api/users/{_NAME}/waiting", jobs_api.PendingJobsHandler),
    (f"api/users/{_NAME}/starting", jobs_api.PrepareStartHandler),
    (f"api/users/{_NAME}/interrupted", jobs_api.StartInterruptedHandler),
    (f"api/wait/{_NAME}/{_NAME}", waiting_api.PendingJobHandler),
    (f"wait/{_NAME}/{_NAME}", waiting_page.PendingPage),
    (f"wait/{_NAME}/{_NAME}/cancel", waiting_page.CancelButton),
    (f"wait/{_NAME}/{_NAME}/go-on", waiting_page.StartAgainButton),
    (r"api/jobs/(j-[a-z2-7]{12})/keep-alive", idle_api.KeepAliveHandler),
    ("api/kernels", idle_api.KernelReportHandler),
    ("api/ssh-sessions", idle_api.SshSessionReportHandler),
    ("api/idle", idle_api.CullReportHandler),
)
