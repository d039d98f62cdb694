"""Libraries whose releases ask for one release of torch hold torch where it is."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

SCRIPT = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(8, 8))
"""


def migrated(requirements: str) -> tuple[str, int]:
    """The list after the migration, and how much is left to do."""
    texts = (Source("requirements.txt", requirements),)
    made = migrate((Source("train.py", SCRIPT),), knowledge.codemods(), texts=texts)
    assert made.failures == []
    return made.after[-1].text, len(list(made.ledger.manual))


@pytest.mark.parametrize(
    "pinned", ["torchvision==0.15.0", "torchaudio==2.0.0", "torchvision<0.20", "torchaudio~=2.1.0"]
)
@pytest.mark.parametrize("torch", ["torch>=1.13.1", "torch"])
def test_torch_stays_beside_a_library_for_an_older_one(torch: str, pinned: str) -> None:
    assert migrated(f"{torch}\n{pinned}\n") == (f"{torch}\n{pinned}\n", 1)


@pytest.mark.parametrize(
    "other", ["torchvision", "torchvision==0.21.0", "torchaudio>=2.0", "numpy==1.0"]
)
def test_torch_is_raised_beside_others(other: str) -> None:
    assert migrated(f"torch>=1.13.1\n{other}\n") == (f"torch>=2.6\n{other}\n", 0)


def test_torch_stays_where_everything_stays_fsdp1() -> None:
    script = SCRIPT.replace("nn.Linear(8, 8)", "nn.Linear(8, 8), **load()").replace(
        "model =", "from settings import load\n\nmodel ="
    )
    texts = (Source("requirements.txt", "torch>=1.13.1\n"),)
    made = migrate((Source("train.py", script),), knowledge.codemods(), texts=texts)
    assert made.after[-1].text == "torch>=1.13.1\n"
    assert [one.path for one in made.ledger.entries if one.path != "train.py"] == []
    assert list(made.ledger.manual) != []
