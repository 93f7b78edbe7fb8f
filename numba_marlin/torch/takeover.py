"""``take_over``: transformers' own ``from_pretrained`` uses our layers for directories of other
methods.

transformers finds the loader of a quantised directory by the ``quant_method`` in its config.json.
``take_over`` registers our configuration under that name, with transformers' own function, in the
place of its own; so nothing but the name is looked at, and what the files hold is read as
``from_pretrained`` of this package reads it. A configuration that is *passed* to transformers
(``quantization_config=GPTQConfig(...)``) is not of ours: it still quantises a float model by its
own loader.
"""

from __future__ import annotations

from transformers.quantizers.auto import (
    AUTO_QUANTIZATION_CONFIG_MAPPING,
    register_quantization_config,
)

from numba_marlin.torch.transformers import Config

METHODS = ("gptq", "awq", "compressed-tensors", "modelopt", "mxfp4")
_taken: dict[str, type] = {}  # by method, what stood there before


class TakenOver:
    """What ``take_over`` did. ``undo()`` gives the methods back, once; as a context manager it is
    undone at the end of the block."""

    def __init__(self, methods: tuple[str, ...]):
        self.methods = methods

    def undo(self) -> None:
        for method in self.methods:
            AUTO_QUANTIZATION_CONFIG_MAPPING.pop(method, None)
            before = _taken.pop(method)
            if before is not None:
                register_quantization_config(method)(before)
        self.methods = ()

    def __enter__(self) -> TakenOver:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<taken over: {', '.join(self.methods) or 'nothing (undone)'}>"


def take_over(*methods: str) -> TakenOver:
    """After it transformers' ``AutoModelForCausalLM.from_pretrained(path)`` gives a model with our
    layers, if config.json names one of these methods.

        with nmt.take_over("gptq", "awq"):
            model = AutoModelForCausalLM.from_pretrained("llama-gptq/")

    methods: of METHODS; none: all of them.

    ValueError for another, and for one that is taken over already; then nothing is changed.
    """
    wanted = methods or METHODS
    for method in wanted:
        if method not in METHODS:
            raise ValueError(f"method {method!r} must be one of {', '.join(METHODS)}")
        if method in _taken or wanted.count(method) > 1:
            raise ValueError(f"method {method!r} is taken over already: undo() that first")
    for method in wanted:
        _taken[method] = AUTO_QUANTIZATION_CONFIG_MAPPING.pop(method, None)
        register_quantization_config(method)(_Ours)
    return TakenOver(wanted)


class _Ours(Config):
    """Stands under the name of another method: of what config.json says of it nothing is taken."""

    @classmethod
    def from_dict(cls, config_dict, return_unused_kwargs=False, **kwargs):
        return (Config(), kwargs) if return_unused_kwargs else Config()
