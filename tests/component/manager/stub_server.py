"""A server for the Hub to spawn in no time: leaves the token it got in a file, and answers everything with 200."""

import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


url = urlsplit(os.environ["JUPYTERHUB_SERVICE_URL"])
name = os.environ["JUPYTERHUB_SERVER_NAME"] or "default"
Path(os.environ["STUB_TOKENS"], f"{os.environ['JUPYTERHUB_USER']}-{name}").write_text(
    os.environ["JUPYTERHUB_API_TOKEN"]
)
HTTPServer((url.hostname or "127.0.0.1", url.port or 0), Answer).serve_forever()
