"""GET static/PATH: the style sheet and scripts of the pages (`hub_static`), for everybody, as the Hub's own are."""

from __future__ import annotations

from dlspawner.manager.hub_static import static_files
from dlspawner.manager.web import NOTHING_HERE, HttpProblem, ManagerHandler

_FOREVER = "public, max-age=31536000, immutable"


class StaticHandler(ManagerHandler):
    """One file. Pages ask with its version, so that browsers keep it, and never an old one."""

    async def get(self, path: str) -> None:
        file = static_files().get(path)
        if file is None:
            raise HttpProblem(404, NOTHING_HERE)
        self.set_header("Content-Type", file.kind)
        self.set_header("Cache-Control", _FOREVER if self.get_query_argument("v", "") == file.version else "no-cache")
        self.finish(file.content)


STATIC_ROUTES = ((r"static/([\w@/.-]+)", StaticHandler),)
