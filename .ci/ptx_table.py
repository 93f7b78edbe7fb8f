"""docs/ptx.md: which instructions of the PTX ISA the machine runs, and which it refuses by name.

    python .ci/ptx_table.py

Every line of ptx_forms.txt is a legal form of an instruction (a test has ptxas assemble them all),
given to the machine, whose own dispatch table and handlers say whether it runs. Nothing else is
written down, so the page says what the machine does. A line may begin with the target that it
needs; ``#`` begins a section.
"""

from dataclasses import dataclass
from pathlib import Path

from numba_marlin.emulator import Machine, MachineError, UnknownInstruction
from numba_marlin.emulator.instructions import root_of

ROOT = Path(__file__).resolve().parent.parent
FORMS, PAGE = Path(__file__).with_name("ptx_forms.txt"), ROOT / "docs" / "ptx.md"
TARGET = "sm_90a"
PARAMETER_BYTES = 256
SHORT = 60  # characters of a statement

FRAME = """.version 9.0
.target {target}
.address_size 64
.shared .align 128 .b8 s[4096];
.global .align 128 .b8 g[4096];
.const .align 128 .b8 c[256];
.func f() {{ ret; }}
{kernels}"""
KERNEL = """.visible .entry {name}(.param .align 128 .b8 p[256])
.maxntid 32, 1, 1
{{
.reg .pred %q<8>;
.reg .b8 %c<4>;
.reg .b16 %h<8>;
.reg .b32 %r<16>;
.reg .b64 %rd<16>;
.reg .f32 %f<16>;
.reg .f64 %fd<8>;
{wide}.local .align 16 .b8 l[64];
bra $END;
{statement}
$END: ret;
}}
"""
WIDE = ".reg .b128 %x<4>;\n"

INTRODUCTION = """# PTX on the machine

Made by `.ci/ptx_table.py`: every form here was given to the PTX machine. *Runs*: its handler took
it. *Refused*: the machine says so with the instruction's line before anything runs
(`UnknownInstruction`, or `PtxSyntaxError` where its text cannot be read); nothing is executed as
something else. A form stands for those of its kind: the page has {forms} of them, of which {runs}
run.

What only hardware can tell: the `.approx` functions of float32 and of halves are exact and rounded
once; `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64` use and give the upper 32 bits. Sums of `mma`
and `wgmma` are those of the chip that `Machine(adds_like=...)` names, an H200 if it names none; the
sums and the metadata of sparse products (`mma.sp`, `wgmma.mma_async.sp`) agree with an H200's.
`%clock` counts warp instructions. Hints to caches do nothing; `discard` fills with 0xA5.
"""


@dataclass(frozen=True)
class Form:
    section: str
    target: str
    statement: str

    @property
    def opcode(self) -> str:
        return self.statement.split()[0].rstrip(";")

    @property
    def family(self) -> str:
        return self.opcode.split(".")[0].split("::")[0]


def forms() -> list[Form]:
    found, section = [], ""
    for line in FORMS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line[1:].strip()
        elif line.strip():
            target, statement = line.split(": ", 1) if line.startswith("sm_") else (TARGET, line)
            found.append(Form(section, target, statement.strip()))
    return found


def module(some: list[Form]) -> str:
    """One kernel for each of ``some`` forms, which have one target."""
    kernels = "".join(
        KERNEL.format(
            name=f"k{number}",
            statement=form.statement,
            wide=WIDE if "%x" in form.statement else "",
        )
        for number, form in enumerate(some)
    )
    return FRAME.format(target=some[0].target, kernels=kernels)


def refusal(form: Form) -> str:
    """Why the machine refuses ``form``; empty if it runs."""
    try:
        Machine(module([form])).run(args=[bytes(PARAMETER_BYTES)])
    except UnknownInstruction as error:
        if root_of(form.opcode) is None:
            return "no handler"
        return _said(error).removeprefix(f"{form.opcode}: ")
    except MachineError as error:
        return _said(error)
    return ""


def _said(error: MachineError) -> str:
    return error.detail.removesuffix(" (in kernel k0)")


def page() -> str:
    all_forms = forms()
    refused = {form: refusal(form) for form in all_forms}
    runs = sum(not reason for reason in refused.values())
    lines = [INTRODUCTION.format(forms=len(all_forms), runs=runs)]
    for section in dict.fromkeys(form.section for form in all_forms):
        lines += [f"## {section}", "", "| family | runs | refused |", "|---|---|---|"]
        families: dict[str, list[Form]] = {}
        for form in all_forms:
            if form.section == section:
                families.setdefault(form.family, []).append(form)
        for family, some in sorted(families.items()):
            taken = ", ".join(shown(form) for form in some if not refused[form])
            left = "; ".join(
                f"{shown(form, with_operands=True)}: {refused[form]}"
                for form in some
                if refused[form]
            )
            lines.append(f"| {family} | {taken} | {left.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


def shown(form: Form, with_operands: bool = False) -> str:
    """The opcode, and if they are few its operands; of special registers, which one."""
    if form.section == "Special registers":
        return f"`{form.statement.rstrip(';').split()[-1]}`"
    whole = form.statement.rstrip(";")
    text = whole if with_operands and len(whole) <= SHORT else form.opcode
    return f"`{text}`" + (f" ({form.target})" if form.target != TARGET else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
