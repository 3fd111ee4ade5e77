"""HTTP: the caller, the request, and the form of the answer. Decisions are elsewhere (`registry`, `listing`,
`watching`).
"""

import hmac
import http
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler

from dlspawner.devcluster.api import bodies, discovery, errors, requests
from dlspawner.devcluster.api.errors import ApiError
from dlspawner.devcluster.api.listing import Lister, Page, encode_list
from dlspawner.devcluster.api.objects import tables
from dlspawner.devcluster.api.objects.resources import NAMESPACES, PODS, Target
from dlspawner.devcluster.api.registry import Registry
from dlspawner.devcluster.api.relay import Relay
from dlspawner.devcluster.api.store import Version, encode
from dlspawner.devcluster.api.watching import Bell, Watch, WatchOptions

log = logging.getLogger(__name__)

_OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")  # Kubernetes shows these to anonymous callers, too
_OPENAPI_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


class Api:
    """The base of all requests."""

    def __init__(self, registry: Registry, token: str, relay: Relay) -> None:
        self.registry = registry
        self.store = registry.store
        self.lister = Lister(self.store)
        self.bell = Bell(self.store)
        self.relay = relay
        self.token = token
        self.address = ""
        self.watches: set[Watch] = set()

    def stop(self) -> None:
        for watch in list(self.watches):
            watch.stop()


def application(api: Api) -> Application:
    return Application(
        [
            (r"/(healthz|livez|readyz)(?:/.*)?", HealthHandler, {"api": api}),
            (r"/(?:version|api|apis|api/v1|apis/[^/]+|apis/[^/]+/[^/]+)/?", DiscoveryHandler, {"api": api}),
            (r"/openapi/(v2|v3)(?:/(.*))?", OpenApiHandler, {"api": api}),
            (r"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", ReviewHandler, {"api": api}),
            (r"/api/.*|/apis/.*", ResourceHandler, {"api": api}),
            (r"/.*", UnknownHandler, {"api": api}),
        ],
        log_function=_log_request,
    )


def _log_request(handler: RequestHandler) -> None:
    request = handler.request
    took = request.request_time() * 1000
    log.debug("%s %s %d %.1fms", request.method, request.path, handler.get_status(), took)


class BaseHandler(RequestHandler):
    """Authentication, and errors as `Status` objects."""

    api: Api

    def initialize(self, api: Api) -> None:
        self.api = api

    def prepare(self) -> None:
        if self.request.path.startswith(_OPEN_PATHS):
            return
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            self.fail(self._anonymous())
        elif not hmac.compare_digest(token.strip().encode(), self.api.token.encode()):
            self.fail(errors.unauthorized())

    def _anonymous(self) -> ApiError:
        """A caller without credentials is anonymous and has no rights, as in Kubernetes."""
        try:
            target = requests.parse_path(self.request.path)
        except ApiError:
            return errors.forbidden_path((self.request.method or "").lower(), self.request.path)
        return errors.forbidden_user(target, requests.verb(self.request.method or "", target, self.query))

    def compute_etag(self) -> str | None:
        return None

    def set_default_headers(self) -> None:
        self.set_header("Server", "dlspawner-embedded")
        self.set_header("Cache-Control", "no-cache, private")

    def answer(self, body: bytes, code: int = 200, content_type: str = "application/json") -> None:
        self.set_status(code, http.HTTPStatus(code).phrase)
        self.set_header("Content-Type", content_type)
        self.finish(body)

    def fail(self, error: ApiError) -> None:
        self.answer(encode(error.status()), error.code)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answers all other errors; tornado has logged them with their tracebacks."""
        if status_code == 405:
            error = errors.method_not_allowed()
        else:
            error = errors.internal("the server could not answer; its log says why")
        self.fail(error)

    @property
    def query(self) -> Mapping[str, str]:
        return {name: values[-1].decode("utf-8", "replace") for name, values in self.request.query_arguments.items()}


class HealthHandler(BaseHandler):
    def get(self, _check: str) -> None:
        self.answer(b"ok", content_type="text/plain; charset=utf-8")


class UnknownHandler(BaseHandler):
    def get(self) -> None:
        self.fail(errors.unknown_path())

    post = put = patch = delete = get


class DiscoveryHandler(BaseHandler):
    def get(self) -> None:
        parts = self.request.path.strip("/").split("/")
        match parts:
            case ["version"]:
                found: Any = discovery.VERSION
            case ["api"]:
                found = discovery.core_versions(self.api.address)
            case ["apis"]:
                found = discovery.group_list()
            case ["api", version]:
                found = discovery.resource_list("", version)
            case ["apis", group]:
                found = discovery.group(group)
            case _:
                found = discovery.resource_list(parts[1], parts[2])
        if found is None:
            self.fail(errors.unknown_path())
        else:
            self.answer(encode(found))


class OpenApiHandler(BaseHandler):
    def get(self, version: str, root: str | None) -> None:
        if version == "v2":
            if "protobuf" in self.request.headers.get("Accept", ""):
                self.answer(discovery.openapi_v2_protobuf(), content_type=_OPENAPI_PROTOBUF)
            else:
                self.answer(encode(discovery.openapi_v2()))
            return
        found = discovery.openapi_v3(root) if root else discovery.openapi_v3_index()
        if found is None:
            self.fail(errors.unknown_path())
        else:
            self.answer(encode(found))


class ReviewHandler(BaseHandler):
    """May I? Yes: the token has all rights."""

    def post(self) -> None:
        try:
            review = bodies.decode(self.request.body, self.request.headers.get("Content-Type", ""))
        except ApiError:
            review = None  # newer kubectl asks in protobuf; the answer is the same
        kind = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
        spec = review.get("spec", {}) if isinstance(review, dict) else {}
        self.answer(encode(kind | {"metadata": {}, "spec": spec, "status": {"allowed": True}}), 201)


class ResourceHandler(BaseHandler):
    """Everything below `/api/v1` and `/apis/GROUP/VERSION`."""

    _watch: Watch | None = None

    async def _handle(self) -> None:
        try:
            target = requests.parse_path(self.request.path)
            if target.subresource in ("log", "exec"):
                await self._relay(target)
            elif self.request.method == "GET" and not target.name:
                await self._list_or_watch(target)
            else:
                self._respond(target, *self._act(target))
        except ApiError as error:
            self.fail(error)

    get = post = put = patch = delete = _handle

    def on_connection_close(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    @property
    def _content_type(self) -> str:
        return self.request.headers.get("Content-Type", "")

    def _body(self) -> Any:
        return bodies.decode(self.request.body, self._content_type)

    def _act(self, target: Target) -> tuple[int, Version | Page | bytes]:
        """One synchronous operation: the code and what to answer with."""
        registry, resource = self.api.registry, target.resource
        dry_run = bodies.is_dry_run(self.query)
        result: Version | Page | bytes
        match self.request.method, target.subresource:
            case "GET", "" | "status":
                self._require_reached(requests.resource_version(self.query))
                result = registry.get(resource, target.namespace, target.name)
            case "POST", "binding":
                body = bodies.named(self._body(), target.name, "Binding")
                registry.bind(target.namespace, target.name, bodies.binding(body))
                return 201, _success()
            case "POST", "eviction":
                return 201, self._evict(target)
            case "POST", "" if not target.name:
                return 201, registry.create(resource, target.namespace, self._body(), dry_run=dry_run)
            case "PUT", "" | "status" | "finalize" if target.name:
                result = registry.update(target, self._body(), dry_run=dry_run)
            case "PATCH", "" | "status" if target.name:
                change = bodies.decode_patch(self.request.body, self._content_type, resource)
                result = registry.patch(target, change, dry_run=dry_run)
            case "DELETE", "":
                result = self._delete(target)
            case _:
                raise errors.method_not_allowed()
        return 200, result

    def _evict(self, target: Target) -> bytes:
        body = bodies.named(self._body(), target.name, "Eviction")
        options = encode(body.get("deleteOptions") or {})
        deletion = bodies.delete_options(options, "", self.query)
        self.api.registry.delete(PODS, target.namespace, target.name, deletion)
        return _success()

    def _delete(self, target: Target) -> Version | Page | bytes:
        registry, resource = self.api.registry, target.resource
        options = bodies.delete_options(self.request.body, self._content_type, self.query)
        if not target.name:
            if resource is NAMESPACES:
                raise errors.method_not_allowed()
            page = self.api.lister.page(target, requests.parse_scope(target, self.query))
            for version in page.items:
                registry.delete(resource, version.namespace, version.name, options)
            return page
        version = registry.delete(resource, target.namespace, target.name, options)
        pending = "deletionTimestamp" in version.read()["metadata"] if options.dry_run else True
        if resource.returns_deleted or (pending and self.api.store.get(resource, *version.key) is not None):
            return version
        return _success({"name": target.name, "group": resource.group, "kind": resource.plural, "uid": version.uid})

    def _respond(self, target: Target, code: int, result: Version | Page | bytes) -> None:
        if isinstance(result, bytes):
            self.answer(result, code)
        elif requests.wants_table(self.request.headers.get("Accept", "")):
            page = result if isinstance(result, Page) else Page([result], result.revision)
            self.answer(encode(self._table(target, page)), code)
        elif isinstance(result, Page):
            self.answer(encode_list(target, result), code)
        else:
            self.answer(result.wire(), code)

    def _table(self, target: Target, page: Page) -> dict[str, Any]:
        include = self.query.get("includeObject", "Metadata")
        return tables.table(target.resource, page.items, page.metadata(), self.api.registry.now(), include)

    async def _list_or_watch(self, target: Target) -> None:
        query = self.query
        scope = requests.parse_scope(target, query)
        asked = requests.resource_version(query)
        requests.check_list_options(query)
        if requests.flag(query, "watch"):
            await self._stream(target, scope, asked)
            return
        self._require_reached(asked)
        limit = requests.number(query, "limit") or 0
        if query.get("resourceVersionMatch") == "Exact" and asked != self.api.store.revision:
            raise errors.expired("The resourceVersion for the provided list is too old.")
        self._respond(target, 200, self.api.lister.page(target, scope, limit, query.get("continue", "")))

    def _require_reached(self, asked: int | None) -> None:
        if asked is not None and asked > self.api.store.revision:
            raise errors.too_large_version(asked, self.api.store.revision)

    async def _stream(self, target: Target, scope: requests.Scope, asked: int | None) -> None:
        query = self.query
        initial = requests.flag(query, "sendInitialEvents")
        options = WatchOptions(
            start=None if initial or not asked else asked,
            bookmarks=requests.flag(query, "allowWatchBookmarks"),
            initial_events=initial,
            # Kubernetes spreads the ends of endless watches over half an hour.
            seconds=requests.number(query, "timeoutSeconds") or random.uniform(1800, 3600),  # noqa: S311 - no secret
        )
        table = requests.wants_table(self.request.headers.get("Accept", ""))
        render = self._row_renderer(target) if table else Version.wire
        wake = self.api.bell.listen(target.resource)
        watch = Watch(self.api.store, self.api.bell, target.resource, scope, options, render, wake)
        self._watch = watch
        self.api.watches.add(watch)
        try:
            self.set_header("Content-Type", "application/json")
            await self.flush()
            async for chunk in watch.events():
                self.write(chunk)
                await self.flush()
        except StreamClosedError:
            pass  # the client is gone: the ordinary end of a watch
        finally:
            self.api.bell.leave(target.resource, wake)
            self.api.watches.discard(watch)

    def _row_renderer(self, target: Target) -> Callable[[Version], bytes]:
        def render(version: Version) -> bytes:
            return encode(self._table(target, Page([version], version.revision)))

        return render

    async def _relay(self, target: Target) -> None:
        pod = self.api.registry.get(PODS, target.namespace, target.name)
        if target.subresource == "log":
            if self.request.method != "GET":
                raise errors.method_not_allowed()
            await self.api.relay.stream_log(self, pod, self.query)
        elif self.request.method in ("GET", "POST"):
            await self.api.relay.tunnel(self, pod, "exec")
        else:
            raise errors.method_not_allowed()


def _success(details: Mapping[str, str] | None = None) -> bytes:
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is None:
        return encode(status | {"code": 201})
    return encode(status | {"details": {name: value for name, value in details.items() if value}})
