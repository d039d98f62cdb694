"""What builtins and small library classes give."""

from __future__ import annotations

import pytest

from tests.support.meanings import Scripts, results

VALUES: Scripts = {
    "isinstance of what is known": (
        """
        tell(isinstance(Net(), nn.Module))
        tell(isinstance(Net(), Block))
        tell(isinstance(Net(), (Block, Net)))
        tell(isinstance(FSDP(Net()), FSDP))
        tell(isinstance([1], list))
        tell(isinstance(True, int))
        """,
        ["True", "False", "True", "True", "True", "True"],
    ),
    "the wrapper taken off if there is one": (
        """
        net = Net()
        tell(net.module if hasattr(net, "module") else net)
        outer = FSDP(net)
        tell(outer.module if hasattr(outer, "module") else outer)
        tell(outer.module if isinstance(outer, FSDP) else outer)
        """,
        ["net", "net", "net"],
    ),
    "settings that the run may change": (
        """
        import sys
        kind, size = "fsdp", 3
        globals()["size"] = 4
        tell(size)
        globals().update(size=5)
        tell(size)
        globals().update({"size": 6})
        tell(globals()["size"])
        tell(kind)
        for arg in sys.argv[1:]:
            key, value = arg.split("=")
            globals()[key] = type(globals()[key])(value)
        tell(kind)
        other = "ddp"
        exec(open("settings.py").read())
        tell(other)
        third = 1
        globals().update(sys.argv)
        tell(third)
        """,
        ["4", "5", "6", "'fsdp'", "kind", "other", "third"],
    ),
    "strings and numbers": (
        """
        tell("a,b".split(",")[1])
        tell(len([1, 2]))
        tell(str(3).zfill)
        tell("AdamW".lower())
        tell(max(1, 2))
        """,
        ["'b'", "2", "'3'.zfill", "'adamw'", "2"],
    ),
    "dictionaries": (
        """
        d = dict(a=1)
        d.update(b=2)
        tell(d.get("b"))
        tell(d.get("c", 3))
        tell(d.pop("a"))
        tell(d.get("a", 4))
        for key, value in d.items():
            tell(key)
        """,
        ["2", "3", "1", "4", "'b'"],
    ),
    "sequences": (
        """
        for i, (a, b) in enumerate(zip([1, 2], [3, 4])):
            tell(i)
            tell(b)
        tell(list(reversed([5, 6]))[0])
        tell(next(iter([7])))
        """,
        ["0", "3", "1", "4", "6", "7"],
    ),
    "functions that keep their results": (
        """
        @functools.cache
        def one():
            return Net()

        @functools.lru_cache(maxsize=None)
        def sized(size):
            return Net()

        def fresh():
            return Net()

        class Holder:
            @functools.cached_property
            def net(self):
                return Net()

        one().mark = 1
        tell(one().mark)
        sized(2).mark = 2
        sized(3).mark = 3
        tell(sized(2).mark)
        fresh().mark = 4
        tell(fresh().mark)
        holder = Holder()
        holder.net.mark = 5
        tell(holder.net.mark)
        tell(Holder().net.mark)
        """,
        ["1", "2", "Net(…).mark", "5", "Net(…).mark"],
    ),
    "what one branch alone has kept": (
        """
        @functools.cache
        def one():
            tell("made")
            return Net()

        if cfg.first:
            one()
            one()
        one()
        """,
        ["'made'", "'made'"],
    ),
    "named tuples and namespaces": (
        """
        from collections import namedtuple
        from types import SimpleNamespace
        Pair = namedtuple("Pair", "left right")
        tell(Pair(1, 2).right)
        tell(SimpleNamespace(x=3).x)
        """,
        ["2", "3"],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_builtins_give_these_values(name: str) -> None:
    script, expected = VALUES[name]
    assert results(script) == expected
