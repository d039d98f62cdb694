"""Checkpoints converted from files to folders and back; what is refused, and that nothing is lost on the way.

With ``FSDP2LINT_LARGE=10`` the checkpoint whose memory is measured has ten gigabytes in place of a sixth of one.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from fsdp2lint.bridge.convert import convert  # noqa: E402
from fsdp2lint.bridge.stored import CannotConvert  # noqa: E402
from fsdp2lint.cli.program import program  # noqa: E402


def flat_file(path: Path, **more: Any) -> dict[str, Any]:
    """A file as FSDP1 writes it with flat parameters: two parameters share one ``step``."""
    step = torch.tensor(3.0)
    states = {
        "model": {"a.weight": torch.randn(4, 2), "a.bias": torch.randn(4, dtype=torch.bfloat16)},
        "optimizer": {
            "state": {
                name: {"step": step, "exp_avg": torch.randn(4)} for name in ("a.weight", "a.bias")
            },
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": ["a.weight", "a.bias"]}],
        },
        "epoch": 7,
        **more,
    }
    torch.save(states, path)
    return states


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(torch.equal(one, other)) if torch.is_tensor(one) else bool(one == other)


def test_there_and_back(tmp_path: Path) -> None:
    file, folder, again = tmp_path / "old.pt", tmp_path / "new", tmp_path / "again.pt"
    states = flat_file(file)
    made = convert(file, folder)
    assert (made.source, made.target, made.tensors) == ("file", "folder", 6)
    assert made.size == 4 * 2 * 4 + 4 * 2 + 2 * 4 + 2 * 4 * 4
    assert made.separated == 1
    assert (folder / ".metadata").is_file()
    back = convert(folder, again)
    assert (back.source, back.target, back.separated) == ("folder", "file", 0)
    assert same(torch.load(again), states)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.pt", "new", "old.pt"]


def test_object_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store in memory, which has no folders of its own either."""
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    monkeypatch.setattr(type(store), "store", {})
    monkeypatch.setattr(type(store), "pseudo_dirs", [""])
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    states = flat_file(tmp_path / "old.pt")

    code, out = said(tmp_path / "old.pt", "memory://bucket/run/model")
    assert code == 0, out
    assert out.startswith(
        f"file {tmp_path / 'old.pt'} -> folder memory://bucket/run/model: 6 tensors"
    )
    assert {name.rpartition("/")[2] for name in store.find("/bucket/run")} == {
        ".metadata",
        "__0_0.distcp",
    }
    code, out = said("memory://bucket/run/model", "memory://bucket/model.pt")
    assert code == 0, out
    with store.open("/bucket/model.pt", "rb") as stream:
        assert same(torch.load(stream), states)

    before = store.cat("/bucket/model.pt")
    assert said(tmp_path / "old.pt", "memory://bucket/model.pt")[0] == 1
    code, out = said("memory://bucket/run", "memory://bucket/new.pt")
    assert (code, out[:66]) == (
        1,
        "Error: memory://bucket/run: no checkpoint of torch.distributed.che",
    )
    assert said("memory://bucket/gone.pt", tmp_path / "new")[1].endswith(
        "there is no such file or folder\n"
    )
    assert said("gone://bucket/model.pt", tmp_path / "new")[1].startswith(
        "Error: gone://bucket/model.pt: "
    )
    assert store.cat("/bucket/model.pt") == before

    code, out = said(tmp_path / "old.pt", "memory://bucket/run/model", "--force")
    assert code == 0, out
    code, out = said("memory://bucket/run/model", tmp_path / "back.pt")
    assert code == 0, out
    assert same(torch.load(tmp_path / "back.pt"), states)
    assert not [name for name in store.find("/") if "part" in name]
    assert not list((tmp_path / "scratch").iterdir())


def test_a_store_that_fails_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    monkeypatch.setattr(type(store), "store", {})
    flat_file(tmp_path / "old.pt")
    assert said(tmp_path / "old.pt", "memory://kept/model")[0] == 0
    before = {name: store.cat(name) for name in store.find("/kept")}

    def full(*_: object, **__: object) -> None:
        raise OSError("the bucket is full")

    monkeypatch.setattr(type(store), "put_file", full)
    code, out = said(tmp_path / "old.pt", "memory://kept/model", "--force")
    assert (code, out.strip().splitlines()[-1]) == (
        1,
        "Error: memory://kept/model: the bucket is full",
    )
    assert {name: store.cat(name) for name in store.find("/kept")} == before


def test_a_file_in_which_nothing_is_shared(tmp_path: Path) -> None:
    states = flat_file(tmp_path / "old.pt")
    assert convert(tmp_path / "old.pt", tmp_path / "new.pt").separated == 1
    new = torch.load(tmp_path / "new.pt")
    assert same(new, states)
    first, second = (new["optimizer"]["state"][name]["step"] for name in ("a.weight", "a.bias"))
    first += 1
    assert second.item() == 3


def test_weights_become_a_safetensors_file_and_come_back(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tied = torch.randn(4, 2)
    weights = {"a.weight": tied, "b.weight": tied, "c.weight": torch.randn(6, 4)[:, ::2]}
    torch.save({"model": weights, "optimizer": {"state": {}}, "epoch": 7}, tmp_path / "old.pt")
    convert(tmp_path / "old.pt", tmp_path / "folder")
    for old in ("old.pt", "folder"):
        made = convert(tmp_path / old, tmp_path / "new.safetensors", force=True)
        assert "epoch" in made.left_out
        assert same(safetensors.load_file(tmp_path / "new.safetensors"), weights)
    convert(tmp_path / "new.safetensors", tmp_path / "again.pt")
    assert same(torch.load(tmp_path / "again.pt"), weights)
    torch.save({"one": {"a": tied}, "two": {"a": tied}}, tmp_path / "many.pt")
    with pytest.raises(
        CannotConvert, match="holds the weights of one model, and none of `one`, `two`"
    ):
        convert(tmp_path / "many.pt", tmp_path / "many.safetensors")
    assert not list(tmp_path.glob("*many.safetensors*"))


def test_nothing_is_replaced_unless_asked(tmp_path: Path) -> None:
    flat_file(tmp_path / "old.pt")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_text("mine")
    with pytest.raises(CannotConvert, match="exists already; --force replaces it"):
        convert(tmp_path / "old.pt", tmp_path / "new")
    assert (tmp_path / "new" / "mine").read_text() == "mine"
    convert(tmp_path / "old.pt", tmp_path / "new", force=True)
    assert not (tmp_path / "new" / "mine").exists()
    convert(tmp_path / "new", tmp_path / "old.pt", force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old.pt"]


def test_objects_are_loaded_only_with_trust(tmp_path: Path) -> None:
    file, folder = tmp_path / "old.pt", tmp_path / "new"
    flat_file(file, args=argparse.Namespace(lr=0.1))
    with pytest.raises(
        CannotConvert, match=r"old.pt: holds more than tensors .*Namespace.*--trust"
    ):
        convert(file, folder)
    assert not folder.exists()
    assert convert(file, folder, trust=True).others > 0
    with pytest.raises(
        CannotConvert, match=r"`args`: holds more than tensors .*Namespace.*--trust"
    ):
        convert(folder, tmp_path / "back.pt")
    convert(folder, tmp_path / "back.pt", trust=True)
    assert torch.load(tmp_path / "back.pt", weights_only=False)["args"].lr == 0.1


class Bad:
    """Unpickled, it calls a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("was run",))


def test_metadata_that_would_run_code_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Bad()))
    with pytest.raises(CannotConvert, match=r"\.metadata: holds more than .*builtins.print"):
        convert(folder, tmp_path / "new.pt")
    assert "was run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [(b"no checkpoint", "cannot be read"), (b"", "cannot be read")],
)
def test_a_broken_file(text: bytes, why: str, tmp_path: Path) -> None:
    (tmp_path / "old.pt").write_bytes(text)
    with pytest.raises(CannotConvert, match=why) as raised:
        convert(tmp_path / "old.pt", tmp_path / "new")
    assert "\n" not in str(raised.value)


def test_a_damaged_folder(tmp_path: Path) -> None:
    flat_file(tmp_path / "old.pt")
    convert(tmp_path / "old.pt", tmp_path / "folder")
    for shard in (tmp_path / "folder").glob("*.distcp"):
        shard.unlink()
    with pytest.raises(CannotConvert, match="folder: cannot be read"):
        convert(tmp_path / "folder", tmp_path / "new.pt")
    assert not (tmp_path / "new.pt").exists()


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "pipe", "gone"])
def test_a_folder_is_read_from_its_own_files(tmp_path: Path, name: str) -> None:
    """The metadata could name any file of the machine, or one that never ends."""
    flat_file(tmp_path / "old.pt")
    folder = tmp_path / "folder"
    convert(tmp_path / "old.pt", folder)
    (tmp_path / "secret").write_bytes((folder / "__0_0.distcp").read_bytes())
    os.mkfifo(folder / "pipe")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for part in metadata.storage_data.values():
        part.relative_path = name
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CannotConvert, match="there is no file"):
        convert(folder, tmp_path / "new.pt")
    assert not (tmp_path / "new.pt").exists()


def test_a_file_that_unpacks_to_more_than_it_is(tmp_path: Path) -> None:
    """torch.save compresses nothing; its reader would unpack whatever it finds."""
    file = tmp_path / "old.pt"
    flat_file(file)
    with (
        zipfile.ZipFile(file) as archive,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for one in archive.infolist():
            bomb.writestr(
                one.filename,
                archive.read(one) + bytes(50_000_000) * one.filename.endswith("data.pkl"),
            )
    assert (tmp_path / "bomb.pt").stat().st_size < 1_000_000
    with pytest.raises(CannotConvert, match="is compressed"):
        convert(tmp_path / "bomb.pt", tmp_path / "new")


def test_an_index_without_end(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "model.safetensors.index.json").write_text("[" * 200_000)
    with pytest.raises(CannotConvert, match="no `weight_map`"):
        convert(tmp_path / "hub", tmp_path / "new")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CannotConvert, match="neither a file nor a folder"):
        convert(tmp_path / "pipe", tmp_path / "new")


def test_flat_parameters_are_refused(tmp_path: Path) -> None:
    torch.save({"model": {"_flat_param": torch.ones(3)}}, tmp_path / "old.pt")
    with pytest.raises(CannotConvert, match="LOCAL_STATE_DICT"):
        convert(tmp_path / "old.pt", tmp_path / "new")


def said(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(program, ["migrate-checkpoint", *map(str, words)])
    return result.exit_code, result.output


def test_the_command(tmp_path: Path) -> None:
    file, folder = tmp_path / "old.pt", tmp_path / "new"
    flat_file(file)
    code, told = said(file, folder)
    assert code == 0
    assert told.splitlines() == [
        f"file {file} -> folder {folder}: 6 tensors, 80 bytes, 6 other values",
        "1 tensors shared memory with others; each has its own now",
    ]
    assert said(file, folder) == (1, f"Error: {folder}: exists already; --force replaces it\n")
    assert said(file, folder, "--force")[0] == 0
    nothing = f"{tmp_path / 'no'}: there is no such file or folder"
    assert said(tmp_path / "no", folder) == (1, f"Error: {nothing}\n")
    assert "there is no .metadata in it" in said(tmp_path, tmp_path / "x.pt")[1]
    assert said(file, file, "--force")[1].endswith(
        "is inside the checkpoint that it is converted from\n"
    )


def test_a_folder_of_hugging_face_becomes_a_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = tmp_path / "hub"
    folder.mkdir()
    tensors = {"a": torch.arange(4.0), "b": torch.ones(2, 3), "c": torch.zeros(1)}
    save_file({"a": tensors["a"]}, folder / "model-00001-of-00002.safetensors")
    save_file({n: tensors[n] for n in "bc"}, folder / "model-00002-of-00002.safetensors")
    places = {n: f"model-0000{1 + (n != 'a')}-of-00002.safetensors" for n in tensors}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert convert(folder, tmp_path / "made").tensors == 3
    assert (tmp_path / "made" / ".metadata").is_file()
    convert(tmp_path / "made", tmp_path / "whole.pt")
    whole = torch.load(tmp_path / "whole.pt")
    assert whole.keys() == tensors.keys()
    assert all(torch.equal(whole[n], tensors[n]) for n in tensors)
    index.write_text(json.dumps({"weight_map": {**places, "d": places["a"]}}))
    with pytest.raises(CannotConvert, match="no file holds `d`"):
        convert(folder, tmp_path / "other")
    index.write_text(json.dumps({"weight_map": {"a": "../whole.pt"}}))
    with pytest.raises(CannotConvert, match=r"there is no file `\.\./whole\.pt` beside it"):
        convert(folder, tmp_path / "other")


def test_a_state_by_numbers_is_said(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "old.pt")
    assert (
        "keyed by numbers and FSDP2 needs parameter names"
        in said(tmp_path / "old.pt", tmp_path / "new")[1]
    )


def test_a_file_is_what_torch_save_makes(tmp_path: Path) -> None:
    """Parameters stay parameters, what was transposed keeps its values, and other readers find the checksums right."""
    old = {
        "weight": torch.nn.Parameter(torch.randn(3, 4).t(), requires_grad=False),
        "shape": torch.Size([2, 3]),
        "none": torch.zeros(0, 4),
        "one": torch.tensor(2.5),
        "half": torch.randn(5)[1:4].to(torch.float8_e5m2),
    }
    groups = [{"betas": (0.9, 0.95), "type": torch.bfloat16}, []]
    torch.save({"model": old, "groups": groups}, tmp_path / "old.pt")
    convert(tmp_path / "old.pt", tmp_path / "new.pt")
    new = torch.load(tmp_path / "new.pt")
    assert isinstance(new["model"]["weight"], torch.nn.Parameter)
    assert not new["model"]["weight"].requires_grad
    assert new["groups"] == groups
    assert new["model"].keys() == old.keys()
    for name, value in old.items():
        assert torch.equal(torch.as_tensor(new["model"][name]), torch.as_tensor(value)), name
    assert torch.load(tmp_path / "new.pt", mmap=True)["model"]["one"] == 2.5
    with zipfile.ZipFile(tmp_path / "new.pt") as archive:
        assert archive.testzip() is None


def test_a_folder_is_what_a_save_makes(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    states = flat_file(tmp_path / "old.pt")
    convert(tmp_path / "old.pt", tmp_path / "new")
    save(torch.load(tmp_path / "old.pt"), storage_writer=FileSystemWriter(tmp_path / "usual"))
    ours, usual = (FileSystemReader(tmp_path / n).read_metadata() for n in ("new", "usual"))
    assert ours.state_dict_metadata == usual.state_dict_metadata
    assert ours.planner_data == usual.planner_data
    assert states.keys() == {path[0] for path in ours.planner_data.values()}


def test_weights_become_a_folder_of_hugging_face(tmp_path: Path) -> None:
    from fsdp2lint.bridge.convert.reading import states_of
    from fsdp2lint.bridge.convert.writing import write_shards

    weights = {f"layers.{n}.weight": torch.randn(64, 4) for n in range(5)}
    torch.save({"model": weights, "epoch": 7}, tmp_path / "old.pt")
    code, told = said("--to", "huggingface", tmp_path / "old.pt", tmp_path / "hub")
    assert code == 0
    assert "a safetensors file holds weights only: left out `epoch`" in told
    assert sorted(p.name for p in (tmp_path / "hub").iterdir()) == [
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
    ]
    states = states_of(tmp_path / "old.pt", trust=False)
    write_shards(states["model"], tmp_path / "parts", lambda size: None, largest=2100)
    assert len(list((tmp_path / "parts").glob("*-of-00003.safetensors"))) == 3
    for folder in ("hub", "parts"):
        convert(tmp_path / folder, tmp_path / "new.pt", force=True)
        assert same(torch.load(tmp_path / "new.pt"), weights)


def test_a_tensor_of_two_ranks_is_joined(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.metadata import MetadataIndex

    whole, folder = torch.arange(24.0).view(6, 4), tmp_path / "folder"
    torch.save({"first": whole[:, :1].clone(), "second": whole[:, 1:].clone()}, tmp_path / "old.pt")
    convert(tmp_path / "old.pt", folder)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (first,), (second,) = (metadata.state_dict_metadata[n].chunks for n in ("first", "second"))
    places = metadata.storage_data
    second.offsets = torch.Size([0, 1])
    for name, chunk in (("first", first), ("second", second)):
        held = places.pop(MetadataIndex(name, torch.Size([0, 0])))
        places[MetadataIndex("whole", chunk.offsets)] = held
    entry = metadata.state_dict_metadata.pop("first")
    entry.size, entry.chunks = torch.Size([6, 4]), [first, second]
    metadata.state_dict_metadata, metadata.planner_data = {"whole": entry}, None
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    convert(folder, tmp_path / "new.pt")
    assert torch.equal(torch.load(tmp_path / "new.pt")["whole"], whole)
    entry.chunks = [first]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CannotConvert, match="parts of `whole` are missing"):
        convert(folder, tmp_path / "other.pt")


MEASURED = """
import resource, sys
from pathlib import Path
import torch, torch.distributed.checkpoint
from fsdp2lint.bridge.convert import convert

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

folder = Path(sys.argv[1])
torch.save({"a": torch.ones(3)}, folder / "small.pt")
convert(folder / "small.pt", folder / "small")
before = peak()
for old, new, kind in (
    ("old.pt", "folder", "folder"),
    ("folder", "new.pt", "file"),
    ("folder", "hub", "huggingface"),
    ("hub", "new.safetensors", "file"),
):
    convert(folder / old, folder / new, kind=kind)
print(peak() - before)
"""


def test_one_tensor_at_a_time_is_in_memory(tmp_path: Path) -> None:
    """Four conversions in a row take what the largest tensor takes, beyond what a small one takes."""
    tensors = 4
    size = int(float(os.environ.get("FSDP2LINT_LARGE", "0.16")) * 1e9) // tensors
    layers = {f"layers.{n}": torch.empty(size, dtype=torch.uint8) for n in range(tensors)}
    with torch.serialization.skip_data():
        torch.save({"model": layers}, tmp_path / "old.pt")  # a hole: it takes no room on the disk
    command = [sys.executable, "-c", MEASURED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.1 * size + 50e6
    assert convert(tmp_path / "new.safetensors", tmp_path / "again.pt").size == tensors * size
