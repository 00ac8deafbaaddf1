"""The table of scripts: each a pure function of the conversation, what the client offers, and the trial's context.

A script's step is the number of tool results in the conversation, so nothing is kept between requests and a request
that a client sends again is answered as before. Requests without tools (titles, summaries) never get here unless they
ask for an edit in aider's formats. What each script must lead to, with each client, stands in docs/verdicts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.lab.engines.base import TrialContext
from benchmarks.lab.engines.scripted import textual, toolbox
from benchmarks.lab.engines.scripted.talk import Call, Conversation, Reply

Script = Callable[[Conversation, TrialContext], Reply]

DONE: Final = "Done: the change is in place."
NO_TOOL: Final = "There is no tool here that I could use."


def solve(asked: Conversation, context: TrialContext) -> Reply:
    """Writes the original bodies back."""
    return _put(asked, context, context.solution)


def nop(asked: Conversation, context: TrialContext) -> Reply:
    """Says something and touches nothing."""
    return Reply(text="I looked at the task and have nothing to change.")


SCRIPTS: Final[Mapping[str, Script]] = {
    "solve": solve,
    "nop": nop,
}


def _put(asked: Conversation, context: TrialContext, files: Mapping[str, bytes], first: Sequence[str] = ()) -> Reply:
    """Run the commands `first`, then write `files`, by whatever the client offers; then end the turn."""
    if textual.edit_format(asked):
        return Reply(text=textual.edits(asked, files))
    shell, writer = toolbox.shell(asked.tools), toolbox.writer(asked.tools)
    calls: list[Call] = []
    if shell:
        commands = [
            *first,
            *(command for path, content in files.items() for command in toolbox.put_file(path, content)),
        ]
        calls = [toolbox.run(shell, command) for command in commands]
    elif writer:
        texts = {path: content.decode("utf-8", "replace") for path, content in files.items()}
        calls = [toolbox.write(writer, context.workspace, path, text) for path, text in texts.items()]
    else:
        return Reply(text=NO_TOOL)
    return Reply(calls=(calls[asked.results],)) if asked.results < len(calls) else Reply(text=DONE)
