"""Files of one process: ``torch.save``, ``torch.load``, safetensors, pickle.

Sources: torch/serialization.py, safetensors.torch (https://huggingface.co/docs/safetensors/api/torch).
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import choices, fresh, nothing
from fsdp2lint.model.events import Loaded, Restored, Saved
from fsdp2lint.model.values import Value


@calls("torch.save", "pickle.dump", "joblib.dump")
def save(call: Call) -> Value | None:
    """Writes an object as it is on this rank."""
    return _saved(call, call.get(0, "obj"), call.get(1, "f") or call.get(1, "file"))


@calls("safetensors.torch.save_file", "safetensors.torch.save_model")
def save_safetensors(call: Call) -> Value | None:
    """``save_file(tensors, filename)``, ``save_model(model, filename)``."""
    what = call.get(0, "tensors") or call.get(0, "model")
    return _saved(call, what, call.get(1, "filename"))


def _saved(call: Call, what: Value | None, path: Value | None) -> Value | None:
    if what is None:
        return None
    call.emit(Saved, what=what, via=call.name, path=path, states=call.states(what))
    return nothing(call)


@method("save_pretrained")
def save_pretrained(call: Call) -> Value | None:
    """``model.save_pretrained(folder, state_dict=…)`` of transformers writes from this process."""
    if not any(call.is_module(one) for one in choices(call.receiver)):
        return None
    given = call.keywords.get("state_dict")
    what = given or call.receiver
    if what is None:
        return None
    path = call.get(0, "save_directory")
    call.emit(Saved, what=what, via=call.name, path=path, states=call.states(given))
    return nothing(call)


@calls("torch.load", "safetensors.torch.load_file", "pickle.load", "joblib.load")
def load(call: Call) -> Value | None:
    """Reads a new object; where it goes shows when it is put into something."""
    path = call.get(0, "f") or call.get(0, "filename") or call.get(0, "file")
    made = fresh(call, call.name)
    call.emit(Loaded, via=call.name, into=None, path=path, result=made)
    return made


@calls("safetensors.torch.load_model")
def load_model(call: Call) -> Value | None:
    """Reads a file straight into a model."""
    model = call.get(0, "model")
    if model is None:
        return None
    made = fresh(call)
    path = call.get(1, "filename")
    call.emit(Loaded, via=call.name, into=model, path=path, result=made)
    for one in call.each(model):
        call.use_as_module(one)
        call.emit(Restored, into=one, state=made, via=call.name, kind="model")
    return made
