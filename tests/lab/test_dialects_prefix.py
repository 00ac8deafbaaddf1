"""What the prefix analyser says of two requests of one conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.lab.dialects import DIALECTS
from benchmarks.lab.dialects.prefix import cache_fault, cost_seconds, diverge, lost_tokens, reread_tokens
from benchmarks.lab.model import Tokens

MESSAGES = DIALECTS["anthropic-messages"]
CHAT = DIALECTS["openai-chat"]
RESPONSES = DIALECTS["openai-responses"]
RULES = "You are a careful programmer. " * 200


def claude(cch: str, *turns: dict[str, Any]) -> bytes:
    system = [
        {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={cch};"},
        {"type": "text", "text": RULES, "cache_control": {"type": "ephemeral"}},
    ]
    messages = [{"role": "user", "content": "fix it"}, *turns]
    return json.dumps({"system": system, "model": "m", "tools": [{"name": "Bash"}], "messages": messages}).encode()


def chat(*turns: dict[str, Any], system: str = RULES) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "system", "content": system}, *turns]}).encode()


USER = {"role": "user", "content": "fix it"}


def test_B09_a_hash_that_changes_per_request_is_named_with_its_cure() -> None:
    found = diverge(MESSAGES, claude("a1b2"), claude("c3d4"))
    assert (found.kind, found.where) == ("cache_buster", "system[0]")
    assert found.byte == claude("a1b2").index(b"a1b2")
    assert found.cure is not None
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in found.cure


def test_case_22_a_changing_first_line_costs_nearly_the_whole_prefill() -> None:
    answer = {"role": "assistant", "content": [{"type": "text", "text": "done"}]}
    found = diverge(MESSAGES, claude("a1b2"), claude("c3d4", answer))
    later = Tokens(prompt_total=1100, prompt_cached=10, prompt_new=1090)
    assert found.kind == "cache_buster"
    # Only the hash itself is not read again.
    assert found.shared + found.again == found.earlier - len("a1b2")
    reread = reread_tokens(found, Tokens(prompt_total=1000), later)
    assert reread == 1000 - 10 - round(1000 * len("a1b2") / found.earlier)
    assert cost_seconds(reread, later, prefill_seconds=50.0) == 50.0 * reread / 1090
    assert lost_tokens(found, Tokens(prompt_total=1000)) == round(1000 * found.lost / found.earlier)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (Tokens(), Tokens(prompt_total=9, prompt_cached=0, prompt_new=9)),
        (Tokens(prompt_total=9), Tokens(prompt_total=9)),
    ],
)
def test_B30_what_no_engine_told_was_not_zero_tokens_read_again(earlier: Tokens, later: Tokens) -> None:
    found = diverge(CHAT, chat(USER), chat(USER, USER))
    assert reread_tokens(found, earlier, later) is None
    assert cost_seconds(None, later, prefill_seconds=5.0) is None


def test_case_22_a_time_in_a_chat_system_message_is_a_cache_buster() -> None:
    one, two = (chat(USER, system=f"Now {t}. {RULES}") for t in ("12:00:01", "12:00:09"))
    found = diverge(CHAT, one, two)
    assert (found.kind, found.where) == ("cache_buster", "messages[0]")
    assert found.cure == "take the date or time out of the client's system prompt"


def test_a_conversation_that_only_grows_is_no_divergence() -> None:
    found = diverge(CHAT, chat(USER), chat(USER, {"role": "assistant", "content": "ok"}, USER))
    assert (found.kind, found.where, found.lost) == ("extends", None, 0)
    assert found.shared == found.earlier


def test_a_moved_cache_mark_is_no_divergence() -> None:
    plain = json.loads(claude("x"))
    plain["system"][1].pop("cache_control")
    assert diverge(MESSAGES, claude("x"), json.dumps(plain).encode()).kind == "extends"


def test_a_compacted_conversation_is_the_clients_change() -> None:
    long = chat(USER, {"role": "assistant", "content": "a" * 9000}, USER)
    found = diverge(CHAT, long, chat({"role": "user", "content": "summary of what happened"}))
    assert (found.kind, found.where) == ("client_prefix_change", "messages[1]")


def test_a_shortened_conversation_loses_its_end() -> None:
    found = diverge(CHAT, chat(USER, {"role": "assistant", "content": "a"}), chat(USER))
    assert (found.kind, found.where) == ("client_prefix_change", "messages[2]")


def test_B35_reasoning_left_out_of_the_history_is_seen() -> None:
    thinking = {"role": "assistant", "content": "ok", "reasoning_content": "hmm " * 500}
    without = {"role": "assistant", "content": "ok"}
    found = diverge(CHAT, chat(USER, thinking, USER), chat(USER, without, USER, without))
    assert (found.kind, found.where) == ("reasoning_dropped", "messages[2]")


def test_B35_reasoning_received_and_not_sent_back_is_seen_with_its_tokens() -> None:
    earlier = chat(USER)
    found = diverge(CHAT, earlier, chat(USER, {"role": "assistant", "content": "ok"}, USER), reasoning=2000)
    assert (found.kind, found.where, found.lost) == ("reasoning_dropped", "messages[2]", 2000)
    assert lost_tokens(found, Tokens(prompt_total=1500)) == round(1500 * 2000 / found.earlier)


def test_B35_reasoning_that_is_sent_back_is_fine() -> None:
    kept = {"role": "assistant", "content": "ok", "reasoning_content": "hmm"}
    assert diverge(CHAT, chat(USER), chat(USER, kept), reasoning=3).kind == "extends"
    block = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hmm", "signature": "s"}]}
    assert diverge(MESSAGES, claude("x"), claude("x", block), reasoning=3).kind == "extends"


THOUSAND = Tokens(prompt_total=1000)


def test_B34_an_equal_prefix_that_was_read_again_is_the_engines_miss() -> None:
    found = diverge(CHAT, chat(USER), chat(USER, USER))
    missed = Tokens(prompt_total=1200, prompt_cached=0, prompt_new=1200)
    assert cache_fault(found, THOUSAND, missed) == "engine_cache_miss"
    assert reread_tokens(found, THOUSAND, missed) == 1000
    assert cost_seconds(1000, missed, prefill_seconds=6.0) == 5.0
    assert cache_fault(found, THOUSAND, Tokens(prompt_total=1200, prompt_cached=990)) is None


def test_B34_what_a_long_tool_result_adds_could_not_be_in_the_cache() -> None:
    found = diverge(CHAT, chat(USER), chat(USER, {"role": "tool", "content": "x" * 90_000}))
    grown = Tokens(prompt_total=6000, prompt_cached=1000, prompt_new=5000)
    assert cache_fault(found, THOUSAND, grown) is None
    assert reread_tokens(found, THOUSAND, grown) == 0


def test_B34_a_changed_prefix_is_the_clients() -> None:
    found = diverge(MESSAGES, claude("a1b2"), claude("c3d4"))
    assert cache_fault(found, THOUSAND, Tokens(prompt_total=1000, prompt_cached=0)) == "client_prefix_change"


def test_text_that_left_the_conversation_is_not_read_again() -> None:
    long = chat(USER, {"role": "assistant", "content": "a" * 9000}, USER)
    found = diverge(CHAT, long, chat({"role": "user", "content": "summary of what happened"}))
    shorter = Tokens(prompt_total=700, prompt_cached=0, prompt_new=700)
    assert reread_tokens(found, THOUSAND, shorter) == round(1000 * (found.shared + found.again) / found.earlier) < 500


def test_B34_without_a_cached_count_nobody_is_blamed() -> None:
    assert cache_fault(diverge(CHAT, chat(USER), chat(USER)), THOUSAND, Tokens(prompt_total=1000)) is None


def test_responses_input_is_compared_behind_instructions_and_tools() -> None:
    def codex(*items: dict[str, Any]) -> bytes:
        return json.dumps({"input": list(items), "instructions": RULES, "tools": [{"name": "shell"}]}).encode()

    first = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix"}]}
    assert diverge(RESPONSES, codex(first), codex(first, first)).kind == "extends"
    assert diverge(RESPONSES, codex(first, first), codex(USER, first)).where == "input[0]"
