"""Glue *fused*: what lies between two products of a decode step, in as few kernels as there can be,
written in Triton (``norm``, ``attention``, ``gate``; ``join`` over several GPUs). Needs Triton.

**The order of launches.** Every kernel is launched programmatically dependent on the one before. A
kernel of this glue lets the next one begin (``griddepcontrol.launch_dependents``) as its first
instruction, before it waits itself (``griddepcontrol.wait``), as the decode kernel does too: so the
product that follows fills its ring with weights while the product before the glue still runs. A
kernel that has waited knows that the launch before it is complete, and, since that one had waited,
all launches before. A kernel that has not waited yet knows only what was complete at the last
launch that is not programmatically dependent. A step begins with such launches, torch's own: of the
embedding and of the angles. So before its wait a kernel reads nothing but

* constants: weights of norms, as products read their codes and scales;
* what is complete when a step begins, and that the step does not write: the cache's rows but for
  this token's, the position, the angles.

It writes nothing before its wait.

A prefill has other sizes: it takes the compiled kernels for its rotary embedding, and these for
the rest.
"""

from __future__ import annotations

from dataclasses import replace

from attention import attention
from decoder import Glue, compiled_glue
from gate import gated
from norm import add_norm, norm


def fused_glue() -> Glue:
    return replace(
        compiled_glue(True),
        name="fused",
        norm=norm,
        add_norm=add_norm,
        attention=attention,
        gated=gated,
    )
