"""PEFT: adapters are put into a model in place, and a ``PeftModel`` around it.

Sources: peft/mapping_func.py, peft/mapping.py, peft/peft_model.py, peft/utils/{other,save_and_load}.py,
peft/tuners/tuners_utils.py (0.18).

``PeftModel.base_model`` is the tuner (``LoraModel``), and ``PeftModel.base_model.model`` the model; with prompt
learning there is no tuner between. Both pass on what they do not have themselves.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.checkpoints.state_dicts import take
from fsdp2lint.meanings.families import last
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import choices, each_choice, instance, name_of, nothing
from fsdp2lint.model.events import Restored, Wrapping
from fsdp2lint.model.values import Literal, Value, Wrapped

_PROMPTS = ("Prompt", "PrefixTuning", "CPT", "Cartridge")
"""How the configurations of prompt learning are called (``PromptLearningConfig`` and what is derived from it)."""

_MODELS = tuple(
    f"peft.PeftModel{task}"
    for task in (
        "",
        "ForCausalLM",
        "ForFeatureExtraction",
        "ForQuestionAnswering",
        "ForSeq2SeqLM",
        "ForSequenceClassification",
        "ForTokenClassification",
    )
)


@calls(
    "peft.get_peft_model",
    "peft.PeftMixedModel",
    "peft.PeftMixedModel.from_pretrained",
    *_MODELS,
    *(f"{name}.from_pretrained" for name in _MODELS),
)
def get_peft_model(call: Call) -> Value | None:
    """Freezes the model, puts adapters into it, in place, and returns a ``PeftModel`` around it."""
    model = call.get(0, "model")
    if model is None or isinstance(model, Literal):
        return None
    config = call.get(1, "peft_config")
    return call.machine.spread(model, lambda one: _adapted(call, one, config))


def _adapted(call: Call, model: Value, config: Value | None) -> Value:
    call.use_as_module(model)
    prompts = last(name_of(config)).startswith(_PROMPTS)
    made = Wrapped(model if prompts else Wrapped(model, "tuner"), "peft")
    call.emit(Wrapping, module=model, by="peft", result=made, options=call.keywords)
    return made


@calls("peft.inject_adapter_in_model")
def inject(call: Call) -> Value | None:
    """``inject_adapter_in_model(config, model)`` puts adapters in and returns the model itself."""
    model = call.get(1, "model")
    return model if _in_place(call, model) else None


@method("add_adapter")
def add_adapter(call: Call) -> Value | None:
    """``add_adapter(…)`` of ``PeftModel`` and of transformers' models (transformers/integrations/peft.py)."""
    if not any(call.is_module(one) for one in choices(call.receiver)):
        return None
    return nothing(call) if _in_place(call, call.receiver) else None


def _in_place(call: Call, model: Value | None) -> bool:
    found = False
    for one in call.each(model):
        call.use_as_module(one)
        call.emit(Wrapping, module=one, by="peft", result=one, options=call.keywords)
        found = True
    return found


@calls(
    "peft.prepare_model_for_kbit_training",
    "peft.prepare_model_for_int8_training",
    "peft.utils.prepare_model_for_kbit_training",
    "peft.utils.other.prepare_model_for_kbit_training",
)
def prepare_for_kbit(call: Call) -> Value | None:
    """Freezes every parameter, casts half ones to float32, and returns the same model."""
    return call.get(0, "model")


@method("merge_and_unload", "unload", "get_base_model")
def base(call: Call) -> Value | None:
    """The model without its adapters: the object that they were put into."""
    receiver = call.receiver
    if receiver is None or not any(_is_adapted(one) for one in choices(receiver)):
        return None
    return each_choice(receiver, _base)


def _is_adapted(value: Value) -> bool:
    return isinstance(value, Wrapped) and value.by in ("peft", "tuner")


def _base(value: Value) -> Value:
    while isinstance(value, Wrapped) and value.by in ("peft", "tuner"):
        value = value.of
    return value


@method(
    "print_trainable_parameters",
    "get_nb_trainable_parameters",
    "set_adapter",
    "merge_adapter",
    "unmerge_adapter",
    "disable_adapter",
)
def adapters(call: Call) -> Value | None:
    """Methods of an adapted model that keep nothing; ``disable_adapter`` is a context."""
    if not any(_is_adapted(one) for one in choices(call.receiver)):
        return None
    return instance(call) if call.name == ".disable_adapter" else nothing(call)


# -- states -----------------------------------------------------------------------------------------------------

_STATES = ("peft.", "peft.utils.", "peft.utils.save_and_load.")


@calls(*(f"{home}get_peft_model_state_dict" for home in _STATES))
def get_state(call: Call) -> Value | None:
    """The adapters' entries of ``state_dict``, which is ``model.state_dict()`` unless given."""
    model, given = call.get(0, "model"), call.get(1, "state_dict")
    if model is None:
        return None
    if given is None or (isinstance(given, Literal) and given.value is None):
        return call.machine.spread(model, lambda one: take(call, one, "model", None, None))
    return given


@calls(*(f"{home}set_peft_model_state_dict" for home in _STATES))
def set_state(call: Call) -> Value | None:
    """``model.load_state_dict(…, strict=False)`` with the adapters' entries."""
    model, state = call.get(0, "model"), call.get(1, "peft_model_state_dict")
    if model is None or state is None:
        return None
    for one in call.each(model):
        call.use_as_module(one)
        call.emit(Restored, into=one, state=state, via=call.name, kind="model")
    return nothing(call)
