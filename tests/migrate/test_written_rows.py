"""Writes into rows of tensors that are sharded along them."""

from __future__ import annotations

import pytest

from tests.migrate.test_ledger import HEAD, made

MODEL = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)

    def get_input_embeddings(self):
        return self.words


model = FSDP(Net(), use_orig_params=True)
"""
MASK = """\
grad = {grad}
mask = torch.zeros_like(grad)
mask[3] = torch.ones_like(mask[3])
mask[4:6] = torch.ones_like(mask[4:6])
mask[:, 0] = torch.ones_like(mask[:, 0])
{grad} = grad * mask
"""


def rows_left(text: str) -> tuple[list[str], str]:
    """What is left of writes into rows, and the new text."""
    done = made(HEAD + text)
    assert "fully_shard(" in done.after[0].text
    left = [e for e in done.ledger.manual if "rows of the sharded tensor are copies" in e.why]
    return [e.symbol for e in left], done.after[0].text


@pytest.mark.parametrize(
    "grad", ["model.get_input_embeddings().weight.grad", "model.words.weight.grad"]
)
def test_a_mask_like_a_gradient_is_left(grad: str) -> None:
    left, text = rows_left(MODEL + MASK.format(grad=grad))
    assert left == ["mask[3]", "mask[4:6]"]
    assert text.count("`mask` is sharded along its rows") == 1


def test_a_mask_like_one_of_two_gradients_is_left() -> None:
    choice = """\
args = parse()
if args.fsdp:
    grad = model.words.weight.grad
else:
    grad = model.module.words.weight.grad
"""
    mask = MASK.partition("\n")[2].rpartition("{")[0]
    assert rows_left(MODEL + choice + mask)[0] == ["mask[3]", "mask[4:6]"]


def test_a_mask_in_a_helper_is_left() -> None:
    helper = """\
def keep(layer, rows):
    mask = torch.ones_like(layer.weight)
    for row in rows:
        mask[row].zero_()
    layer.weight.grad.mul_(mask)


"""
    left, _ = rows_left(helper + MODEL + "keep(model.words, [3, 4])\n")
    assert left == ["mask[row].zero_()"]


def test_rows_of_a_parameter_are_left() -> None:
    left, text = rows_left(MODEL + "model.words.weight.data[-1] = model.words.weight.data[0]\n")
    assert left == ["model.words.weight.data[-1]"]
    assert "whole = model.words.weight.data.full_tensor()" in text


@pytest.mark.parametrize(
    "lines",
    [
        "mask = torch.zeros(9, 4)\nmask[3] = 1\n",
        "labels = torch.zeros_like(ids)\nlabels[3] = -100\n",
        "model.words.weight.data[:, 0] = model.words.weight.data[:, 1]\n",
        "other = nn.Embedding(9, 4)\nother.weight.data[0] = 0\n",
    ],
)
def test_other_tensors_are_not(lines: str) -> None:
    assert rows_left(MODEL + lines)[0] == []


@pytest.mark.parametrize("net", ["Net()", "AutoModel.from_pretrained('gpt2')"])
def test_rows_that_are_written_before_the_model_is_wrapped_are_not(net: str) -> None:
    lines = f"""\
from transformers import AutoModel


def initialise(net):
    rows = net.get_input_embeddings().weight.data
    rows[-1:] = rows[:-1].mean(dim=0, keepdim=True)


net = {net}
initialise(net)
model = FSDP(net, use_orig_params=True)
"""
    assert rows_left(MODEL.rpartition("model =")[0] + lines)[0] == []
    after = lines.replace("initialise(net)\n", "").rstrip() + "\ninitialise(model)\n"
    assert len(rows_left(MODEL.rpartition("model =")[0] + after)[0]) == 1


def test_initialisation_of_a_model_that_nobody_builds_is_not() -> None:
    lines = """\
class Pretrained(nn.Module):
    def _init_weights(self, module):
        if isinstance(module, nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()


def build(model):
    return FSDP(model, use_orig_params=True)
"""
    assert rows_left(lines)[0] == []


def test_activations_are_not() -> None:
    forward = """\
    def forward(self, ids, rows):
        hidden = self.words(ids) @ self.words.weight.T
        new = hidden.new_zeros(hidden.shape)
        new[rows] = hidden[rows]
        new[0] = self.words.weight[0]
        return new


"""
    text = MODEL.replace("\n\nmodel =", forward + "model =") + "model(torch.arange(9), [1, 2])\n"
    assert rows_left(text)[0] == []


@pytest.mark.parametrize(
    "write",
    [
        "model.words.weight.data[3] = 0",
        "model.words.weight[3] *= 0",
        "model.words.weight.data[3].zero_()",
        "for parameter in model.parameters():\n        parameter.data[0] = 0",
    ],
)
def test_rows_of_gathered_parameters_are_kept(write: str) -> None:
    left, text = rows_left(f"{MODEL}with FSDP.summon_full_params(model):\n    {write}\n")
    assert left == []
    assert "with full_params(model, writeback=True):" in text


def test_a_block_that_writes_nothing_writes_nothing_back() -> None:
    _, text = rows_left(
        f"{MODEL}with FSDP.summon_full_params(model):\n    print(model.words.weight[3].tolist())\n"
    )
    assert "with full_params(model):" in text


def test_what_unseen_code_may_write_is_written_back() -> None:
    block = "with FSDP.summon_full_params(model{}):\n    tie(model)\n"
    _, text = rows_left("from library import tie\n" + MODEL + block.format(""))
    assert "with full_params(model, writeback=True):" in text
    _, text = rows_left("from library import tie\n" + MODEL + block.format(", writeback=False"))
    assert "with full_params(model):" in text
