"""Libraries whose functions leave a model alone: what they are given stays in sight."""

from __future__ import annotations

import pytest

from fsdp2lint.meanings.libraries import LIBRARIES, Library, library_of
from fsdp2lint.model.events import Escaped, OptimizerBuilt
from fsdp2lint.model.trace import Trace
from tests.support.meanings import trace_of

SCRIPT = """
import {library}
net = Net()
adam = torch.optim.Adam(net.parameters())
{call}
"""


def _after(call: str) -> Trace:
    library = call.partition("= ")[2] if "= " in call.partition("(")[0] else call
    return trace_of(SCRIPT.format(library=library.partition("(")[0].rpartition(".")[0], call=call))


QUIET = [
    "torch.distributed.checkpoint.state_dict._init_optim_state(adam)",
    "torch.nn.init.normal_(net.head.weight)",
    "torch.onnx.export(net, 1, 'net.onnx')",
    "wandb.watch(net)",
    "xformers.profiler.profile(module=net)",
    "torchao.float8.precompute_float8_dynamic_scale_for_fsdp(net)",
    "accelerate.utils.find_executable_batch_size(net)",
    "accelerate.Accelerator().log(net)",
    "transformers.utils.flops(net)",
    "tqdm.tqdm(net.parameters())",
    "torchmetrics.MeanMetric().update(net)",
]
CHANGING = [
    "torch.nn.utils.parametrize.register_parametrization(net, 'weight', 1)",
    "torch.ao.quantization.prepare(net)",
    "accelerate.dispatch_model(net)",
    "transformers.integrations.replace_with_bnb_linear(net)",
    "accelerate.Accelerator().prepare(net)",
    "transformers.Trainer(net)",
    "somewhere.prepare(net)",
    "somewhere.prepare(adam)",
]


@pytest.mark.parametrize("call", QUIET)
def test_what_a_known_library_is_given_stays_in_sight(call: str) -> None:
    trace = _after(call)
    assert not trace.of(Escaped)
    (built,) = trace.of(OptimizerBuilt)
    assert trace.known(built.optimizer)
    assert trace.known(built.over[0].of)


@pytest.mark.parametrize("call", CHANGING)
def test_what_changes_a_model_is_named(call: str) -> None:
    trace = _after(call)
    (built,) = trace.of(OptimizerBuilt)
    assert trace.of(Escaped)
    assert not (trace.known(built.optimizer) and trace.known(built.over[0].of))


@pytest.mark.parametrize(
    "lent", ["adam", "net.parameters()", "list(net.parameters())", "net.state_dict()"]
)
def test_from_its_tensors_nobody_comes_to_a_model(lent: str) -> None:
    """They can be written to, so not all is known; but nobody shards by them."""
    trace = _after(f"somewhere.prepare({lent})")
    model = trace.of(OptimizerBuilt)[0].over[0].of
    assert trace.kept(model)
    assert not trace.known(model)


def test_what_a_library_keeps_goes_out_of_sight_with_its_keeper() -> None:
    trace = trace_of(
        SCRIPT.format(
            library="wandb, somewhere", call="run = wandb.watch(net)\nsomewhere.prepare(run)"
        )
    )
    assert not trace.known(trace.of(OptimizerBuilt)[0].over[0].of)


@pytest.mark.parametrize("library", LIBRARIES, ids=[one.name for one in LIBRARIES])
def test_what_it_changes_is_below_it(library: Library) -> None:
    assert library_of(f"{library.name}.anything") is library
    assert not any(library.leaves_alone(f"{library.name}.{one}") for one in library.changes)
