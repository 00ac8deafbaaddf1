"""What several tests of the library are fed with."""

from __future__ import annotations

from typing import Any

from benchmarks.lab.model import Exchange, Tokens


def exchange(index: int = 0, **changes: Any) -> Exchange:
    """A streamed turn that was answered and cut nowhere, one a second; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "index": index, "dialect": "openai-chat", "method": "POST", "path": "/v1/chat/completions", "status": 200,
        "stream": True, "auxiliary": False, "model_asked": "m", "model_answered": "m", "request_bytes": 100,
        "request_digest": f"r{index}", "response_bytes": 10, "response_digest": "x", "prefix_shared": 0,
        "duplicate_of": None, "t_start": float(index), "t_request_end": float(index), "t_first_byte": index + 0.1,
        "t_first_token": index + 0.1, "t_first_answer": index + 0.1, "t_last_token": index + 0.5, "t_end": index + 0.5,
        "tokens": Tokens(), "tokens_source": None, "timings": None, "finish_reason": "stop", "cut_off": False,
        "output_cap": None, "sampler": {}, "calls": (), "calls_textual": 0, "user_text_digest": None,
        "prompt_found": True, "tools": ("bash",), "ended": "complete", "error": None, "error_kind": None,
        "rewritten": (), "partial": False,
    }  # fmt: skip
    return Exchange(**{**fields, **changes})
