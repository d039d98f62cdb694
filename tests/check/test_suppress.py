"""Comments that silence findings, and what is said about comments that do not."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue.declare import Rule
from fsdp2lint.catalogue.toolrules import TOOL_RULES, UNANALYSABLE, UNKNOWN, UNUSED
from fsdp2lint.check.analysis.judge import judged
from fsdp2lint.check.fixing import fix
from fsdp2lint.source.source import Source
from tests.support.saying import EVERY, FORWARD, OPTIMIZER, SAVE, said

ALL = (*EVERY, *TOOL_RULES)


def left(text: str, about: Rule = FORWARD, ran: tuple[Rule, ...] = ALL) -> list[str]:
    """What is left of one finding of ``about`` at each ``bad`` of a text."""
    source = Source("x.py", text)
    found = [said(source, "bad", about, n) for n in range(text.count("bad"))]
    remaining, _ = judged(found, [source], ran, ALL)
    return [f"{d.rule.code}:{d.place.range.line}" for d in remaining]


def messages(text: str, ran: tuple[Rule, ...] = ALL) -> list[str]:
    remaining, _ = judged([], [Source("x.py", text)], ran, ALL)
    return [d.message for d in remaining]


SILENT = {
    "the line": "bad()  # fsdp2lint: ignore[FSDP203]\n",
    "a name": "bad()  # fsdp2lint: ignore[direct-forward-call]\n",
    "a prefix": "bad()  # fsdp2lint: ignore[FSDP2]\n",
    "small letters": "bad()  # fsdp2lint: ignore[fsdp203]\n",
    "a reason": "bad()  # fsdp2lint: ignore[FSDP203] -- it is a frozen teacher\n",
    "no spaces": "bad()  #fsdp2lint:ignore[FSDP203]\n",
    "behind another comment": "bad()  # type: ignore  # fsdp2lint: ignore[FSDP203]\n",
    "before another comment": "bad()  # fsdp2lint: ignore[FSDP203]  # type: ignore\n",
    "joined statements": "bad(); good()  # fsdp2lint: ignore[FSDP203]\n",
    "the first line": "x = f(  # fsdp2lint: ignore[FSDP203]\n    bad(),\n)\n",
    "the last line": "x = f(\n    bad(),\n)  # fsdp2lint: ignore[FSDP203]\n",
    "the last line of a string": 'x = bad("""\n""")  # fsdp2lint: ignore[FSDP203]\n',
    "a line in between, for itself": "x = f(\n    bad(),  # fsdp2lint: ignore[FSDP203]\n)\n",
    "above, inside brackets": "x = f(\n    # fsdp2lint: ignore[FSDP203]\n    bad(),\n)\n",
    "above": "# fsdp2lint: ignore[FSDP203]\nbad()\n",
    "above, with more in between": "# fsdp2lint: ignore[FSDP203]\n# more\n\nbad()\n",
    "above a statement of several lines": "# fsdp2lint: ignore[FSDP203]\nx = f(\n    1,\n    bad(),\n)\n",
    "above, indented": "if x:\n    # fsdp2lint: ignore[FSDP203]\n    bad()\n",
    "the head of a block": "with bad():  # fsdp2lint: ignore[FSDP203]\n    pass\n",
    "a range": "# fsdp2lint: disable[FSDP203]\nbad()\n# fsdp2lint: enable[FSDP203]\n",
    "a range to the end": "# fsdp2lint: disable[FSDP2]\nx = 1\nbad()\n",
    "a range of which another part is enabled": (
        "# fsdp2lint: disable[FSDP2]\n# fsdp2lint: enable[FSDP201]\nbad()\n"
    ),
    "the file": "bad()\n# fsdp2lint: file-ignore[FSDP203]\n",
    "noqa": "bad()  # noqa: FSDP203\n",
    "noqa with others": "bad()  # noqa: E501, FSDP203\n",
    "noqa, small": "bad()  # NoQA:fsdp203\n",
    "CRLF": "bad()  # fsdp2lint: ignore[FSDP203]\r\n",
    "no newline at the end": "bad()  # fsdp2lint: ignore[FSDP203]",
}


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT.keys())
def test_silenced(text: str) -> None:
    assert left(text) == []


LOUD = {
    "another code": "bad()  # fsdp2lint: ignore[FSDP201]\n",
    "another line": "bad()\nx = 1  # fsdp2lint: ignore[FSDP203]\n",
    "above, but not the next": "# fsdp2lint: ignore[FSDP203]\nx = 1\nbad()\n",
    "the body of a block": "with x:  # fsdp2lint: ignore[FSDP203]\n    bad()\n",
    "a line in between, for another": "x = f(\n    a,  # fsdp2lint: ignore[FSDP203]\n    bad(),\n)\n",
    "after a range": "# fsdp2lint: disable[FSDP203]\n# fsdp2lint: enable[FSDP2]\nbad()\n",
    "before a range": "bad()\n# fsdp2lint: disable[FSDP203]\n",
    "a bare noqa": "bad()  # noqa\n",
    "noqa of another": "bad()  # noqa: E501\n",
    "a group": "bad()  # fsdp2lint: ignore[correctness]\n",
    "everything": "bad()  # fsdp2lint: ignore[ALL]\n",
    "no code": "bad()  # fsdp2lint: ignore\n",
    "in a string": "bad('# fsdp2lint: ignore[FSDP203]')\n",
}


@pytest.mark.parametrize("text", LOUD.values(), ids=LOUD.keys())
def test_not_silenced(text: str) -> None:
    assert any(code.startswith("FSDP203") for code in left(text))


def test_the_reason_is_kept() -> None:
    source = Source("x.py", "bad()  # fsdp2lint: ignore[FSDP203] -- teacher is frozen\n")
    _, silenced = judged([said(source, "bad")], [source], ALL, ALL)
    assert [(d.rule.code, reason) for d, reason in silenced] == [("FSDP203", "teacher is frozen")]


def test_unused_codes_are_found_each_for_itself() -> None:
    text = "bad()  # fsdp2lint: ignore[FSDP203, FSDP201, FSDP3]\n"
    source = Source("x.py", text)
    remaining, _ = judged([said(source, "bad")], [source], ALL, ALL)
    assert [(d.rule, d.place.range.column) for d in remaining] == [
        (UNUSED, text.index("FSDP201") + 1),
        (UNUSED, text.index("FSDP3]") + 1),
    ]


@pytest.mark.parametrize("kind", ["ignore", "disable", "file-ignore"])
def test_every_kind_can_be_unused(kind: str) -> None:
    assert messages(f"x = 1  # fsdp2lint: {kind}[FSDP203]\n") == [
        f"`{kind}[FSDP203]` silences nothing"
    ]


def test_unused_only_for_rules_that_ran() -> None:
    text = "x = 1  # fsdp2lint: ignore[FSDP203, FSDP301]\n"
    assert messages(text, (SAVE, UNUSED)) == ["`ignore[FSDP301]` silences nothing"]
    assert messages(text, (OPTIMIZER, UNUSED)) == []
    assert messages(text, (FORWARD, SAVE)) == []


def test_noqa_is_not_judged() -> None:
    assert messages("x = 1  # noqa: FSDP203, FSDP999, FSDP777\n") == []


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("ignore[FSDP777]", "unknown rule `FSDP777`"),
        ("ignore[FSDP2O3]", "unknown rule `FSDP2O3`, did you mean `FSDP203`?"),
        (
            "ignore[direct-forward-cal]",
            "unknown rule `direct-forward-cal`, did you mean `direct-forward-call`?",
        ),
        ("ignore[E501]", "unknown rule `E501`"),
        ("ignore", "`ignore` names no rule: write `ignore[FSDP203]`"),
        ("ignore[]", "`ignore` names no rule: write `ignore[FSDP203]`"),
        ("ignroe[FSDP203]", "unknown suppression `ignroe`, did you mean `ignore`?"),
        (
            "file-ignored[FSDP203]",
            "unknown suppression `file-ignored`, did you mean `file-ignore`?",
        ),
    ],
)
def test_unknown(comment: str, message: str) -> None:
    assert messages(f"x = 1  # fsdp2lint: {comment}\n") == [message]


def test_a_sentence_about_the_tool_is_no_suppression() -> None:
    assert messages("# fsdp2lint: see the README\n# checked by fsdp2lint: yes\n") == []


def test_a_comment_can_silence_what_is_said_about_comments() -> None:
    assert (
        messages("# fsdp2lint: file-ignore[FSDP901]\nx = 1  # fsdp2lint: ignore[FSDP203]\n") == []
    )
    assert messages("x = 1  # fsdp2lint: ignore[FSDP777, FSDP902]\n") == []


def test_what_was_not_analysed_cannot_be_silenced() -> None:
    source = Source("x.py", "bad(  # fsdp2lint: file-ignore[FSDP900]\n")
    remaining, _ = judged([said(source, "bad", UNANALYSABLE)], [], ALL, ALL)
    assert [d.rule for d in remaining] == [UNANALYSABLE]


def test_unknown_can_be_switched_off() -> None:
    assert messages("x = 1  # fsdp2lint: ignore[FSDP777]\n", (*EVERY, UNUSED)) == []
    assert messages("x = 1  # fsdp2lint: ignore[FSDP777]\n", (UNKNOWN,)) != []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x = 1  # fsdp2lint: ignore[FSDP203]\n", "x = 1\n"),
        ("x = 1\n# fsdp2lint: ignore[FSDP203] -- a teacher\ny = 2\n", "x = 1\ny = 2\n"),
        ("x = 1\n# fsdp2lint: ignore[FSDP203] a teacher\ny = 2\n", "x = 1\n# a teacher\ny = 2\n"),
        ("x = 1  # fsdp2lint: ignore[FSDP203]  # noqa: E501\n", "x = 1  # noqa: E501\n"),
        ("def f():\n    x = 1  # one\r    y = 2  # fsdp2lint: ignore[FSDP203]\n", None),
    ],
    ids=["behind a line", "a line of its own", "with more said", "another", "carriage returns"],
)
def test_what_goes_with_an_unused_comment(text: str, kept: str | None) -> None:
    remaining, _ = judged([], [Source("x.py", text)], ALL, ALL)
    assert [d.rule for d in remaining] == [UNUSED]
    result = fix([Source("x.py", text)], lambda sources: judged([], sources, ALL, ALL)[0])
    assert result.after["x.py"].text == (kept or text.replace("  # fsdp2lint: ignore[FSDP203]", ""))
