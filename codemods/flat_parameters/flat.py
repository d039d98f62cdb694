"""Whether a function goes through FSDP1's flat parameters and computes each entry by itself."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Layout, Source, dotted, walk

FLAT = "flat_param"
_ASKED = frozenset({"requires_grad", "dtype", "device"})
"""What is the same for a flat parameter and for the parameters in it."""
_TENSORS = frozenset({"data", "grad"})
_ENTRYWISE = frozenset(
    "add add_ bfloat16 clone copy_ detach div div_ double fill_ float half lerp lerp_ mul mul_ sub sub_ to zero_".split()
)
_FOREACH = "torch._foreach_"
_Loop = cst.For | cst.CompFor


class Flat:
    """The uses of the handles that ``calls`` get in one function."""

    def __init__(self, source: Source, scope: cst.CSTNode, calls: list[cst.Call]) -> None:
        self.source, self.scope = source, scope
        self.layout = Layout.of(source)
        self.names = [n for n in walk(scope) if isinstance(n, cst.Name)]
        self.parameters: list[cst.Attribute] = []
        """Where a handle is asked for its flat parameter."""
        self.kept: set[cst.Call] = set()
        """The calls whose handles get a name, and may be gone through more than once."""
        self.entrywise = all(self._are_handles(call) for call in calls)
        """Whether nothing but the entries of flat parameters matters to the function."""

    def is_added(self, tensors: cst.BaseExpression) -> bool:
        """Whether a list of tensors is only added to one that ``torch._foreach_*`` alone gets, or is given to it."""
        parent, call = self.layout.parents[tensors], self._call_of(tensors)
        if isinstance(parent, cst.AugAssign):
            return isinstance(parent.operator, cst.AddAssign) and self._is_for_each(parent.target)
        if call is None:
            return False
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "extend":
            return self._is_for_each(call.func.value)
        return dotted(call.func).startswith(_FOREACH)

    def _are_handles(self, call: cst.Call) -> bool:
        """Whether what a call gives is only gone through, by itself or by name."""
        parent = self.layout.parents[call]
        if not isinstance(parent, cst.Assign):
            return self._is_gone_through(call)
        target = parent.targets[0].target
        if len(parent.targets) != 1 or not isinstance(target, cst.Name):
            return False
        self.kept.add(call)
        uses = [n for n in self._uses(target.value) if n is not target]
        return all(self._is_counted(use) or self._is_gone_through(use) for use in uses)

    def _is_counted(self, handles: cst.BaseExpression) -> bool:
        """``len(handles)`` that is compared with another such number."""
        call = self._call_of(handles)
        if call is None or dotted(call.func) != "len":
            return False
        against = self.layout.parents[call]
        if isinstance(against, cst.ComparisonTarget):
            against = self.layout.parents[against]
        return isinstance(against, cst.Comparison) and all(
            isinstance(one, cst.Call) and dotted(one.func) == "len"
            for one in (against.left, *(target.comparator for target in against.comparisons))
        )

    def _is_gone_through(self, handles: cst.BaseExpression) -> bool:
        """A loop over handles, perhaps beside others or counted, that asks each for its parameter."""
        path: list[int] = []
        node: cst.BaseExpression = handles
        while (call := self._call_of(node)) is not None:
            place = next(i for i, arg in enumerate(call.args) if arg.value is node)
            if dotted(call.func) not in ("zip", "enumerate"):
                return False
            path.append(place if dotted(call.func) == "zip" else 1)
            node = call
        loop = self.layout.parents[node]
        if not isinstance(loop, _Loop) or loop.iter is not node:
            return False
        target: cst.CSTNode = loop.target
        for index in reversed(path):
            if not isinstance(target, cst.Tuple | cst.List) or index >= len(target.elements):
                return False
            target = target.elements[index].value
        return isinstance(target, cst.Name) and self._is_handle(target)

    def _is_handle(self, target: cst.Name) -> bool:
        """Whether a variable of a loop is asked for its flat parameter, and for nothing else."""
        for use in self._uses(target.value):
            parent = self.layout.parents[use]
            if use is target:
                continue
            if not isinstance(parent, cst.Attribute) or parent.attr.value != FLAT:
                return False
            if not self._is_entrywise(parent):
                return False
            if parent not in self.parameters:
                self.parameters.append(parent)
        return True

    def _is_entrywise(self, tensor: cst.BaseExpression) -> bool:
        """Whether what becomes of a tensor is computed for each of its entries by itself."""
        parent = self.layout.parents[tensor]
        if isinstance(parent, cst.Attribute) and parent.value is tensor:
            name, call = parent.attr.value, self.layout.parents[parent]
            if isinstance(call, cst.Call) and call.func is parent:
                return name in _ENTRYWISE and self._is_entrywise(call)
            return name in _ASKED or (name in _TENSORS and self._is_entrywise(parent))
        if isinstance(parent, cst.Comparison) and parent.left is tensor:
            return all(isinstance(one.operator, cst.Is | cst.IsNot) for one in parent.comparisons)
        taker = self._call_of(tensor)
        if taker is not None and isinstance(taker.func, cst.Attribute):
            name = taker.func.attr.value
            return name in _ENTRYWISE or (name == "append" and self._is_for_each(taker.func.value))
        if isinstance(parent, cst.ListComp) and parent.elt is tensor:
            return self._is_listed(parent)
        return isinstance(parent, cst.Expr)

    def _is_listed(self, made: cst.ListComp) -> bool:
        """Whether a list that a comprehension makes is for ``torch._foreach_*`` alone."""
        taker, parent = self._call_of(made), self.layout.parents[made]
        if taker is not None:
            return dotted(taker.func).startswith(_FOREACH)
        target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
        return target is not None and self._is_for_each(target)

    def _is_for_each(self, held: cst.BaseExpression) -> bool:
        """Whether a list of tensors is one of the function's own that only ``torch._foreach_*`` gets."""
        return isinstance(held, cst.Name) and all(map(self._is_list, self._uses(held.value)))

    def _is_list(self, use: cst.Name) -> bool:
        parent = self.layout.parents[use]
        if isinstance(parent, cst.Attribute):
            return parent.value is use and parent.attr.value in ("append", "extend")
        if isinstance(parent, cst.AugAssign):
            return parent.target is use
        call = self._call_of(use)
        return self._is_bound_to_a_list(use) or (
            call is not None and dotted(call.func).startswith(_FOREACH)
        )

    def _is_bound_to_a_list(self, use: cst.Name) -> bool:
        """``held = []``, ``held, others = [], []`` or ``held = [… for …]``."""
        around = list(self.layout.ancestors(use))
        made = next((one for one in around if isinstance(one, cst.Assign)), None)
        target = around[around.index(made) - 1] if made is not None else None
        if made is None or not isinstance(target, cst.AssignTarget):
            return False
        if target.target is use:
            return isinstance(made.value, cst.List | cst.ListComp)
        both = target.target, made.value
        if not all(isinstance(one, cst.Tuple) for one in both):
            return False
        return all(
            isinstance(e.value, cst.List) for e in cst.ensure_type(made.value, cst.Tuple).elements
        )

    def _call_of(self, node: cst.BaseExpression) -> cst.Call | None:
        """The call that has ``node`` as an argument."""
        argument = self.layout.parents[node]
        call = self.layout.parents[argument] if isinstance(argument, cst.Arg) else None
        if not isinstance(call, cst.Call) or not isinstance(argument, cst.Arg) or argument.star:
            return None
        return call

    def _uses(self, name: str) -> Iterator[cst.Name]:
        """Where the function names something, not counting attributes and keywords of that name."""
        for node in self.names:
            if node.value != name:
                continue
            parent = self.layout.parents[node]
            if isinstance(parent, cst.Attribute) and parent.attr is node:
                continue
            if isinstance(parent, cst.Arg) and parent.keyword is node:
                continue
            yield node
