"""A small server that answers as a real one was seen to."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str, str]  # status, content type, body
Routes = Mapping[str, Any]  # path -> JSON value, or a function that gives an Answer


@contextlib.contextmanager
def fake(routes: Routes) -> Iterator[str]:
    """A server that answers these paths, and 404 with a JSON error to all others; yields its base URL."""

    class Fake(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            found = routes.get(self.path, lambda: (404, "application/json", '{"error": "not found"}'))
            status, kind, body = found() if callable(found) else (200, "application/json", json.dumps(found))
            data = body.encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
