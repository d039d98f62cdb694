"""The mistakes that are planted: each operator changes one place of a program as a careless colleague would.

An operator is a function of a file's tree that yields the changed trees, one for each place where it applies. It knows
nothing of fsdp2lint: it looks for the words of PyTorch's API and moves, removes or replaces statements and arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst
from libcst.helpers import get_full_name_for_node

Places = Iterator[tuple[cst.CSTNode, cst.Module]]
Find = Callable[[cst.Module], Places]
Block = cst.Module | cst.IndentedBlock
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement

RANK = "torch.distributed.get_rank()"


@dataclass(frozen=True)
class Operator:
    """A kind of mistake, and the rules of which one has to report it."""

    name: str
    expected: tuple[str, ...]
    find: Find

    @property
    def says(self) -> str:
        """What it does, in one line."""
        return (self.find.__doc__ or "").strip().splitlines()[0].rstrip(".")


OPERATORS: list[Operator] = []


def operator(name: str, *expected: str) -> Callable[[Find], Find]:
    """Register a function as the operator ``name``; a finding of any ``expected`` rule counts."""

    def register(find: Find) -> Find:
        OPERATORS.append(Operator(name, expected, find))
        return find

    return register


# -- looking at a tree ---------------------------------------------------------------------------------


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all below it, in the order of the text."""
    yield from _all(node) if isinstance(node, cst.Module) else _below(node)


def _below(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    todo = [node]
    while todo:
        one = todo.pop()
        yield one
        todo.extend(reversed(one.children))


@lru_cache(maxsize=4)
def _all(tree: cst.Module) -> tuple[cst.CSTNode, ...]:
    """The nodes of a file: each operator asks for them several times."""
    return tuple(_below(tree))


def called(node: cst.CSTNode) -> str:
    """The last name of what a call calls, or nothing."""
    if not isinstance(node, cst.Call):
        return ""
    return (get_full_name_for_node(node.func) or "").rpartition(".")[2]


def calls(node: cst.CSTNode, *names: str) -> list[cst.Call]:
    """The calls of functions or methods of these names in a node."""
    return [one for one in walk(node) if isinstance(one, cst.Call) and called(one) in names]


def blocks(tree: cst.Module) -> Iterator[Block]:
    """Every block of statements."""
    for node in walk(tree):
        if isinstance(node, cst.Module | cst.IndentedBlock):
            yield node


def lines(tree: cst.Module) -> Iterator[tuple[Block, int, Statement]]:
    """Every statement, with its block and its place there."""
    for block in blocks(tree):
        for index, statement in enumerate(block.body):
            yield block, index, statement  # type: ignore[misc]


def only_call(statement: cst.CSTNode) -> cst.Call | None:
    """The call that a line consists of, with or without an assignment of its value."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    small = statement.body[0]
    value = small.value if isinstance(small, cst.Expr | cst.Assign | cst.AnnAssign) else None
    return value if isinstance(value, cst.Call) else None


def is_expression(statement: cst.CSTNode) -> bool:
    """Whether a line is a call whose value nobody takes."""
    call = only_call(statement)
    return (
        call is not None
        and isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
    )


def given(call: cst.Call, position: int, keyword: str) -> cst.Arg | None:
    """The argument of a call at ``position`` or called ``keyword``."""
    for index, argument in enumerate(call.args):
        if argument.star:
            return None
        if argument.keyword is None and index == position:
            return argument
        if argument.keyword is not None and argument.keyword.value == keyword:
            return argument
    return None


def roots(tree: cst.Module) -> Iterator[tuple[Block, int, cst.Call, str]]:
    """The lines that shard a whole model: ``fully_shard(model, …)`` outside of any loop, with its name.

    The block holds the sharding of parts too, a loop in most programs; ``model.head`` beside ``model`` is a part.
    """
    found = []
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is None or called(call) != "fully_shard" or not call.args:
            continue
        name = get_full_name_for_node(call.args[0].value) or ""
        parts = [one for one in block.body if isinstance(one, cst.For) and shards(one)]
        if name and parts and isinstance(call.args[0].value, cst.Name | cst.Attribute):
            found.append((block, index, call, name))
    for block, index, call, name in found:
        beside = [other for home, _, _, other in found if home is block]
        if not any(name.startswith(f"{other}.") for other in beside):
            yield block, index, call, name


def shards(statement: cst.CSTNode) -> bool:
    """Whether a statement shards something itself."""
    return bool(calls(statement, "fully_shard"))


def names_in(node: cst.CSTNode) -> set[str]:
    """The plain names in a node."""
    return {one.value for one in walk(node) if isinstance(one, cst.Name)}


# -- changing it -----------------------------------------------------------------------------------------


def text(source: str) -> Sequence[Statement]:
    """Statements from their text."""
    return cst.parse_module(source).body


def with_body(tree: cst.Module, block: Block, body: Sequence[cst.BaseStatement]) -> cst.Module:
    """The tree with other statements in a block; an empty one gets a ``pass``."""
    filled = body or text("pass\n")
    if isinstance(block, cst.Module):
        return tree.with_changes(body=filled)
    changed = tree.deep_replace(block, block.with_changes(body=filled))
    assert isinstance(changed, cst.Module)
    return changed


def put(tree: cst.Module, block: Block, index: int, *new: cst.BaseStatement) -> cst.Module:
    """The tree with a statement replaced by others, or by none."""
    return with_body(tree, block, [*block.body[:index], *new, *block.body[index + 1 :]])


def swap(tree: cst.Module, old: cst.CSTNode, new: cst.CSTNode) -> cst.Module:
    """The tree with one node replaced."""
    changed = tree.deep_replace(old, new)
    assert isinstance(changed, cst.Module)
    return changed


def under(test: str, statement: cst.BaseStatement) -> cst.BaseStatement:
    """``if test: statement``; comments above it go with it."""
    (frame,) = text(f"if {test}:\n    pass\n")
    assert isinstance(frame, cst.If)
    return frame.with_changes(body=cst.IndentedBlock([statement]))


def rename(call: cst.Call, name: str) -> cst.Call:
    """The call of another function of the same home."""
    if isinstance(call.func, cst.Attribute):
        return call.with_changes(func=call.func.with_changes(attr=cst.Name(name)))
    return call.with_changes(func=cst.Name(name))


def knows_torch(tree: cst.Module) -> bool:
    """Whether the file says ``import torch``, so that ``torch.distributed`` can be named."""
    return any(
        isinstance(one, cst.Import)
        and any(alias.evaluated_name == "torch" and alias.asname is None for alias in one.names)
        for one in walk(tree)
    )


# -- the order of sharding ---------------------------------------------------------------------------------


@operator("optimizer-first", "FSDP201", "FSDP220", "FSDP252")
def optimizer_first(tree: cst.Module) -> Places:
    """The optimizer is built above the sharding."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is None or is_expression(statement) or not calls(call, "parameters"):
            continue
        if not any(word in called(call).lower() for word in ("adam", "sgd", "optim", "muon")):
            continue
        above = [i for i in range(index) if shards(block.body[i])]
        if not above:
            continue
        between = block.body[above[0] : index]
        bound = {
            name
            for one in between
            for node in walk(one)
            if isinstance(node, cst.AssignTarget)
            for name in names_in(node)
        }
        if bound & names_in(call):
            continue
        kept = [*block.body[: above[0]], statement, *between, *block.body[index + 1 :]]
        yield statement, with_body(tree, block, kept)


@operator("root-dropped", "FSDP206", "FSDP262")
def root_dropped(tree: cst.Module) -> Places:
    """The root is not sharded, only its parts are."""
    for block, index, call, _ in roots(tree):
        yield call, put(tree, block, index)


@operator("parts-dropped", "FSDP205")
def parts_dropped(tree: cst.Module) -> Places:
    """Only the root is sharded, none of its blocks."""
    for block, _, call, _ in roots(tree):
        kept = [one for one in block.body if not (isinstance(one, cst.For) and shards(one))]
        yield call, with_body(tree, block, kept)


@operator("root-first", "FSDP207")
def root_first(tree: cst.Module) -> Places:
    """The root is sharded above its blocks."""
    for block, index, call, _ in roots(tree):
        first = next(
            i for i, one in enumerate(block.body) if isinstance(one, cst.For) and shards(one)
        )
        if first < index:
            rest = [*block.body[first:index], *block.body[index + 1 :]]
            yield call, with_body(tree, block, [*block.body[:first], block.body[index], *rest])


@operator("root-by-rank", "FSDP418", "FSDP401")
def root_by_rank(tree: cst.Module) -> Places:
    """Only the first rank shards the root."""
    for block, index, call, _ in roots(tree):
        if knows_torch(tree):
            line = block.body[index]
            assert isinstance(line, cst.SimpleStatementLine)
            yield call, put(tree, block, index, under(f"{RANK} == 0", line))


@operator("root-twice", "FSDP209")
def root_twice(tree: cst.Module) -> Places:
    """The root is sharded twice."""
    for block, index, call, _ in roots(tree):
        yield call, put(tree, block, index, block.body[index], block.body[index])


@operator("container-sharded", "FSDP208")
def container_sharded(tree: cst.Module) -> Places:
    """The list of blocks is sharded instead of each block."""
    for block, index, statement in lines(tree):
        if not isinstance(statement, cst.For) or not isinstance(statement.iter, cst.Attribute):
            continue
        inner = statement.body.body
        call = only_call(inner[0]) if len(inner) == 1 else None
        if call is not None and called(call) == "fully_shard" and call.args:
            first = call.args[0].with_changes(value=statement.iter)
            line = cst.SimpleStatementLine(
                [cst.Expr(call.with_changes(args=[first, *call.args[1:]]))]
            )
            yield statement, put(tree, block, index, line)


@operator("deepcopy-after", "FSDP223")
def deepcopy_after(tree: cst.Module) -> Places:
    """An averaged model is made by ``copy.deepcopy`` below the sharding."""
    for block, index, call, name in roots(tree):
        more = text(f"import copy\naveraged = copy.deepcopy({name})\n")
        yield call, put(tree, block, index, block.body[index], *more)


@operator("layer-added", "FSDP212")
def layer_added(tree: cst.Module) -> Places:
    """A new head is put into the model below the sharding."""
    for block, index, call, name in roots(tree):
        if knows_torch(tree):
            more = text(f"{name}.head = torch.nn.Linear(16, 16)\n")
            yield call, put(tree, block, index, block.body[index], *more)


@operator("method-misspelled", "FSDP262")
def method_misspelled(tree: cst.Module) -> Places:
    """A method of the sharded model is called by a name that is nearly right."""
    for block, index, call, name in roots(tree):
        more = text(f"{name}.set_requires_grad_sync(True)\n")
        yield call, put(tree, block, index, block.body[index], *more)


@operator("fsdp1-argument", "FSDP231")
def fsdp1_argument(tree: cst.Module) -> Places:
    """A keyword of FSDP1 is given to ``fully_shard``."""
    for _, _, call, _ in roots(tree):
        extra = cst.Arg(cst.Name("None"), keyword=cst.Name("auto_wrap_policy"))
        yield call, swap(tree, call, call.with_changes(args=[*call.args, extra]))


@operator("policy-none", "FSDP241")
def policy_none(tree: cst.Module) -> Places:
    """``mp_policy=None`` is given."""
    for call in calls(tree, "fully_shard"):
        for argument in call.args:
            if argument.keyword is not None and argument.keyword.value == "mp_policy":
                yield call, swap(tree, argument, argument.with_changes(value=cst.Name("None")))


@operator("mesh-swapped", "FSDP403", "FSDP415")
def mesh_swapped(tree: cst.Module) -> Places:
    """The two dimensions of a mesh change places: shard first, replicate second."""
    for call in calls(tree, "init_device_mesh"):
        named = given(call, 2, "mesh_dim_names")
        shown = named.value if named is not None else None
        if not isinstance(shown, cst.Tuple | cst.List) or len(shown.elements) != 2:
            continue
        words = [cst.Module([]).code_for_node(e.value) for e in shown.elements]
        # with ("dp", "tp") it is another mistake
        shards = "shard" in words[1] or "fsdp" in words[1]
        if "repl" not in words[0] and not (words[0].strip("'\"") in ("dp", "ddp") and shards):
            continue
        first, second = shown.elements
        turned = shown.with_changes(
            elements=[
                first.with_changes(value=second.value),
                second.with_changes(value=first.value),
            ]
        )
        yield call, swap(tree, shown, turned)


# -- the training loop -------------------------------------------------------------------------------------


@operator("forward-called", "FSDP203")
def forward_called(tree: cst.Module) -> Places:
    """``model.forward(x)`` instead of ``model(x)``."""
    for call in (one for one in walk(tree) if isinstance(one, cst.Call)):
        name = get_full_name_for_node(call.func) or ""
        if name.rpartition(".")[2] in ("model", "net", "student") and call.args:
            func = cst.Attribute(call.func, cst.Name("forward"))
            yield call, swap(tree, call, call.with_changes(func=func))


@operator("clip-by-method", "FSDP219")
def clip_by_method(tree: cst.Module) -> Places:
    """FSDP1's clip method is called on the model."""
    for call in calls(tree, "clip_grad_norm_"):
        first = call.args[0].value if call.args else None
        if called(first or call) == "parameters" and isinstance(first, cst.Call):
            owner = first.func.value if isinstance(first.func, cst.Attribute) else None
            if owner is not None:
                func = cst.Attribute(owner, cst.Name("clip_grad_norm_"))
                yield call, swap(tree, call, call.with_changes(func=func, args=call.args[1:]))


@operator("norm-read-locally", "FSDP218")
def norm_read_locally(tree: cst.Module) -> Places:
    """The norm that clipping gives is read on each rank without ``full_tensor()``."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is not None and called(call) == "clip_grad_norm_" and is_expression(statement):
            code = cst.Module([]).code_for_node(call)
            more = text(f"norm_of_gradients = {code}\nprint(norm_of_gradients.item())\n")
            yield statement, put(tree, block, index, *more)


@operator("no-sync", "FSDP210")
def no_sync(tree: cst.Module) -> Places:
    """The backward runs under ``model.no_sync()``."""
    names = sorted({name for _, _, _, name in roots(tree)})
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is not None and called(call) == "backward" and names:
            (frame,) = text(f"with {names[0]}.no_sync():\n    pass\n")
            inner = frame.with_changes(body=cst.IndentedBlock([statement]))
            yield statement, put(tree, block, index, inner)


@operator("sync-left-off", "FSDP211")
def sync_left_off(tree: cst.Module) -> Places:
    """The reduction of gradients is switched off and never on again."""
    for block, index, call, name in roots(tree):
        if not calls(tree, "set_requires_gradient_sync"):
            more = text(f"{name}.set_requires_gradient_sync(False)\n")
            yield call, put(tree, block, index, block.body[index], *more)


@operator("step-skipped-locally", "FSDP414", "FSDP412", "FSDP402")
def step_skipped_locally(tree: cst.Module) -> Places:
    """A rank whose loss is not a number skips the backward."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if (
            call is None
            or called(call) != "backward"
            or not knows_torch(tree)
            or not in_loop(tree, block)
        ):
            continue
        loss = call.func.value if isinstance(call.func, cst.Attribute) else None
        if isinstance(loss, cst.Name) and not call.args:  # not `accelerator.backward(loss)`
            guard = text(f"if torch.isnan({loss.value}):\n    continue\n")
            yield statement, put(tree, block, index, *guard, statement)


def in_loop(tree: cst.Module, block: Block) -> bool:
    """Whether a block belongs to a loop of its own function."""
    return block in _in_loops(tree)


@lru_cache(maxsize=4)
def _in_loops(tree: cst.Module) -> frozenset[cst.CSTNode]:
    loops = (node for node in walk(tree) if isinstance(node, cst.For | cst.While))
    return frozenset(one for loop in loops for one in _own(loop.body))


def _own(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and what is below it, without functions inside."""
    yield node
    for child in node.children:
        if not isinstance(child, cst.FunctionDef | cst.Lambda):
            yield from _own(child)


@operator("handler-goes-on", "FSDP419")
def handler_goes_on(tree: cst.Module) -> Places:
    """A rank that fails in the backward catches it and goes on."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is not None and called(call) == "backward" and in_loop(tree, block):
            (frame,) = text("try:\n    pass\nexcept RuntimeError:\n    continue\n")
            inner = frame.with_changes(body=cst.IndentedBlock([statement]))
            yield statement, put(tree, block, index, inner)


@operator("loop-left-by-rank", "FSDP402")
def loop_left_by_rank(tree: cst.Module) -> Places:
    """All ranks but the first leave the training loop early."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if (
            call is not None
            and called(call) == "backward"
            and knows_torch(tree)
            and in_loop(tree, block)
        ):
            more = text(f"if {RANK} != 0:\n    break\n")
            yield statement, put(tree, block, index, *more, statement)


# -- ranks -------------------------------------------------------------------------------------------------

_COLLECTIVES = (
    "full_tensor",
    "barrier",
    "all_reduce",
    "clip_grad_norm_",
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "get_state_dict",
)


@operator("collective-by-rank", "FSDP401", "FSDP402", "FSDP411")
def collective_by_rank(tree: cst.Module) -> Places:
    """Only the first rank makes a collective call."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is not None and called(call) in _COLLECTIVES and knows_torch(tree):
            yield statement, put(tree, block, index, under(f"{RANK} == 0", statement))


@operator("evaluation-by-rank", "FSDP411", "FSDP401")
def evaluation_by_rank(tree: cst.Module) -> Places:
    """Only the first rank evaluates."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        said = called(call).lower() if call is not None else ""
        if said.startswith(("eval", "valid", "test_")) and knows_torch(tree) and call is not None:
            if call.args:
                yield statement, put(tree, block, index, under(f"{RANK} == 0", statement))


@operator("seed-by-rank", "FSDP232")
def seed_by_rank(tree: cst.Module) -> Places:
    """Each rank seeds itself with its own number before the model is built."""
    for call in calls(tree, "manual_seed"):
        first = call.args[0] if call.args else None
        if first is not None and knows_torch(tree):
            number = cst.parse_expression(f"{cst.Module([]).code_for_node(first.value)} + {RANK}")
            yield call, swap(tree, first, first.with_changes(value=number))


@operator("epoch-not-set", "FSDP410")
def epoch_not_set(tree: cst.Module) -> Places:
    """The sampler never learns the epoch."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is not None and called(call) == "set_epoch":
            yield statement, put(tree, block, index)


@operator("sampler-dropped", "FSDP409")
def sampler_dropped(tree: cst.Module) -> Places:
    """The loader gets no sampler."""
    for call in calls(tree, "DataLoader", "StatefulDataLoader"):
        left = [a for a in call.args if a.keyword is None or a.keyword.value != "sampler"]
        if len(left) < len(call.args):
            yield call, swap(tree, call, call.with_changes(args=left))


@operator("group-not-destroyed", "FSDP408")
def group_not_destroyed(tree: cst.Module) -> Places:
    """The process group is not destroyed at the end."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is not None and called(call) == "destroy_process_group":
            yield statement, put(tree, block, index)


# -- the meta device ---------------------------------------------------------------------------------------


@operator("memory-not-given", "FSDP215", "FSDP251", "FSDP250")
def memory_not_given(tree: cst.Module) -> Places:
    """A model on the meta device gets no memory: ``to_empty`` is gone."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is not None and called(call) == "to_empty":
            yield statement, put(tree, block, index)


@operator("init-dropped", "FSDP251", "FSDP217")
def init_dropped(tree: cst.Module) -> Places:
    """A model that ``to_empty`` gave memory is never initialised."""
    for block, index, statement in lines(tree):
        call = only_call(statement)
        if call is None or called(call) not in ("reset_parameters", "init_weights", "apply"):
            continue
        if any(calls(one, "to_empty") for one in block.body[:index]) and is_expression(statement):
            yield statement, put(tree, block, index)


@operator("moved-from-meta", "FSDP250")
def moved_from_meta(tree: cst.Module) -> Places:
    """A model on the meta device is moved by ``to``."""
    for call in calls(tree, "to_empty"):
        yield call, swap(tree, call, rename(call, "to"))


# -- checkpoints -------------------------------------------------------------------------------------------


@operator("shards-kept", "FSDP218", "FSDP301", "FSDP311", "FSDP317", "FSDP245")
def shards_kept(tree: cst.Module) -> Places:
    """A value is read or saved without ``full_tensor()``."""
    for call in calls(tree, "full_tensor"):
        if isinstance(call.func, cst.Attribute):
            yield call, swap(tree, call, call.func.value)


@operator("saved-by-torch", "FSDP301")
def saved_by_torch(tree: cst.Module) -> Places:
    """The state dict of the sharded model is taken by its method, where a full one was gathered."""
    for call in calls(tree, "get_model_state_dict"):
        model = given(call, 0, "model")
        if model is not None and isinstance(model.value, cst.Name | cst.Attribute):
            func = cst.Attribute(model.value, cst.Name("state_dict"))
            yield call, swap(tree, call, cst.Call(func))


@operator("loaded-by-method", "FSDP303")
def loaded_by_method(tree: cst.Module) -> Places:
    """A full state dict is loaded by ``model.load_state_dict``."""
    for call in calls(tree, "set_model_state_dict"):
        model, state = given(call, 0, "model"), given(call, 1, "model_state_dict")
        if model is not None and state is not None:
            func = cst.Attribute(model.value, cst.Name("load_state_dict"))
            yield call, swap(tree, call, cst.Call(func, [cst.Arg(state.value)]))


@operator("save-not-awaited", "FSDP307", "FSDP308")
def save_not_awaited(tree: cst.Module) -> Places:
    """A checkpoint is written in the background and is never awaited."""
    for _, _, statement in lines(tree):
        call = only_call(statement)
        if call is None or called(call) != "save" or not is_expression(statement):
            continue
        home = (get_full_name_for_node(call.func) or "").rpartition(".")[0]
        if home in ("dcp", "DCP", "dist_cp", "checkpoint"):
            yield statement, swap(tree, call, rename(call, "async_save"))


@operator("folder-by-rank", "FSDP315")
def folder_by_rank(tree: cst.Module) -> Places:
    """Each rank writes its shards into a checkpoint of its own."""
    for call in calls(tree, "save", "async_save"):
        where = given(call, 99, "checkpoint_id")
        if where is not None and knows_torch(tree):
            code = cst.Module([]).code_for_node(where.value)
            path = cst.parse_expression(f"str({code}) + str({RANK})")
            yield call, swap(tree, where, where.with_changes(value=path))


@operator("load-into-nothing", "FSDP305", "FSDP306")
def load_into_nothing(tree: cst.Module) -> Places:
    """``dcp.load`` is given an empty dictionary."""
    for call in calls(tree, "load"):
        home = (get_full_name_for_node(call.func) or "").rpartition(".")[0]
        state = given(call, 0, "state_dict")
        if home in ("dcp", "DCP", "dist_cp", "checkpoint") and state is not None:
            if isinstance(state.value, cst.Dict):
                yield call, swap(tree, state.value, cst.Dict([]))
