from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lab.model import Budgets, Order, Verdict
from benchmarks.lab.schedule import MAX_VOID_RERUNS, Cell, Plan, Slot, given_up, owed, plan_digest, slots

A, B = Cell(backend="e", client="a"), Cell(backend="e", client="b")


def plan(trials: int = 2, order: Order = "interleaved", tasks: tuple[str, ...] = ("t1", "t2")) -> Plan:
    return Plan(
        suite="s", suite_digest="d", tasks=tasks, cells=(A, B), trials=trials, order=order,
        isolation="bwrap", budgets={1: Budgets()}, backends_digest="l", code_digest=None, smoke=True,
    )  # fmt: skip


def test_B48_interleaved_cells_take_turns_and_the_order_is_counterbalanced() -> None:
    clients = [slot.client for slot in slots(plan())]
    assert clients == ["a", "b", "b", "a", "b", "a", "a", "b"]


def test_blocked_runs_one_cell_after_the_other() -> None:
    assert [slot.client for slot in slots(plan(order="blocked"))] == ["a"] * 4 + ["b"] * 4


@given(st.integers(1, 5), st.integers(1, 6), st.sampled_from(["interleaved", "blocked"]))
def test_every_slot_is_there_once(trials: int, tasks: int, order: Order) -> None:
    found = slots(plan(trials, order, tuple(f"t{n}" for n in range(tasks))))
    assert len(set(found)) == len(found) == trials * tasks * 2
    assert set(Counter(slot.cell for slot in found).values()) == {trials * tasks}


def test_nothing_done_owes_everything_and_all_settled_owes_nothing() -> None:
    order = slots(plan())
    assert owed(order, []) == order
    assert owed(order, [(slot, "failed") for slot in order]) == ()


def test_void_slots_come_again_last_and_at_most_twice() -> None:
    order = slots(plan())
    first = order[0]
    assert owed(order, [(first, "void")]) == (*order[1:], first)
    done: list[tuple[Slot, Verdict]] = [(slot, "passed") for slot in order[1:]]
    assert owed(order, [*done, *[(first, "void")] * MAX_VOID_RERUNS]) == (first,)  # type: ignore[list-item]
    assert owed(order, [*done, *[(first, "void")] * (MAX_VOID_RERUNS + 1)]) == ()  # type: ignore[list-item]
    assert owed(order, [*done, (first, "void"), (first, "passed")]) == ()
    assert owed(order, [*done, (first, "void")], reruns=0) == ()


def test_case_17_a_changed_task_file_is_another_plan() -> None:
    changed = Plan(**{**{f: getattr(plan(), f) for f in plan().__struct_fields__}, "suite_digest": "other"})
    assert plan_digest(changed) != plan_digest(plan())
    assert plan_digest(plan()) == plan_digest(plan())


@given(st.data())
def test_what_is_counted_owed_and_given_up_makes_the_plan(data: st.DataObject) -> None:
    every = slots(plan())
    done: list[tuple[Slot, Verdict]] = data.draw(
        st.lists(st.tuples(st.sampled_from(every), st.sampled_from(["passed", "failed", "void"])), unique=True)
    )
    able = [slot for slot in every if slot.task in data.draw(st.sampled_from([("t1",), ("t1", "t2"), ()]))]
    still = owed(able, done)
    counted = {slot for slot, verdict in done if verdict != "void"}
    assert len(counted) + len(still) + given_up(every, still, done) == len(every)
    assert given_up(every, still, done) >= 0


def test_what_is_left_out_after_it_was_counted_is_not_given_up() -> None:
    every = slots(plan())
    done: list[tuple[Slot, Verdict]] = [(slot, "passed") for slot in every if slot.task == "t1"]
    assert given_up(every, (), done) == sum(slot.task == "t2" for slot in every)
