"""Conformance, before machine time is spent: does this client work under this harness?

The client is asked against the scripted engine, where every answer is known: it must start in the folder it was given
(proven by a file it is made to write), pass the prompt on byte for byte, make one tool call round, and end as it says.
Whether it can work with a given engine is asked in `pairs`; whether a model is any good is not asked before the trials.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.lab import checkout, session, tally
from benchmarks.lab.engines.base import TrialContext
from benchmarks.lab.model import Budgets
from benchmarks.lab.rows import SmokeRow

# Quotes, a backslash, a line end and non-ASCII: what command lines and templates were seen to mangle (field case B08).
PROMPT: Final = 'Make the file "{nonce}" in the current folder.\nIts text: `pwd`, not $PWD. \\ Grüße, 你好.\n'
FILE: Final = "notes.txt"
BUDGETS: Final = Budgets(wall_seconds=120.0, stall_seconds=60.0, turns=10)


def check_client(rig: session.Rig, work: Path, evidence: Path, readonly: Sequence[Path]) -> tuple[SmokeRow, ...]:
    """Run the client once against the scripted engine of `rig`; one row per thing that was checked."""
    nonce = f"nonce-{secrets.token_hex(6)}.txt"
    workspace, home = work / "probe repository", work / "home"
    for folder in (workspace, home, evidence):
        folder.mkdir(parents=True)
    (workspace / FILE).write_text("A file for the client to know.\n", encoding="utf-8")
    checkout.commit_all(workspace)
    brief = session.Brief(
        trial_id=f"smoke-{uuid.uuid4().hex[:12]}",
        session_id=str(uuid.uuid4()),
        prompt=PROMPT.format(nonce=nonce),
        workspace=workspace,
        home=home,
        evidence=evidence,
        files=(FILE,),
        readonly=tuple(readonly),
        budgets=BUDGETS,
        context=TrialContext(script="nonce", files=(FILE,), nonce=nonce),
    )
    begin = time.monotonic()
    seen = session.run(rig, brief, session.Interrupts())
    return _rows(rig, seen, workspace / nonce, time.monotonic() - begin)


def _rows(rig: session.Rig, seen: session.Session, nonce: Path, seconds: float) -> tuple[SmokeRow, ...]:
    calls = tally.model_calls(seen.exchanges)
    turns = [call for call in calls if not call.auxiliary]
    found = nonce.read_text(encoding="utf-8").strip() if nonce.is_file() else None
    placed = found is not None and (not rig.client.tool_loop or found == seen.workspace)
    asked = {call.model_asked for call in calls if call.model_asked}
    checks = (
        (
            "starts_where_told",
            placed,
            f"the file is {'there' if nonce.is_file() else 'missing'} in {seen.workspace}, its text is {found!r}",
        ),
        (
            "prompt_intact",
            bool(turns) and turns[0].prompt_found is not False,
            f"{len(turns)} turns; prompt found: {turns[0].prompt_found if turns else None}",
        ),
        (
            "tool_round_trip",
            len(turns) >= (2 if rig.client.tool_loop else 1) and placed,
            f"{len(turns)} turns, {sum(len(call.calls) for call in turns)} tool calls",
        ),
        ("only_the_model_asked", asked <= {rig.endpoint.model}, f"asked for {', '.join(sorted(asked)) or 'nothing'}"),
        (
            "ends_by_itself",
            seen.exit.ended_by == "client" and seen.report.terminal != "error",
            f"ended by {seen.exit.ended_by}, code {seen.exit.code}, says {seen.report.terminal}: {seen.report.error}",
        ),
        ("leaves_nothing", not seen.strays, f"{len(seen.strays)} processes had to be ended"),
    )
    return tuple(
        SmokeRow(
            check=name,
            party="client",
            client=rig.client.name,
            client_version=rig.installation.version,
            outcome="ok" if ok else "failed",
            detail=detail,
            seconds=round(seconds, 3),
        )
        for name, ok, detail in checks
    )
