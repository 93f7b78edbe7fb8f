"""What the host makes of a call before the launch, kept with a trace: the kernel's parameters in
order, and the attributes of the launch."""

from __future__ import annotations

ROLES = {  # of ``execution.binding.Buffer``, in words
    "operand": "an operand",
    "result": "the result",
    "partials": "partial sums",
    "locks": "locks",
}


def handed_over(binding) -> dict:
    """-> {"parameters": [name, type, what it is], one for each; "attributes": words}, of an
    ``execution.binding.Binding``."""
    definition, config = binding.definition, binding.config
    maps = definition.tensor_maps(config, *binding.sizes)
    sizes = dict(zip(("m", "n", "k", "a_stride"), binding.sizes))

    def what(name: str) -> str:
        if name in maps:
            operand, each = maps[name]
            box = " x ".join(map(str, each.box))
            swizzle = f", swizzled in {each.swizzle} bytes" if each.swizzle else ""
            return f"tensor map of {operand}: a copy brings {box} elements{swizzle}"
        if name in binding.buffers:
            buffer = binding.buffers[name]
            shape = " x ".join(map(str, buffer.shape))
            return f"address of {ROLES[buffer.role]}, {shape} {buffer.dtype}"
        return str(sizes[name]) if name in sizes else "null: not used by this configuration"

    cluster, attributes = definition.cluster(config), []
    if cluster > 1:
        attributes.append(f"clusters of {cluster} blocks")
    if definition.dependent(config):
        attributes.append("it may begin before the launch before it has ended")
    return {
        "parameters": [[name, kind, what(name)] for name, kind in definition.parameters],
        "attributes": attributes,
    }
