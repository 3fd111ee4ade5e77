"""A reverse proxy that counts what one client asks of an API server: `python -m tests.bench.counting PORT`.

It takes plain HTTP on the loopback address and speaks to the server of $KUBECONFIG with that file's credentials. What
it has counted since the last time is the answer to /counts.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter

from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from kubernetes_asyncio import client, config

Counts = Counter[str]


class Proxy:
    """Requests by method, bytes of answers by watch, list and the rest."""

    def __init__(self, session: ClientSession, server: str, headers: dict[str, str]) -> None:
        self.session, self.server, self.headers = session, server, headers
        self.counts: Counts = Counter()

    async def counted(self, _request: web.Request) -> web.Response:
        counts, self.counts = self.counts, Counter()
        return web.json_response(counts)

    async def relay(self, request: web.Request) -> web.StreamResponse:
        kind = self._kind(request)
        self.counts[f"requests {kind}"] += 1
        kept = {name: value for name, value in request.headers.items() if name in ("Content-Type", "Accept")}
        async with self.session.request(
            request.method,
            f"{self.server}{request.path_qs}",
            data=await request.read(),
            headers={**kept, **self.headers},
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                self.counts[f"bytes {kind}"] += len(chunk)
                await response.write(chunk)
            return response

    @staticmethod
    def _kind(request: web.Request) -> str:
        if request.method != "GET":
            return request.method
        if request.query.get("watch"):
            return "WATCH"
        return "LIST" if request.path.rsplit("/", 1)[-1] in ("pods", "events") else "GET"


async def main(port: int) -> None:
    configuration = client.Configuration()
    await config.load_kube_config(os.environ["KUBECONFIG"], client_configuration=configuration)
    async with client.ApiClient(configuration) as upstream:
        connector: TCPConnector = upstream.rest_client.pool_manager.connector
        token = configuration.api_key.get("BearerToken") or configuration.api_key.get("authorization") or ""
        headers = {"Authorization": token} if token else {}
        session = ClientSession(connector=connector, timeout=ClientTimeout(total=None), connector_owner=False)
        proxy = Proxy(session, configuration.host, headers)
        application = web.Application(client_max_size=1 << 26)
        application.router.add_get("/counts", proxy.counted)
        application.router.add_route("*", "/{path:.*}", proxy.relay)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print("counts", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
