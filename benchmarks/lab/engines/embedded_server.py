"""The child process of the `embedded` engine: the llama.cpp server inside the wheel `xllamacpp`.

Reads one JSON line of settings from standard input, loads the model, writes one JSON line (`base_url` or `error`) to
standard output, and serves until standard input ends: so it dies with its parent however that dies. All of llama.cpp's
own output goes to standard error. Started as `python -m benchmarks.lab.engines.embedded_server`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    """Serve until the parent closes our standard input."""
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    server: Any = None
    try:
        server = _start(settings)
        answer = {"base_url": server.listening_address}
    except Exception as error:  # whatever the wheel raises becomes one sentence in the parent
        answer = {"error": f"{type(error).__name__}: {error}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
    if "error" in answer:
        return 1
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)  # the server's own clean-up waits for requests under way


def _start(settings: dict[str, Any]) -> Any:
    """The server, loaded and listening. `settings`: see `embedded.settings_of`."""
    import xllamacpp  # noqa: PLC0415 - heavy, and only this process may load it

    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    params.model_alias = {settings["alias"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = True
    params.use_jinja = True
    params.ui = False
    params.fit_params = False  # it would shrink the context in silence
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["context"] * settings["slots"]  # the server divides it between its slots
    for name, value in settings["params"].items():
        setattr(params, name, value)
    for name, value in settings["sampling"].items():
        setattr(params.sampling, name, value)
    if settings["threads"]:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    return xllamacpp.Server(params)


def _die_with_parent() -> None:
    """On Linux the kernel also kills us when the parent is killed before it wrote a line."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
