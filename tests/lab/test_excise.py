"""Bodies go, every other byte stays, and what cannot be taken out is refused in a sentence."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.lab.errors import UsageError
from benchmarks.lab.excise import Excised, candidate_lines, distinctive_lines, excise, language_of

FAIL = b"raise NotImplementedError"


def cut(source: str | bytes, *symbols: str) -> Excised:
    text = textwrap.dedent(source).encode() if isinstance(source, str) else source
    return excise(text, "python", symbols, "pkg/mod.py")


def test_signature_decorators_annotations_and_docstring_stay() -> None:
    before = '''
    @decorated(1,
               2)
    async def f(a: int = 3, *rest: "str") -> None:  # kept
        """Doc.

        More."""
        # gone
        await a

        return None  # gone too
    after = 1
    '''
    after = '''
    @decorated(1,
               2)
    async def f(a: int = 3, *rest: "str") -> None:  # kept
        """Doc.

        More."""
        raise NotImplementedError
    after = 1
    '''
    excised = cut(before, "f")
    assert excised.text == textwrap.dedent(after).encode()
    assert excised.removed_lines == 4
    assert b"await a" in excised.bodies[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"def f(): return 1\n", b"def f(): raise NotImplementedError\n"),
        (b"def f(): return 1; return 2  # why", b"def f(): raise NotImplementedError"),
        (b'def f(): "doc"; return 1\n', b'def f(): "doc"; raise NotImplementedError\n'),
        (b"def f():\r\n\treturn 1\r\n\r\nx = 1\r\n", b"def f():\r\n\traise NotImplementedError\r\n\r\nx = 1\r\n"),
        (b"\xef\xbb\xbfdef f():\n  return 1\n", b"\xef\xbb\xbfdef f():\n  raise NotImplementedError\n"),
        (
            b"# coding: latin-1\nx = '\xe9'\ndef f(a='\xe9'):\n  return '\xe9'\ny = '\xe9'",
            b"# coding: latin-1\nx = '\xe9'\ndef f(a='\xe9'):\n  raise NotImplementedError\ny = '\xe9'",
        ),
        (b"def f(): \\\n    return 1\n", b"def f(): \\\n    raise NotImplementedError\n"),
        (b"def f():\n    b'bytes are no docstring'\n    return 1\n", b"def f():\n    raise NotImplementedError\n"),
        (
            b"def f():\n    return 1\n    # gone\n\n    # gone\n\n# kept\n",
            b"def f():\n    raise NotImplementedError\n\n# kept\n",
        ),
        (b"def f():\n    return '''\nx\n  '''\n", b"def f():\n    raise NotImplementedError\n"),
    ],
)
def test_case_9_every_byte_outside_the_body_stays(before: bytes, after: bytes) -> None:
    assert cut(before, "f").text == after


def test_methods_and_inner_functions_are_named_by_dots() -> None:
    source = """
    class A:
        def m(self):
            return 1
        class B:
            def m(self):
                return 2
    def outer():
        def inner():
            return 3
        return inner
    """
    text = cut(source, "A.B.m", "outer.inner").text.decode()
    assert "return 1" in text
    assert "return inner" in text
    assert "return 2" not in text
    assert "return 3" not in text


def test_a_class_stands_for_its_methods_and_a_star_for_the_file() -> None:
    source = b"class A:\n  x = 1\n  def m(self): return 1\n  def n(self): return 2\ndef f(): return 3\n"
    assert cut(source, "A").text.count(FAIL) == 2
    assert cut(source, "*").text.count(FAIL) == 3
    assert len(cut(source, "*").bodies) == 3


@pytest.mark.parametrize(
    ("source", "symbol", "says"),
    [
        ("def slugify(): pass\n", "slugfy", 'mod.py: symbol "slugfy" is not defined there (did you mean "slugify"?)'),
        ("class A:\n  def m(self): return 1\n", "m", 'did you mean "A.m"?'),
        ("def f(): return 1\ndef f(): return 2\n", "f", 'symbol "f" is ambiguous, it is defined on lines 1, 2'),
        ("@overload\ndef f(a: int): ...\n@overload\ndef f(a: str): ...\ndef f(a): return a\n", "f", "ambiguous"),
        ("def f(): ...\n", "f", 'symbol "f" has no body to take out'),
        ('def f():\n  "Only a docstring."\n', "f", 'symbol "f" has no body to take out'),
    ],
)
def test_a_symbol_that_cannot_be_taken_out_is_named(source: str, symbol: str, says: str) -> None:
    with pytest.raises(UsageError, match=r"pkg/mod\.py") as refusal:
        cut(source, symbol)
    assert says in str(refusal.value)


def test_overlapping_symbols_are_refused() -> None:
    with pytest.raises(UsageError, match="overlap"):
        cut("def f():\n  def g():\n    return 1\n  return g\n", "f", "f.g")


def test_an_unknown_extension_is_refused_not_guessed() -> None:
    with pytest.raises(UsageError, match=r'path "a/b\.cob": no grammar for "\.cob" files'):
        language_of("a/b.cob")
    with pytest.raises(UsageError, match="no grammar"):
        excise(b"", "python", ["f"], "main.go")
    with pytest.raises(UsageError, match=r'did you mean "python"'):
        excise(b"", "pyton", ["f"], "main.py")


def test_distinctive_lines_are_long_and_stand_nowhere_else() -> None:
    body = b"    x = 1\n    total = combine_everything(first, second)\n    return normalised(total, first)\n"
    assert candidate_lines([body]) == (
        b"total = combine_everything(first, second)",
        b"return normalised(total, first)",
    )
    assert distinctive_lines([body], [b"...\n  return normalised(total, first)\n"]) == (
        b"total = combine_everything(first, second)",
    )


# ---- any program ----

STATEMENTS = st.sampled_from(
    [
        "x = 1",
        "return a",
        "if a:\n    b()\nelse:\n    c()",
        "for i in a:\n    pass  # note",
        "# a comment",
        "s = '''\ntext\n   more'''",
        "with open(a) as b:\n    # inside\n    return b",
        "def inner(z):\n    return z",
        "try:\n    a()\nfinally:\n    b()",
        "lambda: (\n 1)",
        "",
    ]
)
DOCSTRINGS = st.sampled_from(["", '"""Doc."""', "'''Doc\n\nmore.\n'''", 'r"x"'])
HEADS = st.sampled_from(["def f(a):", "async def f(a, *b: int) -> 'x':", "@d\n@e(1)\ndef f(a):  # note"])


def indented(text: str, by: str) -> str:
    return "\n".join(by + line if line else line for line in text.split("\n"))


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, str, str]:
    """(before the body, body, after the body) of a function `f`, perhaps in a class."""
    unit = draw(st.sampled_from(["    ", "\t", " "]))
    body = "\n".join([*draw(st.lists(STATEMENTS, max_size=5)), "end = a"])
    docstring = draw(DOCSTRINGS)
    before = draw(st.sampled_from(["", "import a\n\n", "# coding: utf-8\nX = 'é'\n"]))
    head = draw(HEADS) + "\n" + (indented(docstring, unit) + "\n" if docstring else "")
    after = "\n" + draw(st.sampled_from(["", "\n\ndef g(): return 1\n", "\nX = 2  # é\n"]))
    if draw(st.booleans()):
        return before + "class C:\n" + indented(head, unit), indented(body, unit * 2), after
    return before + head, indented(body, unit), after


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.sampled_from(["\n", "\r\n"]))
def test_outside_the_body_nothing_changes_and_the_result_compiles(parts: tuple[str, str, str], ending: str) -> None:
    before, body, after = (part.replace("\n", ending).encode() for part in parts)
    source = before + body + after
    compile(source, "source", "exec", dont_inherit=True)
    symbol = "C.f" if b"class C" in source else "f"
    text = excise(source, "python", [symbol], "m.py").text
    assert text.startswith(before)
    assert text.endswith(after)
    left = text[len(before) : len(text) - len(after)]
    assert left.strip() == FAIL
    function, original = (_function_f(ast.parse(one)) for one in (text, source))
    assert ast.get_docstring(function) == ast.get_docstring(original)
    assert ast.dump(function.args) == ast.dump(original.args)
    assert isinstance(function.body[-1], ast.Raise)


def _function_f(tree: ast.Module) -> ast.FunctionDef | ast.AsyncFunctionDef:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return next(node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == "f")
